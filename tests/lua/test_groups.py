"""Groups in the scripts: whose turn it is, how many run, in which order, and that every end frees its slot."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from qworker.engine.claim import claim
from qworker.engine.extend import split
from qworker.engine.groups import group_page, largest, set_limit
from qworker.engine.message import delete, enqueue, hold
from qworker.engine.poll import GROUPS, glance, poll
from qworker.engine.reap import promote, reap
from qworker.engine.receive import Suspects
from qworker.engine.remove import purge, revoke
from qworker.engine.repair import repair_groups, repair_seats
from qworker.engine.send import NewMessage, Sent, send
from qworker.engine.settle import Outcomes
from qworker.engine.shares import share
from qworker.errors import GroupFullError
from qworker.wire.envelope import Envelope, tail
from tests.lua.drive import NOW, Drive


def put(drive: Drive, *messages: str, at: int = NOW, **options: Any) -> Sent:
    """Send messages `<group>:<id>`; one without a colon has no group."""
    made = []
    for message in messages:
        group, _, message_id = message.rpartition(":")
        flags = {"g": group} if group else None
        made.append(NewMessage(message_id, tail(message_id.encode(), flags), group=group))
    return drive.run(send(drive.keys, made, lane="", sequence=0, now_ms=at, **options))


def ids(items: Sequence[bytes]) -> list[str]:
    """The ids of messages."""
    found = [Envelope.parse(item) for item in items]
    return [envelope.id for envelope in found if envelope is not None]


def get(drive: Drive, lease: str, count: int = 100, **options: Any) -> list[str]:
    """Receive; returns ids."""
    return ids(drive.receive(lease, count, **options).items)


def limit(drive: Drive, name: str, words: str) -> None:
    """Set a limit as it is stored."""
    drive.redis.hset(drive.keys.limits, name, words)


def nacked(lease: str, delay_ms: int) -> Outcomes:
    """A nack of the one message of a lease."""
    outcome = Outcomes(lease)
    outcome.nack("0", delay_ms)
    return outcome


def idle(drive: Drive) -> dict[str, Any]:
    """What groups still keep, but for virtual times and numbers."""
    kept = {
        k: v for k, v in drive.redis.hgetall(drive.keys.groups).items() if k[:1] not in (b"@", "@")
    }
    sets = [drive.redis.zcard(key) for key in (drive.keys.turns, drive.keys.children)]
    return {"groups": kept, "sets": sets, "slots": drive.redis.hlen(drive.keys.slots)}


EMPTY = {"groups": {}, "sets": [0, 0], "slots": 0}


def test_groups_take_turns(drive: Drive) -> None:
    """A group with many messages is served as often as one with few."""
    put(drive, *[f"a:a{n}" for n in range(5)], "b:b0", "b:b1", "c:c0")
    assert get(drive, "l1", 6) == ["a0", "b0", "c0", "a1", "b1", "a2"]
    assert get(drive, "l2", 6) == ["a3", "a4"]


def test_messages_without_a_group_take_turns_as_one(drive: Drive) -> None:
    """Neither a flood of them nor one of a group keeps the other from being received."""
    put(drive, *[f"p{n}" for n in range(50)])
    put(drive, *[f"a:a{n}" for n in range(3)])
    assert get(drive, "l1", 6) == ["p0", "a0", "p1", "a1", "p2", "a2"]


def test_weights(drive: Drive) -> None:
    """A group of weight 3 gets three times as many turns."""
    put(drive, *[f"{g}:{g}{n}" for g in "ab" for n in range(40)])
    limit(drive, "a", "w=3")
    assert Counter(i[0] for i in get(drive, "l1", 40)) == {"a": 30, "b": 10}


def test_a_tenant_gains_nothing_by_many_groups(drive: Drive) -> None:
    """Groups of one parent share the turns of one."""
    put(drive, *[f"evil/{n}:e{n}" for n in range(200)], *[f"good:g{n}" for n in range(20)])
    received = get(drive, "l1", 20)
    assert Counter(i[0] for i in received) == {"e": 10, "g": 10}
    assert [i for i in received if i[0] == "e"] == [f"e{n}" for n in range(10)]


def test_a_group_that_returns_has_no_credit(drive: Drive) -> None:
    """It starts at the virtual time of the queue, not where it left off."""
    put(drive, "b:b0", *[f"a:a{n}" for n in range(100)])
    get(drive, "l1", 60)
    put(drive, *[f"b:c{n}" for n in range(20)])
    assert Counter(i[0] for i in get(drive, "l2", 20)) == {"a": 10, "c": 10}


def test_concurrency(drive: Drive) -> None:
    """No more than the limit are in flight, and an ack lets the next one run; others go on."""
    limit(drive, "a", "c=2")
    put(drive, *[f"a:a{n}" for n in range(5)], "b:b0")
    batch = drive.receive("l1", 10)
    assert ids(batch.items) == ["a0", "b0", "a1"]
    assert drive.receive("l2", 10).items == []
    assert drive.receive("l3", 10, Outcomes("l1", acks=["1"])).items != []
    assert get(drive, "l4", 10) == []


def test_concurrency_of_a_parent(drive: Drive) -> None:
    """The limit of `acme/` is for all groups under it together; that of `acme/*` for each."""
    limit(drive, "acme/", "c=3")
    limit(drive, "acme/*", "c=2")
    put(drive, *[f"acme/{g}:{g}{n}" for g in "xy" for n in range(4)])
    assert get(drive, "l1", 10) == ["x0", "y0", "x1"]
    drive.settle(Outcomes("l1", ack_all=True))
    assert get(drive, "l2", 10) == ["y1", "x2", "y2"]


def test_an_ordered_group_runs_one_at_a_time(drive: Drive) -> None:
    """The next one follows the end of the one before, and a retry holds its group."""
    put(drive, *[f"=a:a{n}" for n in range(3)])
    assert get(drive, "l1") == ["a0"]
    assert get(drive, "l2") == []
    drive.settle(nacked("l1", 5000))
    assert get(drive, "l3") == []
    drive.run(promote(drive.keys, 100, now_ms=NOW + 5000))
    assert get(drive, "l4", at=NOW + 5000) == ["a0"]
    assert get(drive, "l5", 10, at=NOW + 5000) == []
    drive.settle(Outcomes("l4", acks=["0"]))
    assert get(drive, "l6") == ["a1"]


def test_everything_that_takes_a_message_out_of_a_lease_frees_its_slot(drive: Drive) -> None:
    """Acks, nacks, releases, deaths, discards, reaps."""
    limit(drive, "*", "c=1")
    ends = ["ack", "nack", "release", "bury", "discard", "reap"]
    for number, end in enumerate(ends):
        put(drive, f"g:m{number}")
        lease = f"l{number}"
        assert get(drive, lease) == [f"m{number}"], end
        outcome = Outcomes(lease)
        if end == "ack":
            outcome = Outcomes(lease, acks=["0"])
        elif end == "nack":
            outcome.nack("0", 0)
        elif end == "release":
            outcome.release("0")
        elif end == "bury":
            outcome.bury("0", "rejected")
        elif end == "discard":
            outcome.discard("0")
        if end == "reap":
            drive.run(reap(drive.keys, [lease], tick_ms=1000, now_ms=NOW + 31_000))
            drive.run(reap(drive.keys, [lease], tick_ms=1000, now_ms=NOW + 62_000))
        else:
            drive.settle(outcome)
        again = drive.receive(f"{lease}again", suspects=Suspects.FIRST)
        if again.items:
            drive.settle(Outcomes(f"{lease}again", acks=["0"]))
        assert idle(drive) == EMPTY, end


def test_a_suspect_of_an_ordered_group_runs_before_the_rest_of_it(drive: Drive) -> None:
    """It is delivered alone from another list, and its group waits for it."""
    put(drive, "=a:a0", "=a:a1")
    assert get(drive, "l1") == ["a0"]
    crashed = Outcomes("l1")
    crashed.crash("0")
    drive.settle(crashed)
    assert get(drive, "l2", suspects=Suspects.NEVER) == []
    assert get(drive, "l3", suspects=Suspects.FIRST) == ["a0"]
    assert get(drive, "l4", suspects=Suspects.NEVER) == []
    drive.settle(Outcomes("l3", acks=["0"]))
    assert get(drive, "l5") == ["a1"]


def test_waiting_members_can_be_deleted_held_and_enqueued(drive: Drive) -> None:
    """They are among the delayed messages for all that looks there."""
    put(drive, *[f"a:a{n}" for n in range(4)])
    items = drive.redis.zrange(drive.keys.delayed, 0, -1)
    assert drive.run(delete(drive.keys, [items[0]], now_ms=NOW))
    assert drive.run(hold(drive.keys, [items[1]], now_ms=NOW))
    assert get(drive, "l1", 10) == ["a2", "a3"]
    drive.run(enqueue(drive.keys, [items[1]], now_ms=NOW))
    assert get(drive, "l2", 10) == ["a1"]


def test_an_index_that_is_acked_twice_frees_one_slot(drive: Drive) -> None:
    """Another one of its group is still in flight."""
    limit(drive, "a", "c=2")
    put(drive, *[f"a:a{n}" for n in range(4)])
    assert get(drive, "l1") == ["a0", "a1"]
    drive.settle(Outcomes("l1", acks=["1", "1"]))
    assert get(drive, "l2") == ["a2"]
    assert found(drive) == []


def test_more_groups_than_one_command_reads(drive: Drive) -> None:
    """A batch of a thousand, each of a group of its own."""
    for first in range(0, 1200, 600):
        put(drive, *[f"g{n}:m{n}" for n in range(first, first + 600)])
    assert len(get(drive, "l1", 1000)) == 1000
    drive.settle(Outcomes("l1", ack_all=True))
    assert len(get(drive, "l2", 1000)) == 200
    drive.settle(Outcomes("l2", ack_all=True))
    assert idle(drive) == EMPTY


def test_a_rate_is_answered_with_the_wait(drive: Drive) -> None:
    """10 a second with bursts of 2; others are served meanwhile."""
    limit(drive, "a", "r=10/1000 b=2")
    put(drive, *[f"a:a{n}" for n in range(5)])
    assert get(drive, "l1") == ["a0", "a1"]
    batch = drive.receive("l2")
    assert (batch.items, batch.hint_ms) == ([], 100)
    put(drive, "b:b0")
    assert get(drive, "l3") == ["b0"]
    assert get(drive, "l4", at=NOW + 99) == []
    assert get(drive, "l5", at=NOW + 100) == ["a2"]
    assert get(drive, "l6", at=NOW + 5000) == ["a3", "a4"]


@pytest.mark.parametrize("rate", ["r=100/1000 b=1", "r=100/1000 b=10"])
def test_a_rate_holds_over_any_window(drive: Drive, rate: str) -> None:
    """Never more than its rate and one burst in a second, never less while messages wait."""
    limit(drive, "a", rate)
    put(drive, *[f"a:a{n}" for n in range(900)])
    times: list[int] = []
    for step in range(1000):
        at = NOW + 5 * step
        times += [at] * len(drive.receive(f"l{step}", 100, at=at).items)
    burst = int(rate.rpartition("=")[2])
    for start in range(NOW, NOW + 4000, 250):
        number = sum(start <= at < start + 1000 for at in times)
        assert 99 - burst // 2 <= number <= 100 + burst
    assert idle(drive)["sets"][0] == 0 or len(times) < 900


@pytest.mark.parametrize(
    ("rate", "number", "wait_ms"),
    [("100/1000 b=10", 5, 50), ("100/1000 b=3", 1, 10), ("1000/1000 b=100", 50, 50), ("4/1000 b=9", 1, 250)],
)  # fmt: skip
def test_messages_of_a_rate_start_by_handfuls(
    drive: Drive, rate: str, number: int, wait_ms: int
) -> None:
    """Half of a burst together, and none waits more than 50 ms for others: one call a message would cost more."""
    limit(drive, "a", f"r={rate}")
    put(drive, *[f"a:a{n}" for n in range(300)])
    burst = int(rate.rpartition("=")[2])
    assert len(get(drive, "l1", 300)) == burst
    for step in range(1, 5):
        at = NOW + step * wait_ms
        batch = drive.receive(f"m{step}", 300, at=at - 1)
        assert (batch.items, batch.hint_ms) == ([], 1)
        assert len(get(drive, f"n{step}", 300, at=at)) == number


def test_the_first_share_counts_what_is_in_flight(drive: Drive) -> None:
    """A limit that is set later finds it counted."""
    put(drive, *[f"a:a{n}" for n in range(4)])
    assert len(get(drive, "l1", 2)) == 2
    drive.run(share(drive.keys, [("t/", 1, "c=3 s=1")]))
    assert found(drive, repair=False) == []
    drive.run(set_limit(drive.keys, "a", "c=2"))
    assert get(drive, "l2") == []
    assert found(drive, repair=False) == []


def test_polls_and_glances_see_groups(drive: Drive) -> None:
    """Those that may run, and those whose time has come; a glance sees also those that still wait."""
    limit(drive, "a", "r=1/1000 b=1")
    put(drive, "a:a0", "a:a1")
    drive.redis.delete(drive.keys.wake)
    polled = drive.run(poll([drive.keys], levels=True))
    assert (polled.available[0].ready, polled.levels) == (1, {0: (GROUPS,)})
    assert drive.run(glance([(drive.keys, (GROUPS,))])) == 1
    assert get(drive, "l1", at=int(time.time() * 1000)) == ["a0"]
    assert get(drive, "l2", at=int(time.time() * 1000)) == []
    drive.redis.delete(drive.keys.wake)
    assert drive.run(poll([drive.keys])).available == {}
    assert drive.run(glance([(drive.keys, (GROUPS,))])) == 1
    drive.redis.zadd(drive.keys.later, {"a": 1})
    assert drive.run(poll([drive.keys])).available[0].ready == 1


def test_a_clock_set_back_delays_a_rate_by_a_burst_at_most(drive: Drive) -> None:
    """A time of an hour ahead is not waited for."""
    limit(drive, "a", "r=10/1000 b=2")
    put(drive, *[f"a:a{n}" for n in range(5)])
    assert get(drive, "l1", at=NOW + 3_600_000) == ["a0", "a1"]
    assert get(drive, "l2", at=NOW) == []
    assert get(drive, "l3", at=NOW + 100) == ["a2"]
    assert get(drive, "l4", at=NOW + 200) == ["a3"]


def test_rate_limited_members_let_their_group_wait(drive: Drive) -> None:
    """Others of the queue go on, and the message comes first again."""
    put(drive, "a:a0", "a:a1", "b:b0")
    batch = drive.receive("l1", 1)
    assert ids(batch.items) == ["a0"]
    limited = Outcomes("l1")
    limited.limit("0", 30_000)
    drive.settle(limited)
    assert get(drive, "l2") == ["b0"]
    batch = drive.receive("l3")
    assert (batch.items, batch.hint_ms) == ([], 30_000)
    assert get(drive, "l4", at=NOW + 30_000) == ["a0", "a1"]


def test_of_several_waits_of_a_group_the_latest_counts(drive: Drive) -> None:
    """Whichever handler says so last."""
    put(drive, "a:a0", "a:a1")
    drive.receive("l1", 2)
    limited = Outcomes("l1")
    limited.limit("1", 30_000)
    limited.limit("2", 1000)
    drive.settle(limited)
    assert get(drive, "l2", at=NOW + 29_999) == []
    assert get(drive, "l3", at=NOW + 30_000) == ["a0", "a1"]


def test_expired_and_cancelled_members_end(drive: Drive) -> None:
    """They are not delivered, and their group goes on."""
    put(drive, "a:a0", ttl_ms=1000)
    put(drive, "a:a1", "a:a2")
    drive.redis.zadd(drive.keys.cancelled, {"a1": NOW * 10})
    assert get(drive, "l1", at=NOW + 1000) == ["a2"]
    drive.settle(Outcomes("l1", acks=["0"]))
    assert idle(drive) == EMPTY


@pytest.mark.parametrize("seed", range(6))
def test_random_schedules(drive: Drive, seed: int) -> None:
    """Ordered groups keep their order, limits hold, all is delivered and nothing is left, whatever happens between."""
    chance = random.Random(seed)
    limit(drive, "f", "c=2")
    limit(drive, "t/", "c=3")
    names = ["=o1", "=o2", "=t/o", "f", "t/a", "t/b", "g", ""]
    sent: dict[str, list[str]] = {name: [] for name in names}
    done: dict[str, list[str]] = {name: [] for name in names}
    held: dict[str, dict[str, str]] = {}
    group_of: dict[str, str] = {}
    at, leases = NOW, 0

    def in_flight(test: Any) -> int:
        return sum(test(group_of[i]) for lease in held.values() for i in lease.values())

    def settle(lease: str) -> None:
        outcome = Outcomes(lease)
        acks = []
        for index, message in held.pop(lease).items():
            what = chance.choice(["ack", "ack", "ack", "nack", "delay", "release", "crash"])
            if what == "ack":
                acks.append(index)
                done[group_of[message]].append(message)
            elif what == "nack":
                outcome.nack(index, 0)
            elif what == "delay":
                outcome.nack(index, chance.randint(1, 500))
            elif what == "release":
                outcome.release(index)
            else:
                outcome.crash(index)
        outcome.acks = acks
        drive.settle(outcome, at=at)

    for step in range(250):
        at += chance.randint(0, 200)
        action = chance.random()
        if action < 0.3 and step < 150:
            name = chance.choice(names)
            message = f"m{step}"
            group_of[message] = name
            sent[name].append(message)
            put(drive, f"{name}:{message}" if name else message, at=at)
        elif action < 0.7 or step > 200:
            leases += 1
            lease = f"l{leases}"
            batch = drive.receive(
                lease,
                chance.randint(1, 4),
                at=at,
                visibility_ms=600_000,
                suspects=chance.choice([Suspects.FIRST, Suspects.IF_NOTHING_ELSE]),
            )
            if batch.items:
                held[lease] = dict(zip(batch.indices, ids(batch.items), strict=True))
            assert in_flight(lambda g: g == "f") <= 2
            assert in_flight(lambda g: "t/" in g) <= 3
            for name in ("=o1", "=o2", "=t/o"):
                assert in_flight(lambda g, name=name: g == name) <= 1
        elif action < 0.9 and held:
            settle(chance.choice(list(held)))
        else:
            drive.run(promote(drive.keys, 100, now_ms=at))
    for _ in range(3000):
        at += 500
        for lease in list(held):
            settle(lease)
        drive.run(promote(drive.keys, 100, now_ms=at))
        leases += 1
        batch = drive.receive(f"l{leases}", 10, at=at, suspects=Suspects.FIRST)
        if batch.items:
            held[f"l{leases}"] = dict(zip(batch.indices, ids(batch.items), strict=True))
        dead = [
            Envelope.parse(entry[b"envelope"]) for _, entry in drive.redis.xrange(drive.keys.dead)
        ]
        if sum(map(len, done.values())) + len(dead) == sum(map(len, sent.values())):
            break
    gone = {envelope.id for envelope in dead if envelope is not None}
    for name in names:
        expected = [message for message in sent[name] if message not in gone]
        if name.startswith("="):
            assert done[name] == expected
        else:
            assert sorted(done[name]) == sorted(expected)
    assert idle(drive) == EMPTY


def found(drive: Drive, *, repair: bool = True) -> list[str]:
    """The kinds of what is wrong with groups, and ids of messages without a place."""
    _, lost = drive.run(repair_seats(drive.keys, repair=repair))
    _, _, problems = drive.run(repair_groups(drive.keys, repair=repair))
    return [*lost, *(f"{problem.kind} {problem.group}" for problem in problems)]


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


@pytest.mark.parametrize("live", [False, True], ids=["fixed", "live"])
@pytest.mark.parametrize("seed", range(8))
def test_lost_leases_claims_and_splits(drive: Drive, seed: int, live: bool) -> None:
    """Slots follow their messages to other leases, and come free with the lease: no message is lost, no slot left.

    Live limits come and go: those of a queue without any count what was delivered before.
    """
    chance = random.Random(seed)
    most = {"f": 60, "t/": 60}

    def put_limits(*, on: bool) -> None:
        for name, number in (("f", 2), ("t/", 3)):
            cursor = drive.run(set_limit(drive.keys, name, f"c={number}" if on else "", now_ms=at))
            while cursor != "0":
                cursor = drive.run(set_limit(drive.keys, "", "", cursor, now_ms=at))
            most[name] = number if on else 60

    names = ["=o1", "=t/o", "f", "t/a", "g", ""]
    for number in range(60):
        name = chance.choice(names)
        put(drive, f"{name}:m{number}" if name else f"m{number}")
    at, leases = NOW, 0
    in_flight: Counter[str] = Counter()
    if not live:
        put_limits(on=True)
    for _ in range(400):
        at += chance.randint(0, 1500)
        leases += 1
        if live and chance.random() < 0.2:
            put_limits(on=chance.random() < 0.6)
            assert found(drive, repair=False) == []
        before = in_flight
        lease = f"l{leases}"
        known = [name.decode() for name in drive.redis.zrange(drive.keys.unacked, 0, -1)]
        action = chance.random()
        if action < 0.4:
            drive.receive(
                lease,
                chance.randint(1, 5),
                at=at,
                visibility_ms=chance.choice([1000, 5000, 60_000]),
                suspects=chance.choice([Suspects.FIRST, Suspects.NEVER]),
            )
        elif action < 0.55 and known:
            old = chance.choice(known)
            index = chance.choice([*drive.held(drive.keys.lease(old)), b"1"]).decode()
            drive.run(split(drive.keys, old, index, lease, 1000, now_ms=at))
        elif action < 0.7 and known:
            some = known[:3]
            scores = [int(drive.redis.zscore(drive.keys.unacked, each) or 0) for each in some]
            pairs = [*zip(some, scores, strict=True)]
            drive.run(claim(drive.keys, lease, pairs, 4, visibility_ms=2000, now_ms=at))
        elif action < 0.85 and known:
            outcome = Outcomes(chance.choice(known), ack_all=True)
            drive.settle(outcome, at=at)
        else:
            drive.run(reap(drive.keys, known, tick_ms=1000, now_ms=at))
        in_flight = Counter()
        for each in drive.redis.zrange(drive.keys.unacked, 0, -1):
            for item in drive.held(drive.keys.lease(each.decode())).values():
                envelope = Envelope.parse(item)
                assert envelope is not None
                in_flight[envelope.flags.get("g", "")] += 1
        assert max(in_flight["=o1"], in_flight["=t/o"]) <= 1
        # What had a slot before the limit was set goes on, and nothing starts beside it. Suspects keep theirs.
        for token, name in drive.redis.hgetall(drive.keys.slots).items():
            if token.startswith(b":"):
                in_flight[name.decode()] += 1
        assert in_flight["f"] <= max(most["f"], before["f"])
        under = [flying["=t/o"] + flying["t/a"] for flying in (in_flight, before)]
        assert under[0] <= max(most["t/"], under[1])
    assert found(drive, repair=False) == []
    for _ in range(300):
        at += 61_000
        known = [name.decode() for name in drive.redis.zrange(drive.keys.unacked, 0, -1)]
        drive.run(reap(drive.keys, known, tick_ms=1000, now_ms=at))
        leases += 1
        batch = drive.receive(f"l{leases}", 10, at=at, suspects=Suspects.FIRST)
        if batch.items:
            drive.settle(Outcomes(f"l{leases}", ack_all=True), at=at)
        elif not known:
            break
    counts = drive.stats("acked", "dead")
    assert counts["acked"] + counts.get("dead", 0) == 60
    assert idle(drive) == EMPTY


def test_groups_that_have_nothing_to_give_hold_up_no_others(drive: Drive) -> None:
    """A receive of one message looks beyond groups that were purged, and those that must wait."""
    for first in range(0, 150, 50):
        put(drive, *[f"gone{n}:m{n}" for n in range(first, first + 50)])
    drive.run(purge(drive.keys, "ready", 1000, now_ms=NOW))
    limit(drive, "slow/*", "r=1/1000 b=1")
    put(drive, *[f"slow/{n}:s{n}" for n in range(3)], *[f"slow/{n}:t{n}" for n in range(3)])
    put(drive, "b:b0")
    assert get(drive, "l1", 1) == ["b0"]
    assert get(drive, "l2", 1) == ["s0"]
    assert get(drive, "l3", 10) == ["s1", "s2"]
    drive.settle(*[Outcomes(f"l{n}", ack_all=True) for n in (1, 2, 3)])
    assert sorted(get(drive, "l4", at=NOW + 1000)) == ["t0", "t1", "t2"]
    drive.settle(Outcomes("l4", ack_all=True))
    get(drive, "l5", at=NOW + 9000)
    assert idle(drive) == EMPTY


def test_deleted_and_held_members_do_not_wait(drive: Drive) -> None:
    """They count neither towards max_waiting nor in the list of groups, also where the seats begin again."""
    limit(drive, "a", "m=3")
    put(drive, "a:a0")
    items = drive.redis.zrange(drive.keys.delayed, 0, -1)
    get(drive, "l1")
    released = Outcomes("l1")
    released.release("0")
    drive.settle(released)  # before the first seat
    put(drive, "a:a1", "a:a2")
    with pytest.raises(GroupFullError):
        put(drive, "a:a3")
    items = drive.redis.zrange(drive.keys.delayed, 0, -1)
    drive.run(delete(drive.keys, items[:1], now_ms=NOW))
    drive.run(hold(drive.keys, items[1:2], now_ms=NOW))
    _, _, page = drive.run(group_page(drive.keys))
    assert [(state.name, state.waiting) for state in page] == [("a", 1)]
    put(drive, "a:a3", "a:a4")
    with pytest.raises(GroupFullError):
        put(drive, "a:a5")


def test_a_rate_limited_suspect_waits(drive: Drive) -> None:
    """Its group waits, and so does the message itself: it is not received again at once."""
    put(drive, "a:a0")
    get(drive, "l1")
    crashed = Outcomes("l1")
    crashed.crash("0")
    drive.settle(crashed)
    assert get(drive, "l2", suspects=Suspects.FIRST) == ["a0"]
    limited = Outcomes("l2")
    limited.limit("0", 30_000)
    drive.settle(limited)
    assert get(drive, "l3", suspects=Suspects.FIRST) == []
    drive.run(promote(drive.keys, 100, now_ms=NOW + 30_000))
    assert get(drive, "l4", at=NOW + 30_000, suspects=Suspects.FIRST) == ["a0"]
    drive.settle(Outcomes("l4", acks=["0"]), at=NOW + 30_000)
    get(drive, "l5", at=NOW + 60_000)
    assert idle(drive) == EMPTY


def test_a_group_that_ran_empty_and_gets_a_member_of_ready_keeps_its_turn(drive: Drive) -> None:
    """Versions without groups put members there; the receive that seats one may have ended the last of the group."""
    put(drive, "p1")
    put(drive, "a:a0", "t/b:b0", ttl_ms=1000)
    for name in ("a", "t%2Fb"):
        drive.redis.rpush(drive.keys.ready[0], f"q1 {name[0]}1 {NOW} 0 0 0 0 g={name}\nx")
    received = get(drive, "l1", at=NOW + 2000)
    for number in range(2, 5):
        received += get(drive, f"l{number}", at=NOW + 2000)
    assert sorted(received) == ["a1", "p1", "t1"]


def test_an_expired_or_deleted_member_leaves_no_record_of_its_parent(drive: Drive) -> None:
    """Nothing of the group is in flight that would clear it later."""
    put(drive, "t/a:a0", ttl_ms=1000)
    put(drive, "z:z0")
    assert get(drive, "l1", at=NOW + 1000) == ["z0"]
    drive.settle(Outcomes("l1", ack_all=True))
    assert idle(drive) == EMPTY
    put(drive, "t/a:a1")
    drive.run(purge(drive.keys, "ready", now_ms=NOW))
    assert get(drive, "l2") == []
    assert idle(drive) == EMPTY


def test_the_slots_of_a_batch_come_free_in_parts(drive: Drive) -> None:
    """Of many acks the field that they share is written again, of few each slot gets its own; the limits hold."""
    limit(drive, "*", "c=1")
    for number in range(2):
        put(drive, *[f"g{n}:{number}-{n}" for n in range(20)], f"p{number}")
    assert len(get(drive, "l1", 100)) == 22
    for first, last, shared in ((1, 7, True), (5, 14, True), (15, 15, False), (15, 16, False)):
        acks = [str(index) for index in range(first, last + 1)]
        drive.settle(Outcomes("l1", acks=acks))
        assert drive.redis.hexists(drive.keys.slots, "l1") == shared
        assert found(drive, repair=False) == []
    seen = len(get(drive, "l2", 100))
    drive.settle(Outcomes("l1", ack_all=True), Outcomes("l2", ack_all=True))
    seen += len(get(drive, "l3", 100))
    drive.settle(Outcomes("l3", ack_all=True))
    assert (seen, idle(drive)) == (20, EMPTY)


def test_the_first_limit_counts_what_is_in_flight(drive: Drive) -> None:
    """A batch, parts of one that was loosened, and a message alone: each frees its slot."""
    put(drive, *[f"a:a{n}" for n in range(14)], "b:b0")
    assert len(get(drive, "l1", 2)) == 2
    assert len(get(drive, "l2", 9)) == 9
    drive.settle(Outcomes("l2", acks=["3"]))
    assert not drive.redis.hexists(drive.keys.slots, "l2")
    assert get(drive, "l3", 1) == ["a10"]
    assert found(drive, repair=False) == []
    assert drive.redis.hlen(drive.keys.groups) > 0
    drive.run(set_limit(drive.keys, "*", "c=10"))
    assert found(drive, repair=False) == []
    assert get(drive, "l4") == []
    for number, (lease, index) in enumerate((("l1", "1"), ("l2", "9"), ("l3", "0"))):
        drive.settle(Outcomes(lease, acks=[index]))
        assert get(drive, f"m{number}") == [f"a{11 + number}"]
        assert found(drive, repair=False) == []
    leases = ["l1", "l2", *(f"m{number}" for number in range(3))]
    drive.settle(*(Outcomes(lease, ack_all=True) for lease in leases))
    assert idle(drive) == EMPTY


def test_what_is_not_counted_is_shown(drive: Drive) -> None:
    """Groups that wait and run, those that only run, and ordered ones, which are counted."""
    put(drive, "a:a0", "b:b0", "=c:c0", "a:a1", "=c:c1")
    assert sorted(get(drive, "l1")) == ["a0", "a1", "b0", "c0"]
    put(drive, "a:a2")
    _, _, states = drive.run(group_page(drive.keys))
    shown = sorted((s.name, s.waiting, s.running, s.uncounted) for s in states)
    assert shown == [
        ("=c", 1, 1, False), ("a", 0, 2, True), ("a", 1, 0, False), ("b", 0, 1, True),
    ]  # fmt: skip
    _, large = drive.run(largest(drive.keys, 10, now_ms=NOW))
    assert sorted((g.name, g.waiting, g.running) for g in large) == [("=c", 1, 1), ("a", 1, 2)]


@pytest.mark.parametrize("settled_first", [False, True])
def test_a_group_that_sends_whenever_it_is_received_has_its_turns_only(
    drive: Drive, settled_first: bool
) -> None:
    """It is empty after each receive, and would be next again if that gave it credit."""
    put(drive, *[f"b:b{n}" for n in range(40)])
    put(drive, "a:a")
    got, held = [], None
    for number in range(40):
        if settled_first and held:
            drive.settle(Outcomes(held, ack_all=True))
        held = f"l{number}"
        got += get(drive, held, 2 if number % 2 else 1)
        put(drive, f"a:a{number}")
    assert 27 <= sum(word.startswith("b") for word in got) <= 33


def test_many_groups_that_run_empty_do_not_hide_one_that_did(drive: Drive) -> None:
    """Their names are kept in a bounded place, whose older half is looked at, too."""
    put(drive, "a:a0")
    assert get(drive, "l0") == ["a0"]
    names = [f"a-group-with-a-long-name-{n:03}" for n in range(250)]
    put(drive, *(f"{name}:m{n}" for n, name in enumerate(names)))
    assert [len(get(drive, f"m{n}", 100)) for n in range(3)] == [100, 100, 50]
    put(drive, "a:a1", "b:b0")
    assert get(drive, "l1", 1) == ["b0"]


def test_leases_are_revoked_with_their_slots(drive: Drive) -> None:
    """Of groups that are counted, and of others."""
    put(drive, "=a:a0", "b:b0", "=a:a1", "c/c:c0")
    assert sorted(get(drive, "l1")) == ["a0", "b0", "c0"]
    assert drive.run(revoke(drive.keys, [b"l1"])) == 3
    assert get(drive, "l2") == ["a1"]
    drive.settle(Outcomes("l2", ack_all=True))
    assert idle(drive) == EMPTY


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


def test_thousands_of_lost_slots_are_reported(drive: Drive) -> None:
    """As many as were in flight when a daemon of an earlier version reaped them."""
    put(drive, "a:a0", "a:a1")
    drive.redis.hset(drive.keys.slots, mapping={f"gone:{n}": "a" for n in range(4000)})
    assert Counter(found(drive, repair=False)) == {"slot a": 4000, "busy a": 1}
    assert Counter(found(drive)) == {"slot a": 4000}
    assert found(drive) == []


@pytest.mark.parametrize("name", ["=a", "=t/a"])
def test_a_batch_ends_at_its_size(drive: Drive, name: str) -> None:
    """A member that does not fit any more stays the next of its group."""
    flags = {"g": name}
    for group, message in ((name, "a0"), ("b", "b0"), ("c", "c0")):
        body = tail(b"x" * 600_000, flags if group == name else {"g": group})
        made = [NewMessage(message, body, group=group)]
        drive.run(send(drive.keys, made, lane="", sequence=0, now_ms=NOW))
    received = [get(drive, f"l{number}") for number in range(3)]
    assert sorted(received) == [["a0"], ["b0"], ["c0"]]
    drive.settle(*[Outcomes(f"l{number}", ack_all=True) for number in range(3)])
    assert idle(drive) == EMPTY


@pytest.mark.parametrize("end", ["delete", "purge"])
@pytest.mark.parametrize("wait", ["release", "nack"])
def test_a_delayed_member_holds_its_ordered_group_until_it_ends(
    drive: Drive, wait: str, end: str
) -> None:
    """A released one as well as a nacked one; to delete or purge it lets the next one run."""
    put(drive, "=a:a0", "=a:a1")
    assert get(drive, "l1") == ["a0"]
    outcome = Outcomes("l1")
    if wait == "release":
        outcome.release("0", 60_000)
    else:
        outcome.nack("0", 60_000)
    drive.settle(outcome)
    assert get(drive, "l2") == []
    if end == "delete":
        [item] = drive.redis.zrange(drive.keys.delayed, 0, 0)
        drive.run(delete(drive.keys, [item], now_ms=NOW))
    else:
        drive.run(purge(drive.keys, "delayed", now_ms=NOW))
    assert get(drive, "l3") == ["a1"]
    drive.settle(Outcomes("l3", ack_all=True))
    assert idle(drive) == EMPTY


def test_a_run_that_sleeps_holds_its_ordered_group(drive: Drive) -> None:
    """The next one of the group begins when the run has ended, not when it is parked."""
    put(drive, "=acct:a", "=acct:b")
    assert get(drive, "l1", 1) == ["a"]
    outcomes = Outcomes("l1")
    outcomes.park("0", 1000, "~sleep", keep_ms=60_000)
    drive.settle(outcomes)
    assert get(drive, "l2") == []
    drive.run(promote(drive.keys, 10, now_ms=NOW + 1000))
    assert get(drive, "l3", at=NOW + 1000) == ["a"]
    assert get(drive, "l4", at=NOW + 1000) == []
    drive.settle(Outcomes("l3", acks=["0"]), at=NOW + 1001)
    assert get(drive, "l5", at=NOW + 1001) == ["b"]
    drive.settle(Outcomes("l5", acks=["0"]), at=NOW + 1002)
    assert idle(drive) == EMPTY


@pytest.mark.parametrize(
    ("names", "limits", "left"),
    [
        (["a"], {}, 49),
        (["p/0", "p/1"], {}, 49),
        ([f"p/{n}" for n in range(50)], {}, 17),
        (["a"], {"a": "c=5"}, 4),
        (["=a", "b"], {}, 25),
        (["p/0", "p/1"], {"p/": "c=8"}, 7),
        (["a"], {"a": "r=1/1000 b=10"}, 9),
    ],
)
def test_a_receive_says_how_many_more_may_run(
    drive: Drive, names: list[str], limits: dict[str, str], left: int
) -> None:
    """Not how many groups stand in line: a worker receives as many at once as it is told."""
    for name, words in limits.items():
        limit(drive, name, words)
    for number in range(50):
        put(drive, f"{names[number % len(names)]}:m{number}")
    assert drive.receive("l1", 1).ready_left == left


def test_no_group_starves_while_the_clock_goes_back(drive: Drive) -> None:
    """By an hour, with groups that wait for a rate and for a handler's time: each runs at its rate from then on."""
    limit(drive, "slow", "r=10/1000 b=1")
    limit(drive, "p/", "r=10/1000 b=1")
    for group, name in (("slow", "s"), ("p/x", "p"), ("fair", "f"), ("=order", "o")):
        put(drive, *[f"{group}:{name}{n}" for n in range(3)])
    later = NOW + 3_600_000
    assert len(get(drive, "l1", at=later)) == 6
    drive.settle(Outcomes("l1", ack_all=True), at=later)
    seen: list[str] = []
    for step in range(40):
        at = NOW + 50 * step
        seen += get(drive, f"m{step}", at=at)
        drive.settle(Outcomes(f"m{step}", ack_all=True), at=at)
    assert sorted(seen) == ["o1", "o2", "p1", "p2", "s1", "s2"]
    get(drive, "last", at=NOW + 9000)
    assert idle(drive) == EMPTY


