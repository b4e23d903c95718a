"""lib/lease.lua: the two shapes of a lease."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from qworker.engine.extend import split
from qworker.engine.settle import Outcomes
from qworker.wire.leases import held_items
from tests.lua.drive import NOW, Drive, own

LATER = NOW + 60_000
#: Lengths on both sides of what MessagePack writes a head of 1, 2, 3 and 5 bytes for; the envelope takes some of each.
LENGTHS = (0, 5, 31, 200, 300, 65_000, 66_000)


def fields(drive: Drive, lease: str = "L") -> dict[bytes, bytes]:
    """The fields as they stand."""
    return drive.redis.hgetall(drive.keys.lease(lease))


def reap(drive: Drive) -> Any:
    """Take the lease back."""
    drive.redis.hset(drive.keys.stats, "reaped_ms", LATER - 100)
    return drive.call("reap", drive.standard_keys("L"), LATER, 1000)


def test_a_batch_stands_in_one_field(engine_drive: Drive) -> None:
    """Messages of any length are read back as they were, by scripts and by Python."""
    drive = engine_drive
    drive.send(*(f"m{length}" for length in LENGTHS), body=lambda name: b"x" * int(name[1:]))
    batch = drive.receive("L")
    held = fields(drive)
    assert list(held) == [b"batch"]
    assert held_items([b"batch", held[b"batch"]]) == [
        (b"%d" % number, item) for number, item in enumerate(batch.items, 1)
    ]
    assert drive.receive("L", resume=True).items == batch.items
    reap(drive)
    again = drive.receive("M")
    assert [item.partition(b"\n")[2] for item in again.items] == [
        b"x" * length for length in LENGTHS
    ]


def test_one_alone_has_index_0(engine_drive: Drive) -> None:
    """It has its own field."""
    drive = engine_drive
    drive.send("a")
    drive.receive("L")
    assert list(fields(drive)) == [b"0"]


def test_settling_one_message_splits_the_others_into_fields(
    engine_drive: Drive,
) -> None:
    """Whatever takes one message out: the rest stays in order, and is settled as ever."""
    drive = engine_drive
    drive.send("a", "b", "c", "d", "e")
    drive.receive("L")
    drive.settle(Outcomes("L", acks=[2]))
    assert sorted(fields(drive)) == [b"1", b"3", b"4", b"5"]
    released = Outcomes("L")
    released.release(1)
    drive.settle(released)
    assert drive.run(split(drive.keys, "L", 3, "S", 30_000, now_ms=NOW))
    assert sorted(fields(drive)) == [b"4", b"5"]
    assert list(fields(drive, "S")) == [b"3"]
    assert drive.receive("N", 0, Outcomes("L", ack_all=True)).settled == (2,)
    assert drive.stats("stored", "unacked", "acked") == {"stored": 2, "unacked": 1, "acked": 3}


@pytest.mark.parametrize(
    ("acks", "counted", "left"),
    [
        ([1, 2, 3], [1, 1, 1], []),
        ([3, 1, 2], [1, 1, 1], []),
        ([1, 1, 2], [1, 0, 1], [b"3"]),
        ([1, 2, 4], [1, 1, 0], [b"3"]),
        ([1, 2, 0], [1, 1, 0], [b"3"]),
        ([1, 2], [1, 1], [b"3"]),
        ([1, 2, 3, 4], [1, 1, 1, 0], []),
        ([1, 2, "batch"], [1, 1, 0], [b"3"]),
    ],
)
def test_acks_of_a_batch_count_each_once(
    engine_drive: Drive, acks: list[int | str], counted: list[int], left: list[bytes]
) -> None:
    """All of them in one call are the whole batch; too few, too many and twice the same are not."""
    drive = engine_drive
    drive.send("a", "b", "c")
    drive.receive("L")
    settled = drive.settle(Outcomes("L", acks=acks))
    assert [int(each) for each in settled.counted] == counted
    assert list(fields(drive)) == left
    assert drive.stats("acked", "unacked") == {"acked": sum(counted), "unacked": len(left)}
    assert drive.redis.zcard(drive.keys.unacked) == bool(left)


@pytest.mark.parametrize("whole", [True, False], ids=["batch", "loose"])
def test_acks_without_an_answer_for_each_count_the_same(drive: Drive, *, whole: bool) -> None:
    """A worker's call settles the whole batch, and a part of it."""
    drive.send("a", "b", "c")
    drive.receive("L")
    outcomes = Outcomes("L", acks=[1, 2, 3] if whole else [1, 3])
    assert drive.receive("N", 0, outcomes).settled == (len(outcomes.acks),)
    assert list(fields(drive)) == ([] if whole else [b"2"])


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"hello",
        b"\x90",
        b"\x93\x01\x02\x03",
        b"\x92\xa1a",
        b"\xdc\x00",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        msgspec.msgpack.encode({"1": "a"}),
        msgspec.msgpack.encode(["a", ["b"]]),
        msgspec.msgpack.encode(7),
    ],
)
def test_anything_else_in_the_field_is_one_foreign_item(engine_drive: Drive, junk: bytes) -> None:
    """It is buried with its bytes when the lease runs out; what stands beside it goes back."""
    drive = engine_drive
    drive.send("a")
    drive.receive("L")
    drive.redis.hset(drive.keys.lease("L"), "batch", junk)
    assert held_items([b"batch", junk]) == [(b"batch", junk)]
    reap(drive)
    dead_letters = drive.redis.xrange(drive.keys.dead)
    assert [dead_letter[b"envelope"] for _, dead_letter in dead_letters] == [junk]
    assert [item.split()[1] for item in drive.receive("M").items] == [b"a"]


def test_what_stands_beside_a_batch_is_not_lost(engine_drive: Drive) -> None:
    """A foreign field in a lease goes back with the batch, or stays if that is settled message by message."""
    drive = engine_drive
    drive.send("a", "b")
    drive.receive("L")
    drive.redis.hset(drive.keys.lease("L"), "9", own("c"))
    drive.settle(Outcomes("L", acks=[1]))
    assert sorted(fields(drive)) == [b"2", b"9"]
    reap(drive)
    assert sorted(item.split()[1] for item in drive.receive("M").items) == [b"b", b"c"]
