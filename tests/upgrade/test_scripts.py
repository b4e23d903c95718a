"""What the scripts of this version do with messages of the next one: leave them to its consumers, and count them."""

from __future__ import annotations

import pytest

from qworker.engine.claim import claim
from qworker.engine.dead import redrive
from qworker.engine.reap import promote, reap, trim
from qworker.engine.receive import Suspects
from qworker.engine.settle import Outcomes
from qworker.fsck.check import check_queue
from qworker.wire.ids import EntryId
from tests.lua.drive import NOW, Drive

NEWER = "q2 abcdefghij0000000001 5 0 0 0 0 new=header x=1 u=key\nbody"
BESIDE = "q2 abcdefghij0000000002 5 3 9 9 9\n{}"


def test_a_receive_puts_it_behind_the_others(drive: Drive) -> None:
    """From every level and from the suspects; what this version knows is delivered."""
    drive.send("own")
    drive.redis.lpush(drive.keys.ready[0], NEWER)
    drive.redis.rpush(drive.keys.suspect, BESIDE)

    taken = drive.receive("L-1", 5)
    drive.receive("L-2", 5, suspects=Suspects.FIRST)

    assert [item.split()[1] for item in taken.items] == [b"own"]
    assert drive.state("ready", "suspect", "dead") == {"ready": [NEWER, BESIDE]}
    assert drive.stats("unsupported") == {"unsupported": 2}


@pytest.mark.bad_input("data found: unknown version")
def test_a_lease_that_ran_out_gives_it_back_as_it_is(drive: Drive) -> None:
    """Alone or in company, expired or not, whatever its counters say."""
    drive.redis.hset(drive.keys.lease("L-1"), mapping={"1": NEWER, "2": BESIDE})
    drive.redis.hset(drive.keys.lease("L-2"), "0", NEWER + "2")
    drive.redis.zadd(drive.keys.unacked, {"L-1": NOW, "L-2": NOW + 1})

    drive.run(reap(drive.keys, ["L-1", "L-2"], 1000, now_ms=NOW + 10))

    assert sorted(drive.state("ready")["ready"]) == sorted([NEWER, BESIDE, NEWER + "2"])
    assert drive.state("unacked", "suspect", "dead") == {}
    assert drive.stats("unsupported", "unacked") == {"unsupported": 3, "unacked": -3}


@pytest.mark.bad_input("data found: unknown version")
@pytest.mark.parametrize("outcome", ["nack", "release", "share", "crash", "foreign"])
def test_a_settle_gives_it_back_as_it_is(drive: Drive, outcome: str) -> None:
    """By holders of a receipt of a lease that the next version made."""
    drive.redis.hset(drive.keys.lease("L-1"), "0", NEWER)
    drive.redis.zadd(drive.keys.unacked, {"L-1": NOW + 30_000})
    outcomes = Outcomes("L-1")
    match outcome:
        case "nack":
            outcomes.nack("0", 5000)
        case "foreign":
            outcomes.bury("0", "foreign")
        case _:
            getattr(outcomes, outcome)("0")

    drive.settle(outcomes)

    assert drive.state("ready", "unacked", "delayed", "suspect", "dead") == {"ready": [NEWER]}


def test_what_was_decided_about_it_counts(drive: Drive) -> None:
    """An ack, a discard and a burial by a person end it."""
    drive.redis.hset(drive.keys.lease("L-1"), mapping={"1": NEWER, "2": BESIDE, "3": NEWER + "3"})
    drive.redis.zadd(drive.keys.unacked, {"L-1": NOW + 30_000})
    outcomes = Outcomes("L-1", acks=["1"])
    outcomes.discard("2")
    outcomes.bury("3", "rejected")

    assert drive.settle(outcomes).counted == (True, True, True)

    (dead_letter,) = drive.state("dead")["dead"]
    assert (dead_letter["envelope"], drive.state("ready", "unacked")) == (NEWER + "3", {})


def test_a_claim_gives_it_to_the_caller_as_it_is(drive: Drive) -> None:
    """Nothing of a lease that is claimed is lost."""
    drive.redis.hset(drive.keys.lease("L-1"), "0", NEWER)
    drive.redis.zadd(drive.keys.unacked, {"L-1": NOW})

    claimed = drive.run(claim(drive.keys, "L-2", [("L-1", NOW)], 5, now_ms=NOW + 10))

    assert claimed.batch.items == [NEWER.encode()]
    assert drive.state("lease:L-2") == {"lease:L-2": {"0": NEWER}}


def test_it_is_promoted_and_never_trimmed_or_redriven(drive: Drive) -> None:
    """When it is due is known to all; when it has expired is known to its version."""
    drive.redis.zadd(drive.keys.delayed, {NEWER: NOW})
    entry = drive.redis.xadd(drive.keys.dead, {"envelope": BESIDE, "reason": "rejected"})

    drive.run(promote(drive.keys, now_ms=NOW))
    drive.run(trim(drive.keys, now_ms=NOW))

    assert drive.run(redrive(drive.keys, [EntryId.of_stream(entry, 0)], now_ms=NOW)) == (-1,)
    assert drive.state("ready", "delayed") == {"ready": [NEWER]}
    assert len(drive.state("dead")["dead"]) == 1


@pytest.mark.bad_input("data found: unknown version")
def test_fsck_finds_nothing_wrong_with_it(drive: Drive) -> None:
    """Wherever it stands; the unique key that it holds stays held."""
    drive.redis.hdel(drive.keys.meta, "test")
    drive.redis.rpush(drive.keys.ready[0], NEWER)
    drive.redis.hset(drive.keys.unique, "key", "abcdefghij0000000001 99999999999999")
    drive.redis.hset(drive.keys.stats, mapping={"stored": 1, "unacked": 0})

    assert list(check_queue(drive.client, drive.keys, repair=True)) == []
    assert drive.state("unique")["unique"]["key"].startswith("abcdefghij0000000001 ")
