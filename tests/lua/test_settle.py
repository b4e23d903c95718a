"""settle.lua: ack, nack, release, bury or discard received messages, and say which ones counted."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.engine.settle import Outcomes
from tests.lua.drive import NOW, Drive, own


def received(drive: Drive, *ids: str, lease: str = "L", **options: Any) -> Outcomes:
    """Send messages, receive them into a lease, empty the doorbell; outcomes of that lease to be filled."""
    drive.send(*ids, **options)
    drive.receive(lease, 1000)
    drive.redis.delete(drive.keys.wake)
    return Outcomes(lease)


def dead(drive: Drive) -> list[tuple[str, str]]:
    """(envelope, reason) of each dead letter."""
    dead_letters = drive.state("dead").get("dead", [])
    return [(dead_letter["envelope"], dead_letter["reason"]) for dead_letter in dead_letters]


# -- ack ------------------------------------------------------------------------------------------


def test_ack_ends_a_message(engine_drive: Drive) -> None:
    """An acked message is gone; its lease keeps the others and their deadline."""
    drive = engine_drive
    outcomes = received(drive, "a", "b", "c")
    outcomes.acks = [1, "3"]
    settled = drive.settle(outcomes)
    assert (settled.per_lease, settled.counted, settled.now_ms) == ((2,), (True, True), NOW)
    assert drive.state() == {
        "lease:L": {"2": own("b")},
        "unacked": {"L": NOW + 30_000},
        "stats": {
            "sent": "3",
            "stored": "1",
            "received": "3",
            "unacked": "1",
            "acked": "2",
            "reaped_ms": "1000000",
        },
    }


def test_last_outcome_ends_the_lease(drive: Drive) -> None:
    """With its last message the lease and its deadline go; no receiver is woken for an ack."""
    outcomes = received(drive, "a", "b")
    outcomes.acks = [1, 2]
    drive.settle(outcomes)
    assert drive.state() == {
        "stats": {
            "sent": "2",
            "stored": "0",
            "received": "2",
            "unacked": "0",
            "acked": "2",
            "reaped_ms": "1000000",
        },
    }


def test_repeated_ack_changes_nothing_and_is_counted_as_stale(drive: Drive) -> None:
    """Settling again, and settling what never was, is harmless."""
    outcomes = received(drive, "a", "b")
    outcomes.acks = [1]
    drive.settle(outcomes)
    before = drive.state()
    outcomes.acks = [1, 7, "x", ""]
    other = Outcomes("M", acks=[1])
    settled = drive.settle(outcomes, other)
    assert (settled.per_lease, settled.counted) == ((0, 0), (False,) * 5)
    assert drive.stats("stale") == {"stale": 5}
    drive.redis.hdel(drive.keys.stats, "stale")
    assert drive.state() == before


def test_ack_of_all_that_is_left(engine_drive: Drive) -> None:
    """A whole lease is acked without naming its messages, a thousand as well as one."""
    drive = engine_drive
    outcomes = received(drive, *(f"m{number}" for number in range(1000)))
    drive.settle(Outcomes("L", acks=list(range(1, 991))))
    outcomes.ack_all = True
    settled = drive.settle(outcomes)
    assert (settled.per_lease, settled.counted) == ((10,), ())
    assert drive.state("lease:L", "unacked") == {}
    assert drive.stats("acked", "stored", "unacked", "stale") == {
        "acked": 1000,
        "stored": 0,
        "unacked": 0,
    }


def test_ack_of_all_leaves_messages_with_other_outcomes(drive: Drive) -> None:
    """Acking the rest of a lease spares the messages that have their own outcome in the same call."""
    outcomes = received(drive, "a", "b", "c", "d")
    outcomes.ack_all = True
    outcomes.nack(2, 0)
    outcomes.bury(3, "rejected")
    settled = drive.settle(outcomes)
    assert (settled.per_lease, settled.counted) == ((4,), (True, True))
    assert drive.state("ready", "lease:L", "unacked") == {
        "ready": [own("b", receives=1, nacks=1, ready_ms=NOW)],
    }
    assert dead(drive) == [(own("c", receives=1), "rejected")]
    assert drive.stats("acked", "stored", "unacked", "stale") == {
        "acked": 2,
        "stored": 1,
        "unacked": 0,
    }


def test_message_has_one_outcome_in_a_call(drive: Drive) -> None:
    """Of two outcomes for one message the first counts, the other is stale: it is never in two places."""
    outcomes = received(drive, "a", "b", "c")
    outcomes.nack(1, 0)
    outcomes.nack(1, 0)
    outcomes.release(1)
    outcomes.bury(1, "rejected")
    outcomes.acks = [2]
    outcomes.nack(2, 0)
    settled = drive.settle(outcomes)
    assert settled.counted == (True, True, False, False, False, False)
    assert drive.state("ready", "lease:L", "dead") == {
        "ready": [own("a", receives=1, nacks=1, ready_ms=NOW)],
        "lease:L": {"3": own("c")},
    }
    assert drive.stats("nacked", "stale", "stored", "unacked", "dead", "released") == {
        "nacked": 1,
        "stale": 4,
        "stored": 2,
        "unacked": 1,
    }


def test_counts_of_several_leases_add_up(drive: Drive) -> None:
    """Whatever the leases of a call came to, the counters hold the sums."""
    leases = []
    for lease in "LMN":
        drive.send(*(f"{lease}{number}" for number in range(1, 10)))
        drive.receive(lease, 9)
        outcomes = Outcomes(lease, acks=[1])
        outcomes.uniques = [2, "k", f"{lease}2"]
        outcomes.nack(3, 0)
        outcomes.nack(4, 0, max_receives=1)
        outcomes.release(5)
        outcomes.share(6)
        outcomes.bury(7, "rejected")
        outcomes.discard(8)
        outcomes.discard(9)
        outcomes.discard(9)
        leases.append(outcomes)
        drive.send(f"{lease}rest")
        drive.receive(f"{lease}rest")
        leases.append(Outcomes(f"{lease}rest", ack_all=True))
    assert drive.settle(*leases).per_lease == (9, 1) * 3
    assert drive.stats() == {
        "sent": 30,
        "received": 30,
        "stored": 9,
        "unacked": 0,
        "acked": 9,
        "nacked": 6,
        "released": 3,
        "timeouts": 3,
        "dead": 6,
        "dead:rejected": 3,
        "dead:max_receives": 3,
        "discarded": 6,
        "stale": 3,
        "reaped_ms": NOW,
    }
    assert drive.state("wake")["wake"] == ["1"] * 8


def test_several_leases_are_settled_in_one_call(drive: Drive) -> None:
    """Up to 64 leases per call, each with its own outcomes."""
    drive.send(*(f"m{number:02d}" for number in range(64)))
    for number in range(64):
        drive.receive(f"L{number}", 1)
    settled = drive.settle(*(Outcomes(f"L{number}", acks=[0]) for number in range(64)))
    assert settled.per_lease == (1,) * 64
    assert drive.state("unacked", "ready") == {}


# -- unique keys ----------------------------------------------------------------------------------


def test_ack_frees_the_unique_key_that_is_still_its_own(drive: Drive) -> None:
    """A key is freed by its holder's ack alone: not by a stale one, not where another message took it."""
    outcomes = received(drive, "a", "b", "c")
    mapping = {"ka": "a 9", "kb": "x 9", "kc": "c 9", "kd": "d 9"}
    drive.redis.hset(drive.keys.unique, mapping=mapping)
    outcomes.uniques = [2, "kb", "b", 1, "ka", "a", 7, "kd", "d"]
    outcomes.acks = [3]
    settled = drive.settle(outcomes)
    assert settled.counted == (True, True, False, True)
    assert settled.per_lease == (3,)
    assert drive.state("unique") == {"unique": {"kb": "x 9", "kc": "c 9", "kd": "d 9"}}
    assert drive.stats("acked", "stale") == {"acked": 3, "stale": 1}


