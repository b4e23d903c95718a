"""Numbers in headers: the scripts and the package take the same ones for numbers."""

from __future__ import annotations

import pytest

from qworker.wire.envelope import Envelope
from qworker.wire.numbers import whole
from tests.lua.drive import Drive, own

#: As they stand in a header, and whether they count.
VALUES = {
    "5": True,
    "0005": True,
    str(2**53 - 1): True,
    str(2**53): True,
    str(2**53 + 1): False,
    "9999999999999999": False,
    "00009007199254740992": False,
    "": False,
    "-5": False,
    "1e3": False,
    "%35": False,
}


@pytest.mark.parametrize(("value", "counts"), VALUES.items())
def test_expiry_is_one_for_both_or_for_none(engine_drive: Drive, value: str, counts: bool) -> None:
    """A flag beyond 2^53, which Lua would round, is ignored as any other that is not a number."""
    drive = engine_drive
    item = own("a", flags=f" x={value}")
    drive.redis.rpush(drive.keys.ready[0], item)
    envelope = Envelope.parse(item.encode())
    assert envelope is not None
    assert (whole(envelope.flags.get("x")) is not None) == counts
    assert drive.receive("L", at=2**53).items == ([] if counts else [item.encode()])


@pytest.mark.parametrize(("value", "counts"), VALUES.items())
def test_max_receives_is_one_for_both_or_for_none(drive: Drive, value: str, counts: bool) -> None:
    """A message whose own number is none has the queue's; after its fifth lease that ran out it is dead."""
    item = f"q1 a 5 4 0 4 0 m={value}\na"
    drive.redis.hset(drive.keys.lease("L"), "0", item)
    drive.redis.zadd(drive.keys.unacked, {"L": 5})
    envelope = Envelope.parse(item.encode())
    assert envelope is not None
    assert (whole(envelope.flags.get("m")) is not None) == counts
    drive.call("reap", drive.standard_keys("L"), 10, 1000)
    is_dead = drive.redis.xlen(drive.keys.dead) == 1
    assert is_dead == (not counts or int(value) <= 5)
