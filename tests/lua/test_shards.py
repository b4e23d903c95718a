"""divide.lua, adopt.lua and mark.lua: how a queue is divided, and what its shards say of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qworker.engine.shards import adopt, divide, mark, read_mark, read_shards
from qworker.errors import InvalidOptionError, ShardDrainingError
from qworker.wire.shards import UNMARKED, WHOLE, ReshardMark, Shards
from tests.lua.drive import NOW, Drive

HOUR_MS = 3_600_000


@pytest.fixture
def shard(store_url: str, namespace: str) -> Iterator[Drive]:
    """Shard 2 of a queue."""
    drive = Drive(store_url, namespace, "q/2")
    yield drive
    drive.close()


def test_a_division_is_dated_by_the_server(engine_drive: Drive) -> None:
    """From a queue that was never divided on; and later than the one before, whatever the clock says."""
    drive = engine_drive
    assert drive.run(read_shards(drive.keys)) == WHOLE
    changed, first = drive.run(divide(drive.keys, WHOLE, 2, 3, now_ms=NOW))
    assert (changed, first) == (True, Shards(2, 3, NOW))
    changed, second = drive.run(divide(drive.keys, first, 4, 4, now_ms=NOW - 5000))
    assert (changed, second) == (True, Shards(4, 4, NOW + 1))
    assert drive.run(read_shards(drive.keys)) == second


@pytest.mark.parametrize("known", [WHOLE, Shards(2, 3, NOW - 1), Shards(2, 3, NOW + 1)])
def test_of_two_divisions_one_changes_nothing(drive: Drive, known: Shards) -> None:
    """Who knows another epoch is told what stands."""
    stands = Shards(2, 3, NOW)
    drive.redis.hset(drive.keys.meta, "shards", f"2 3 {NOW}")
    assert drive.run(divide(drive.keys, known, 1, 3, now_ms=NOW + 9)) == (False, stands)
    assert drive.run(read_shards(drive.keys)) == stands


@pytest.mark.parametrize(
    ("written", "epoch"),
    [
        ("rubbish", 0),
        ("1", 0),
        ("4 4", 0),
        ("65 65 1", 0),
        (f"1 1 {NOW + HOUR_MS + 1}", 0),
        (f"1 1 {NOW + HOUR_MS}", NOW + HOUR_MS),
    ],
)
def test_what_no_division_wrote_counts_as_none(drive: Drive, written: str, epoch: int) -> None:
    """Another one replaces it, even if a time of the future was written there."""
    drive.redis.hset(drive.keys.meta, "shards", written)
    changed, stands = drive.run(divide(drive.keys, Shards(1, 1, epoch), 2, 2, now_ms=NOW))
    assert changed
    assert stands == Shards(2, 2, max(NOW, epoch + 1))


@pytest.mark.parametrize(
    ("stands", "brings", "after"),
    [
        (None, ReshardMark(True, 4, 7), Shards(4, 4, 7)),
        ("2 3 6", ReshardMark(False, 1, 7), Shards(1, 3, 7)),
        ("2 3 7", ReshardMark(False, 1, 7), None),
        ("2 3 8", ReshardMark(True, 4, 7), None),
        ("2 3 8", ReshardMark(True, 4, NOW + HOUR_MS + 1), None),
        (f"1 1 {NOW + HOUR_MS + 1}", ReshardMark(True, 4, 7), Shards(4, 4, 7)),
    ],
)
def test_the_later_division_is_adopted(
    drive: Drive, stands: str | None, brings: ReshardMark, after: Shards | None
) -> None:
    """No shard that may hold messages is forgotten by it."""
    if stands is not None:
        drive.redis.hset(drive.keys.meta, "shards", stands)
    before = drive.run(read_shards(drive.keys))
    changed, division = drive.run(adopt(drive.keys, brings, 2, now_ms=NOW))
    assert (changed, division) == ((True, after) if after else (False, before))
    assert drive.run(read_shards(drive.keys)) == division


@pytest.mark.parametrize(
    ("stands", "shards", "after"),
    [
        (None, Shards(3, 3, 7), ReshardMark(True, 3, 7)),
        (None, Shards(2, 3, 7), ReshardMark(False, 2, 7)),
        ("open 3 6", Shards(1, 3, 7), ReshardMark(False, 1, 7)),
        ("draining 1 8", Shards(4, 4, 7), ReshardMark(False, 1, 8)),
        ("draining 1 7", Shards(4, 4, 7), ReshardMark(True, 4, 7)),
        (f"draining 1 {NOW + HOUR_MS + 1}", Shards(4, 4, 7), ReshardMark(True, 4, 7)),
        ("rubbish", Shards(4, 4, 7), ReshardMark(True, 4, 7)),
    ],
)
def test_the_mark_of_the_later_division_stands(
    shard: Drive, stands: str | None, shards: Shards, after: ReshardMark
) -> None:
    """By the epoch; one of the future is none."""
    if stands is not None:
        shard.redis.hset(shard.keys.meta, "shard", stands)
    assert shard.run(mark(shard.keys, shards, now_ms=NOW)) == after
    assert shard.run(read_mark(shard.keys)) == after


def test_a_new_shard_gets_attributes_and_another_one_keeps_its_own(shard: Drive) -> None:
    """They are those of the queue at the time."""
    shards = Shards(3, 3, 7)
    shard.run(mark(shard.keys, shards, {"maxlen": "5"}, now_ms=NOW))
    shard.run(mark(shard.keys, Shards(4, 4, 8), {"maxlen": "6"}, now_ms=NOW + 1))
    meta = {
        name.decode(): value.decode()
        for name, value in shard.redis.hgetall(shard.keys.meta).items()
    }
    assert meta == {
        "test": "1",
        "created_ms": str(NOW),
        "modified_ms": str(NOW),
        "maxlen": "5",
        "shard": "open 4 8",
    }


@pytest.mark.parametrize("stands", [None, "draining 1 7", "opened 3 7", "1"])
def test_a_shard_that_is_not_open_refuses(shard: Drive, stands: str | None) -> None:
    """What is sent; the refusal tells which division closed it. A repetition of what was stored is none."""
    shard.redis.hset(shard.keys.meta, "shard", "open 3 6")
    shard.send("a", lane="l", sequence=1)
    shard.redis.hdel(shard.keys.meta, "shard")
    if stands is not None:
        shard.redis.hset(shard.keys.meta, "shard", stands)
    with pytest.raises(ShardDrainingError) as raised:
        shard.send("b", lane="l", sequence=2)
    known = ReshardMark.parse(stands.encode()) if stands else UNMARKED
    assert (raised.value.active, raised.value.epoch) == (known.active, known.epoch)
    assert shard.send("a", lane="l", sequence=1).repeated
    assert shard.redis.llen(shard.keys.ready[0]) == 1


def test_a_send_learns_how_its_queue_is_divided(drive: Drive) -> None:
    """With its first reply and with a repetition, beside what a unique key kept out; nothing where it is whole."""
    assert drive.send("a", lane="l", sequence=1).shards == WHOLE
    drive.redis.hset(drive.keys.meta, "shards", "2 3 7")
    for sent in (drive.send("b", lane="l", sequence=2), drive.send("b", lane="l", sequence=2)):
        assert sent.shards == Shards(2, 3, 7)
        assert (sent.ids, sent.duplicates) == (("b",), ())


def test_a_time_is_for_tests_alone(drive: Drive) -> None:
    """As in every script."""
    drive.redis.delete(drive.keys.meta)
    with pytest.raises(InvalidOptionError):
        drive.run(divide(drive.keys, WHOLE, 2, 2, now_ms=NOW))