@pytest.mark.parametrize("ending", ["bury", "discard", "max_receives"])
@pytest.mark.parametrize("key", ["k", "a b/ü%=\n", "q1 x"])
def test_every_end_frees_the_unique_key(drive: Drive, ending: str, key: str) -> None:
    """However a message ends its key is free again, whatever characters it is made of."""
    outcomes = received(drive, "a", "b", flags={"u": key})
    drive.redis.hset(drive.keys.unique, key, "a 9")
    if ending == "bury":
        outcomes.bury(1, "rejected")
    elif ending == "discard":
        outcomes.discard(1)
    else:
        outcomes.nack(1, 0, max_receives=1)
    outcomes.release(2)
    drive.settle(outcomes)
    assert drive.state("unique") == {}


def test_message_that_lives_on_keeps_its_unique_key(drive: Drive) -> None:
    """Neither a nack nor a release nor a lost worker frees the key."""
    outcomes = received(drive, "a", "b", "c", flags={"u": "k"})
    drive.redis.hset(drive.keys.unique, "k", "a 9")
    outcomes.nack(1, 0)
    outcomes.release(2)
    outcomes.share(3)
    drive.settle(outcomes)
    assert drive.state("unique") == {"unique": {"k": "a 9"}}


# -- nack -----------------------------------------------------------------------------------------


