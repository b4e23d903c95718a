"""send_chunk.lua: store a chunk of a bulk write once, however often its rows are brought again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from qworker.engine.send import NewMessage, send
from qworker.engine.send_chunk import BulkRun, Chunk, send_chunk
from qworker.engine.settle import Outcomes
from qworker.errors import (
    BodyTooLargeError,
    BulkChangedError,
    BulkGapError,
    OutOfMemoryError,
    QueueFullError,
    QueuePausedError,
)
from qworker.wire.envelope import tail
from tests import servers
from tests.lua.drive import NOW, Drive, own

PREFIX = "aaaaaaaaaa"


def chunk(
    drive: Drive,
    *bodies: str,
    stream: str = "0.0",
    first: int = 0,
    crcs: tuple[int, int] = (0, 11),
    words: Sequence[Any] = (),
    at: int = NOW,
    **options: Any,
) -> int:
    """Send a chunk in run `r` of write `w`; how many messages it stored."""
    run = BulkRun(
        **{"write_id": "w", "run_id": "r", "id_prefix": PREFIX, "kept_ms": 60_000, "now_ms": at}
        | options
    )
    rows = Chunk(stream, first, [body.encode() for body in bodies], *crcs, words)
    return drive.run(send_chunk(drive.keys, run, rows))


def item(row: int, body: str, sent_ms: int = NOW, flags: str = "") -> str:
    """The envelope of a row."""
    return own(f"{PREFIX}{row:010d}", sent_ms, flags=flags, body=body)


def raw(*bodies: str, **changed: Any) -> list[Any]:
    """The arguments of a call as the script reads them, some of them changed by name."""
    named = {
        "now": NOW, "stream": "0.0", "first": 0, "before": 0, "after": 11, "run": "r", "kept": 60_000,
        "limit": 0, "priority": 0, "delay": 0, "ttl": 0, "prefix": PREFIX, "number": len(bodies),
    } | changed  # fmt: skip
    words = named.pop("words", [0])
    return [*named.values(), *bodies, *words]


def keys_of(drive: Drive) -> tuple[str, ...]:
    """The keys that the script declares."""
    others = [drive.base + part for part in ("rows", "bulk:w", "journal")]
    return (*drive.sending_keys()[:5], *others)


def test_stores_a_chunk_and_notes_it(engine_drive: Drive) -> None:
    """Rows become messages in their order, counted, and the ledger says how far the stream has come."""
    drive = engine_drive
    assert chunk(drive, "one", "two") == 2
    assert chunk(drive, "three", first=2, crcs=(11, 12), at=NOW + 5) == 1
    assert drive.state() == {
        "ready": [item(1, "one"), item(2, "two"), item(3, "three", NOW + 5)],
        "wake": ["1", "1"],
        "stats": {"sent": "3", "stored": "3"},
        "bulk:w": {"0.0": "3 12", "stored": "3", "run:r": "3"},
    }
    assert 0 < drive.redis.pttl(drive.base + "bulk:w") <= 60_000


def test_rows_that_were_taken_are_not_stored_again(engine_drive: Drive) -> None:
    """A repetition from the beginning is answered as taken, chunk by chunk, and continues after what was taken."""
    drive = engine_drive
    chunk(drive, "one", "two")
    chunk(drive, "three", first=2, crcs=(11, 12))
    before = drive.state()
    assert chunk(drive, "one", "two") == 0
    assert chunk(drive, "three", first=2, crcs=(11, 12)) == 0
    assert drive.state() == before
    assert chunk(drive, "four", first=3, crcs=(12, 13), run_id="s") == 1
    assert drive.state("bulk:w") == {
        "bulk:w": {"0.0": "4 13", "stored": "4", "run:r": "3", "run:s": "1"}
    }


def test_taken_chunk_is_a_success_where_nothing_could_be_stored(drive: Drive) -> None:
    """A repetition succeeds also on a queue that is full or paused by now."""
    chunk(drive, "one")
    drive.redis.hset(drive.keys.meta, mapping={"maxlen": 1, "paused": "in", "maxsize": 1})
    assert chunk(drive, "one") == 0


def test_streams_and_writes_are_apart(drive: Drive) -> None:
    """Each partition, priority and write id has its own place in a ledger."""
    assert chunk(drive, "one") == 1
    assert chunk(drive, "one", stream="1.0") == 1
    assert chunk(drive, "one", write_id="x") == 1
    assert drive.state("bulk:w", "bulk:x") == {
        "bulk:w": {"0.0": "1 11", "1.0": "1 11", "stored": "2", "run:r": "2"},
        "bulk:x": {"0.0": "1 11", "stored": "1", "run:r": "1"},
    }


def test_gap_is_refused(drive: Drive) -> None:
    """A chunk whose predecessors were not taken is refused with how many rows were."""
    with pytest.raises(
        BulkGapError,
        match=r"has stored 0 rows of partition\.priority 0\.0 and was given row 2 next",
    ):
        chunk(drive, "two", first=1, crcs=(11, 12))
    assert drive.state() == {}
    chunk(drive, "one")
    before = drive.state()
    with pytest.raises(BulkGapError) as caught:
        chunk(drive, "three", first=2, crcs=(12, 13))
    assert (caught.value.taken, caught.value.first) == (1, 2)
    assert drive.state() == before


@pytest.mark.parametrize(
    ("first", "bodies", "crcs"),
    [
        (0, ["one", "2wo"], (0, 99)),  # other rows behind the last one taken
        (2, ["three"], (99, 12)),  # the next rows, after others
        (1, ["two", "three"], (10, 12)),  # chunks that begin elsewhere
        (0, ["one", "two", "three"], (0, 12)),
    ],
)
def test_other_rows_are_refused(
    drive: Drive, first: int, bodies: list[str], crcs: tuple[int, int]
) -> None:
    """What does not continue the rows that were taken is refused before anything of it is stored."""
    chunk(drive, "one", "two")
    before = drive.state()
    with pytest.raises(
        BulkChangedError,
        match=r"has stored 2 rows of partition\.priority 0\.0, and the rows given now",
    ):
        chunk(drive, *bodies, first=first, crcs=crcs)
    assert drive.state() == before


def test_unreadable_ledger_is_refused(drive: Drive) -> None:
    """A stream of which the ledger says rubbish stores nothing."""
    drive.redis.hset(drive.base + "bulk:w", "0.0", "rubbish")
    with pytest.raises(BulkChangedError, match=r"has stored 0 rows of partition\.priority 0\.0"):
        chunk(drive, "one")


def test_rows_without_order_are_stored_each_time(drive: Drive) -> None:
    """Without a stream there is no ledger of rows; what was stored is counted anyway."""
    assert chunk(drive, "one", stream="") == 1
    assert chunk(drive, "one", stream="", first=7) == 1
    assert drive.state("ready", "bulk:w") == {
        "ready": [item(1, "one"), item(8, "one")],
        "bulk:w": {"stored": "2", "run:r": "2"},
    }


def test_named_rows_are_stored_once_for_their_time(engine_drive: Drive) -> None:
    """A row id keeps another row of that name out for as long as it is remembered, within a call too."""
    drive = engine_drive
    named = ["", "", "x", "", "", "y", "", "", "x", "", "", ""]
    assert chunk(drive, "1", "2", "3", "4", stream="", words=named) == 3
    assert chunk(drive, "5", "6", stream="", words=named[:6], at=NOW + 59_999) == 0
    assert drive.state() == {
        "ready": [item(1, "1"), item(2, "2"), item(4, "4")],
        "wake": ["1"] * 3,
        "rows": {
            "x": f"{PREFIX}0000000001 1060000",
            "y": f"{PREFIX}0000000002 1060000",
        },
        "stats": {"sent": "3", "stored": "3"},
        "bulk:w": {"stored": "3", "run:r": "3"},
    }
    assert chunk(drive, "7", stream="", words=named[:3], at=NOW + 60_000) == 1


def test_row_ids_and_unique_keys_do_not_meet(drive: Drive) -> None:
    """A row may be named like the unique key of a message that lives, and the other way round."""

    def sent(key: str, message_id: str) -> str:
        message = NewMessage(message_id, tail(b"u"), key, 60_000)
        return drive.run(send(drive.keys, [message], lane="", sequence=0, now_ms=NOW)).ids[0]

    names = ["x", "row:x", "rows"]
    words = [word for name in names for word in ("", "", name)]
    assert sent("x", "k") == "k"
    assert sent("row:x", "a") == "a"
    assert chunk(drive, "1", "2", "3", stream="", words=words) == 3
    assert sent("rows", "b") == "b"
    assert sent("row:rows", "c") == "c"
    assert chunk(drive, "1", "2", "3", stream="", words=words) == 0


def test_row_id_outlives_its_message(drive: Drive) -> None:
    """Neither the end of the message nor a search for holders frees it: the row is not to be stored again."""
    chunk(drive, "1", stream="", words=["", "", "x"])
    outcomes = Outcomes("L")
    drive.receive("L")
    outcomes.ack_all = True
    drive.settle(outcomes)
    assert "unique" not in drive.state()
    assert chunk(drive, "1", stream="", words=["", "", "x"], at=NOW + 59_999) == 0


def test_priority_has_its_list_and_flag(drive: Drive) -> None:
    """Rows of a priority go to its list, the flag stays with the message, and the level is in use."""
    drive.redis.delete(drive.keys.ready[5])
    chunk(drive, "one", priority=5)
    assert drive.state("ready:5", "meta") == {
        "ready:5": [item(1, "one", flags=" p=5")],
        "meta": {"levels": "5"},
    }


def test_call_and_row_give_delay_and_ttl(drive: Drive) -> None:
    """A row's own delay and time to live come before the call's, those before the queue's; 0 is none."""
    drive.redis.hset(drive.keys.meta, mapping={"delay_ms": 100, "ttl_ms": 5000})
    chunk(drive, "queue")
    chunk(drive, "call", first=1, crcs=(11, 12), delay_ms=7, ttl_ms=0)
    words = [0, 9, "", "", "", "", 7, "", ""]
    chunk(drive, "a", "b", "c", first=2, crcs=(12, 13), delay_ms=8, ttl_ms=6, words=words)
    assert drive.state("ready", "delayed") == {
        "ready": [item(3, "a", flags=" x=1000009")],
        "delayed": {
            item(1, "queue", flags=" x=1005000 t=1000100"): NOW + 100,
            item(2, "call", flags=" t=1000007"): NOW + 7,
            item(4, "b", flags=" x=1000006 t=1000008"): NOW + 8,
            item(5, "c", flags=" x=1000006 t=1000007"): NOW + 7,
        },
    }


