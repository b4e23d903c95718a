"""A limit over several queues: what all of them run and start together, while passes fail, repeat and cross."""

from __future__ import annotations

import itertools
import os
import random
import re
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from qworker.client.manage.balancing import Balancer
from qworker.client.manage.limit import Limit
from qworker.client.manage.shares import Divider
from qworker.client.plan import run_plan
from qworker.client.queue import Queue
from qworker.engine import shares as commands
from qworker.engine.send import NewMessage, send
from qworker.engine.settle import Outcomes
from qworker.engine.shares import Report
from qworker.wire.envelope import tail
from tests.effort import examples
from tests.lua.drive import NOW, Drive

#: How long rates are watched; 60 for a minute.
SECONDS = int(os.environ.get("QWORKER_RATE_SECONDS", "12"))

HOUR_MS = 3_600_000


class World:
    """Some queues of a namespace, at times that tests name."""

    def __init__(self, url: str, namespace: str, number: int) -> None:
        self.namespace = namespace
        self.drives = [Drive(url, namespace, f"q{index}") for index in range(number)]
        self.client = self.drives[0].client
        self.queues = [Queue(self.client, namespace, drive.keys.queue) for drive in self.drives]
        self.balancer = Balancer(namespace, rest_ms=0)
        self.leases: list[tuple[Drive, str, int]] = []
        self.number = 0
        self.now = NOW

    def close(self) -> None:
        """Close all clients."""
        for drive in self.drives:
            drive.close()

    def limit(self, **limits: Any) -> None:
        """Set the limit `api/` over all queues."""
        others = [queue.name for queue in self.queues[1:]]
        self.queues[0].set_limit("api/", with_queues=others, **limits)

    def send(self, drive: Drive, count: int, group: str = "api/a") -> None:
        """Send messages of a group."""
        messages = []
        for _ in range(count):
            self.number += 1
            messages.append(NewMessage(f"m{self.number}", tail(b"", {"g": group}), group=group))
        drive.run(send(drive.keys, messages, lane="", sequence=0, now_ms=self.now))

    def receive(self, drive: Drive, count: int = 100) -> int:
        """Receive up to `count`; returns how many came."""
        self.number += 1
        items = drive.receive(f"l{self.number}", count, at=self.now).items
        if items:
            self.leases.append((drive, f"l{self.number}", len(items)))
        return len(items)

    def end(self, at: int) -> None:
        """Ack all of a lease."""
        drive, lease, _ = self.leases.pop(at)
        drive.settle(Outcomes(lease, ack_all=True), at=self.now)

    def balance(self, balancer: Balancer | None = None, steps: int | None = None) -> bool:
        """Make a pass, or only its first `steps` commands; returns whether shares wait to be given up."""
        plan = (balancer or self.balancer).balance(now_ms=self.now)
        if steps is None:
            return run_plan(self.client.execute, plan).unsettled
        reply: Any = None
        for _ in range(steps):
            try:
                reply = self.client.execute(plan.send(reply))
            except StopIteration:
                break
        return False

    @property
    def running(self) -> int:
        """How many are in flight in all queues."""
        return sum(number for _, _, number in self.leases)


@pytest.fixture
def worlds(store_url: str, namespace: str) -> Iterator[Any]:
    """Makes worlds."""
    made: list[World] = []

    def make(number: int) -> World:
        made.append(World(store_url, f"{namespace}-{len(made)}", number))
        return made[-1]

    yield make
    for world in made:
        world.close()


def test_a_share_reports_each_start_once(worlds: Any) -> None:
    """By what each shard has started the rate is divided."""
    world = worlds(1)
    (drive,) = world.drives
    world.send(drive, 7)
    drive.run(commands.share(drive.keys, [("api/", 1, "c=9 s=1")], now_ms=world.now))
    assert world.receive(drive, 2) + world.receive(drive, 3) == 5
    (report,) = drive.run(commands.share(drive.keys, [("api/", 0, "")], now_ms=world.now))
    assert (report.running, report.waiting, report.started) == (5, 2, 5)


def test_what_runs_above_a_smaller_share_counts_until_it_ends(worlds: Any) -> None:
    """A queue that has given up a slot may still use it."""
    world = worlds(2)
    world.limit(concurrency=2)
    one, other = world.drives
    world.send(one, 5)
    while world.balance():
        pass
    assert world.receive(one) == 2
    world.send(other, 5)
    for _ in range(6):
        world.now += 3000
        world.balance()
        assert world.receive(other) == 0
    world.end(0)
    for _ in range(6):
        world.now += 3000
        world.balance()
        world.receive(one)
        world.receive(other)
    assert sorted(number for _, _, number in world.leases) == [1, 1]