def test_nack_counts_and_goes_to_the_tail(drive: Drive) -> None:
    """A nacked message is counted and waits behind what is ready, in its priority; each wakes a waiter."""
    outcomes = received(drive, "a", "b")
    high = received(drive, "p", lease="M", priority=7, flags={"p": "7"})
    drive.send("c")
    drive.send("q", priority=7)
    drive.redis.delete(drive.keys.wake)
    outcomes.nack(2, 0)
    outcomes.nack(1, 0)
    high.nack(0, 0)
    drive.settle(outcomes, high, at=NOW + 5)
    assert drive.state("ready", "ready:7", "wake") == {
        "ready": [
            own("c"),
            own("b", receives=1, nacks=1, ready_ms=NOW + 5),
            own("a", receives=1, nacks=1, ready_ms=NOW + 5),
        ],
        "ready:7": [own("q"), own("p", receives=1, nacks=1, flags=" p=7", ready_ms=NOW + 5)],
        "wake": ["1", "1", "1"],
    }
    assert drive.stats("nacked", "stored", "unacked") == {
        "nacked": 3,
        "stored": 5,
        "unacked": 0,
    }


def test_nack_with_a_delay_waits_in_delayed(drive: Drive) -> None:
    """A delayed message wakes no receiver; its due time is counted from the server's now."""
    outcomes = received(drive, "a", "b")
    outcomes.nack(1, 1500)
    outcomes.nack(2, 2**53)
    drive.settle(outcomes, at=NOW + 5)
    assert drive.state("delayed", "ready", "wake") == {
        "delayed": {
            own("a", receives=1, nacks=1, ready_ms=NOW + 1505): NOW + 1505,
            own("b", receives=1, nacks=1, ready_ms=2**52 - 1): float(2**52 - 1),
        }
    }


def test_nack_notes_first_received_and_max_receives_once(drive: Drive) -> None:
    """What the caller knows is written into the header if it is not there yet."""
    outcomes = received(drive, "a", "b", flags={"w": "trace"})
    outcomes.nack(1, 0, max_receives=3, first_received_ms=NOW + 1)
    drive.settle(outcomes)
    drive.receive("M", 1)
    again = Outcomes("M")
    again.nack(0, 0, max_receives=9, first_received_ms=NOW + 9)
    drive.settle(again, at=NOW + 8)
    assert drive.state("ready") == {
        "ready": [own("a", receives=2, nacks=2, flags=" w=trace f=1000001 m=3", ready_ms=NOW + 8)]
    }


@pytest.mark.bad_input("data found: nonsense in meta")
@pytest.mark.parametrize(
    ("flag", "task", "queue", "dies_at"),
    [("2", 9, "8", 2), ("1", None, "8", 1), (None, 3, "8", 3), (None, None, "4", 4),
     (None, None, "", 5), (None, None, "nan", 5), (None, None, "0", 5), (None, None, "inf", 5)],
)  # fmt: skip
def test_max_receives_of_message_over_task_over_queue(
    drive: Drive, flag: str | None, task: int | None, queue: str, dies_at: int
) -> None:
    """The message's own limit counts before the task's, that before the queue's, that before the default of 5."""
    drive.redis.hset(drive.keys.meta, "max_receives", queue)
    drive.send("a", flags={"m": flag} if flag else {})
    for delivery in range(1, dies_at + 1):
        assert dead(drive) == []
        assert len(drive.receive(f"L{delivery}").items) == 1
        outcomes = Outcomes(f"L{delivery}")
        outcomes.nack(0, 0, max_receives=task, error=("ValueError", "no"))
        drive.settle(outcomes, at=NOW + 7)
    # When it became ready for the last time is kept.
    again = f" t={NOW + 7}" if dies_at > 1 else ""
    limit = f" m={flag}" if flag else f" m={task}" if task else ""
    assert drive.state("dead", "ready") == {
        "dead": [
            {
                "envelope": own("a", receives=dies_at, nacks=dies_at, flags=limit + again),
                "reason": "max_receives",
                "class": "ValueError",
                "error": "no",
                "died_ms": "1000007",
            }
        ]
    }
    assert drive.stats("dead", "dead:max_receives", "stored", "unacked") == {
        "dead": 1,
        "dead:max_receives": 1,
        "stored": 0,
        "unacked": 0,
    }


