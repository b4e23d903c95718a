"""retire.lua and absorb.lua: the totals of a shard that is given up."""

from __future__ import annotations

from qworker.engine import shards
from qworker.engine.command import Command
from qworker.engine.shards import Retired, absorb
from qworker.wire.keys import QueueKeys
from tests.lua.drive import NOW, Drive

TOTALS = {"sent": "12", "acked": "11", "dead:rejected": "1", "gaps": "2"}
STATE = {
    "stored": "3",
    "unacked": "1",
    "reaped_ms": "1700000000000",
    "gap_from_ms": "5",
    "journal_events": "40",
    "stale": "0",
    "nacked": "many",
    "released": "-1",
}


def retire(keys: QueueKeys, new_id: str, added: str = "", at: int = NOW) -> Command[Retired]:
    """Take the totals of a shard at this time."""
    return shards.retire(keys, new_id, added, now_ms=at)


def test_totals_are_taken_once_and_the_rest_stays(engine_drive: Drive) -> None:
    """What a shard holds, when it was looked at and the numbers of its journal are not added up."""
    drive = engine_drive
    drive.redis.hset(drive.keys.meta, "shard", "draining 1 7")
    drive.redis.hset(drive.keys.stats, mapping={**TOTALS, **STATE})
    taken = Retired(f"{NOW}-one", {name.encode(): int(total) for name, total in TOTALS.items()})
    assert drive.run(retire(drive.keys, "one")) == taken
    left = drive.redis.hgetall(drive.keys.stats)
    assert {name.decode(): value.decode() for name, value in left.items()} == STATE


def test_what_was_taken_is_kept_until_it_was_added(drive: Drive) -> None:
    """The next caller adds the same under the same id; later counts come after it."""
    drive.redis.hset(drive.keys.meta, "shard", "draining 1 7")
    drive.redis.hset(drive.keys.stats, "sent", "12")
    taken = Retired(f"{NOW}-one", {b"sent": 12})
    assert drive.run(retire(drive.keys, "one")) == taken
    drive.redis.hset(drive.keys.stats, "acked", "3")
    drive.redis.hset(drive.keys.meta, "shard", "open 2 8")
    assert drive.run(retire(drive.keys, "two")) == taken
    assert drive.run(retire(drive.keys, "two", "another")) == taken
    drive.redis.hset(drive.keys.meta, "shard", "draining 1 9")
    for _ in range(2):
        assert drive.run(retire(drive.keys, "two", taken.id)) == Retired("", {})
    assert drive.run(retire(drive.keys, "three")) == Retired(f"{NOW + 1}-three", {b"acked": 3})


def test_others_fields_keep_no_shard_from_being_given_up(drive: Drive) -> None:
    """What cannot be told by its name stays, and so does what is more than one call adds."""
    drive.redis.hset(drive.keys.meta, "shard", "draining 1 7")
    others = {"": "5", "a b": "5", "a\n": "5"}
    drive.redis.hset(drive.keys.stats, mapping={**{f"n{i}": "1" for i in range(150)}, **others})
    taken = drive.run(retire(drive.keys, "one"))
    assert len(taken.totals) == 100
    assert {b"", b"a b", b"a\n"} <= drive.redis.hgetall(drive.keys.stats).keys()
    drive.run(absorb(drive.keys, 1, taken))
    assert drive.run(retire(drive.keys, "two", taken.id)) == Retired("", {})


def test_what_an_earlier_removal_took_is_not_added_again(engine_drive: Drive) -> None:
    """The shard was used and removed again meanwhile, while a caller held what the first removal took.

    That the server's clock went back in between changes nothing.
    """
    drive = engine_drive
    drive.redis.hset(drive.keys.meta, "shard", "draining 1 7")
    queue = QueueKeys(drive.namespace, "whole")
    held = []
    for new_id, at, sent in (("one", NOW, 50), ("two", NOW + 1000, 30), ("three", NOW - 1000, 20)):
        drive.redis.hset(drive.keys.stats, "sent", sent)
        held.append(drive.run(retire(drive.keys, new_id, at=at)))
        drive.run(absorb(queue, 1, held[-1]))
        drive.run(retire(drive.keys, "later", held[-1].id))
    for taken in held:
        drive.run(absorb(queue, 1, taken))
        assert drive.run(retire(drive.keys, "later", taken.id)) == Retired("", {})
    assert drive.redis.hget(queue.stats, "sent") == b"100"


def test_totals_are_added_once(engine_drive: Drive) -> None:
    """By their id, for each shard; a counter that holds no number is left alone."""
    drive = engine_drive
    drive.redis.hset(drive.keys.stats, mapping={"sent": "5", "acked": "many"})
    for _ in range(2):
        drive.run(absorb(drive.keys, 1, Retired("1-one", {b"sent": 12, b"acked": 3})))
    assert drive.stats("sent") == {"sent": 17}
    drive.run(absorb(drive.keys, 2, Retired("1-one", {b"sent": 1})))
    drive.run(absorb(drive.keys, 1, Retired("2-two", {b"sent": 1})))
    assert drive.stats("sent") == {"sent": 19}
    assert drive.redis.hget(drive.keys.stats, "acked") == b"many"


def test_a_shard_that_is_in_use_keeps_them(drive: Drive) -> None:
    """It was divided again meanwhile."""
    drive.send("a")
    assert drive.run(retire(drive.keys, "one")) == Retired("", {})
    assert drive.stats("sent") == {"sent": 1}
