"""lib/requeue.lua: a stream of dead letters that is full, because another program wrote the greatest id into it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qworker.engine.message import enqueue
from qworker.engine.reap import promote
from qworker.engine.settle import Outcomes
from qworker.errors import UnfinishedError
from tests.lua.drive import NOW, Drive, deny, guarded, own

GREATEST = "18446744073709551615-18446744073709551615"
#: When what could not be buried is due, in ms: as late as a score can say.
NEVER = 2**53
LATER = NOW + 60_000


@pytest.fixture(params=["there", "deleted"])
def full(engine_drive: Drive, request: pytest.FixtureRequest) -> Drive:
    """A queue of four messages, two of them unacked, whose dead letters take no more."""
    drive = engine_drive
    drive.redis.xadd(drive.keys.dead, {"envelope": own("x"), "reason": "rejected"}, id=GREATEST)
    if request.param == "deleted":
        drive.redis.xdel(drive.keys.dead, GREATEST)
    drive.send("a", "b", "c", "d")
    drive.receive("L", 2)
    return drive


def _bury(drive: Drive) -> object:
    outcomes = Outcomes("L", acks=[2])
    outcomes.bury(1, "rejected")
    return drive.call("settle", drive.standard_keys("L"), NOW, "", 1, *outcomes.words())[2]


def _nack(drive: Drive) -> object:
    outcomes = Outcomes("L", acks=[2])
    outcomes.nack(1, 0, max_receives=1)
    return drive.receive("M", 1, outcomes).degraded


def _reap(drive: Drive) -> object:
    drive.redis.delete(drive.keys.lease("L"))
    drive.redis.hset(drive.keys.lease("L"), mapping={"1": own("a", flags=" v=0"), "2": own("b")})
    drive.redis.hset(drive.keys.stats, "reaped_ms", LATER - 100)
    return drive.call("reap", drive.standard_keys("L"), LATER, 1000)[-1]


def _receive_foreign(drive: Drive) -> object:
    drive.redis.lpush(drive.keys.ready[0], "a foreign one")
    return drive.receive("M", 1).degraded


@pytest.mark.parametrize("call", [_bury, _nack, _reap, _receive_foreign])
def test_what_cannot_be_buried_is_put_where_nobody_receives_it(
    full: Drive, call: Callable[[Drive], object]
) -> None:
    """Nothing is lost, nothing is delivered forever, and the rest of the call is done; the reply says degraded."""
    dead_letters = full.redis.xlen(full.keys.dead)
    before = full.stats()["stored"]
    assert call(full) == 1
    [(item, due_ms)] = full.state("delayed")["delayed"].items()
    assert (item.split()[1], due_ms) == ("foreign" if call is _receive_foreign else "a", NEVER)
    assert full.stats("unburied", "dead") == {"unburied": 1}
    acked = full.stats().get("acked", 0)
    plain = 1 if call is _receive_foreign else 0
    assert full.stats()["stored"] == before - acked + plain
    assert full.redis.xlen(full.keys.dead) == dead_letters
    full.run(promote(full.keys, now_ms=LATER))
    assert full.state("delayed")["delayed"] == {item: NEVER}


def test_it_dies_when_it_is_wanted_to(full: Drive) -> None:
    """Once the stream is out of the way, a message that is put back to ready is handled, or buried, as usual."""
    _bury(full)
    full.redis.delete(full.keys.dead, full.keys.ready[0])
    [item] = full.state("delayed")["delayed"]
    full.run(enqueue(full.keys, [item.encode()], now_ms=NOW))
    assert [each.split()[1] for each in full.receive("M", 5).items] == [b"a"]
    outcomes = Outcomes("M")
    outcomes.bury(0, "rejected")
    full.settle(outcomes)
    [dead_letter] = full.state("dead")["dead"]
    assert dead_letter["envelope"].split()[1] == "a"


def test_another_failure_to_bury_ends_the_call() -> None:
    """The message stays unacked: who has the right to bury does so when the lease has run out."""
    with guarded() as drive:
        drive.send("a", "b")
        drive.receive("L", 2)
        deny(drive, "xadd")
        with pytest.raises(UnfinishedError):
            _bury(drive)
        assert drive.state("lease:L", "delayed") == {"lease:L": {"1": own("a")}}