def test_journal_of_all_events_has_the_sends(drive: Drive) -> None:
    """A chunk is one entry of the journal, with an event for each message that it stored."""
    drive.redis.hset(drive.keys.meta, mapping={"journal": "all", "journal_epoch": 5})
    drive.redis.hset(
        drive.keys.stats,
        mapping={"journal_entries": 0, "journal_events": 0, "journal_written": 0},
    )
    chunk(drive, "one", "two")
    assert chunk(drive, "one", "two") == 0
    headers = [f"\nq1 {PREFIX}000000000{row} {NOW} 0 0 0 0" for row in (1, 2)]
    group = "sent - - - - -" + "".join(headers)
    assert drive.state("journal") == {
        "journal": [{"n": "0", "k": "2", "b": "0", "t": str(NOW), "w": "", "e1": group}]
    }


def test_keeps_bodies_byte_for_byte(drive: Drive) -> None:
    """A body may hold any byte."""
    body = bytes(range(256))
    run = BulkRun(write_id="w", run_id="r", id_prefix=PREFIX, kept_ms=1, now_ms=NOW)
    drive.run(send_chunk(drive.keys, run, Chunk("0.0", 0, [body], 0, 1)))
    assert drive.redis.lindex(drive.keys.ready[0], 0).endswith(b" 0 0 0 0\n" + body)


