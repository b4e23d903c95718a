"""hold.lua: take waiting messages out of the queue without losing them: delayed, and never due."""

from __future__ import annotations

from qworker.engine.message import hold
from qworker.engine.reap import promote, reap
from qworker.engine.receive import Suspects
from tests import servers
from tests.lua.drive import NOW, Drive, own

NEVER = float(2**53)


def held(drive: Drive, *items: str) -> list[bool]:
    """Hold items; whether each is held then."""
    return drive.run(hold(drive.keys, [item.encode() for item in items], now_ms=NOW))


def test_ready_messages_are_held(engine_drive: Drive) -> None:
    """A message of any level leaves its list for `delayed`, as it is; the others and all counters stay."""
    drive = engine_drive
    drive.send("a", "b")
    drive.send("c", priority=5)
    before = drive.state("stats", "wake", "meta")
    assert held(drive, own("b"), own("c")) == [True, True]
    assert drive.state() == {
        **before,
        "ready": [own("a")],
        "delayed": {own("b"): NEVER, own("c"): NEVER},
    }


def test_delayed_messages_are_held(drive: Drive) -> None:
    """A delayed message loses its due time, and is never promoted."""
    drive.send("a", delay_ms=10)
    item = own("a", ready_ms=NOW + 10)
    assert held(drive, item) == [True]
    done = drive.run(promote(drive.keys, now_ms=NOW + 10**12))
    assert (done.moved, done.ended) == (0, 0)
    assert drive.state("delayed") == {"delayed": {item: NEVER}}


def test_suspects_are_held(drive: Drive) -> None:
    """Also from the suspects: held, it is what it was."""
    drive.send("a")
    drive.receive("L", visibility_ms=10)
    drive.run(reap(drive.keys, ["L"], 1000, now_ms=NOW + 10))
    [item] = drive.state("suspect")["suspect"]
    assert held(drive, item) == [True]
    assert drive.state("suspect", "delayed") == {"delayed": {item: NEVER}}
    assert drive.receive("M", suspects=Suspects.FIRST).items == []


def test_what_does_not_wait_is_not_held(drive: Drive) -> None:
    """An unacked message, one that is gone, one that was held before: said, and not put in twice."""
    drive.send("a", "b")
    drive.receive("L", 1)
    before = drive.state()
    assert held(drive, own("a"), own("x")) == [False, False]
    assert drive.state() == before
    assert held(drive, own("b"), own("b")) == [True, True]
    assert drive.state("delayed", "ready") == {"delayed": {own("b"): NEVER}}


def test_equal_items_are_held_as_one(drive: Drive) -> None:
    """Of equal items, which only others can make, one is taken: `delayed` could not distinguish them."""
    drive.redis.rpush(drive.keys.ready[0], own("a"), own("b"), own("a"))
    assert held(drive, own("a")) == [True]
    assert drive.state("ready") == {"ready": [own("a"), own("b")]}


def test_full_server_holds() -> None:
    """Over maxmemory messages can be held: it takes as much as it frees."""
    for engine, _ in servers.engines():
        with servers.start(engine) as server:
            drive = Drive(server.url, "n", "q")
            drive.send("a")
            drive.redis.config_set("maxmemory", 1)
            assert held(drive, own("a")) == [True]
            drive.close()
