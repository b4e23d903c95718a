"""Random histories of groups, compared with what must hold after each call."""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import pytest

from qworker.engine.claim import claim
from qworker.engine.extend import split
from qworker.engine.groups import COUNTING, set_limit
from qworker.engine.reap import promote, reap
from qworker.engine.receive import Suspects
from qworker.engine.settle import Outcomes
from qworker.wire.envelope import Envelope
from tests.lua.drive import NOW, Drive
from tests.lua.group_calls import EMPTY, found, idle, ids, in_small_pages, limit, put

#: A hash with values of this length is scanned in parts.
_FAIR = "f" * 70
_SEEDS = range(int(os.environ.get("QWORKER_HISTORIES") or 4))


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.slow
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


def test_slots_that_move_while_they_are_counted(engine_drive: Drive) -> None:
    """Those that come where the count has been are counted, too: the limit that follows lets no more run."""
    drive = engine_drive
    put(drive, *[f"{_FAIR}:m{number}" for number in range(100)])
    for number in range(40):
        drive.receive(f"alone{number}", 1)
    for number in range(5):
        drive.receive(f"batch{number}", 12)
    for number in range(40):
        limit_set = set_limit(drive.keys, _FAIR, "c=60", now_ms=NOW)
        if (cursor := drive.run(in_small_pages(limit_set))) != COUNTING:
            break
        if number % 3:
            old, index = f"alone{number}", "0"
        else:
            old, index = f"batch{number // 3 % 5}", "12"
        drive.run(split(drive.keys, old, index, f"s{number}", 60_000, now_ms=NOW))
    assert (cursor, number > 15) == ("0", True)
    held = drive.redis.hgetall(drive.keys.slots)
    assert [name for name in held.values() if b"\1" in name] == []
    assert found(drive, repair=False) == []


@pytest.mark.slow
@pytest.mark.parametrize("live", [False, True], ids=["fixed", "live"])
@pytest.mark.parametrize("seed", _SEEDS)
def test_lost_leases_claims_and_splits(drive: Drive, seed: int, live: bool) -> None:
    """Slots follow their messages to other leases, and come free with the lease: no message is lost, no slot left.

    Live limits come and go, by callers of which some stop halfway: the first one of a queue counts what was delivered
    before, a few slots a call, while slots move and another server takes over.
    """
    chance = random.Random(seed)
    limits = {_FAIR: 2, "t/": 3}
    most = dict.fromkeys(limits, 60)
    callers: list[tuple[str, str, str]] = []

    def turn_page() -> None:
        name, words, cursor = callers.pop(chance.randrange(len(callers)))
        call = set_limit(drive.keys, name, words, cursor, now_ms=at)
        cursor = drive.run(in_small_pages(call))
        if cursor == COUNTING:
            callers.append((name, words, "0"))
            return
        if name:
            most[name] = limits[name] if words else 60
        if cursor != "0":
            callers.append(("", "", cursor))

    def change_limits() -> None:
        for name, number in limits.items():
            callers.append((name, f"c={number}" if chance.random() < 0.6 else "", "0"))
        if chance.random() < 0.3:
            callers.pop(0)
        if (drive.redis.hget(drive.keys.groups, "@looking") or b"")[:1] == b"c":
            drive.redis.hset(drive.keys.groups, "@looking", f"c0ther:3 {at}")

    names = ["=o1", "=t/o", _FAIR, "t/a", "g", ""]
    for number in range(60):
        name = chance.choice(names)
        put(drive, f"{name}:m{number}" if name else f"m{number}")
    at, leases = NOW, 0
    in_flight: Counter[str] = Counter()
    if not live:
        callers = [(name, f"c={number}", "0") for name, number in limits.items()]
        while callers:
            turn_page()
    for _ in range(400):
        at += chance.randint(0, 1500)
        leases += 1
        if live and chance.random() < 0.1:
            change_limits()
        while callers and chance.random() < 0.7:
            turn_page()
            assert found(drive, repair=False) == []
        if drive.redis.exists(drive.keys.limits):
            assert not any(b"\1" in name for name in drive.redis.hvals(drive.keys.slots))
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
            old = chance.choice(known)
            held = [index.decode() for index in drive.held(drive.keys.lease(old))]
            some = chance.sample(held, chance.randint(0, len(held)))
            drive.settle(Outcomes(old, acks=some, ack_all=not some), at=at)
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
        assert in_flight[_FAIR] <= max(most[_FAIR], before[_FAIR])
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