def test_thousand_rows_go_in_one_call(engine_drive: Drive) -> None:
    """A full chunk is stored whole and in order, with their own words or without."""
    bodies = [f"b{row}" for row in range(1000)]
    assert chunk(engine_drive, *bodies) == 1000
    words = [word for row in range(1000) for word in (10, "", f"id{row}")]
    assert chunk(engine_drive, *bodies, stream="", words=words) == 1000
    state = engine_drive.state()
    assert state["ready"] == [item(row, f"b{row - 1}") for row in range(1, 1001)]
    assert len(state["delayed"]) == len(state["rows"]) == 1000


@pytest.mark.parametrize("first", [0, 1, 98, 99, 100, 199, 9_999_999_950, 10**12 + 50])
def test_rows_are_numbered_from_their_place(drive: Drive, first: int) -> None:
    """An id ends in the row's number, of ten digits or more."""
    run = BulkRun(write_id="w", run_id="r", id_prefix=PREFIX, kept_ms=1, now_ms=NOW)
    drive.run(send_chunk(drive.keys, run, Chunk("", first, [b""] * 230)))
    ids = [each.split(" ")[1] for each in drive.state("ready")["ready"]]
    assert ids == [f"{PREFIX}{first + row:010d}" for row in range(1, 231)]


# -- refusals -------------------------------------------------------------------------------------


