"""lengths.lua: how many messages of each of several queues are ready."""

from __future__ import annotations

from qworker.engine.inspect import lengths
from qworker.wire.keys import QueueKeys
from tests.lua.drive import Drive, own


def test_all_levels_and_the_suspects_count(engine_drive: Drive) -> None:
    """One number per queue: everything that could be received, nothing that is delayed."""
    drive = engine_drive
    drive.send("a", "b")
    drive.send("c", priority=9)
    drive.send("d", delay_ms=50)
    drive.redis.rpush(drive.keys.suspect, own("e"))
    other = QueueKeys("none", drive.keys.queue)
    assert drive.run(lengths([drive.keys, other])) == [4, 0]
    assert drive.run(lengths([])) == []


def test_broken_queue_has_no_number(drive: Drive) -> None:
    """A key of another type says so, and the others are counted."""
    drive.send("a")
    broken = QueueKeys("broken", drive.keys.queue)
    drive.redis.set(broken.suspect, "x")
    assert drive.run(lengths([broken, drive.keys])) == [None, 1]
    drive.redis.delete(broken.suspect)
