"""settle_receive.lua: settle what was received before and receive the next batch, in one trip."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from qworker.engine.receive import PAUSED, UNKNOWN, Suspects, settle_receive
from qworker.engine.settle import Outcomes
from qworker.errors import LeaseUsedError
from tests import servers
from tests.lua.drive import NOW, Drive, own


def outcomes(lease: str, *acks: int, **fields: Any) -> Outcomes:
    """Outcomes of a lease with some acks."""
    return Outcomes(lease, acks=list(acks), **fields)


# -- receiving ------------------------------------------------------------------------------------


def test_receives_a_batch_into_a_new_lease(engine_drive: Drive) -> None:
    """Messages leave ready for one lease, numbered from 1 in order, with one deadline and one count."""
    drive = engine_drive
    drive.send("a", "b", "c")
    batch = drive.receive("L", 2, at=NOW + 10)
    assert (batch.items, batch.indices) == ([own("a").encode(), own("b").encode()], ["1", "2"])
    assert (batch.now_ms, batch.deadline_ms) == (NOW + 10, NOW + 30_010)
    assert (batch.ready_left, batch.hint_ms, batch.alone, batch.degraded) == (1, 0, False, False)
    assert (batch.settled, batch.suspects) == ((), 0)
    assert drive.state() == {
        "ready": [own("c")],
        "lease:L": {"1": own("a"), "2": own("b")},
        "unacked": {"L": NOW + 30_010},
        "wake": ["1", "1", "1"],
        "stats": {
            "sent": "3",
            "stored": "3",
            "received": "2",
            "unacked": "2",
            "reaped_ms": "1000010",
        },
    }


def test_lone_message_has_index_0(drive: Drive) -> None:
    """A message delivered alone stands in field 0: it alone is to blame if its worker dies."""
    drive.send("a")
    assert drive.receive("L").indices == ["0"]
    assert drive.state("lease:L") == {"lease:L": {"0": own("a")}}


def test_empty_queue_makes_no_lease(drive: Drive) -> None:
    """Where nothing is there, nothing is written."""
    batch = drive.receive("L")
    assert (batch.items, batch.indices, batch.deadline_ms) == ([], [], NOW + 30_000)
    assert (batch.ready_left, batch.hint_ms) == (0, UNKNOWN)
    assert drive.state() == {}


def test_thousand_messages_in_one_lease(engine_drive: Drive) -> None:
    """A full batch comes back in order and is stored under its numbers."""
    ids = [f"m{number:04d}" for number in range(1000)]
    engine_drive.send(*ids)
    batch = engine_drive.receive("L", 1000)
    assert batch.items == [own(message_id).encode() for message_id in ids]
    assert batch.indices == [str(number) for number in range(1, 1001)]
    assert engine_drive.state("lease:L", "ready") == {
        "lease:L": {str(number): own(message_id) for number, message_id in enumerate(ids, 1)}
    }


def test_higher_priorities_come_first(drive: Drive) -> None:
    """A batch is filled from the highest level in use down to 0, in order within each."""
    drive.send("a", "b")
    drive.send("c", "d", priority=9)
    drive.send("e", priority=3)
    assert drive.receive("L", 4).items == [own(name).encode() for name in "cdea"]
    assert drive.state("ready", "ready:3", "ready:9") == {"ready": [own("b")]}


def test_level_out_of_use_is_not_read(drive: Drive) -> None:
    """Levels that meta does not name cost nothing and are not read."""
    drive.redis.rpush(drive.keys.ready[4], "hello")
    assert drive.receive("L").ready_left == 0


@pytest.mark.bad_input("data found: nonsense in meta")
@pytest.mark.parametrize(
    ("attribute", "expected"),
    [("5000", 5000), ("nan", 30_000), ("inf", 30_000), ("-1", 30_000), ("0", 30_000),
     ("43200001", 30_000), ("1e99", 30_000), ("x", 30_000), ("", 30_000)],
)  # fmt: skip
def test_queue_gives_the_visibility_where_the_call_does_not(
    drive: Drive, attribute: str, expected: int
) -> None:
    """The queue's visibility counts if it is a time within 12 h, else the default."""
    drive.redis.hset(drive.keys.meta, "visibility_ms", attribute)
    drive.send("a")
    assert drive.receive("L", visibility_ms=None).deadline_ms == NOW + expected
    assert drive.state("unacked") == {"unacked": {"L": NOW + expected}}


