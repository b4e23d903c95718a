"""The list of bad input that qworker has to stand, item by item, and the tests that prove it.

A test is named by its case in one of the tables of this folder (`name`, `value`, `number`,
`command`), as a row of the faults or a kind of damage that fsck is tried with (`fault`, `damage`),
or by file and name.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.bad_input import test_commands, test_names, test_numbers, test_values
from tests.faults.rows import ROWS
from tests.fsck.damage import DAMAGES

ROOT = Path(__file__).parents[2]
TABLES = {
    "name": test_names.NAMES,
    "value": test_values.TABLE,
    "number": test_numbers.TABLE,
    "command": test_commands.TABLE,
    "fault": ROWS,
    "damage": DAMAGES,
}
HERE = "tests/bad_input"
ACCEPTED = f"{HERE}/test_accepted.py"
AROUND = f"{HERE}/test_surroundings.py"
COMMANDS = f"{HERE}/test_commands.py"
FOUND = f"{HERE}/test_found_data.py"
TIME = f"{HERE}/test_time_and_host.py"
WORKER = "tests/consumer/test_worker.py"
OUTCOMES = "tests/consumer/test_outcomes.py"
FETCHING = "tests/consumer/test_fetching.py"
REAPER = "tests/daemon/test_reaper.py"
SCHEDULER = "tests/daemon/test_scheduler.py"
CONNECTION = "tests/store/test_connection.py"
EMBEDDED = "tests/store/test_embedded.py"
LUA = "tests/lua"
ANY_CONTENT = "tests/fuzz/test_contents.py::test_no_content_of_a_queue_stops_anything"
ANY_DAMAGE = "tests/fsck/test_random.py::test_repaired_damage_is_gone_and_nothing_readable_with_it"

NAMES_OF_QUEUES = {
    "empty": ["name: empty"],
    "65 characters": ["name: 65 characters"],
    "upper case": ["name: upper case"],
    "space": ["name: space"],
    "colon": ["name: colon"],
    "hash tag": ["name: hash tag"],
    "hash tag turned over": ["name: hash tag turned over"],
    "globs of an ACL": ["name: glob star", "name: glob question mark", "name: glob range"],
    "control characters": [
        "name: newline",
        "name: newline at the end",
        "name: carriage return",
        "name: NUL",
        "name: escape",
    ],
    "not ASCII, homoglyph": ["name: not ASCII", "name: homoglyph", "name: lone surrogate"],
    "reserved": ["name: reserved: reaper", "name: reserved: queues", "name: reserved: workers"],
    "no text": ["name: integer", "name: None", "name: bytes"],
    "path, percent escapes": ["name: path", "name: percent escapes"],
    "in every verb of the command line": [
        "tests/cli/test_main.py::test_a_name_that_is_none_reaches_neither_server_nor_terminal"
    ],
    "in the environment": ["command: variable: namespace", "command: variable: queues"],
}

BODIES_AND_KEYS = {
    "larger than maxsize": [
        "value: body: larger than maxsize",
        "value: body: larger than maxsize in a task",
        "tests/cli/test_send.py::test_the_limit_of_the_queue_counts_in_both_directions",
    ],
    "before any network call": [
        f"{HERE}/test_values.py::test_it_is_refused_before_any_network_call"
    ],
    "exactly maxsize": [f"{ACCEPTED}::test_bytes_come_back_as_they_were_sent"],
    "0 bytes": [f"{ACCEPTED}::test_bytes_come_back_as_they_were_sent"],
    "what JSON cannot carry": [
        "value: body: object",
        "value: body: function",
        "value: body: complex number",
        "value: body: NaN",
        "value: body: infinity",
        "value: body: minus infinity",
        "value: body: Decimal in a set with an object",
        "value: body: number as a key",
        "value: arguments: NaN",
    ],
    "datetime, UUID, Decimal, set and bytes are fine": [
        f"{ACCEPTED}::test_types_that_json_lacks_are_restored_by_the_handler"
    ],
    "lone surrogate": ["value: body: lone surrogate", "value: body: lone surrogate in a key"],
    "depth over 64": [
        "value: body: 65 levels",
        "value: body: a list that holds itself",
        f"{ACCEPTED}::test_64_levels_are_taken",
    ],
    "integer over 2^53": [
        f"{ACCEPTED}::test_an_integer_is_exact_through_every_move",
        "value: body: integer of 5000 digits",
    ],
    "bytes of every value": [f"{ACCEPTED}::test_bytes_come_back_as_they_were_sent"],
    "arguments that do not fit": [
        "value: arguments: wrong type",
        "value: arguments: missing",
        "value: arguments: unknown",
        "value: arguments: too many",
        f"{OUTCOMES}::test_arguments_that_do_not_fit_are_dead_at_once",
    ],
    "unique key that is none": [
        "value: unique key: empty",
        "value: unique key: 257 bytes",
        "value: unique key: no text",
        "value: unique key: lone surrogate",
    ],
    "message id that is none": [
        "command: flag: message id",
        "command: flag: message id with a brace",
        "command: flag: receipt",
    ],
    "unique key held, same body": [
        f"{ACCEPTED}::test_a_unique_key_that_is_held_keeps_any_body_out"
    ],
    "unique key held, another body": [
        f"{ACCEPTED}::test_a_unique_key_that_is_held_keeps_any_body_out",
        "tests/cli/test_send.py::test_a_unique_key_that_is_held_sends_nothing",
    ],
    "a bad one among many": [
        "value: batch: one that JSON cannot carry",
        "value: batch: one that is no container",
        "value: batch: one in a list",
        "value: batch: one too large",
        "value: arguments: a bad one among many",
        "tests/cli/test_send.py::test_a_line_that_is_too_large_stops_all_of_them",
    ],
    "a batch of 0": [f"{ACCEPTED}::test_a_batch_of_nothing_does_nothing"],
    "a batch over 1,000": [
        f"{ACCEPTED}::test_more_than_a_call_takes_go_in_several",
        "value: batch: none received",
        "value: batch: 1,001 received",
        "value: batch: True received",
        "value: batch: 1,001 looked at",
    ],
}

NUMBERS_AND_TIMES = {
    "delay NaN or infinite": [
        "number: delay NaN",
        "number: delay infinite",
        "number: delay minus infinity",
        "number: delay of a nack",
        "number: wait NaN",
    ],
    "delay below 0": [
        "number: delay -1",
        "number: delay of a negative timedelta",
        "number: delay of send_later",
        "number: delay of a release",
        "number: ttl -1",
    ],
    "delay of another type": [
        "number: delay True",
        "number: delay of text without a unit",
        "number: delay of another unit",
        "number: delay in Arabic digits",
    ],
    "delay over the limit": [
        "number: delay beyond a due time of 2^53 ms",
        "number: delay without end",
        f"{ACCEPTED}::test_a_delay_reaches_as_far_as_a_score_is_exact",
    ],
    "delay 0": [f"{ACCEPTED}::test_no_wait_is_ready_at_once"],
    "naive eta": [
        "number: naive eta",
        "number: eta of text",
        "number: eta beside a delay",
    ],
    "eta in the past": [f"{ACCEPTED}::test_no_wait_is_ready_at_once"],
    "visibility out of range": [
        "number: visibility 0",
        "number: visibility under a second",
        "number: visibility over 12 h",
        "number: visibility of a receive",
        "number: visibility of an extension",
        "command: variable: visibility 0",
        "command: variable: visibility over 12 h",
        f"{ACCEPTED}::test_visibility_0_is_visible_now",
    ],
    "tick of half the visibility": [
        "number: tick of half the visibility",
        "tests/daemon/test_service.py::test_warns_of_a_tick_that_is_long_for_a_queue",
    ],
    "max receives out of range": [
        "number: max receives 0",
        "number: max receives -1",
        "number: max receives a billion",
        "number: max receives of text",
        "command: flag: max receives a billion",
    ],
    "concurrency out of range": [
        "command: variable: concurrency 0",
        "command: variable: concurrency 10,000",
        "command: flag: concurrency 0",
    ],
    "prefetch times running time over the visibility": [
        f"{AROUND}::test_a_prefetched_batch_fits_into_its_visibility_timeout",
        "tests/consumer/test_pace.py::"
        "test_a_batch_never_lasts_over_a_quarter_of_the_visibility_timeout",
    ],
    "grace of 30 s": [f"{COMMANDS}::test_a_long_grace_time_is_noted"],
}

CONFIGURATION = {
    "URL": [name for name in test_commands.TABLE if name.startswith("URL")],
    "password in the URL": [
        "tests/cli/test_main.py::test_a_password_is_shown_nowhere",
        "tests/store/test_url.py::test_shows_the_password_as_stars",
        "tests/store/test_url.py::test_an_invalid_url_never_shows_its_password",
    ],
    "unknown key": [
        "command: file: unknown key",
        "command: file: unknown table",
        "command: file: key in the wrong place",
    ],
    "wrong file": [
        *(name for name in test_commands.TABLE if name.startswith("file")),
        f"{COMMANDS}::test_an_unreadable_file_is_refused",
        f"{COMMANDS}::test_an_empty_file_says_nothing",
        "tests/cli/test_setup.py::test_a_readable_password_is_warned_about",
    ],
    "variable": [name for name in test_commands.TABLE if name.startswith("variable")],
    "Sentinel and Cluster at once": [
        "command: URL: Sentinel and Cluster as flags",
        "command: URL: of Sentinel",
        "command: URL: of Cluster",
    ],
    "a database of a Cluster": ["command: URL: of Cluster with a database"],
    "module that cannot be used": [
        f"{COMMANDS}::test_an_app_that_cannot_be_used_is_bad_input",
        f"{WORKER}::test_an_app_that_cannot_be_used_ends_the_worker_with_the_reason",
        "command: flag: module that is not there",
    ],
    "metrics port": [
        "command: variable: port below 0",
        "command: variable: port over 65535",
        "command: flag: port over 65535",
        "tests/telemetry/test_http.py::test_port_that_is_taken_is_told_and_the_work_goes_on",
        "tests/daemon/test_service.py::test_port_that_is_taken_does_not_stop_it",
    ],
}

SERVERS = {
    "too old, or another one": [
        f"{CONNECTION}::test_refuses",
        f"{CONNECTION}::test_a_refused_server_is_refused_at_every_connect",
        f"{CONNECTION}::test_no_redis",
        "tests/store/test_engine.py::test_too_old_a_server_is_no_engine",
        "tests/store/test_server_errors.py::test_an_unknown_command",
    ],
    "settings that lose messages": [
        "tests/daemon/test_durability.py::test_says_what_is_lost_and_what_to_set",
        "tests/daemon/test_service.py::test_strict_refuses_a_server_that_loses_messages",
        "tests/cli/test_watching.py::test_doctor_reports_a_server_that_forgets",
    ],
    "stale pid and lock files": [
        f"{EMBEDDED}::test_a_stale_pid_and_lock_files_are_nothing",
        f"{EMBEDDED}::test_a_server_without_its_socket",
        f"{EMBEDDED}::test_a_lock_that_is_a_symlink",
        f"{EMBEDDED}::test_a_broken_record",
    ],
}

SURROUNDINGS = {
    "closed stdout, full disk under the log": [
        f"{WORKER}::test_a_closed_stdout_does_not_end_a_worker",
        f"{AROUND}::test_a_full_disk_under_the_log_stops_no_worker",
        "tests/daemon/test_service.py::test_log_that_cannot_be_written_does_not_stop_it",
        "tests/telemetry/test_logs.py::test_a_reader_that_went_away_stops_nothing",
    ],
    "signal in the middle of a receive": [
        f"{AROUND}::test_signals_in_the_middle_of_a_receive_lose_nothing",
        "tests/store/test_connection.py::test_a_signal_does_not_break_a_blocking_call",
    ],
    "nowhere to write, no HOME, no locale": [
        f"{AROUND}::test_a_worker_needs_no_home_no_place_to_write_and_no_locale",
        "tests/store/test_embedded.py::test_no_home",
        "tests/store/test_embedded.py::test_one_that_cannot_be_written",
    ],
    "no /dev/shm": [f"{AROUND}::test_a_worker_needs_no_shared_memory_file_system"],
    "without asserts": [f"{WORKER}::test_a_worker_runs_without_asserts"],
    "5,000 tasks": [f"{WORKER}::test_five_thousand_tasks_are_no_hardship"],
    "recursion without end": [
        f"{OUTCOMES}::test_recursion_without_end_is_a_failure_like_any_other"
    ],
}

HANDLERS = {
    "error without words, or with 10 MB of them": [
        f"{OUTCOMES}::test_an_error_that_can_hardly_be_told_is_told_in_2_kib"
    ],
    "result that JSON cannot carry": [
        f"{OUTCOMES}::test_a_handler_that_returns_acks_its_message_whatever_it_returns"
    ],
    "threads and processes left behind": [
        f"{AROUND}::test_what_a_handler_started_keeps_its_worker_from_nothing",
        f"{WORKER}::test_a_worker_survives_what_handlers_do_to_their_process",
    ],
    "descriptors closed": [
        f"{WORKER}::test_a_handler_that_takes_its_process_along_costs_the_worker_a_child"
    ],
    "directory, umask, signals, socket timeout": [
        f"{WORKER}::test_a_worker_survives_what_handlers_do_to_their_process"
    ],
}

DATA_FOUND = {
    "key of another type": [
        f"{FOUND}::test_a_key_of_any_other_type_stops_its_queue_alone",
        f"{REAPER}::test_broken_queue_does_not_stop_the_others",
        f"{FETCHING}::test_a_broken_queue_is_left_alone_and_others_go_on",
        f"{FETCHING}::test_outcomes_of_a_queue_that_breaks_are_told_when_it_is_mended",
        "tests/client/test_several.py::test_a_broken_queue_costs_the_others_nothing",
        f"{LUA}/test_sweep.py::test_broken_queue_is_told_and_the_others_go_on",
        f"{LUA}/test_settle_receive.py::test_key_of_another_type_refuses",
        f"{LUA}/test_reap.py::test_lease_of_another_type_is_set_aside",
        ANY_CONTENT,
    ],
    "a broken queue is seen": [
        "tests/daemon/test_gauges.py::test_tells_how_the_reaper_does",
        "tests/daemon/test_gauges.py::test_broken_queue_is_left_out",
        "tests/cli/test_queue.py::test_ls_lists_a_broken_queue_beside_the_others",
        "tests/cli/test_watching.py::test_doctor_finds_what_is_wrong_and_says_what_to_do",
        "tests/cli/test_fsck.py::test_a_key_of_another_type_stops_the_look_at_its_queue_only",
        "damage: a list of another type",
    ],
    "foreign push": [
        f"{FOUND}::test_what_others_push_is_dead_and_harms_nobody",
        f"{OUTCOMES}::test_a_foreign_item_is_dead_and_harms_nobody",
        f"{LUA}/test_settle_receive.py::test_foreign_items_are_buried_with_their_bytes",
        f"{LUA}/test_settle.py::test_header_that_does_not_match_is_foreign",
        f"{LUA}/test_reap.py::test_foreign_items_in_a_lease_are_buried",
        f"{LUA}/test_promote.py::test_items_of_others_become_ready_at_level_0",
        "tests/cli/test_formats.py::test_foreign_text_is_shown_and_never_obeyed",
        "tests/fuzz/test_envelope.py::test_python_and_lua_read_items_alike",
        "damage: a foreign item in ready",
    ],
    "JSON that anybody pushed": [
        f"{OUTCOMES}::test_a_message_pushed_as_bare_json_is_handled_and_can_fail",
        f"{OUTCOMES}::test_equal_plain_messages_stay_two",
        f"{FETCHING}::test_what_others_push_is_found_without_a_bell",
    ],
    "body that is none": [
        f"{FOUND}::test_what_others_push_is_dead_and_harms_nobody",
        "tests/fuzz/test_bodies.py::test_a_body_is_read_or_refused",
        "tests/security/test_payloads.py::test_a_body_that_would_run_elsewhere_is_bytes",
        "tests/security/test_code.py::test_nothing_that_runs_data_is_imported_or_called",
    ],
    # Only senders are bound by maxsize. What is there is taken, alone in its batch if it is large.
    "body that is very large": [
        f"{FOUND}::test_what_others_push_is_dead_and_harms_nobody",
        f"{LUA}/test_settle_receive.py::test_message_larger_than_the_bound_is_received_alone",
        f"{LUA}/test_settle_receive.py::test_bytes_of_items_that_end_count_as_well",
        f"{REAPER}::test_large_bodies_end_a_call_and_the_pass_goes_on",
    ],
    "envelope cut at any byte": [
        f"{FOUND}::test_an_envelope_cut_at_any_byte_is_dead_and_harms_nobody",
        f"{FOUND}::test_an_envelope_cut_at_any_byte_does_not_stop_the_reaper",
        "tests/wire/test_envelope.py::test_no_cut_header_is_ours",
        "tests/wire/test_codec.py::test_a_body_cut_off_anywhere_is_refused",
        "damage: half an envelope in ready",
    ],
    # An envelope has no checksum; what is to be proof against changes is signed.
    "wrong signature": [
        "tests/security/test_keyring.py::test_every_byte_of_the_body_counts",
        "tests/security/test_keyring.py::test_every_character_of_the_flags_counts",
        "tests/security/test_protection.py::test_what_nobody_signed_is_buried",
    ],
    "unknown version": [
        f"{LUA}/test_settle_receive.py::test_newer_versions_go_behind_the_others",
        f"{LUA}/test_settle_receive.py::test_newer_versions_alone_do_not_keep_a_consumer_busy",
        "tests/upgrade/test_scripts.py::test_a_lease_that_ran_out_gives_it_back_as_it_is",
        "tests/upgrade/test_scripts.py::test_a_settle_gives_it_back_as_it_is",
        "tests/upgrade/test_scripts.py::test_fsck_finds_nothing_wrong_with_it",
        "tests/upgrade/test_rolling.py::test_messages_of_the_next_version_wait_for_its_workers",
    ],
    "unknown codec or key": [
        f"{FOUND}::test_a_codec_that_nobody_here_knows_is_left_to_others_for_a_while",
        "tests/security/test_protection.py::test_a_message_whose_key_is_not_held_comes_back",
        "tests/security/test_protection.py::"
        "test_a_worker_without_the_key_leaves_the_message_to_others",
    ],
    # Bodies are never compressed. Only the import of RQ, which compresses its own, inflates anything.
    "zip bomb": [
        "tests/moving/test_rq.py::test_broken_data_stays",
        "tests/moving/test_pickles.py::test_short_pickle_that_stands_for_endless_values_is_refused",
    ],
    # Items are whole messages, not ids: the second one is a delivery with a receipt of its own.
    "the same item twice": [
        f"{FOUND}::test_an_item_that_stands_twice_in_ready_is_two_deliveries",
        f"{LUA}/test_mend.py::test_equal_items_of_a_list_are_two",
        "damage: the same item twice in a list",
        "damage: two messages of one id",
    ],
    "a message in two places": [
        f"{FOUND}::test_of_ready_and_delayed_the_earlier_place_stays",
        f"{LUA}/test_mend.py::test_the_second_copy_goes_and_another_message_is_buried",
        "damage: half received",
        "damage: half buried",
        ANY_DAMAGE,
    ],
    "nonsense in meta": [
        f"{FOUND}::test_nonsense_among_attributes_and_counters_counts_as_the_default",
        f"{LUA}/test_send.py::test_attribute_that_is_no_number_is_the_default",
        f"{LUA}/test_settle.py::test_max_receives_of_message_over_task_over_queue",
        f"{LUA}/test_settle_receive.py::test_queue_gives_the_visibility_where_the_call_does_not",
        f"{LUA}/test_journal.py::test_cap_that_is_none_is_the_default",
        "tests/client/test_options.py::test_a_stored_value_that_is_none_is_refused",
        "tests/cli/test_queue.py::test_show_says_what_is_stored_wrong",
    ],
    "nonsense in stats": [
        f"{FOUND}::test_nonsense_among_attributes_and_counters_counts_as_the_default",
        f"{LUA}/test_send.py::"
        "test_counter_that_is_no_number_is_reported_and_does_not_fail_the_call",
        f"{LUA}/test_settle.py::"
        "test_counter_that_is_no_number_is_reported_and_does_not_fail_the_call",
        f"{LUA}/test_reap.py::test_notes_of_another_kind_do_not_stop_reaping",
        f"{LUA}/test_inspect.py::test_content_of_others_breaks_nothing",
        "damage: a counter that is no number",
        "damage: stored too low",
    ],
    "nonsense in a header": [
        f"{FOUND}::test_nonsense_in_a_flag_is_as_if_it_were_not_there",
        f"{LUA}/test_settle.py::test_header_that_does_not_match_is_foreign",
        f"{LUA}/test_settle.py::test_six_digits_are_ours",
        "tests/wire/test_envelope.py::test_no_bytes_raise",
    ],
    "nonsense in other tables": [
        f"{LUA}/test_send.py::test_unreadable_holder_of_a_unique_key_is_replaced",
        f"{LUA}/test_prune.py::test_forgets_what_nobody_of_us_wrote",
        f"{LUA}/test_fire.py::test_slot_that_fired_far_ahead_holds_nobody_up",
        f"{LUA}/test_journal.py::test_stream_newer_than_the_counters_begins_a_new_epoch",
        f"{SCHEDULER}::test_unreadable_and_broken_schedules_stop_nothing",
        "tests/daemon/test_registry.py::test_entries_of_no_queue_are_left_aside_and_leave",
        "damage: a lane that says nothing",
        "damage: a division that says nothing",
        ANY_CONTENT,
    ],
    "dead letters that take no entry": [
        f"{REAPER}::test_lease_that_the_script_fails_on_is_set_aside",
    ],
    "deadline that is none": [
        f"{FOUND}::test_a_deadline_of_the_past_is_over",
        f"{FOUND}::test_a_deadline_that_no_receive_writes_is_found_and_brought_near",
        f"{LUA}/test_sweep.py::test_scores_of_another_kind_are_told_as_numbers",
        f"{LUA}/test_sweep.py::test_lease_that_nobody_can_name_is_set_aside",
        f"{LUA}/test_extend.py::test_no_deadline_is_further_than_12_hours",
        f"{LUA}/test_extend.py::test_deadline_before_all_time_is_raised",
        "damage: a deadline in years",
        "damage: an endless deadline",
        "damage: a deadline before all time",
    ],
    "due time that is none": [
        f"{LUA}/test_promote.py::test_due_time_beyond_all_time_waits",
        f"{LUA}/test_promote.py::test_score_before_all_time_is_due",
        "damage: delayed for ever",
        "damage: delayed until before all time",
    ],
    # A message is where its bytes are: it has no body apart. What can be left behind is a lease.
    "messages without a place": [
        f"{LUA}/test_mend.py::test_an_orphan_lease_gets_the_deadline_of_a_receive_now",
        f"{LUA}/test_mend.py::test_messages_of_an_unnamed_lease_go_to_ready_by_their_priority",
        "damage: a lease without deadline",
        "damage: a deadline without lease",
        "damage: a level that nobody receives",
    ],
    "unknown task": [
        "tests/consumer/test_elsewhere.py::test_pauses_grow_with_the_wait_and_end_with_it",
        "tests/security/test_payloads.py::test_a_message_names_registered_tasks_only",
    ],
    "arguments that do not fit": [f"{OUTCOMES}::test_arguments_that_do_not_fit_are_dead_at_once"],
}

TIME_AND_HOST = {
    "clock back an hour within a pass": [
        f"{TIME}::test_a_clock_that_goes_back_an_hour_within_a_pass_only_delays",
        f"{SCHEDULER}::test_clock_that_goes_back_an_hour_fires_nothing_twice",
        f"{LUA}/test_reap.py::test_after_a_gap_only_what_was_overdue_before_is_reaped",
        "tests/interleavings/test_interleavings.py::"
        "test_every_promise_holds_in_every_state_of_a_small_world",
        "tests/model/test_model.py::test_queue_does_what_the_model_says",
        "fault: F38",
    ],
    "clock forward a day": [
        f"{TIME}::test_a_clock_that_goes_forward_a_day_takes_nothing_from_a_consumer_that_lives",
        f"{SCHEDULER}::test_clock_that_was_a_day_ahead_silences_no_schedule",
        f"{LUA}/test_reap.py::test_consumer_that_extends_in_the_grace_keeps_its_lease",
        "fault: F38b",
    ],
    "clock that runs fast": ["fault: F38c"],
    "clocks of clients a day off": [
        f"{LUA}/test_send.py::test_due_time_is_counted_by_the_clock_of_the_server",
        f"{LUA}/test_send.py::test_explicit_time_is_for_tests_alone",
        "tests/consumer/test_events.py::test_a_clock_that_jumps_is_followed",
        "tests/cli/test_watching.py::test_doctor_speaks_of_a_clock_that_is_off",
        "fault: F39",
    ],
    "pid used again": [
        f"{EMBEDDED}::test_a_stale_pid_and_lock_files_are_nothing",
        f"{TIME}::test_workers_and_reapers_of_one_host_and_pid_are_told_apart",
        "tests/consumer/test_stops.py::test_a_child_ends_with_its_supervisor",
    ],
    "cloned container, forked process": [
        f"{TIME}::test_workers_and_reapers_of_one_host_and_pid_are_told_apart",
        "tests/wire/test_ids.py::test_sources_differ",
        "tests/wire/test_ids.py::test_lane_ids_are_random",
        "tests/wire/test_ids.py::test_fork_draws_new_identities",
        "tests/client/test_client.py::test_forked_children_store_each_message_once",
        f"{LUA}/test_settle_receive.py::test_used_lease_id_is_refused_before_anything_is_settled",
    ],
}

LIST = {
    f"{subject}: {item}": proofs
    for subject, items in {
        "queue name": NAMES_OF_QUEUES,
        "body or key": BODIES_AND_KEYS,
        "number or time": NUMBERS_AND_TIMES,
        "configuration": CONFIGURATION,
        "server": SERVERS,
        "surroundings": SURROUNDINGS,
        "handler": HANDLERS,
        "data found": DATA_FOUND,
        "time or host": TIME_AND_HOST,
    }.items()
    for item, proofs in items.items()
}


@pytest.mark.parametrize("item", LIST)
def test_every_item_is_proved(item: str) -> None:
    """By a test that is there."""
    assert LIST[item]
    for proof in LIST[item]:
        if "::" in proof:
            path, name = proof.split("::")
            source = (ROOT / path).read_text()
            assert re.search(rf"^ *(async )?def {name}\(", source, re.MULTILINE), proof
        else:
            table, _, case = proof.partition(": ")
            assert case in TABLES.get(table, {}) or proof in test_commands.TABLE, proof
