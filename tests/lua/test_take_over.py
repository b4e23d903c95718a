"""take_over.lua: store messages of another system once, however often they are brought."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.engine.take_over import NewArrival, TakenOver, begin_import, take_over
from qworker.errors import OutOfMemoryError, QueueFullError, QueuePausedError
from qworker.wire.envelope import tail
from tests import servers
from tests.journals import event_lines
from tests.lua.drive import NOW, Drive, own


def arrival(name: str, flags: dict[str, str] | None = None, **given: Any) -> NewArrival:
    """A message whose mark is `:<name>`, its id and body `<name>`."""
    return NewArrival(mark=f":{name}", id=name, tail=tail(name.encode(), flags), **given)


def take(drive: Drive, *arrivals: NewArrival, run: str = "one", at: int = NOW, **given: Any) -> Any:
    """Take messages over; what the call came to."""
    return drive.run(take_over(drive.keys, run, arrivals, now_ms=at, **given))


def begin(drive: Drive, run: str = "one") -> None:
    """Begin an import."""
    drive.run(begin_import(drive.keys, run))


def words(**changed: Any) -> list[Any]:
    """The arguments of a call with one message, some of them changed by name."""
    named = {
        "now": NOW, "run": "one", "priority": 0, "forgets": 0, "number": 1,
        "mark": ":a", "delay": 0, "ttl": 0, "age": 0, "receives": 0, "head": "q1 a ", "tail": "\na",
    } | changed  # fmt: skip
    return list(named.values())


def keys_of(drive: Drive) -> list[str]:
    """The keys that the script declares."""
    keys = drive.keys
    return [
        keys.ready[0],
        keys.delayed,
        keys.wake,
        keys.meta,
        keys.stats,
        keys.imported,
        keys.journal,
    ]


def test_stores_messages_with_their_marks(engine_drive: Drive) -> None:
    """Each stands in ready in order with its age and receives, is counted, and wakes a waiter."""
    drive = engine_drive
    begin(drive)
    assert take(drive, arrival("a", age_ms=400, receives=3), arrival("b")) == TakenOver(2, 0)
    assert drive.state() == {
        "ready": [own("a", NOW - 400, 3), own("b")],
        "wake": ["1", "1"],
        "stats": {"sent": "2", "stored": "2"},
        "imported": {"run": "one", ":a": "a", ":b": "b"},
    }


def test_message_brought_again_is_not_stored_again(drive: Drive) -> None:
    """Its mark is known, also to a later run, and also within one call; the others of the call are stored."""
    begin(drive)
    take(drive, arrival("a"))
    again = NewArrival(mark=":a", id="x", tail=b"\nx")
    assert take(drive, again, arrival("b"), again) == TakenOver(1, 2)
    begin(drive, "two")
    twice = NewArrival(mark=":c", id="d", tail=b"\nd")
    assert take(drive, arrival("b"), arrival("c"), twice, run="two") == TakenOver(1, 2)
    assert drive.state("ready", "stats", "imported") == {
        "ready": [own("a"), own("b"), own("c")],
        "stats": {"sent": "3", "stored": "3"},
        "imported": {"run": "two", ":a": "a", ":b": "b", ":c": "c"},
    }


def test_delayed_messages_keep_their_own_times(drive: Drive) -> None:
    """Each becomes due after its own delay, by this server's clock; those without one are ready."""
    begin(drive)
    late, soon = arrival("a", delay_ms=5000), [arrival(name, delay_ms=1) for name in ("c", "d")]
    take(drive, late, arrival("b"), *soon)
    assert drive.state("ready", "delayed", "wake") == {
        "ready": [own("b")],
        "delayed": {
            own("a", ready_ms=NOW + 5000): NOW + 5000,
            own("c", ready_ms=NOW + 1): NOW + 1,
            own("d", ready_ms=NOW + 1): NOW + 1,
        },
        "wake": ["1"],
    }


def test_expiry_is_the_messages_own_or_the_queues(drive: Drive) -> None:
    """A time to live counts from now; 0 is none, nothing said is the queue's."""
    drive.redis.hset(drive.keys.meta, "ttl_ms", 70)
    begin(drive)
    take(drive, arrival("a", ttl_ms=50), arrival("b", ttl_ms=0), arrival("c"))
    assert drive.state("ready")["ready"] == [
        own("a", flags=f" x={NOW + 50}"),
        own("b"),
        own("c", flags=f" x={NOW + 70}"),
    ]


def test_priority_goes_to_its_level(drive: Drive) -> None:
    """A level is noted in meta, flags stay behind the expiry."""
    begin(drive)
    take(drive, arrival("a", {"p": "6"}, ttl_ms=5), priority=6)
    assert drive.state("ready", "ready:6", "meta") == {
        "ready:6": [own("a", flags=f" x={NOW + 5} p=6")],
        "meta": {"levels": "6"},
    }