def test_batch_ends_at_one_mebibyte(engine_drive: Drive) -> None:
    """Bytes bound a batch as well as its count."""
    drive = engine_drive
    drive.send(*(f"m{number}" for number in range(6)), body=lambda _: b"x" * 262_000)
    batch = drive.receive("L", 100)
    assert len(batch.items) == 4
    assert (batch.ready_left, batch.hint_ms) == (2, 0)
    assert len(drive.receive("M", 100).items) == 2


def test_a_level_that_a_bound_stops_is_followed_by_no_lower_one(engine_drive: Drive) -> None:
    """What 1 MiB leaves behind of a level comes before anything below it, however small that is."""
    drive = engine_drive
    drive.send("a", "b", priority=9, body=lambda _: b"x" * 600_000)
    drive.send("c", "d")
    assert [item.split()[1] for item in drive.receive("L", 100).items] == [b"a"]
    assert [item.split()[1] for item in drive.receive("M", 100).items] == [b"b", b"c", b"d"]


def test_a_level_of_many_that_ended_is_followed_by_no_lower_one(drive: Drive) -> None:
    """Where the look at a level stops among expired messages, the good ones behind them still come first."""
    drive.send(*(f"m{number}" for number in range(300)), ttl_ms=1, priority=9)
    drive.send("a", priority=9)
    drive.send("b")
    batch = drive.receive("L", 2, at=NOW + 5)
    assert (batch.items, batch.hint_ms) == ([], 0)
    assert [item.split()[1] for item in drive.receive("M", 2, at=NOW + 5).items] == [b"a", b"b"]


@pytest.mark.bad_input("data found: body that is very large")
def test_message_larger_than_the_bound_is_received_alone(drive: Drive) -> None:
    """At least one message comes, however large, so that none stays forever."""
    drive.send("a", "b", body=lambda _: b"x" * 2_000_000)
    assert len(drive.receive("L", 100).items) == 1
    assert len(drive.receive("M", 100).items) == 1
    assert drive.receive("N", 100).items == []


@pytest.mark.bad_input("data found: body that is very large")
def test_bytes_of_items_that_end_count_as_well(drive: Drive) -> None:
    """A call that buries items still ends: the bound is on the items read."""
    for _ in range(6):
        drive.redis.rpush(drive.keys.ready[0], b"x" * 500_000)
    batch = drive.receive("L", 100)
    assert (batch.items, batch.ready_left, batch.hint_ms) == ([], 4, 0)
    assert drive.stats("dead") == {"dead": 2}


def test_items_that_end_are_bounded_in_number(drive: Drive) -> None:
    """A call looks at 256 items more than it may take, and then leaves the rest to the next."""
    drive.send(*(f"m{number}" for number in range(600)), ttl_ms=1)
    drive.send("a")
    batch = drive.receive("L", 10, at=NOW + 5)
    assert (batch.items, batch.hint_ms) == ([], 0)
    assert 256 <= drive.stats("expired")["expired"] <= 300
    drive.receive("M", 10, at=NOW + 5)
    assert drive.receive("N", 10, at=NOW + 5).items == [own("a").encode()]
    assert drive.stats("expired", "stored", "unacked") == {
        "expired": 600,
        "stored": 1,
        "unacked": 1,
    }


def test_hint_says_when_to_receive_again(drive: Drive) -> None:
    """The hint is 0 while more is ready, and in ms, at least 1, to the next due message for a call that got nothing."""
    drive.send("a", "b", "c", "d")
    drive.send("e", delay_ms=700)
    assert drive.receive("L", 1).hint_ms == 0
    assert drive.receive("M", 2).hint_ms == 0
    assert drive.receive("N", 1).hint_ms == -2
    assert drive.receive("O", 1).hint_ms == 700
    assert drive.receive("P", 1, at=NOW + 900).hint_ms == 1


def test_due_time_of_another_kind_does_not_break_the_hint(drive: Drive) -> None:
    """An infinite score that another program wrote into delayed is answered as a number."""
    drive.redis.zadd(drive.keys.delayed, {"x": float("inf")})
    assert drive.receive("L").hint_ms == 2**53


