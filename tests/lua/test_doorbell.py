"""lib/counters.lua: the doorbell is the least that a call does; where it cannot be rung, the reply says degraded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qworker.engine.settle import Outcomes
from tests.lua.drive import NOW, Drive, deny, guarded, own

LATER = NOW + 60_000
#: Where `degraded` stands in the reply of a script; last unless told here.
AT = {"send": 3, "settle": 2, "settle_receive": 6, "redrive": 2, "enqueue": 2, "claim": 3}


def _send(drive: Drive) -> list[object]:
    return drive.call("send", drive.sending_keys(), NOW, "", 0, "", "", 0, 1, "q1 b ", "\nB", 0)


def _settle(drive: Drive) -> list[object]:
    outcomes = Outcomes("L")
    outcomes.release(1)
    return drive.call("settle", drive.standard_keys("L"), NOW, "", 1, *outcomes.words())


def _settle_receive(drive: Drive) -> list[object]:
    return drive.call("settle_receive", drive.standard_keys("M"), NOW, 0, 1, "", 0, "", 0)


def _reap(drive: Drive) -> list[object]:
    drive.redis.hset(drive.keys.stats, "reaped_ms", LATER - 100)
    return drive.call("reap", drive.standard_keys("L"), LATER, 1000)


def _claim(drive: Drive) -> list[object]:
    drive.redis.hset(drive.keys.lease("L"), mapping={"1": own("a"), "2": own("b", shared=1)})
    return drive.call("claim", drive.standard_keys("L", "M"), NOW, 0, 5, "", "", NOW + 30_000)


def _promote(drive: Drive) -> list[object]:
    return drive.call("promote", drive.standard_keys(), LATER, 10)


def _enqueue(drive: Drive) -> list[object]:
    item = drive.redis.zrange(drive.keys.delayed, 0, 0)[0]
    return drive.call("enqueue", drive.standard_keys(), NOW, item)


def _redrive(drive: Drive) -> list[object]:
    entry = drive.redis.xadd(drive.keys.dead, {"envelope": own("x"), "reason": "rejected"})
    return drive.call("redrive", drive.standard_keys(), NOW, entry)


CALLS = [_send, _settle, _settle_receive, _reap, _claim, _promote, _enqueue, _redrive]
#: What may be denied to a call that needs it for the doorbell alone.
DENIED = [
    *((call, "") for call in CALLS),
    *((call, "llen") for call in CALLS if call is not _settle_receive),
    *((call, "rpush") for call in (_settle, _settle_receive, _reap)),
]


@pytest.mark.parametrize(
    ("call", "denied"), DENIED, ids=[f"{call.__name__[1:]}-{denied}" for call, denied in DENIED]
)
def test_a_doorbell_that_cannot_be_rung_is_reported(
    call: Callable[[Drive], list[object]], denied: str
) -> None:
    """The change is done, and its caller learns that waiting receivers may not know of it."""
    with guarded() as drive:
        drive.send("a", "b")
        drive.receive("L", 2)
        drive.send("c", "d")
        drive.send("later", delay_ms=1000)
        drive.redis.delete(drive.keys.wake)
        if denied:
            deny(drive, denied)
        reply = call(drive)
        assert (reply[0], reply[AT.get(call.__name__[1:], -1)]) == ("OK", 1 if denied else 0)
        assert drive.redis.exists(drive.keys.wake) == (not denied)


def test_receives_of_one_message_put_no_more_tokens_than_one(drive: Drive) -> None:
    """Each leaves messages behind and finds that it need not ring, or the doorbell would grow with the queue."""
    drive.send(*(f"m{number}" for number in range(20)))
    drive.redis.delete(drive.keys.wake)
    for number in range(10):
        assert drive.receive(f"L{number}", 1).items
        assert drive.redis.llen(drive.keys.wake) == 1
