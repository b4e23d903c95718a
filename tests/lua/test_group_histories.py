"""Random histories of groups, compared with what must hold after each call."""

from __future__ import annotations

import os
import random
from collections import Counter
from types import MappingProxyType
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
_SEEDS = range(2, int(os.environ.get("QWORKER_HISTORIES") or 4))


class _Schedules:
    """Messages of groups, some ordered and some limited, that are sent, received and settled at random."""

    NAMES = ("=o1", "=o2", "=t/o", "f", "t/a", "t/b", "g", "")

    def __init__(self, drive: Drive, seed: int) -> None:
        self.drive, self.chance = drive, random.Random(seed)
        self.sent: dict[str, list[str]] = {name: [] for name in self.NAMES}
        self.done: dict[str, list[str]] = {name: [] for name in self.NAMES}
        self.held: dict[str, dict[str, str]] = {}
        self.group_of: dict[str, str] = {}
        self.at, self.leases = NOW, 0

    def send(self, message: str) -> None:
        """Send a message of any group."""
        name = self.chance.choice(self.NAMES)
        self.group_of[message] = name
        self.sent[name].append(message)
        put(self.drive, f"{name}:{message}" if name else message, at=self.at)

    def receive(self, count: int, **options: Any) -> None:
        """Receive into a new lease."""
        self.leases += 1
        lease = f"l{self.leases}"
        batch = self.drive.receive(lease, count, at=self.at, **options)
        if batch.items:
            self.held[lease] = dict(zip(batch.indices, ids(batch.items), strict=True))

    def receive_some(self) -> None:
        """Receive a few; no limit is passed, and of an ordered group one runs."""
        chance = self.chance
        count = chance.randint(1, 4)
        suspects = chance.choice([Suspects.FIRST, Suspects.IF_NOTHING_ELSE])
        self.receive(count, visibility_ms=600_000, suspects=suspects)
        flying = [self.group_of[i] for lease in self.held.values() for i in lease.values()]
        assert flying.count("f") <= 2
        assert sum("t/" in name for name in flying) <= 3
        for name in ("=o1", "=o2", "=t/o"):
            assert flying.count(name) <= 1

    def settle(self, lease: str) -> None:
        """Settle each message of a lease in one way or another."""
        outcome = Outcomes(lease)
        acks = []
        for index, message in self.held.pop(lease).items():
            what = self.chance.choice(["ack", "ack", "ack", "nack", "delay", "release", "crash"])
            if what == "ack":
                acks.append(index)
                self.done[self.group_of[message]].append(message)
            elif what == "nack":
                outcome.nack(index, 0)
            elif what == "delay":
                outcome.nack(index, self.chance.randint(1, 500))
            elif what == "release":
                outcome.release(index)
            else:
                outcome.crash(index)
        outcome.acks = acks
        self.drive.settle(outcome, at=self.at)

    def promote(self) -> None:
        """Move what is due."""
        self.drive.run(promote(self.drive.keys, 100, now_ms=self.at))

    def step(self, number: int) -> None:
        """Do one thing, a little later."""
        self.at += self.chance.randint(0, 200)
        action = self.chance.random()
        if action < 0.3 and number < 150:
            self.send(f"m{number}")
        elif action < 0.7 or number > 200:
            self.receive_some()
        elif action < 0.9 and self.held:
            self.settle(self.chance.choice(list(self.held)))
        else:
            self.promote()

    def finish(self) -> set[str]:
        """Deliver what is left; the ids of dead letters are returned."""
        for _ in range(3000):
            self.at += 500
            for lease in list(self.held):
                self.settle(lease)
            self.promote()
            self.receive(10, suspects=Suspects.FIRST)
            entries = self.drive.redis.xrange(self.drive.keys.dead)
            dead = [Envelope.parse(entry[b"envelope"]) for _, entry in entries]
            ended = sum(map(len, self.done.values())) + len(dead)
            if ended == sum(map(len, self.sent.values())):
                break
        return {envelope.id for envelope in dead if envelope is not None}


@pytest.mark.parametrize(
    "seed",
    [
        *(0, 1),
        *(
            pytest.param(seed, marks=pytest.mark.nightly("test_random_schedules"))
            for seed in _SEEDS
        ),
    ],
)
@pytest.mark.slow
def test_random_schedules(drive: Drive, seed: int) -> None:
    """Ordered groups keep their order, limits hold, all is delivered and nothing is left, whatever happens between."""
    limit(drive, "f", "c=2")
    limit(drive, "t/", "c=3")
    schedules = _Schedules(drive, seed)
    for number in range(250):
        schedules.step(number)
    gone = schedules.finish()
    for name, sent in schedules.sent.items():
        expected, done = [message for message in sent if message not in gone], schedules.done[name]
        if name.startswith("="):
            assert done == expected
        else:
            assert sorted(done) == sorted(expected)
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