def test_watch_for_gaps_starts_with_the_first_lease(drive: Drive) -> None:
    """The time of the reaper's last visit is set when leases begin, and left alone while there are some."""
    drive.send("a", "b", "c")
    drive.receive("L", 1)
    drive.receive("M", 1, at=NOW + 500)
    assert drive.stats("reaped_ms") == {"reaped_ms": NOW}
    drive.settle(Outcomes("L", ack_all=True), Outcomes("M", ack_all=True), at=NOW + 600)
    drive.receive("N", 1, at=NOW + 90_000)
    assert drive.stats("reaped_ms") == {"reaped_ms": NOW + 90_000}


# -- what is met on the way -----------------------------------------------------------------------


def test_expired_messages_end_unseen(drive: Drive) -> None:
    """A message whose time to live is over is dropped at receive, its unique key freed; the limit itself counts."""
    drive.send("a", "b", ttl_ms=1000)
    drive.send("c", ttl_ms=1001)
    drive.redis.hset(drive.keys.unique, "k", "u 9999999")
    drive.redis.lpush(drive.keys.ready[0], own("u", flags=" x=1000001 u=k"))
    assert drive.receive("L", at=NOW + 1000).items == [own("c", flags=" x=1001001").encode()]
    assert drive.state("ready", "unique", "dead") == {}
    assert drive.stats("expired", "unacked") == {"expired": 3, "unacked": 1}


def test_time_to_live_is_read_from_the_header_alone(drive: Drive) -> None:
    """What looks like a flag in the body is not one."""
    drive.send("a", body=lambda _: b" x=1 u=k p=9 ")
    assert len(drive.receive("L").items) == 1


def test_cancelled_message_ends_unseen_and_takes_its_tombstone(drive: Drive) -> None:
    """A tombstone drops its message once, and nothing else."""
    drive.send("a", "b", "c")
    drive.redis.zadd(drive.keys.cancelled, {"b": NOW + 1, "z": NOW + 1})
    assert drive.receive("L").items == [own("a").encode(), own("c").encode()]
    assert drive.state("cancelled") == {"cancelled": {"z": NOW + 1}}
    assert drive.stats("cancelled", "stored", "unacked") == {
        "cancelled": 1,
        "stored": 2,
        "unacked": 2,
    }


def test_plain_messages_are_received_and_counted_when_first_seen(drive: Drive) -> None:
    """JSON that another program pushed is delivered as it is; equal ones are two messages."""
    drive.redis.rpush(drive.keys.ready[0], '{"a": 1}', '{"a": 1}', "[1]")
    assert drive.receive("L").items == [b'{"a": 1}', b'{"a": 1}', b"[1]"]
    assert drive.state() == {
        "lease:L": {"1": '{"a": 1}', "2": '{"a": 1}', "3": "[1]"},
        "unacked": {"L": NOW + 30_000},
        "stats": {"stored": "3", "unacked": "3", "received": "3", "reaped_ms": "1000000"},
    }


@pytest.mark.bad_input("data found: foreign push")
def test_foreign_items_are_buried_with_their_bytes(drive: Drive) -> None:
    """What is neither ours nor JSON goes to the dead letters whole and blocks no receiver."""
    drive.redis.rpush(drive.keys.ready[0], "hello", "", b"\x80\x04\xff", "q1", "qx y", "Q1 a")
    drive.send("a")
    assert drive.receive("L").items == [own("a").encode()]
    dead_letters = drive.redis.xrange(drive.keys.dead)
    assert [fields[b"envelope"] for _, fields in dead_letters] == [
        b"hello", b"", b"\x80\x04\xff", b"q1", b"qx y", b"Q1 a",
    ]  # fmt: skip
    assert drive.state("dead")["dead"][0] == {
        "envelope": "hello",
        "reason": "foreign",
        "class": "",
        "error": "",
        "died_ms": "1000000",
    }
    assert drive.stats("dead", "dead:foreign", "stored", "unacked") == {
        "dead": 6,
        "dead:foreign": 6,
        "stored": 1,
        "unacked": 1,
    }


@pytest.mark.bad_input("data found: unknown version")
def test_newer_versions_go_behind_the_others(drive: Drive) -> None:
    """A message of another version of ours is left for those who know it, behind the rest of its level."""
    drive.redis.rpush(drive.keys.ready[0], "q2 x what ever\n", "q17 y\n")
    drive.send("a", "b")
    drive.send("c", priority=5)
    drive.redis.rpush(drive.keys.ready[5], "q3 z\n")
    assert drive.receive("L", 2).items == [own("c").encode(), own("a").encode()]
    assert drive.state("ready", "ready:5") == {
        "ready": [own("b"), "q2 x what ever\n", "q17 y\n"],
        "ready:5": ["q3 z\n"],
    }
    assert drive.stats("unsupported", "stored") == {"unsupported": 3, "stored": 3}