def test_lone_timeouts_count_like_nacks_and_shared_ones_do_not(drive: Drive) -> None:
    """Dead when nacks and lone timeouts together reach max receives; deliveries lost in company never kill."""
    drive.redis.hset(drive.keys.meta, "max_receives", 4)
    items = (own("a", receives=80, nacks=1, timeouts=2, shared=77), own("b", shared=99))
    drive.redis.rpush(drive.keys.ready[0], *items)
    drive.redis.hset(drive.keys.stats, "stored", 2)
    drive.receive("L")
    outcomes = Outcomes("L")
    outcomes.nack(1, 0)
    outcomes.nack(2, 0)
    drive.settle(outcomes)
    assert dead(drive) == [(own("a", receives=81, nacks=2, timeouts=2, shared=77), "max_receives")]
    assert drive.state("ready") == {
        "ready": [own("b", receives=1, nacks=1, shared=99, ready_ms=NOW)]
    }


# -- release and share ----------------------------------------------------------------------------


def test_release_goes_uncounted_to_the_head_in_order(drive: Drive) -> None:
    """Released messages stand before what is ready, in their old order, as if never received."""
    outcomes = received(drive, "a", "b", "c")
    drive.send("d")
    drive.redis.delete(drive.keys.wake)
    outcomes.release(1)
    outcomes.release(3)
    drive.settle(outcomes)
    assert drive.state("ready", "wake", "lease:L") == {
        "ready": [own("a", back_ms=NOW), own("c", back_ms=NOW), own("d")],
        "wake": ["1", "1"],
        "lease:L": {"2": own("b")},
    }
    assert drive.stats("released", "stored", "unacked") == {
        "released": 2,
        "stored": 4,
        "unacked": 1,
    }


def test_release_of_a_started_message_counts_as_a_delivery(drive: Drive) -> None:
    """A handler that was cut off with its process has begun: received once more, and nothing against max receives."""
    outcomes = received(drive, "a", "b")
    outcomes.release(1, started=True)
    outcomes.release(2)
    drive.settle(outcomes)
    assert drive.state("ready") == {
        "ready": [own("a", receives=1, back_ms=NOW), own("b", back_ms=NOW)]
    }


def test_release_of_all_that_is_left(engine_drive: Drive) -> None:
    """A whole lease of a thousand goes back in order, without those that came to something else."""
    drive = engine_drive
    ids = [f"m{number:04d}" for number in range(1, 1001)]
    outcomes = received(drive, *ids)
    outcomes.acks = [1]
    outcomes.nack(3, 0)
    outcomes.release("*")
    settled = drive.settle(outcomes)
    assert settled.per_lease == (1000,)
    assert drive.state("ready", "lease:L", "unacked") == {
        "ready": [
            *(own(message_id, back_ms=NOW) for message_id in (ids[1], *ids[3:])),
            own(ids[2], receives=1, nacks=1, ready_ms=NOW),
        ]
    }
    assert drive.stats("released", "acked", "nacked", "stale", "stored", "unacked") == {
        "released": 998,
        "acked": 1,
        "nacked": 1,
        "stored": 999,
        "unacked": 0,
    }


def test_stale_outcomes_are_counted_beside_a_release_of_all(drive: Drive) -> None:
    """How many unnamed messages a call settles as well does not hide the stale ones."""
    outcomes = received(drive, "a", "b", "c")
    outcomes.acks = [7]
    outcomes.nack(8, 0)
    outcomes.release("*")
    settled = drive.settle(outcomes)
    assert (settled.per_lease, settled.counted) == ((3,), (False, False))
    assert drive.stats("stale", "released") == {"stale": 2, "released": 3}


