"""claim.lua: take messages over from receivers that have not been heard of, into a new lease."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.engine.attributes import configure
from qworker.engine.claim import Claimed, claim
from qworker.engine.extend import extend
from qworker.engine.message import cancel
from qworker.engine.settle import Outcomes
from qworker.errors import LeaseUsedError
from tests.journals import event_lines
from tests.lua.drive import NOW, Drive, own

#: When the leases of these tests, made at NOW for 30 s, run out.
DEADLINE = NOW + 30_000
AT = NOW + 10_000


def claimed(
    drive: Drive, new: str, *leases: str, count: int = 100, at: int = AT, **options: Any
) -> Claimed:
    """Claim from leases whose deadline was seen to be DEADLINE."""
    candidates = [(lease, DEADLINE) for lease in leases]
    result: Claimed = drive.run(
        claim(drive.keys, new, candidates, count, visibility_ms=5000, now_ms=at, **options)
    )
    return result


def test_takes_messages_over_in_order(engine_drive: Drive) -> None:
    """The old receiver's delivery is counted as shared; the new lease holds the messages, and ready none of them."""
    drive = engine_drive
    drive.send("a", "b", "c")
    drive.receive("L")
    result = claimed(drive, "N", "L", count=2)
    items = [
        own("a", receives=1, shared=1, first_ms=NOW, back_ms=AT),
        own("b", receives=1, shared=1, first_ms=NOW, back_ms=AT),
    ]
    assert [item.decode() for item in result.batch.items] == items
    assert result.batch.indices == ["1", "2"]
    assert result.batch.deadline_ms == AT + 5000
    assert (result.ended, result.batch.alone) == (0, False)
    assert drive.state() == {
        "lease:L": {"3": own("c")},
        "lease:N": {"1": items[0], "2": items[1]},
        "unacked": {"L": DEADLINE, "N": AT + 5000},
        "wake": ["1"] * 3,
        "stats": {
            "sent": "3",
            "stored": "3",
            "received": "5",
            "unacked": "3",
            "timeouts": "2",
            "claimed": "2",
            "reaped_ms": str(NOW),
        },
    }


def test_old_receipts_are_stale_and_new_ones_count(drive: Drive) -> None:
    """Nothing is settled twice: the first receiver's ack changes nothing, and its empty lease is gone."""
    drive.send("a", "b")
    drive.receive("L")
    claimed(drive, "N", "L")
    assert drive.state("unacked") == {"unacked": {"N": AT + 5000}}
    assert drive.settle(Outcomes("L", acks=[1, 2])).counted == (False, False)
    assert drive.settle(Outcomes("N", acks=[1, 2])).counted == (True, True)
    assert drive.state("unacked") == {}
    assert drive.stats("stored", "unacked", "acked") == {"stored": 0, "unacked": 0, "acked": 2}


def test_a_lone_message_is_claimed_alone(drive: Drive) -> None:
    """Who was alone with its receiver may have cost its life: counted as a timeout, and alone in the new lease."""
    drive.send("a")
    drive.receive("L", 1)
    drive.send("b", "c")
    drive.receive("M")
    result = claimed(drive, "N", "L", "M")
    assert [item.decode() for item in result.batch.items] == [
        own("a", receives=1, timeouts=1, first_ms=NOW, ready_ms=AT)
    ]
    assert (result.batch.indices, result.batch.alone) == (["0"], True)
    assert drive.state("lease:M", "lease:N", "lease:L") == {
        "lease:M": {"1": own("b"), "2": own("c")},
        "lease:N": {"0": own("a", receives=1, timeouts=1, first_ms=NOW, ready_ms=AT)},
    }


def test_a_suspect_behind_others_goes_to_the_suspects(drive: Drive) -> None:
    """A suspect is never put into a lease with others: it stands where it will be delivered alone."""
    drive.send("b", "c")
    drive.receive("L")
    drive.send("a")
    drive.receive("M", 1)
    drive.redis.delete(drive.keys.wake)
    result = claimed(drive, "N", "L", "M")
    assert [item.decode().split()[1] for item in result.batch.items] == ["b", "c"]
    assert (result.ended, result.batch.alone) == (1, False)
    assert drive.state("suspect", "wake", "lease:M") == {
        "suspect": [own("a", receives=1, timeouts=1, first_ms=NOW, ready_ms=AT)],
        "wake": ["1"],
    }
    assert drive.stats("stored", "unacked") == {"stored": 3, "unacked": 2}


def test_a_lease_that_was_extended_is_left_alone(drive: Drive) -> None:
    """A receiver that has been heard of since the caller looked keeps its messages; so does one that is gone."""
    drive.send("a", "b")
    drive.receive("L")
    drive.run(extend(drive.keys, ["L"], 40_000, now_ms=NOW))
    drive.redis.hset(drive.keys.meta, "journal", "all")
    before = drive.state()
    result = claimed(drive, "N", "L", "gone")
    assert (result.batch.items, result.ended) == ([], 0)
    assert drive.state() == before