def test_a_settle_takes_a_full_group_out_of_line(drive: Drive) -> None:
    """A group at its limit is not even looked at by receives."""
    put(drive, *[f"a:a{n}" for n in range(3)])
    assert get(drive, "l1", 2) == ["a0", "a1"]
    drive.run(set_limit(drive.keys, "a", "c=1"))
    drive.settle(Outcomes("l1", acks=["1"]))
    assert drive.redis.zrange(drive.keys.turns, 0, -1) == []


def test_a_change_of_limits_that_was_interrupted_keeps_no_group_out_of_line(drive: Drive) -> None:
    """All were full when the last limit was removed, and a page of them has looked: acks let the rest run."""
    limit(drive, "*", "c=1")
    names = [f"g{number}" for number in range(900)]
    for part in "ab":
        put(drive, *[f"{name}:{name}{part}" for name in names])
    assert len(get(drive, "l1", 900)) == 900
    assert drive.run(set_limit(drive.keys, "*", "")) != "0"
    assert drive.redis.zcard(drive.keys.turns) < 900
    drive.settle(Outcomes("l1", ack_all=True))
    assert len(get(drive, "l2", 1000)) == 900


def test_a_group_with_a_past_stands_no_earlier_than_the_queue(drive: Drive) -> None:
    """It was full while others ran; the turns of that time are not made up for."""
    limit(drive, "a", "c=1")
    put(drive, *[f"{g}:{g}{n}" for g in "ab" for n in range(40)])
    assert get(drive, "l1", 1) == ["a0"]
    get(drive, "l2", 20)
    limit(drive, "a", "c=100")
    drive.settle(Outcomes("l1", acks=["0"]))
    tag = float(drive.redis.hget(drive.keys.groups, "@tag") or 0)
    assert (drive.redis.zscore(drive.keys.turns, "a") or 0) >= tag > 10
    assert Counter(i[0] for i in get(drive, "l3", 20))["a"] <= 11


def test_a_batch_is_filled_beyond_groups_that_give_nothing(drive: Drive) -> None:
    """As many more of those that stand in line are looked at, while others of the first ones still wait."""
    put(drive, "a:a0")
    drive.run(purge(drive.keys, "ready", 1000, now_ms=NOW))
    put(drive, "b:b0", "c:c0", "d:d0")
    assert get(drive, "l1", 2) == ["b0", "c0"]


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