def test_forgets_marks_on_request(drive: Drive) -> None:
    """A forgotten mark may come again, in the same call even; others stay."""
    begin(drive)
    take(drive, arrival("a"), arrival("b"))
    assert take(drive, arrival("c"), forget=[":a"]) == TakenOver(1, 0)
    assert drive.state("imported")["imported"] == {"run": "one", ":b": "b", ":c": "c"}
    assert take(drive, arrival("b"), forget=[":b"]) == TakenOver(1, 0)
    assert drive.state("ready")["ready"] == [own("a"), own("b"), own("c"), own("b")]
    assert drive.state("imported")["imported"] == {"run": "one", ":b": "b", ":c": "c"}


def test_ends_with_nothing_left_but_marks_of_interrupted_runs(drive: Drive) -> None:
    """A call without messages deletes a ledger that holds no mark any more."""
    begin(drive)
    take(drive, arrival("a"), arrival("b"))
    assert take(drive, forget=[":a"]) == TakenOver(0, 0)
    assert drive.state("imported")["imported"] == {"run": "one", ":b": "b"}
    assert take(drive, forget=[":b"]) == TakenOver(0, 0)
    assert "imported" not in drive.state()


def test_run_is_refused_when_another_has_begun(drive: Drive) -> None:
    """Neither stored nor forgotten is anything by an earlier import; nor by one that never began."""
    superseded = TakenOver(0, 0, superseded=True)
    assert take(drive, arrival("a")) == superseded
    begin(drive)
    take(drive, arrival("a"))
    begin(drive, "two")
    before = drive.state()
    assert take(drive, arrival("b"), forget=[":a"]) == superseded
    assert drive.state() == before


def test_full_and_paused_queues_take_nothing_new(drive: Drive) -> None:
    """A refusal writes nothing, but a call that brings nothing new does its forgetting."""
    begin(drive)
    take(drive, arrival("a"), arrival("b"))
    drive.redis.hset(drive.keys.meta, "maxlen", 3)
    before = drive.state()
    with pytest.raises(QueueFullError) as full:
        take(drive, arrival("b"), arrival("c"), arrival("d"), forget=[":a"])
    assert (full.value.stored, full.value.maxlen) == (2, 3)
    assert drive.state() == before
    assert take(drive, arrival("b"), arrival("c")) == TakenOver(1, 1)
    drive.redis.hset(drive.keys.meta, "paused", "in")
    before = drive.state()
    with pytest.raises(QueuePausedError):
        take(drive, arrival("d"))
    assert drive.state() == before
    assert take(drive, arrival("c"), forget=[":a"]) == TakenOver(0, 1)
    assert drive.state("imported")["imported"] == {"run": "one", ":b": "b", ":c": "c"}


def test_largest_numbers_stay_numbers(drive: Drive) -> None:
    """Times at the bounds of what a score keeps; an age beyond the clock begins in 1970."""
    begin(drive)
    most = 2**53
    take(drive, arrival("a", delay_ms=most, ttl_ms=most, age_ms=most, receives=999_999))
    latest = 2**52 - 1
    item = own("a", 0, 999_999, flags=f" x={most}", ready_ms=latest)
    assert drive.state("delayed")["delayed"] == {item: latest}


def test_arrival_is_journalled_as_sent(drive: Drive) -> None:
    """Where the journal has all events, those of messages that are stored by this call."""
    drive.redis.hset(drive.keys.meta, "journal", "all")
    begin(drive)
    take(drive, arrival("a", age_ms=5), arrival("b", delay_ms=7))
    take(drive, arrival("a"), forget=[":b"])
    entries = drive.state("journal")["journal"]
    lines = sorted(line for entry in entries for line in event_lines(entry["e1"]))
    assert lines == [
        f"sent - - - - - - a {NOW - 5} 0 0 0 0",
        f"sent - - - - - - b {NOW} 0 0 0 0 t={NOW + 7}",
    ]


def test_counter_that_cannot_count_is_reported_and_stops_nothing(drive: Drive) -> None:
    """The messages are stored, the reply says that something did not work."""
    begin(drive)
    drive.redis.hset(drive.keys.stats, "sent", "x")
    reply = drive.call("take_over", keys_of(drive), *words())
    assert reply == ["OK", str(NOW), 1, 0, 1]
    assert drive.state("ready")["ready"] == [own("a")]


def test_full_server_takes_nothing(namespace: str, queue_name: str) -> None:
    """What is moved in is new here: a server at its limit refuses it."""
    with servers.start("valkey") as server:
        drive = Drive(server.url, namespace, queue_name)
        try:
            begin(drive)
            server.redis().config_set("maxmemory", 1)
            with pytest.raises(OutOfMemoryError):
                take(drive, arrival("a"))
            server.redis().config_set("maxmemory", 0)
            assert drive.state() == {"imported": {"run": "one"}}
        finally:
            drive.close()