def test_a_failover_of_the_key_doubles_no_share(worlds: Any) -> None:
    """The key has forgotten that a slot has changed its queue: that queue does not lend it twice."""
    world = worlds(2)
    world.limit(concurrency=2)
    one, other = world.drives
    redis, key = one.redis, f"{world.namespace}:limits"
    before = redis.hgetall(key)
    world.send(one, 5)
    while world.balance():
        pass
    assert world.receive(one) == 2
    redis.hset(key, mapping=before)
    world.send(other, 5)
    for _ in range(6):
        world.now += 3000
        world.balance()
        assert world.receive(other) == 0
    world.end(0)
    for _ in range(6):
        world.now += 3000
        world.balance()
        world.receive(one)
        world.receive(other)
        assert world.running <= 2
    assert world.running == 2


def test_it_holds_over_all_queues_and_what_one_leaves_goes_to_others(worlds: Any) -> None:
    """Two queues run three together; when one has nothing more to do, the other runs three."""
    world = worlds(2)
    world.limit(concurrency=3)
    one, other = world.drives
    world.send(one, 5)
    world.send(other, 5)
    assert world.receive(one) + world.receive(other) == 3
    while world.leases:
        world.end(0)
    while world.receive(one) or world.balance():
        while world.leases:
            world.end(0)
    assert world.receive(other) == 3


def test_a_slot_that_was_given_up_rests_before_another_queue_has_it(worlds: Any) -> None:
    """Until replicas know of it: no failover brings it back to the first one while the other uses it."""
    world = worlds(2)
    world.limit(concurrency=3)
    _, other = world.drives
    world.send(other, 5)
    assert world.receive(other) == 1
    resting = Balancer(world.namespace, rest_ms=60_000)
    for _ in range(4):
        world.balance(resting)
    assert world.receive(other) == 0
    while world.balance():
        pass
    assert world.receive(other) == 2


def test_slots_move_while_a_clock_is_behind_the_shares(worlds: Any) -> None:
    """Shares of before it was set back, by an hour: what one queue gives up does not stay idle until then."""
    world = worlds(2)
    world.limit(concurrency=3)
    _, other = world.drives
    _write_an_hour_ahead(world)
    world.send(other, 5)
    assert world.receive(other) == 1
    resting = Balancer(world.namespace)
    for _ in range(4):
        world.balance(resting)
    assert world.receive(other) == 2


def _write_an_hour_ahead(world: Any) -> None:
    """Give all shares versions of an hour later, where they are allotted and where they hold."""
    redis, key = world.drives[0].redis, f"{world.namespace}:limits"
    for field, words in redis.hgetall(key).items():
        if b"\n" in field:
            version, *rest = words.split()
            redis.hset(key, field, b" ".join([b"%d" % (int(version) + HOUR_MS), *rest]))
    for drive in world.drives:
        words = drive.redis.hget(drive.keys.limits, "api/").decode()
        ahead = re.sub(r"s=(\d+)", lambda found: f"s={int(found[1]) + HOUR_MS}", words)
        drive.redis.hset(drive.keys.limits, "api/", ahead)