def test_release_of_a_lease_that_is_gone_is_nothing(drive: Drive) -> None:
    """Releasing all of nothing counts nothing."""
    outcomes = Outcomes("gone")
    outcomes.release("*")
    assert drive.settle(outcomes).per_lease == (0,)
    assert drive.state() == {}


def test_release_with_a_delay(drive: Drive) -> None:
    """A release may wait as a nack may, uncounted."""
    outcomes = received(drive, "a")
    outcomes.release(0, 250)
    drive.settle(outcomes, at=NOW + 1)
    assert drive.state("delayed", "ready", "wake") == {
        "delayed": {own("a", ready_ms=NOW + 251): NOW + 251}
    }


def test_released_suspect_stays_a_suspect(drive: Drive) -> None:
    """What must be delivered alone is not given back into company."""
    drive.redis.rpush(
        drive.keys.ready[0], own("s", timeouts=1), own("t", shared=2), own("a", shared=1)
    )
    drive.receive("L")
    outcomes = Outcomes("L")
    outcomes.release("*")
    drive.settle(outcomes)
    assert drive.state("ready", "suspect") == {
        "ready": [own("a", shared=1, back_ms=NOW)],
        "suspect": [own("s", timeouts=1, ready_ms=NOW), own("t", shared=2, ready_ms=NOW)],
    }


def test_priority_returns_to_its_level(drive: Drive) -> None:
    """What is given back goes to the level that its header names, if the queue uses it."""
    received(drive, "a", priority=4, flags={"p": "4"})
    drive.redis.rpush(
        drive.keys.ready[0], *(own(f"b{p}", flags=f" p={p}") for p in ("8", "x", "99"))
    )
    drive.receive("M")
    outcomes = [Outcomes("L"), Outcomes("M")]
    for outcome in outcomes:
        outcome.release("*")
    drive.settle(*outcomes)
    assert drive.state("ready", "ready:4", "ready:8") == {
        "ready": [own(f"b{p}", flags=f" p={p}", back_ms=NOW) for p in ("8", "x", "99")],
        "ready:4": [own("a", flags=" p=4", back_ms=NOW)],
    }
    assert len(drive.receive("N").items) == 4


def test_death_in_company_is_shared(drive: Drive) -> None:
    """The first shared loss returns to the head of ready, the second goes to the suspects; neither kills."""
    drive.redis.hset(drive.keys.meta, "max_receives", 1)
    drive.redis.rpush(drive.keys.ready[0], own("a"), own("b", shared=1), own("c"))
    drive.send("d")
    drive.receive("L", 3)
    outcomes = Outcomes("L")
    for index in (1, 2, 3):
        outcomes.share(index)
    drive.settle(outcomes)
    assert drive.state("ready", "suspect", "dead") == {
        "ready": [
            own("a", receives=1, shared=1, back_ms=NOW),
            own("c", receives=1, shared=1, back_ms=NOW),
            own("d"),
        ],
        "suspect": [own("b", receives=1, shared=2, ready_ms=NOW)],
    }
    assert drive.stats("timeouts") == {"timeouts": 3}


def test_message_that_killed_its_worker_is_delivered_alone_next(drive: Drive) -> None:
    """It is counted as a lone timeout and waits among the suspects, or is dead at max receives."""
    drive.redis.rpush(drive.keys.ready[0], own("a"), own("b", nacks=2), own("c"))
    drive.redis.hset(drive.keys.meta, "max_receives", 3)
    drive.receive("L", 3)
    outcomes = Outcomes("L")
    outcomes.crash(1)
    outcomes.crash(2, error=("WorkerDiedError", "signal 11"))
    drive.settle(outcomes)
    assert drive.state("ready", "suspect", "delayed") == {
        "suspect": [own("a", receives=1, timeouts=1, ready_ms=NOW)]
    }
    assert dead(drive) == [(own("b", receives=1, nacks=2, timeouts=1), "max_receives")]
    assert drive.stats("timeouts") == {"timeouts": 2}


# -- other ends -----------------------------------------------------------------------------------


