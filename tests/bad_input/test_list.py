"""The list of bad input that qworker has to stand, item by item, and the tests that prove it.

A test is named by its case in one of the tables of this folder (`name`, `value`, `number`,
`command`), or by file and name.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.bad_input import test_commands, test_names, test_numbers, test_values

ROOT = Path(__file__).parents[2]
TABLES = {
    "name": test_names.NAMES,
    "value": test_values.TABLE,
    "number": test_numbers.TABLE,
    "command": test_commands.TABLE,
}
HERE = "tests/bad_input"
ACCEPTED = f"{HERE}/test_accepted.py"
AROUND = f"{HERE}/test_surroundings.py"
COMMANDS = f"{HERE}/test_commands.py"
WORKER = "tests/consumer/test_worker.py"
OUTCOMES = "tests/consumer/test_outcomes.py"

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

LIST = {
    f"{subject}: {item}": proofs
    for subject, items in {
        "queue name": NAMES_OF_QUEUES,
        "body or key": BODIES_AND_KEYS,
        "number or time": NUMBERS_AND_TIMES,
        "configuration": CONFIGURATION,
        "surroundings": SURROUNDINGS,
        "handler": HANDLERS,
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
