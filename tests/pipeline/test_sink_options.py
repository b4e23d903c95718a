"""Options of a write: checked, in upper or lower case, and none dropped silently."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qworker.bulk.options import BulkOptions
from qworker.errors import InvalidError, InvalidNameError, InvalidOptionError
from qworker.pipeline.sink.columns import check_columns
from qworker.pipeline.sink.options import WriteOptions
from tests.tables import each


def test_names_are_taken_in_any_case() -> None:
    """Spark hands options over in lower case; what is set is what was written."""
    options = WriteOptions.of(
        {"maxqueuelength": "5", "onFull": "wait", "WRITEIDTTL": "2h", "queue": "emails"}
    )
    assert (options.max_queue_length, options.on_full, options.queue) == (5, "wait", "emails")
    assert options.write_id_ttl_ms == 7_200_000


def test_defaults_send_once_and_do_not_wait() -> None:
    """Without options a write sends, with the ledger or ids, and fails at a full queue."""
    options = WriteOptions.of({})
    assert (options.action, options.idempotence, options.on_full) == ("send", "auto", "fail")
    assert (options.delay_ms, options.ttl_ms, options.write_id) == (None, None, None)


def test_the_sender_reads_the_written_messages() -> None:
    """Durations are in ms there, and a queue without room is waited for only where that was asked."""
    given = {"namespace": "shop", "queue": "emails", "priority": "3", "delay": "30m", "ttl": "2h"}
    more = {"maxQueueLength": "5", "partitions": "8", "fullWait": "90s"}
    wanted = BulkOptions(
        namespace="shop",
        queue="emails",
        priority=3,
        delay_ms=1_800_000,
        ttl_ms=7_200_000,
        max_queue_length=5,
        partitions=8,
    )
    assert WriteOptions.of(given | more).bulk == wanted
    waiting = WriteOptions.of(given | more | {"onFull": "wait"}).bulk
    assert waiting == replace(wanted, full_wait_s=90.0)
    assert WriteOptions.of({}).bulk == BulkOptions()


@each(
    "given, text",
    [
        ({"quueu": "a"}, "option quueu: is unknown; did you mean queue?"),
        ({"max_queue_length": "5"}, "did you mean maxQueueLength?"),
        ({"action": "sned"}, "option action: 'sned' is not accepted; it must be one of send,"),
        ({"onFull": "drop"}, "option onFull: 'drop' is not accepted; it must be one of fail, wait"),
        ({"maxQueueLength": "many"}, "option maxQueueLength: 'many' is not an integer"),
        ({"priority": "10"}, "option priority: 10 is out of range"),
        ({"delay": "soon"}, "option delay: 'soon' is not a duration"),
        ({"queue": "Emails"}, "option queue: 'Emails' is not a valid name"),
        ({"writeId": "a{b}"}, "option writeId: 'a{b}' is not a write id"),
        ({"queue": ""}, "option queue: is empty"),
        ({"rate": "5"}, "option rate: is for dead letters"),
        ({"rate": "fast"}, "option rate: 'fast' is not a rate; write a rate such as '100/s'"),
    ],
)
def test_bad_option_is_named(given: dict[str, str], text: str) -> None:
    """An option that cannot be taken is refused in one line that says what can."""
    with pytest.raises((InvalidOptionError, InvalidNameError)) as caught:
        WriteOptions.of(given)
    assert text in str(caught.value)


def test_options_of_spark_itself_are_left_aside() -> None:
    """What Spark adds to a stream's options is not a mistake of the user."""
    assert WriteOptions.of({"checkpointLocation": "/x", "queryName": "q"}) == WriteOptions()


def test_server_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a url the variable that urlEnv names is read, and named where it is missing."""
    monkeypatch.setenv("MY_REDIS", "redis://:secret@h:1/2")
    assert WriteOptions.of({"urlEnv": "MY_REDIS"}).server().password == "secret"
    monkeypatch.delenv("MY_REDIS")
    with pytest.raises(InvalidOptionError, match="MY_REDIS is not set"):
        WriteOptions.of({"urlEnv": "MY_REDIS"}).server()


@each(
    "columns, given, text",
    [
        ({"queue": "string"}, {}, "column body: is missing; send_rows makes one of all columns"),
        ({"body": "struct<a:int>"}, {}, "column body: is of type struct<a:int>; it must be string"),
        ({"body": "string", "prio": "int"}, {}, "column prio: cannot be used with action send"),
        ({"body": "string", "priority": "string"}, {}, "column priority: is of type string"),
        ({"body": "string"}, {}, "column queue: is missing; add it, or give the option queue"),
        ({"body": "string", "queue": "string"}, {"idempotence": "ids"}, "column id: is missing"),
        ({"queue": "string"}, {"action": "redrive"}, "column entry_id: is missing"),
        (
            {"body": "string", "entry_id": "string"},
            {"action": "discard"},
            "column body: cannot be used",
        ),
    ],
)
def test_columns_are_checked(columns: dict[str, str], given: dict[str, str], text: str) -> None:
    """A column that is missing, unknown or of a wrong type is named before anything is read."""
    with pytest.raises(InvalidError) as caught:
        check_columns(columns, WriteOptions.of(given))
    assert text in str(caught.value)


@each(
    "columns, given",
    [
        ({"body": "binary"}, {"queue": "a"}),
        ({"body": "varchar(9)", "queue": "string", "id": "bigint", "delay": "string"}, {}),
        ({"body": "string", "ttl": "int", "priority": "tinyint"}, {"queue": "a"}),
        ({"queue": "string", "message_id": "string"}, {"action": "redrive"}),
        ({"entry_id": "string"}, {"action": "discard", "queue": "a"}),
    ],
)
def test_good_columns_pass(columns: dict[str, str], given: dict[str, str]) -> None:
    """Every documented column is taken in each of its types."""
    check_columns(columns, WriteOptions.of(given))