def test_nothing_is_claimed_that_has_ended(drive: Drive) -> None:
    """Expired, cancelled and dead ones end as at a reap; what is not ours is buried."""
    drive.send("x", ttl_ms=5000)
    drive.send("c", "k", "d")
    drive.redis.lset(drive.keys.ready[0], -1, own("d", nacks=1))
    drive.redis.rpush(drive.keys.ready[0], "hello")
    drive.receive("L", 4)
    drive.run(cancel(drive.keys, "c", 60_000, now_ms=NOW))
    drive.run(configure(drive.keys, {"max_receives": "1"}, now_ms=NOW))
    drive.redis.hset(drive.keys.lease("L"), "9", "hello")
    result = claimed(drive, "N", "L")
    assert [item.decode().split()[1] for item in result.batch.items] == ["k"]
    assert result.ended == 4
    assert [dead_letter["reason"] for dead_letter in drive.state("dead")["dead"]] == [
        "max_receives",
        "foreign",
    ]
    assert drive.stats("expired", "cancelled", "dead", "claimed") == {
        "expired": 1,
        "cancelled": 1,
        "dead": 2,
        "claimed": 1,
    }
    # The foreign one was put into the lease behind the counters' back.
    assert drive.stats("stored", "unacked") == {"stored": 0, "unacked": 0}


def test_a_plain_message_gets_the_name_of_its_first_delivery(drive: Drive) -> None:
    """What was pushed as bare JSON is named by the lease that first delivered it."""
    drive.redis.rpush(drive.keys.ready[0], '{"n":1}', '{"n":1}')
    drive.receive("L")
    result = claimed(drive, "N", "L")
    assert [item.decode().split()[1] for item in result.batch.items] == ["L.1", "L.2"]


def test_a_repetition_returns_the_messages_of_the_lease(drive: Drive) -> None:
    """After a lost reply the same call takes nothing more; a lease that was never created stays away."""
    drive.send("a", "b")
    drive.receive("L")
    first = claimed(drive, "N", "L", count=1)
    command = claim(drive.keys, "N", [("L", DEADLINE)], 1, now_ms=AT).repeated()
    again = drive.run(command)
    assert (again.batch.items, again.batch.indices) == (first.batch.items, ["0"])
    other = drive.run(claim(drive.keys, "O", [("L", DEADLINE)], 1, now_ms=AT).repeated())
    assert other.batch.items == []
    assert "lease:O" not in drive.state()


@pytest.mark.parametrize("paused", ["out", "all"])
def test_nothing_is_claimed_while_receiving_is_paused(drive: Drive, paused: str) -> None:
    """A pause holds for every way to get messages."""
    drive.send("a", "b")
    drive.receive("L")
    drive.run(configure(drive.keys, {"paused": paused}, now_ms=NOW))
    before = drive.state()
    assert claimed(drive, "N", "L").batch.items == []
    assert drive.state() == before


def test_64_leases_may_be_named(drive: Drive) -> None:
    """The most that one call looks at."""
    ids = [f"m{number:02d}" for number in range(64)]
    drive.send(*ids)
    for message_id in ids:
        drive.receive(message_id, 1)
    assert len(claimed(drive, "N", *ids).batch.items) == 1
    assert drive.stats("claimed", "unacked") == {"claimed": 1, "unacked": 64}


def test_a_lease_id_is_used_once(drive: Drive) -> None:
    """A lease that is there is refused."""
    drive.send("a", "b")
    drive.receive("L", 1)
    drive.receive("M", 1)
    with pytest.raises(LeaseUsedError):
        claimed(drive, "M", "L")


def test_a_call_ends_after_1_mib(drive: Drive) -> None:
    """Large messages come in several calls; at least one comes in each."""
    drive.send("a", "b", "c", body=lambda _: b"x" * 600_000)
    drive.receive("L", 1)
    drive.receive("M", 1)
    drive.receive("O", 1)
    drive.redis.delete(*(drive.keys.lease(name) for name in "LMO"))
    drive.redis.hset(
        drive.keys.lease("L"), mapping={str(n): own("a", body="x" * 600_000) for n in (1, 2, 3)}
    )
    assert len(claimed(drive, "N", "L").batch.items) == 2
    assert len(claimed(drive, "P", "L").batch.items) == 1


def test_a_call_that_reaches_1_mib_ends_there(drive: Drive) -> None:
    """The bound itself is the end, not the first byte beyond it."""
    drive.send("a")
    drive.receive("L", 1)
    half = 2**19 - len(own("a", body=""))
    drive.redis.delete(drive.keys.lease("L"))
    drive.redis.hset(
        drive.keys.lease("L"), mapping={str(n): own("a", body="x" * half) for n in (1, 2, 3)}
    )
    assert len(claimed(drive, "N", "L").batch.items) == 2


def test_an_invalid_counter_does_not_fail_the_call(drive: Drive) -> None:
    """The messages are claimed by then, and the reply says that it is degraded."""
    drive.send("a", "b")
    drive.receive("L")
    drive.redis.hset(drive.keys.stats, "claimed", "many")
    result = claimed(drive, "N", "L")
    assert (len(result.batch.items), result.batch.degraded) == (2, True)
    assert list(drive.state("unacked")["unacked"]) == ["N"]


def test_the_journal_shows_both_deliveries(drive: Drive) -> None:
    """A claimed message is journalled as timed out and as delivered again."""
    drive.run(configure(drive.keys, {"journal": "all"}, now_ms=NOW))
    drive.send("a", "b")
    drive.receive("L")
    claimed(drive, "N", "L", caller="host:1")
    entry = drive.state("journal")["journal"][-1]
    assert entry["w"] == "host:1"
    assert [line.split()[0] for line in event_lines(entry["e1"])] == [
        "timed_out",
        "timed_out",
        "delivered",
        "delivered",
    ]