@pytest.mark.bad_input("data found: unknown version")
def test_newer_versions_alone_do_not_keep_a_consumer_busy(drive: Drive) -> None:
    """Where only messages of a newer version are left, the hint is not 0, and no receiver is woken."""
    drive.redis.rpush(drive.keys.ready[0], "q2 x\n", "q2 y\n")
    batch = drive.receive("L")
    assert (batch.items, batch.ready_left, batch.hint_ms) == ([], 0, UNKNOWN)
    assert drive.state() == {"ready": ["q2 x\n", "q2 y\n"], "stats": {"unsupported": "2"}}


def test_header_that_cannot_be_read_is_still_delivered(drive: Drive) -> None:
    """Receive does not read headers: the receiver buries such an item, and nothing raises."""
    drive.redis.rpush(drive.keys.ready[0], "q1 ", "q1 a 1 2 3\n", "q1 a x=5", "q1 \n x=5")
    assert len(drive.receive("L").items) == 4
    assert drive.stats("unacked", "expired") == {"unacked": 4}


# -- suspects -------------------------------------------------------------------------------------


def suspect(drive: Drive, *ids: str) -> None:
    """Put messages among the suspects, counted as stored."""
    for message_id in ids:
        drive.redis.rpush(drive.keys.suspect, own(message_id, timeouts=1))
        drive.redis.hincrby(drive.keys.stats, "stored", 1)


def test_suspect_first_is_delivered_alone(drive: Drive) -> None:
    """Who allows it gets one suspect, alone in its lease, before anything that is ready."""
    suspect(drive, "s", "t")
    drive.send("a")
    batch = drive.receive("L", suspects=Suspects.FIRST)
    assert (batch.items, batch.indices) == ([own("s", timeouts=1).encode()], ["0"])
    assert (batch.alone, batch.ready_left, batch.hint_ms, batch.suspects) == (True, 2, 0, 1)
    assert drive.state("ready", "suspect", "lease:L", "unacked") == {
        "ready": [own("a")],
        "suspect": [own("t", timeouts=1)],
        "lease:L": {"0": own("s", timeouts=1)},
        "unacked": {"L": NOW + 30_000},
    }


def test_suspect_comes_if_nothing_else_is_ready(drive: Drive) -> None:
    """Others get a suspect only when ready is empty."""
    suspect(drive, "s")
    drive.send("a")
    batch = drive.receive("L")
    assert (batch.items, batch.alone, batch.ready_left) == ([own("a").encode()], False, 1)
    batch = drive.receive("M")
    assert (batch.items, batch.alone) == ([own("s", timeouts=1).encode()], True)


def test_suspects_may_be_left_alone(drive: Drive) -> None:
    """Who takes none is neither told that more is ready nor rings for what it left."""
    suspect(drive, "s")
    batch = drive.receive("L", suspects=Suspects.NEVER)
    assert (batch.items, batch.ready_left, batch.hint_ms) == ([], 0, UNKNOWN)
    assert drive.state("suspect", "wake", "unacked") == {"suspect": [own("s", timeouts=1)]}


def test_suspect_first_takes_ready_messages_without_a_suspect(drive: Drive) -> None:
    """Allowing suspects costs nothing where there are none."""
    drive.send("a", "b")
    batch = drive.receive("L", suspects=Suspects.FIRST)
    assert (len(batch.items), batch.alone) == (2, False)


def test_suspect_that_is_over_ends_unseen(drive: Drive) -> None:
    """Expiry, foreign bytes and newer versions are met among suspects as in ready."""
    drive.redis.rpush(
        drive.keys.suspect, own("s", flags=" x=5"), "hello", "q2 x\n", own("t", timeouts=1)
    )
    drive.redis.hset(drive.keys.stats, "stored", 2)
    for lease in ("L", "M", "N"):
        assert drive.receive(lease, suspects=Suspects.FIRST).items == []
    assert drive.receive("O", suspects=Suspects.FIRST).items == [own("t", timeouts=1).encode()]
    assert drive.state("suspect", "ready") == {"ready": ["q2 x\n"]}
    assert drive.stats("expired", "dead", "unsupported", "stored") == {
        "expired": 1,
        "dead": 1,
        "unsupported": 1,
        "stored": 1,
    }