def test_bury_keeps_the_message_with_its_reason_and_error(drive: Drive) -> None:
    """A buried message is counted once more and kept whole, with reason, class and text of the error."""
    outcomes = received(drive, "a", "b")
    outcomes.bury(2, "unknown_task", ("LookupError", "no task is named 'x'"))
    drive.settle(outcomes, at=NOW + 3)
    assert drive.state("dead", "lease:L") == {
        "dead": [
            {
                "envelope": own("b", receives=1),
                "reason": "unknown_task",
                "class": "LookupError",
                "error": "no task is named 'x'",
                "died_ms": "1000003",
            }
        ],
        "lease:L": {"1": own("a")},
    }
    assert drive.stats("dead", "dead:unknown_task", "stored", "unacked") == {
        "dead": 1,
        "dead:unknown_task": 1,
        "stored": 1,
        "unacked": 1,
    }


def test_error_text_is_cut(drive: Drive) -> None:
    """At most 2 KiB of an error are kept."""
    received(drive, "a")
    arguments = [NOW, "", 1, 0, 0, 1, "b", "0", "rejected", "", "", "E", "x" * 3000, "", 0]
    drive.call("settle", drive.standard_keys("L"), *arguments)
    assert drive.state("dead")["dead"][0]["error"] == "x" * 2048


@pytest.mark.parametrize("reason", ["", "Two Words", "a-b", "9"])
def test_invalid_reason_is_rejected(drive: Drive, reason: str) -> None:
    """A reason becomes the name of a counter, so it is one word of a-z and _."""
    outcomes = received(drive, "a")
    outcomes.bury(0, reason)
    drive.settle(outcomes)
    assert dead(drive) == [(own("a", receives=1), "rejected")]
    assert drive.stats("dead:rejected") == {"dead:rejected": 1}


def test_a_discarded_message_is_done(drive: Drive) -> None:
    """It ends without a dead letter, under its own counter."""
    outcomes = received(drive, "a", "b")
    outcomes.discard(1)
    drive.settle(outcomes)
    assert drive.state("ready", "dead", "lease:L") == {"lease:L": {"2": own("b")}}
    assert drive.stats("discarded", "stored", "unacked", "acked") == {
        "discarded": 1,
        "stored": 1,
        "unacked": 1,
    }


# -- content that is not ours ---------------------------------------------------------------------


def test_plain_messages_get_an_id_when_they_are_moved(drive: Drive) -> None:
    """Equal plain messages that are moved stay two: each is named by its delivery, and counted from then on."""
    drive.redis.rpush(drive.keys.ready[0], *['{"u": " u=k"}'] * 6)
    drive.receive("lease-1")
    drive.redis.hset(drive.keys.unique, "k", "x 9")
    outcomes = Outcomes("lease-1", acks=[6])
    outcomes.nack(1, 0)
    outcomes.nack(2, 50)
    outcomes.release(3)
    outcomes.bury(4, "bad_arguments")
    outcomes.discard(5)
    drive.settle(outcomes, at=NOW + 9)

    def moved(number: int, receives: int = 0, nacks: int = 0, **times: int | None) -> str:
        name, body = f"lease-1.{number}", '{"u": " u=k"}'
        return own(name, NOW + 9, receives, nacks, body=body, **({"ready_ms": NOW + 9} | times))

    assert drive.state("ready", "delayed", "lease:lease-1", "unique") == {
        "ready": [moved(3, back_ms=NOW + 9, since_ms=NOW), moved(1, 1, 1)],
        "delayed": {moved(2, 1, 1, ready_ms=NOW + 59): NOW + 59},
        "unique": {"k": "x 9"},
    }
    assert dead(drive) == [(moved(4, 1, ready_ms=None), "bad_arguments")]
    assert drive.stats("stored", "unacked", "acked") == {"stored": 3, "unacked": 0, "acked": 1}


FOREIGN = [
    "q1 ",
    "q1 a\n",
    "q1 a 1 0 0 0 0",
    "q1 a b 0 0 0 0\n",
    "q1 a 1 0 0 0 x\n",
    "q1 a 1 -1 0 0 0\n",
    "q1 a 1 1234567 0 0 0\n",
    "q1 a 1 0 1234567 0 0\n",
    "q1 a 1 0 0 1234567 0\n",
    "q1 a 1 0 0 0 1234567\n",
    "q1 a 12345678901234567 0 0 0 0\n",
    "q1  1 0 0 0 0\n",
    "q1 ä 1 0 0 0 0\n",
]