def test_limit_refuses_the_whole_chunk(drive: Drive) -> None:
    """A chunk that would bring what is stored over the limit stores nothing; up to the limit it is taken."""
    drive.send("a", "b")
    before = drive.state()
    with pytest.raises(QueueFullError) as caught:
        chunk(drive, "one", "two", limit=3)
    assert (caught.value.stored, caught.value.maxlen) == (2, 3)
    assert drive.state() == before
    assert chunk(drive, "one", "two", limit=4) == 2


def test_maxlen_refuses_the_whole_chunk(drive: Drive) -> None:
    """The queue's own limit holds as well."""
    drive.redis.hset(drive.keys.meta, "maxlen", 1)
    with pytest.raises(QueueFullError):
        chunk(drive, "one", "two", limit=10)
    assert drive.state() == {"meta": {"maxlen": "1"}}


def test_rows_kept_out_need_no_room(drive: Drive) -> None:
    """Rows that were stored before count against no limit."""
    named = ["", "", "x"]
    chunk(drive, "1", stream="", words=named)
    drive.redis.hset(drive.keys.meta, "maxlen", 1)
    assert chunk(drive, "1", stream="", words=named, limit=1) == 0


def test_queue_paused_for_input_refuses(drive: Drive) -> None:
    """While input is paused nothing is stored."""
    drive.redis.hset(drive.keys.meta, "paused", "in")
    with pytest.raises(QueuePausedError):
        chunk(drive, "one")
    assert drive.state() == {"meta": {"paused": "in"}}


def test_body_over_maxsize_is_named(drive: Drive) -> None:
    """A body over the queue's maxsize refuses the chunk and says which row it is."""
    drive.redis.hset(drive.keys.meta, "maxsize", 3)
    with pytest.raises(BodyTooLargeError, match="row 2: is 4 bytes") as caught:
        chunk(drive, "one", "four")
    assert (caught.value.size, caught.value.maxsize) == (4, 3)
    assert drive.state() == {"meta": {"maxsize": "3"}}
    assert chunk(drive, "one", "two") == 2


def test_invalid_counter_does_not_fail_the_call(drive: Drive) -> None:
    """A counter of another kind leaves the messages stored and the reply marked degraded."""
    drive.redis.hset(drive.keys.stats, "stored", "many")
    assert drive.call("send_chunk", keys_of(drive), *raw("A")) == ["OK", str(NOW), 1, 1]
    assert drive.state("ready") == {"ready": [item(1, "A")]}


def test_full_server_refuses_chunks() -> None:
    """Over maxmemory nothing new is stored, and nothing half."""
    for engine, _ in servers.engines():
        with servers.start(engine) as server:
            drive = Drive(server.url, "n", "q")
            chunk(drive, "one")
            drive.redis.config_set("maxmemory", 1)
            before = drive.state()
            with pytest.raises(OutOfMemoryError):
                chunk(drive, "two", first=1, crcs=(11, 12))
            assert drive.state() == before
            drive.close()