# -- settling on the way --------------------------------------------------------------------------


def test_settles_and_receives_in_one_call(engine_drive: Drive) -> None:
    """Outcomes of several leases count first, then the next batch comes, from what they gave back as well."""
    drive = engine_drive
    drive.send(*"abcdef")
    drive.receive("L", 3)
    drive.receive("M", 2)
    first = outcomes("L", 1, 2)
    first.release(3)
    second = outcomes("M", 1, 9)
    second.nack(2, 0)
    batch = drive.receive("N", 100, first, second, at=NOW + 1)
    assert batch.items == [
        own("c", back_ms=NOW + 1).encode(),
        own("f").encode(),
        own("e", receives=1, nacks=1, ready_ms=NOW + 1).encode(),
    ]
    assert batch.settled == (3, 2)
    assert drive.state() == {
        "lease:N": {str(n): item.decode() for n, item in enumerate(batch.items, 1)},
        "unacked": {"N": NOW + 30_001},
        "wake": ["1"] * 6,
        "stats": {
            "sent": "6",
            "stored": "3",
            "received": "8",
            "unacked": "3",
            "acked": "3",
            "released": "1",
            "nacked": "1",
            "stale": "1",
            "reaped_ms": "1000001",
        },
    }


def test_a_worker_that_leaves_nothing_takes_the_tokens_along(engine_drive: Drive) -> None:
    """What they told of is taken: they would wake workers in vain. As long as anything is left they stay."""
    drive = engine_drive
    drive.send("a", "b", "c")
    drive.receive("L", 2)
    assert drive.state("wake") == {"wake": ["1"] * 3}
    drive.receive("M", 0, caller="w")
    assert drive.state("wake") == {"wake": ["1"] * 3}
    drive.receive("N", 5, caller="w")
    assert drive.state("wake", "ready") == {}


@pytest.mark.parametrize("left", ["suspect", "newer", "nothing taken", "paused", "no worker"])
def test_tokens_of_messages_that_others_may_take_stay(drive: Drive, left: str) -> None:
    """A suspect that this caller may not take, or a message of a newer version, still has its token."""
    drive.send("a")
    match left:
        case "suspect":
            drive.redis.rpush(drive.keys.suspect, own("s", timeouts=1))
        case "newer":
            drive.redis.rpush(drive.keys.ready[0], "q2 x\n")
        case "nothing taken":
            drive.redis.delete(drive.keys.ready[0])
        case "paused":
            drive.redis.hset(drive.keys.meta, "paused", "out")
    drive.receive("L", 5, suspects=Suspects.NEVER, caller="" if left == "no worker" else "w")
    assert drive.state("wake") == {"wake": ["1"]}


def test_a_repetition_takes_no_tokens(drive: Drive) -> None:
    """What it returns was received before: the tokens may tell of what has come since."""
    drive.send("a")
    drive.receive("L", 1)
    drive.send("b")
    drive.redis.delete(drive.keys.ready[0])
    assert drive.receive("L", 1, resume=True, caller="w").items == [own("a").encode()]
    assert drive.state("wake") == {"wake": ["1"]}


def test_settles_alone_with_count_0(drive: Drive) -> None:
    """A count of 0 settles and receives nothing; the lease named is not made and may exist."""
    drive.send("a", "b")
    drive.receive("L", 1)
    batch = drive.receive("L", 0, outcomes("L", 0))
    assert (batch.items, batch.settled) == ([], (1,))
    assert drive.state("ready", "unacked", "lease:L") == {"ready": [own("b")]}


@pytest.mark.bad_input("time or host: cloned container, forked process")
def test_used_lease_id_is_refused_before_anything_is_settled(drive: Drive) -> None:
    """No two calls create the same lease: the later is refused, and its outcomes do not count either."""
    drive.send("a", "b", "c")
    drive.receive("L", 1)
    drive.receive("M", 1)
    before = drive.state()
    with pytest.raises(LeaseUsedError, match="'M'"):
        drive.receive("M", 1, outcomes("L", 0))
    assert drive.state() == before