@pytest.mark.bad_input("data found: foreign push", "data found: nonsense in a header")
@pytest.mark.parametrize("outcome", ["nack", "release", "share", "bury"])
def test_header_that_does_not_match_is_foreign(drive: Drive, outcome: str) -> None:
    """Whatever a consumer says of an item whose header cannot be read, it is buried with its bytes; nothing raises."""
    drive.redis.rpush(drive.keys.ready[0], *FOREIGN)
    drive.redis.hset(drive.keys.stats, "stored", len(FOREIGN))
    drive.receive("L")
    outcomes = Outcomes("L")
    for index in range(1, len(FOREIGN) + 1):
        {
            "nack": lambda index: outcomes.nack(index, 0),
            "release": outcomes.release,
            "share": outcomes.share,
            "bury": lambda index: outcomes.bury(index, "rejected"),
        }[outcome](index)
    assert drive.settle(outcomes).per_lease == (len(FOREIGN),)
    assert dead(drive) == [(item, "foreign") for item in FOREIGN]
    assert drive.state("ready", "suspect", "delayed", "lease:L", "unacked") == {}
    assert drive.stats("stored", "unacked") == {"stored": 0, "unacked": 0}


def test_item_that_a_consumer_calls_foreign_keeps_its_bytes(drive: Drive) -> None:
    """A reader that is stricter than the scripts buries an item as it found it."""
    outcomes = received(drive, "a")
    outcomes.bury(0, "foreign")
    drive.settle(outcomes)
    assert dead(drive) == [(own("a"), "foreign")]


@pytest.mark.bad_input("data found: nonsense in a header")
def test_six_digits_are_ours(drive: Drive) -> None:
    """Six digits in every count are still a header that can be read."""
    counts = (5, 999_999, 999_998, 999_997, 999_996)
    item = own("a", *counts)
    drive.redis.rpush(drive.keys.ready[0], item)
    drive.receive("L")
    outcomes = Outcomes("L")
    outcomes.release(0)
    drive.settle(outcomes)
    assert drive.state("ready", "suspect", "dead") == {"suspect": [own("a", *counts, ready_ms=NOW)]}


def test_six_digits_are_kept(drive: Drive) -> None:
    """The largest counters and a long time are read and written without loss."""
    item = own("A.b_c-9", 9_999_999_999_999_999, 999_998, 12, 13, 14, flags=" w=x", body="\nq1")
    drive.redis.hset(drive.keys.meta, "max_receives", 999_999)
    drive.redis.rpush(drive.keys.ready[0], item)
    drive.receive("L")
    outcomes = Outcomes("L")
    outcomes.nack(0, 0)
    drive.settle(outcomes)
    counts = (9_999_999_999_999_999, 999_999, 13, 13, 14)
    assert drive.state("ready")["ready"] == [
        own("A.b_c-9", *counts, flags=" w=x", body="\nq1", ready_ms=NOW)
    ]


# -- bells, pauses, trouble -----------------------------------------------------------------------


def test_queue_paused_for_output_settles_in_silence(drive: Drive) -> None:
    """While output is paused outcomes count and messages go back, but no receiver is woken."""
    outcomes = received(drive, "a", "b", "c")
    drive.redis.hset(drive.keys.meta, "paused", "out")
    outcomes.acks = [1]
    outcomes.nack(2, 0)
    outcomes.release(3)
    drive.settle(outcomes)
    assert drive.state("ready", "wake") == {
        "ready": [own("c", back_ms=NOW), own("b", receives=1, nacks=1, ready_ms=NOW)],
    }


@pytest.mark.bad_input("data found: nonsense in stats")
def test_invalid_counter_is_reported_and_does_not_fail_the_call(drive: Drive) -> None:
    """Outcomes count even where their counters cannot, and the reply says so."""
    outcomes = received(drive, "a", "b")
    drive.redis.hset(drive.keys.stats, mapping={"stored": "x", "acked": "y"})
    outcomes.acks = [1]
    reply = drive.call("settle", drive.standard_keys("L"), NOW, "", 1, *outcomes.words())
    assert reply == ["OK", str(NOW), 1, [1], [1]]
    assert drive.state("lease:L") == {"lease:L": {"2": own("b")}}
    outcomes.acks = [2]
    drive.redis.hset(drive.keys.stats, mapping={"stored": "1", "acked": "1"})
    reply = drive.call("settle", drive.standard_keys("L"), NOW, "", 1, *outcomes.words())
    assert reply == ["OK", str(NOW), 0, [1], [1]]
