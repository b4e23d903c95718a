"""cancel.lua: leave a tombstone for a message, which is dropped when it is next read."""

from __future__ import annotations

import pytest

from qworker.engine.message import cancel, delete
from qworker.engine.reap import promote, reap
from qworker.engine.settle import Outcomes
from qworker.errors import OutOfMemoryError
from tests import servers
from tests.lua.drive import NOW, Drive, own


def test_leaves_a_tombstone_for_a_time(engine_drive: Drive) -> None:
    """The tombstone of a message holds until its time is over; a later one holds longer."""
    drive = engine_drive
    assert drive.run(cancel(drive.keys, "a", 1000, now_ms=NOW)) == NOW
    drive.run(cancel(drive.keys, "b.L-1.0", 2**53, now_ms=NOW))
    drive.run(cancel(drive.keys, "a", 2000, now_ms=NOW + 1))
    assert drive.state() == {"cancelled": {"a": NOW + 2001, "b.L-1.0": float(2**53)}}


@pytest.mark.parametrize("where", ["ready", "delayed", "unacked"])
def test_message_is_dropped_wherever_it_waits(drive: Drive, where: str) -> None:
    """A cancelled message is not seen again: not by receive, not after its delay, not after its lease."""
    drive.send("a", delay_ms=10 if where == "delayed" else 0)
    if where == "unacked":
        drive.receive("L", visibility_ms=10)
    drive.run(cancel(drive.keys, "a", 5000, now_ms=NOW))
    drive.run(promote(drive.keys, now_ms=NOW + 10))
    drive.run(reap(drive.keys, ["L"], 1000, now_ms=NOW + 10))
    assert drive.receive("M", at=NOW + 11).items == []
    assert drive.state("ready", "delayed", "unacked", "cancelled", "dead", "suspect") == {}
    assert drive.stats("stored", "cancelled") == {"stored": 0, "cancelled": 1}
    assert drive.stats("unacked") == ({"unacked": 0} if where == "unacked" else {})


def test_full_server_takes_no_tombstones() -> None:
    """Over maxmemory a tombstone is refused, which would make the server fuller; what waits can be deleted."""
    for engine, _ in servers.engines():
        with servers.start(engine) as server:
            drive = Drive(server.url, "n", "q")
            drive.send("a")
            drive.redis.config_set("maxmemory", 1)
            with pytest.raises(OutOfMemoryError):
                drive.client.execute(cancel(drive.keys, "a", 1000, now_ms=NOW), give_up_s=0.1)
            assert drive.run(delete(drive.keys, [own("a").encode()], now_ms=NOW)) == [True]
            drive.close()


@pytest.mark.parametrize("others", [0, 63, 64, 200])
def test_tombstones_are_found_among_few_and_many(drive: Drive, others: int) -> None:
    """Whatever the number of tombstones and the length of ids: what is cancelled is dropped, all else delivered."""
    drive.redis.zadd(
        drive.keys.cancelled, {f"other{n}": NOW * 2 for n in range(others)} or {"o": 1}
    )
    ids = [f"m{n}" if n % 2 else f"abcdefghij{n:010d}" for n in range(80)]
    drive.send(*ids[:40])
    drive.send(*ids[40:], delay_ms=1, flags={"u": "k"})
    gone = {*ids[::7]}
    drive.redis.zadd(drive.keys.cancelled, dict.fromkeys(gone, NOW * 2))
    drive.run(promote(drive.keys, now_ms=NOW + 1))
    items = drive.receive("L", at=NOW + 2).items
    assert {item.decode().split()[1] for item in items} == {*ids} - gone
    assert drive.stats("cancelled") == {"cancelled": len(gone)}
    assert drive.redis.zcard(drive.keys.cancelled) == (others or 1)


def test_message_that_was_cancelled_while_it_ran_ends_so(drive: Drive) -> None:
    """Its outcome takes it out of its lease and its tombstone along, frees its unique key, and counts as cancelled."""
    drive.send("a", flags={"u": "k", "r": "5000"})
    drive.redis.hset(drive.keys.unique, "k", f"a {NOW * 2}")
    drive.send("b")
    drive.receive("L")
    drive.run(cancel(drive.keys, "a", 5000, now_ms=NOW))
    outcomes = Outcomes("L")
    outcomes.cancel(1)
    outcomes.cancel(7)
    assert drive.settle(outcomes).counted == (True, False)
    assert drive.state("cancelled", "unique", "delayed", "ready", "dead") == {}
    assert drive.redis.get(drive.keys.result("a")) == b"cancelled"
    assert drive.stats("cancelled", "stored", "unacked", "stale", "discarded") == {
        "cancelled": 1, "stored": 1, "unacked": 1, "stale": 1,
    }  # fmt: skip


def test_plain_message_that_was_cancelled_while_it_ran_leaves_no_tombstone(drive: Drive) -> None:
    """It has the id that its lease gave it."""
    drive.redis.rpush(drive.keys.ready[0], "{}")
    drive.receive("L")
    drive.run(cancel(drive.keys, "L.0", 5000, now_ms=NOW))
    outcomes = Outcomes("L")
    outcomes.cancel(0)
    drive.settle(outcomes)
    assert drive.state("cancelled", "unacked", "ready") == {}