def test_rings_only_for_the_remaining_messages(drive: Drive) -> None:
    """A receive that leaves messages wakes another waiter for each, up to eight; one that empties it wakes none."""
    drive.send(*"abcd")
    drive.redis.delete(drive.keys.wake)
    drive.receive("L", 2)
    assert drive.state("wake") == {"wake": ["1", "1"]}
    drive.redis.delete(drive.keys.wake)
    back = Outcomes("L")
    back.release("*")
    drive.receive("M", 100, back)
    assert drive.state("wake", "ready") == {}
    back = Outcomes("M")
    back.release("*")
    drive.receive("N", 0, back)
    assert drive.state("wake") == {"wake": ["1"] * 4}


def test_queue_paused_for_output_settles_but_delivers_nothing(drive: Drive) -> None:
    """While output is paused outcomes count, nothing is received, and no receiver is woken."""
    drive.send("a", "b", "c")
    drive.receive("L", 2)
    drive.redis.delete(drive.keys.wake)
    for paused in ("out", "all"):
        drive.redis.hset(drive.keys.meta, "paused", paused)
        back = Outcomes("L")
        back.release(1)
        batch = drive.receive("M", 10, back)
        assert (batch.items, batch.hint_ms, batch.ready_left) == ([], PAUSED, 0)
    assert drive.state() == {
        "ready": [own("a", back_ms=NOW), own("c")],
        "lease:L": {"2": own("b")},
        "unacked": {"L": NOW + 30_000},
        "meta": {"paused": "all"},
        "stats": {
            "sent": "3",
            "stored": "3",
            "received": "2",
            "unacked": "1",
            "released": "1",
            "stale": "1",
            "reaped_ms": "1000000",
        },
    }


def test_queue_paused_for_input_delivers(drive: Drive) -> None:
    """A pause of input concerns sending alone."""
    drive.send("a")
    drive.redis.hset(drive.keys.meta, "paused", "in")
    assert len(drive.receive("L").items) == 1


# -- repetition -----------------------------------------------------------------------------------


def test_repetition_returns_the_lease_that_the_lost_call_made(engine_drive: Drive) -> None:
    """A call in doubt is repeated with resume: its outcomes do not count twice, its batch comes back in order."""
    drive = engine_drive
    drive.send(*(f"m{number:02d}" for number in range(30)))
    drive.receive("L", 2)
    first = drive.receive("M", 20, outcomes("L", 1, 2), at=NOW + 1)
    before = drive.state()
    again = drive.receive("M", 20, outcomes("L", 1, 2), at=NOW + 500, resume=True)
    assert (again.items, again.indices) == (first.items, first.indices)
    assert (again.deadline_ms, again.alone) == (first.deadline_ms, False)
    assert drive.stats("acked", "stale") == {"acked": 2, "stale": 2}
    drive.redis.hdel(drive.keys.stats, "stale")
    assert drive.state() == before


def test_repetition_of_a_call_that_never_ran_settles_and_creates_nothing(drive: Drive) -> None:
    """If the first call never came, its outcomes count now, and its lease id is burned."""
    drive.send("a", "b")
    drive.receive("L", 1)
    batch = drive.receive("M", 20, outcomes("L", 0), resume=True)
    assert (batch.items, batch.indices, batch.deadline_ms, batch.settled) == ([], [], 0, (1,))
    assert drive.state("ready", "unacked", "lease:M") == {"ready": [own("b")]}
    assert drive.stats("acked", "stored") == {"acked": 1, "stored": 1}


def test_ghost_of_a_burned_call_loses_nothing(drive: Drive) -> None:
    """A first call that runs after its repetition makes a lease that no consumer holds: it expires and comes back."""
    drive.send("a", "b")
    assert drive.receive("M", 20, resume=True).items == []
    drive.receive("M", 20)  # the ghost
    drive.receive("N", 20, at=NOW + 1)
    drive.call("reap", drive.standard_keys("M"), NOW + 30_000, 60_000)
    assert drive.state("ready", "lease:M", "unacked") == {
        "ready": [
            own(name, receives=1, shared=1, first_ms=NOW, back_ms=NOW + 30_000) for name in "ab"
        ]
    }


def test_repetition_returns_the_rest_of_a_lease(drive: Drive) -> None:
    """What was settled in between is not shown again; places keep their numbers."""
    drive.send("a", "b", "c")
    drive.receive("L", 3)
    drive.settle(outcomes("L", 1))
    batch = drive.receive("L", 3, resume=True)
    assert (batch.items, batch.indices) == ([own("b").encode(), own("c").encode()], ["2", "3"])


