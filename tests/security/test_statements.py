"""The security goals, each with the tests that show it: `file::test`, from this folder or from tests/.

SECURITY.md and docs/security.md promise what stands here; a test that is renamed or goes is missed at once.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.tables import each

TESTS = Path(__file__).parents[1]

STATEMENTS: dict[str, tuple[str, list[str]]] = {
    "S1": (
        "bodies are JSON or bytes; nothing that is read is ever run",
        [
            "security/test_code.py::test_nothing_that_runs_data_is_imported_or_called",
            "security/test_code.py::test_the_reader_of_pickles_is_imported_by_the_import_alone",
            "security/test_payloads.py::test_a_body_that_would_run_elsewhere_is_bytes",
            "importers/test_pickles.py::test_code_is_refused_and_never_runs",
        ],
    ),
    "S2": (
        "a message names registered tasks only",
        [
            "security/test_payloads.py::test_a_message_names_registered_tasks_only",
            "security/test_code.py::test_modules_are_imported_by_fixed_names_or_those_of_the_command_line",
        ],
    ),
    "S3": (
        "signed messages: body, queue and id; rotation; what is not signed is buried unread",
        [
            "security/test_keyring.py::test_every_byte_of_the_body_counts",
            "security/test_keyring.py::test_a_body_is_of_its_message_and_its_queue",
            "security/test_keyring.py::test_the_first_key_makes_new_messages_and_the_others_are_accepted",
            "security/test_keyring.py::test_what_changes_while_a_message_lives_is_not_covered",
            "security/test_keyring.py::test_a_signature_is_verified_before_anything_is_decrypted",
            "security/test_protection.py::test_an_unsigned_message_is_buried",
            "security/test_protection.py::test_a_worker_that_requires_signatures_starts_signed_messages_only",
            "security/test_protection.py::test_messages_of_a_schedule_are_signed_by_the_app",
            "security/test_protection.py::test_an_edited_dead_letter_is_protected_again",
        ],
    ),
    "S4": (
        "encrypted bodies: bound to queue and id, and no key or plain body anywhere in Redis, argv or logs",
        [
            "security/test_keyring.py::test_a_body_is_of_its_message_and_its_queue",
            "security/test_protection.py::test_no_file_of_the_server_has_a_body_that_was_encrypted",
            "security/test_protection.py::test_keys_reach_a_worker_through_a_file",
            "security/test_protection.py::test_inspecting_verbs_decrypt_with_the_keys_they_have",
            "security/test_keyring.py::test_a_keyring_shows_no_key",
            "security/test_keyring.py::test_wrong_keys_are_refused_without_being_quoted",
        ],
    ),
    "S5": (
        "secrets are never shown",
        [
            "security/test_secrets.py::test_no_text_of_a_url_shows_its_password",
            "security/test_secrets.py::test_no_connection_that_fails_shows_its_password",
            "security/test_secrets.py::test_no_command_shows_it",
            "security/test_secrets.py::test_no_process_shows_it",
            "telemetry/test_logs.py::test_tracebacks_show_no_variables",
        ],
    ),
    "S6": (
        "payloads are not logged, and what is logged of others is escaped",
        [
            "security/test_payloads.py::test_payloads_are_not_logged",
            "security/test_payloads.py::test_what_names_of_others_are_logged_is_escaped",
            "telemetry/test_logs.py::test_control_characters_are_escaped",
            "telemetry/test_logs.py::test_bytes_are_logged_as_their_length",
        ],
    ),
    "S7": (
        "the metrics listener answers GET of three paths, and everything about it is bounded",
        [
            "telemetry/test_http.py::test_other_paths_do_not_exist",
            "telemetry/test_http.py::test_only_get_and_head",
            "telemetry/test_http.py::test_a_long_request_ends_after_its_first_bytes",
            "telemetry/test_http.py::test_a_megabyte_is_not_read",
            "telemetry/test_http.py::test_a_slow_request_ends_in_time",
            "telemetry/test_http.py::test_slow_clients_do_not_lock_out_probes",
            "daemon/test_queue_metrics.py::test_labels_are_bounded",
        ],
    ),
    "S8": (
        "nothing is controlled over HTTP",
        [
            "security/test_code.py::test_http_has_no_control",
            "telemetry/test_http.py::test_only_get_and_head",
        ],
    ),
    "S9": (
        "roles do their work under rules that are read from the scripts",
        [
            "security/test_acl.py::test_each_role_does_its_work_and_the_log_stays_empty",
            "security/test_acl.py::test_a_role_must_not",
            "security/test_acl.py::test_without_a_name_access_is_denied",
            "security/test_acl_rules.py::test_every_raw_command_belongs_to_a_role",
            "security/test_acl_rules.py::test_every_command_of_a_script_is_written_out",
        ],
    ),
    "S10": (
        "no role needs what is dangerous",
        [
            "security/test_acl.py::test_no_role_has_dangerous_commands",
            "security/test_acl.py::test_scripts_are_loaded_by_the_daemon",
        ],
    ),
    "S11": (
        "scripts are fixed text that runs nothing it reads",
        [
            "security/test_code.py::test_scripts_are_fixed_text",
            "security/test_code.py::test_scripts_run_nothing_that_they_read",
            "store/test_scripts.py::test_includes_are_put_in_as_fixed_text",
        ],
    ),
    "S12": (
        "TLS is verified, and switching that off takes a word and warns",
        [
            "security/test_tls.py::test_an_expired_certificate",
            "security/test_tls.py::test_a_certificate_that_vouches_for_itself",
            "security/test_tls.py::test_insecure_warns_at_each_start",
            "store/test_connection_tls.py::test_another_ca",
            "store/test_connection_tls.py::test_another_host",
            "store/test_connection_tls.py::test_old_protocols_are_off",
        ],
    ),
    "S13": (
        "a server that is open to others is refused where the daemon is strict, else warned of",
        [
            "security/test_exposure.py::test_strict_refuses_a_server_that_is_open",
            "security/test_exposure.py::test_a_password_that_opens_everything_is_open_too",
            "security/test_exposure.py::test_roles_are_not_found_fault_with",
            "daemon/test_durability.py::test_server_without_a_password_that_others_reach",
        ],
    ),
    "S14": (
        "input is limited before it is sent, and before it is decoded",
        [
            "wire/test_codec.py::test_a_larger_body_is_refused_with_both_sizes",
            "lua/test_settle_receive.py::test_message_larger_than_the_bound_is_received_alone",
            "lua/test_journal.py::test_line_over_16_kibibytes_is_cut_in_its_flags",
        ],
    ),
    "S15": (
        "no secret has to be an argument",
        [
            "security/test_secrets.py::test_no_process_shows_it",
            "security/test_protection.py::test_keys_reach_a_worker_through_a_file",
            "security/test_acl_rules.py::test_passwords_go_to_a_file_that_others_cannot_read",
        ],
    ),
    "S16": (
        "files are closed to others, have unpredictable names, and follow no link",
        [
            "store/test_embedded.py::test_is_closed_to_others",
            "store/test_embedded.py::test_a_lock_that_is_a_symlink",
            "store/test_embedded.py::test_a_directory_of_another_user_is_refused",
            "security/test_code.py::test_temporary_files_have_unpredictable_names",
            "security/test_acl_rules.py::test_passwords_go_to_a_file_that_others_cannot_read",
            "security/test_keyring.py::test_a_file_that_others_can_read_or_write_is_refused",
        ],
    ),
    "S17": (
        "dependencies are pinned by their hashes, and listed in a release",
        [
            "security/test_dependencies.py::test_every_dependency_is_pinned_within_its_range",
            "security/test_dependencies.py::test_every_pin_has_hashes_and_no_place",
            "security/test_dependencies.py::test_a_release_has_its_list_of_parts",
        ],
    ),
    "S18": (
        "a release is reproducible, and reports have a way",
        [
            "security/test_dependencies.py::test_a_release_is_reproducible",
            "security/test_dependencies.py::test_reports_have_a_way_and_a_time",
        ],
    ),
    "S19": (
        "the journal has no body, and what it has is data to the pipeline",
        [
            "security/test_protection.py::test_no_file_of_the_server_has_a_body_that_was_encrypted",
            "pipeline/test_source_decoding.py::test_a_header_that_is_none_is_unreadable_and_keeps_its_number",
            "pipeline/test_source_decoding.py::test_bytes_that_are_not_text_do_no_harm",
            "pipeline/test_report.py::test_text_of_others_stays_text",
        ],
    ),
    "S20": (
        "nothing grows without a limit, and no call is longer than its bound",
        [
            "lua/test_journal.py::test_journal_is_trimmed_to_its_cap",
            "lua/test_prune.py::test_forgets_expired_entries",
            "daemon/test_tombstones.py::test_a_walk_takes_its_share_of_passes_and_is_begun_anew_after_a_restart",
            "lua/test_prune.py::test_large_tables_go_a_slice_at_a_time",
            "lua/test_settle_receive.py::test_items_that_end_are_bounded_in_number",
            "daemon/test_queue_metrics.py::test_reasons_of_dead_letters_are_bounded",
            "telemetry/test_logs.py::test_throttle_is_bounded",
        ],
    ),
    "S21": (
        "nothing runs as root",
        [
            "deploy/test_systemd.py::test_exposure_is_low",
            "deploy/test_docker.py::test_image_runs_without_rights_and_without_a_shell",
        ],
    ),
}


@cache
def named_in(path: Path) -> frozenset[str]:
    """The tests of a file, those in classes too."""
    tree = ast.parse(path.read_text())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def test_every_statement_is_here() -> None:
    """S1 to S21."""
    assert list(STATEMENTS) == [f"S{number}" for number in range(1, 22)]


@each("statement", STATEMENTS)
def test_a_statement_has_its_tests(statement: str) -> None:
    """Each of them exists."""
    _, tests = STATEMENTS[statement]
    assert tests
    for test in tests:
        file, _, name = test.partition("::")
        assert name in named_in(TESTS / file), f"{statement}: {test} is gone"
