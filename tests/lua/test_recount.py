"""recount.lua: bring the counter of stored messages back between its bounds."""

from __future__ import annotations

import pytest

from qworker.engine.reap import recount
from qworker.engine.settle import Outcomes
from tests.lua.drive import NOW, Drive, own


def recounted(drive: Drive) -> int:
    """Recount; by how much it was changed."""
    return int(drive.run(recount(drive.keys, now_ms=NOW)))


def test_items_pushed_without_a_send_are_counted_in_the_end(engine_drive: Drive) -> None:
    """A message of ours that was pushed by hand costs the counter one; where nothing is ready it is exact again."""
    drive = engine_drive
    drive.redis.rpush(drive.keys.ready[0], own("a"), own("b"))
    drive.receive("L", 1)
    drive.settle(Outcomes("L", acks=[0]))
    assert drive.stats("stored") == {"stored": -1}
    assert recounted(drive) == 1
    drive.receive("M", 1)
    assert recounted(drive) == 1
    assert drive.stats("stored", "unacked") == {"stored": 1, "unacked": 1}
    assert recounted(drive) == 0


@pytest.mark.parametrize(
    ("stored", "change"), [("-3", 6), ("2", 1), ("3", 0), ("6", 0), ("7", -1), ("x", 3), (None, 3)]
)
def test_bounds_are_certain_and_possible_counts(
    drive: Drive, stored: str | None, change: int
) -> None:
    """Suspects, delayed and unacked messages are counted for sure; what is ready may be of others."""
    drive.send("u")
    drive.receive("L")
    drive.send("d", delay_ms=5)
    drive.redis.rpush(drive.keys.suspect, own("s", timeouts=1))
    drive.redis.rpush(drive.keys.ready[0], "{}", "hello")
    drive.redis.rpush(drive.keys.ready[9], own("p"))
    drive.redis.hdel(drive.keys.stats, "stored")
    if stored is not None:
        drive.redis.hset(drive.keys.stats, "stored", stored)
    assert recounted(drive) == change