def test_repetition_distinguishes_a_suspect_from_a_lone_message(drive: Drive) -> None:
    """A resumed lease says whether its message must run alone."""
    drive.send("a")
    suspect(drive, "s")
    drive.redis.rpush(drive.keys.suspect, own("t", shared=2))
    drive.receive("L", 1, suspects=Suspects.NEVER)
    drive.receive("M", 1, suspects=Suspects.FIRST)
    drive.receive("N", 1, suspects=Suspects.FIRST)
    assert not drive.receive("L", 1, resume=True).alone
    assert drive.receive("M", 1, resume=True).alone
    assert drive.receive("N", 1, resume=True).alone


# -- refusals -------------------------------------------------------------------------------------


# -- trouble --------------------------------------------------------------------------------------


def test_full_server_can_be_drained() -> None:
    """Over maxmemory receiving and settling continue, so that the server gets empty again."""
    for engine, _ in servers.engines():
        with servers.start(engine) as server:
            drive = Drive(server.url, "n", "q")
            drive.send("a", "b", "c")
            drive.redis.config_set("maxmemory", 1)
            drive.receive("L", 2)
            last = outcomes("L", 1)
            last.nack(2, 50)
            drive.receive("M", 2, last)
            drive.settle(outcomes("M", 0))
            assert drive.state("ready", "delayed", "unacked") == {
                "delayed": {own("b", receives=1, nacks=1, ready_ms=NOW + 50): NOW + 50}
            }
            drive.close()


def test_invalid_counter_is_reported_and_does_not_fail_the_call(drive: Drive) -> None:
    """A counter of another kind does not stop the queue: the batch comes, marked degraded."""
    drive.send("a", "b")
    drive.redis.hset(drive.keys.stats, mapping={"unacked": "x", "received": "1.5", "acked": ""})
    assert drive.receive("L", 1).degraded
    batch = drive.receive("M", 1, outcomes("L", 0))
    assert (batch.items, batch.degraded, batch.settled) == ([own("b").encode()], True, (1,))
    assert drive.state("lease:L", "lease:M", "unacked") == {
        "lease:M": {"0": own("b")},
        "unacked": {"M": NOW + 30_000},
    }


def test_suspect_given_back_wakes_others_where_its_caller_takes_none(drive: Drive) -> None:
    """A child that must not run suspects released one: those who may run it are not left to find it by themselves."""
    drive.send("a")
    drive.receive("L", 1)
    crashed, failed, unstarted = outcomes("L"), outcomes("M"), outcomes("N")
    crashed.crash(0)
    drive.receive("M", 1, crashed)
    failed.nack(0, 0)
    drive.settle(failed)
    drive.receive("N", 1, suspects=Suspects.NEVER)
    drive.redis.delete(drive.keys.wake)
    unstarted.release(0)
    batch = drive.receive("O", 1, unstarted, suspects=Suspects.NEVER)
    assert (batch.items, batch.ready_left) == ([], 0)
    item = own("a", receives=2, nacks=1, timeouts=1, ready_ms=NOW)
    assert drive.state("ready", "suspect", "wake") == {"suspect": [item], "wake": ["1"]}


def test_doorbell_that_cannot_be_rung_does_not_fail_the_call(drive: Drive) -> None:
    """By then the lease is made: a caller that got an error would lose its messages until they time out."""
    if drive.client.factory.url.scheme != "unix":
        pytest.skip("a user is made on one server")
    drive.send("a", "b")
    drive.redis.delete(drive.keys.wake)
    rules = ["on", "nopass", "~*", "+@all", "-rpush"]
    drive.redis.execute_command("ACL", "SETUSER", drive.keys.queue, *rules)
    path = drive.redis.get_connection_kwargs()["path"]
    with redis.Redis(unix_socket_path=path, username=drive.keys.queue, password="-") as caller:
        command = settle_receive(drive.keys, "L", 1, now_ms=NOW)
        assert command.script is not None
        caller.script_load(command.script.source)
        batch = command.decode(caller.execute_command(*command.words()))
    drive.redis.execute_command("ACL", "DELUSER", drive.keys.queue)
    assert (batch.items, batch.ready_left) == ([own("a").encode()], 1)
    assert "wake" not in drive.state()