def test_shards_take_turns_after_a_clock_was_set_back() -> None:
    """With fewer slots than shards; and a rate is measured anew."""
    divider, has = Divider(), dict[str, tuple[int | None, int]]()
    began: dict[str, int] = {}
    for at_ms in (*range(NOW, NOW + 4000, 250), *range(NOW - HOUR_MS, NOW - HOUR_MS + 8000, 250)):
        started = dict.fromkeys("ab", at_ms // 100 % 10**6)
        reports = {
            name: Report(1, (has.get(name) or (0,))[0], 1, 50, started[name]) for name in "ab"
        }
        has = divider.divide(Limit(concurrency=1, rate="100/s"), reports, has, at_ms)
        if at_ms < NOW and (name := next(name for name, (slots, _) in has.items() if slots)):
            began[name] = began.get(name, 0) + 1
    assert set(began) == {"a", "b"}


@pytest.mark.parametrize(("slots", "turns"), [(1, 30), (3, 6), (2, 0)])
def test_a_slot_that_is_left_over_moves_seldom(slots: int, turns: int) -> None:
    """It is idle for a moment whenever it does: every ten seconds, or two where a shard has none without it."""
    divider, has = Divider(), dict[str, tuple[int | None, int]]()
    held: list[int | None] = []
    for now_ms in range(NOW, NOW + 61_000, 250):
        reports = {name: Report(1, (has.get(name) or (0,))[0], 1, 50, 0) for name in "ab"}
        has = divider.divide(Limit(concurrency=slots), reports, has, now_ms)
        held.append(has["a"][0])
        assert sum(share or 0 for share, _ in has.values()) == slots
    changes = sum(one != other for one, other in itertools.pairwise(held))
    assert changes == pytest.approx(turns, abs=1 if turns else 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [2, pytest.param(6, marks=pytest.mark.nightly("test_random_passes_never_exceed_it"))]
)
def test_random_passes_never_exceed_it(worlds: Any, number: int) -> None:
    """Whatever fails halfway or happens twice; and everything runs in the end."""
    seeds = examples(number)
    for seed in range(seeds):
        rng = random.Random(seed)
        world = worlds(rng.choice([2, 3, 5]))
        most = rng.choice([1, 3, 7])
        world.limit(concurrency=most)
        pending: list[Generator[Any, Any, Any]] = []
        replies: dict[int, Any] = {}
        bound = most
        for _ in range(150):
            world.now += rng.randrange(500)
            drive = rng.choice(world.drives)
            match rng.randrange(8):
                case 0:
                    world.send(drive, rng.randrange(1, 6), f"api/{rng.randrange(3)}")
                case 1 | 2:
                    world.receive(drive, rng.randrange(1, 5))
                case 3 if world.leases:
                    world.end(rng.randrange(len(world.leases)))
                case 4:
                    world.balance()
                case 5:
                    world.balance(Balancer(world.namespace, rest_ms=0), steps=rng.randrange(1, 12))
                case 6:
                    pending.append(Balancer(world.namespace, rest_ms=0).balance(now_ms=world.now))
                case 7 if pending:
                    at = rng.randrange(len(pending))
                    plan = pending[at]
                    try:
                        replies[id(plan)] = world.client.execute(plan.send(replies.get(id(plan))))
                    except StopIteration:
                        pending.remove(plan)
            assert world.running <= bound, seed
        for _ in range(400):
            world.now += 700
            while world.leases:
                world.end(0)
            world.balance()
            for drive in world.drives:
                world.receive(drive)
            assert world.running <= bound, seed
            if not any(drive.redis.zcard(drive.keys.delayed) for drive in world.drives):
                break
        assert not sum(drive.redis.zcard(drive.keys.delayed) for drive in world.drives), seed


def test_a_rate_that_moves_makes_no_tokens(worlds: Any) -> None:
    """A queue that gets a part begins without tokens; one whose part changes has as many as before."""
    world = worlds(1)
    (drive,) = world.drives
    world.send(drive, 30)

    def share(version: int, words: str) -> None:
        given = [("api/", version, f"{words} s={version}")]
        drive.run(commands.share(drive.keys, given, now_ms=world.now))

    share(1, "r=10/1000 b=4")
    assert world.receive(drive) == 0
    world.now += 1000
    assert world.receive(drive, 3) == 3  # one of four is left
    share(2, "r=20/1000 b=4")
    assert world.receive(drive) == 1
    share(3, "r=5/1000 b=8")
    assert world.receive(drive) == 0  # though its burst has grown
    world.now += 200
    assert world.receive(drive) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "shifting",
    [False, pytest.param(True, marks=pytest.mark.nightly("test_a_rate_holds_over_all_queues"))],
)
def test_a_rate_holds_over_all_queues(worlds: Any, shifting: bool) -> None:
    """100 a second within 5 % over any 10 s, and 2 % over longer times; never more while the work moves, but less."""
    world = worlds(3)
    world.limit(rate="100/s")
    rng = random.Random(1)
    for drive in world.drives:
        world.send(drive, 10)
    starts: list[int] = []
    pass_at = begin = world.now
    busy = set(world.drives)
    while world.now < begin + SECONDS * 1000:
        if world.now >= pass_at:
            pass_at = world.now + (120 if world.balance() else 250)  # as the reaper
        if shifting and (world.now - begin) % 7000 == 0:
            busy = set(rng.sample(world.drives, rng.randrange(1, 4)))
        for drive in world.drives:
            if drive in busy and drive.redis.zcard(drive.keys.delayed) < 200:
                world.send(drive, 300)
            elif drive not in busy and world.now % 200 == 0:
                world.send(drive, 1)
            starts += [world.now] * world.receive(drive)
        world.now += 50
    windows = [
        sum(begin + 1000 * second <= at < begin + 1000 * (second + 10) for at in starts)
        for second in range(SECONDS - 9)
    ]
    assert min(windows) >= (920 if shifting else 950)
    assert max(windows) <= 1050
    assert abs(len(starts) / (100 * SECONDS) - 1) <= (0.06 if shifting else 0.02)
