"""Damaged groups: lost records, slots and turns, and records of earlier versions or other programs."""

from __future__ import annotations

from collections import Counter

import pytest

from qworker.engine.settle import Outcomes
from tests.lua.drive import Drive
from tests.lua.group_calls import EMPTY, found, get, idle, limit, put


def test_slots_are_counted_again(drive: Drive) -> None:
    """A lease that goes without its slots, as earlier versions end it, holds up its groups until a repair."""
    limit(drive, "*", "c=1")
    put(drive, "a:a0", "a:a1", "t/b:b0", "t/b:b1", "=c:c0", "=c:c1")
    assert sorted(get(drive, "l1")) == ["a0", "b0", "c0"]
    assert found(drive) == []
    drive.redis.delete(drive.keys.lease("l1"))
    drive.redis.zrem(drive.keys.unacked, "l1")
    assert get(drive, "l2") == []
    report = ["slot =c", "slot a", "slot t/b"]
    assert sorted(found(drive, repair=False)) == report
    problems = found(drive)
    assert sorted(p for p in problems if p.startswith("slot")) == report
    assert found(drive) == []
    assert sorted(get(drive, "l3")) == ["a1", "b1", "c1"]


def test_members_of_lost_groups_are_seated_again(drive: Drive) -> None:
    """All that says whose turn it is may be deleted: the messages are there, and so is what keeps a slot."""
    put(drive, *[f"a:a{n}" for n in range(3)], "t/b:b0", "=c:c0", "=c:c1")
    assert sorted(get(drive, "l1", 3)) == ["a0", "b0", "c0"]
    drive.redis.delete(*drive.keys.of_groups()[:4])
    assert get(drive, "l2") == []
    assert sorted(found(drive)[:3]) == ["a1", "a2", "c1"]
    found(drive)
    assert found(drive) == []
    assert get(drive, "l3") == ["a1", "a2"]
    drive.settle(Outcomes("l1", ack_all=True))
    assert get(drive, "l4") == ["c1"]


def test_a_turn_that_is_lost_is_given_again(drive: Drive) -> None:
    """Of a group and of a parent."""
    put(drive, "a:a0", "t/b:b0")
    drive.redis.delete(drive.keys.turns, drive.keys.children)
    assert sorted(found(drive)) == ["turn a", "turn t/b"]
    assert found(drive) == []
    assert get(drive, "l1") == ["a0", "b0"]


def test_slots_that_earlier_versions_wrote_come_free(drive: Drive) -> None:
    """They gave each message of a batch a field of its own."""
    put(drive, "=a:a0", "b:b0", "c:c0", "=a:a1")
    assert get(drive, "l1") == ["a0", "b0", "c0"]
    names = {"l1:1": "=a", "l1:2": "b", "l1:3": "c"}
    drive.redis.hset(drive.keys.slots, mapping=names)
    drive.redis.hdel(drive.keys.slots, "l1")
    assert found(drive, repair=False) == []
    drive.settle(Outcomes("l1", ack_all=True))
    assert get(drive, "l2") == ["a1"]
    drive.settle(Outcomes("l2", ack_all=True))
    assert idle(drive) == EMPTY


@pytest.mark.parametrize("written", [b"", b"x", b"\x92\xa1a\x01", b"\xdc\xff"])
def test_slots_of_a_batch_that_no_script_has_written(drive: Drive, written: bytes) -> None:
    """What another program wrote breaks no call, and a repair counts the groups again."""
    put(drive, "=a:a0", "=b:b0", "=a:a1", "=b:b1")
    assert get(drive, "l1") == ["a0", "b0"]
    drive.redis.hset(drive.keys.slots, "l1", written)
    drive.settle(Outcomes("l1", acks=["1"]))
    drive.settle(Outcomes("l1", ack_all=True))
    assert get(drive, "l2") == []
    assert {"busy =a", "busy =b"} <= set(found(drive))
    assert found(drive) == []
    assert get(drive, "l3") == ["a1", "b1"]


@pytest.mark.slow
def test_thousands_of_lost_slots_are_reported(drive: Drive) -> None:
    """As many as were in flight when a daemon of an earlier version reaped them."""
    put(drive, "a:a0", "a:a1")
    drive.redis.hset(drive.keys.slots, mapping={f"gone:{n}": "a" for n in range(4000)})
    assert Counter(found(drive, repair=False)) == {"slot a": 4000, "busy a": 1}
    assert Counter(found(drive)) == {"slot a": 4000}
    assert found(drive) == []


@pytest.mark.parametrize("record", [b"\x98", b"\x98\xa1x" + b"\x00" * 7, b"\x98\x01\xdc", b"text"])
def test_a_record_that_no_script_has_written_counts_as_missing(drive: Drive, record: bytes) -> None:
    """What another program wrote into the key of groups breaks no call; a repair seats what waited."""
    put(drive, "a:a0", "b:b0")
    drive.redis.hset(drive.keys.groups, ":a", record)
    put(drive, "a:a1", "b:b1")
    first = get(drive, "l1")
    assert set(first) >= {"b0", "b1"}
    found(drive)
    found(drive)
    assert sorted(first + get(drive, "l2")) == ["a0", "a1", "b0", "b1"]