class _Wanderings:
    """Messages of groups whose leases are received, split, claimed, settled and reaped at random.

    Live limits come and go, by callers of which some stop halfway: the first one of a queue counts what was delivered
    before, a few slots a call, while slots move and another server takes over.
    """

    NAMES = ("=o1", "=t/o", _FAIR, "t/a", "g", "")
    LIMITS = MappingProxyType({_FAIR: 2, "t/": 3})
    #: More than all messages, for no limit.
    UNLIMITED = 60

    def __init__(self, drive: Drive, seed: int) -> None:
        self.drive, self.chance = drive, random.Random(seed)
        self.most = dict.fromkeys(self.LIMITS, self.UNLIMITED)
        self.callers: list[tuple[str, str, str]] = []
        self.at, self.leases = NOW, 0
        self.in_flight: Counter[str] = Counter()
        for number in range(60):
            name = self.chance.choice(self.NAMES)
            put(drive, f"{name}:m{number}" if name else f"m{number}")

    def limit_all(self) -> None:
        """Set every limit, before anything is received."""
        self.callers = [(name, f"c={number}", "0") for name, number in self.LIMITS.items()]
        while self.callers:
            self.turn_page()

    def turn_page(self) -> None:
        """Let one of the callers that set a limit go on."""
        name, words, cursor = self.callers.pop(self.chance.randrange(len(self.callers)))
        call = set_limit(self.drive.keys, name, words, cursor, now_ms=self.at)
        cursor = self.drive.run(in_small_pages(call))
        if cursor == COUNTING:
            self.callers.append((name, words, "0"))
            return
        if name:
            self.most[name] = self.LIMITS[name] if words else self.UNLIMITED
        if cursor != "0":
            self.callers.append(("", "", cursor))

    def change_limits(self) -> None:
        """Let callers begin to set or lift each limit; one may give up, another server may take over."""
        for name, number in self.LIMITS.items():
            self.callers.append((name, f"c={number}" if self.chance.random() < 0.6 else "", "0"))
        if self.chance.random() < 0.3:
            self.callers.pop(0)
        redis, groups = self.drive.redis, self.drive.keys.groups
        if (redis.hget(groups, "@looking") or b"")[:1] == b"c":
            redis.hset(groups, "@looking", f"c0ther:3 {self.at}")

    def known(self) -> list[str]:
        """The leases."""
        return [name.decode() for name in self.drive.redis.zrange(self.drive.keys.unacked, 0, -1)]

    def step(self, *, live: bool) -> None:
        """Do one thing to the leases, a little later, and maybe something to limits."""
        drive, chance = self.drive, self.chance
        self.at += chance.randint(0, 1500)
        self.leases += 1
        if live and chance.random() < 0.1:
            self.change_limits()
        while self.callers and chance.random() < 0.7:
            self.turn_page()
            assert found(drive, repair=False) == []
        if drive.redis.exists(drive.keys.limits):
            assert not any(b"\1" in name for name in drive.redis.hvals(drive.keys.slots))
        self.act(f"l{self.leases}", self.known())

    def act(self, lease: str, known: list[str]) -> None:
        """Receive or move into a lease, or settle or reap those that are known."""
        drive, keys, chance, at = self.drive, self.drive.keys, self.chance, self.at
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
            index = chance.choice([*drive.held(keys.lease(old)), b"1"]).decode()
            drive.run(split(keys, old, index, lease, 1000, now_ms=at))
        elif action < 0.7 and known:
            some = known[:3]
            scores = [int(drive.redis.zscore(keys.unacked, each) or 0) for each in some]
            pairs = [*zip(some, scores, strict=True)]
            drive.run(claim(keys, lease, pairs, 4, visibility_ms=2000, now_ms=at))
        elif action < 0.85 and known:
            old = chance.choice(known)
            held = [index.decode() for index in drive.held(keys.lease(old))]
            some = chance.sample(held, chance.randint(0, len(held)))
            drive.settle(Outcomes(old, acks=some, ack_all=not some), at=at)
        else:
            drive.run(reap(keys, known, tick_ms=1000, now_ms=at))

    def check_limits(self) -> None:
        """See that no more run of a group than its limit, or than ran before."""
        drive, before = self.drive, self.in_flight
        self.in_flight = in_flight = Counter()
        for lease in self.known():
            for item in drive.held(drive.keys.lease(lease)).values():
                envelope = Envelope.parse(item)
                assert envelope is not None
                in_flight[envelope.flags.get("g", "")] += 1
        assert max(in_flight["=o1"], in_flight["=t/o"]) <= 1
        # What had a slot before the limit was set goes on, and nothing starts beside it. Suspects keep theirs.
        for token, name in drive.redis.hgetall(drive.keys.slots).items():
            if token.startswith(b":"):
                in_flight[name.decode()] += 1
        assert in_flight[_FAIR] <= max(self.most[_FAIR], before[_FAIR])
        under = [flying["=t/o"] + flying["t/a"] for flying in (in_flight, before)]
        assert under[0] <= max(self.most["t/"], under[1])

    def finish(self) -> None:
        """Receive and ack what is left."""
        drive = self.drive
        for _ in range(300):
            self.at += 61_000
            known = self.known()
            drive.run(reap(drive.keys, known, tick_ms=1000, now_ms=self.at))
            self.leases += 1
            lease = f"l{self.leases}"
            batch = drive.receive(lease, 10, at=self.at, suspects=Suspects.FIRST)
            if batch.items:
                drive.settle(Outcomes(lease, ack_all=True), at=self.at)
            elif not known:
                break


@pytest.mark.slow
@pytest.mark.parametrize("live", [False, True], ids=["fixed", "live"])
@pytest.mark.parametrize(
    "seed",
    [
        0,
        *(
            pytest.param(seed, marks=pytest.mark.nightly("test_lost_leases_claims_and_splits"))
            for seed in (1, *_SEEDS)
        ),
    ],
)
def test_lost_leases_claims_and_splits(drive: Drive, seed: int, live: bool) -> None:
    """Slots follow their messages to other leases, and come free with the lease: no message is lost, no slot left."""
    wanderings = _Wanderings(drive, seed)
    if not live:
        wanderings.limit_all()
    for _ in range(400):
        wanderings.step(live=live)
        wanderings.check_limits()
    assert found(drive, repair=False) == []
    wanderings.finish()
    counts = drive.stats("acked", "dead")
    assert counts["acked"] + counts.get("dead", 0) == 60
    assert idle(drive) == EMPTY
