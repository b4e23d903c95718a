"""The order of what comes back: over many leases, given back in any order and in any number of calls."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count

import pytest

from qworker.daemon.reaper import Reaper
from qworker.engine.reap import reap
from qworker.engine.settle import Outcomes
from qworker.errors import UnfinishedError
from qworker.wire.ids import IdSource
from tests.lua.drive import NOW, Drive, deny, guarded, own


def bodies(drive: Drive, part: str = "ready") -> list[int]:
    """The numbers of the messages that stand there, in their order."""
    return [int(item.partition("\n")[2].strip("[]")) for item in drive.state(part).get(part, [])]


class World:
    """A queue of numbered messages, its consumers and their leases, and the time."""

    def __init__(self, drive: Drive, seed: int) -> None:
        self.drive = drive
        self.random = random.Random(seed)
        self.numbers = count(1)
        self.now = NOW
        self.senders = [IdSource(), IdSource()]
        self.consumers = [IdSource(), IdSource(), IdSource()]
        #: Lease → its messages by their index there.
        self.leases: dict[str, dict[int, int]] = {}
        #: Messages that were lost with a lease once: a second time would make them suspects.
        self.lost: set[int] = set()

    def send(self) -> None:
        """Some messages of one sender, several of them in one ms; another sender's come in other ms."""
        self.now += 1
        sender = self.random.choice(self.senders)
        for number in [next(self.numbers) for _ in range(self.random.randrange(1, 8))]:
            name = sender.message_id()
            self.drive.send(name, at=self.now, body=lambda _, number=number: b"%d" % number)
            self.now += self.random.randrange(2)

    def receive(self) -> None:
        """A batch of two messages or more: one that is delivered alone is a suspect when it is lost."""
        self.now += 1
        if len(bodies(self.drive)) < 2:
            return
        lease = self.random.choice(self.consumers).lease_id()
        batch = self.drive.receive(lease, self.random.randrange(2, 7), at=self.now)
        held = [int(item.partition(b"\n")[2]) for item in batch.items]
        self.leases[lease] = dict(enumerate(held, 1))

    def settle(self) -> None:
        """Some leases end in one call: what is not acked is given back, one by one or all that is left."""
        self.now += 1
        chosen = [each for each in self.leases if self.random.random() < 0.4]
        settled = []
        for lease in chosen:
            held, outcomes = self.leases[lease], Outcomes(lease)
            for index in list(held):
                fate = self.random.random()
                if fate < 0.3:
                    outcomes.acks.append(index)
                    del held[index]
                elif fate < 0.6:
                    outcomes.release(index)
                    del held[index]
            if self.random.random() < 0.5:
                outcomes.release("*")
                held.clear()
            if not held:
                del self.leases[lease]
            if outcomes:
                settled.append(outcomes)
        if settled:
            self.drive.settle(*settled, at=self.now)

    def reap(self) -> None:
        """Leases run out whose messages were not lost before, some of them at once."""
        ready = [
            each
            for each, held in self.leases.items()
            if not self.lost & {*held.values()} and self.random.random() < 0.5
        ]
        if not ready:
            return
        self.now += 1
        self.drive.redis.hset(self.drive.keys.stats, "reaped_ms", self.now)
        for lease in ready:
            self.drive.redis.zadd(self.drive.keys.unacked, {lease: self.now})
            self.lost |= {*self.leases.pop(lease).values()}
        self.drive.run(reap(self.drive.keys, ready, 1000, now_ms=self.now))


@pytest.mark.parametrize(
    "seed",
    [
        *(0, 1),
        *(
            pytest.param(
                seed, marks=pytest.mark.nightly("test_what_comes_back_stands_in_its_old_order")
            )
            for seed in range(2, 12)
        ),
    ],
)
@pytest.mark.slow
def test_what_comes_back_stands_in_its_old_order(drive: Drive, seed: int) -> None:
    """Whatever is sent, received, acked, given back and reaped, and in which order: ready is never out of order."""
    world = World(drive, seed)
    for _ in range(80):
        world.random.choice([world.send, world.receive, world.receive, world.settle, world.reap])()
        order = bodies(drive)
        assert order == sorted(order)
    for lease in [*world.leases]:
        outcomes = Outcomes(lease)
        outcomes.release("*")
        drive.settle(outcomes, at=world.now)
        order = bodies(drive)
        assert order == sorted(order)
    assert drive.state("suspect") == {}


def received(
    drive: Drive, number: int, size: int, push: Callable[[int], None] | None = None
) -> list[str]:
    """Messages 0, 1, … in leases of `size`, delivered a ms apart by one process."""
    ids, leases = IdSource(), IdSource()
    if push is None:
        numbers = {ids.message_id(): b"%d" % index for index in range(number)}
        for first in range(0, number, 500):
            drive.send(*[*numbers][first : first + 500], body=lambda name: numbers[name])
    else:
        for index in range(number):
            push(index)
    names = [leases.lease_id() for _ in range(0, number, size)]
    for turn, name in enumerate(names):
        drive.receive(name, size, at=NOW + turn)
    return names


@pytest.mark.parametrize("one_call", [True, False])
def test_plain_messages_stand_in_the_order_of_their_leases(drive: Drive, one_call: bool) -> None:
    """They do not say when they were sent, but the ids that their leases give them tell the order."""

    def push(number: int) -> None:
        drive.redis.rpush(drive.keys.ready[0], f"[{number}]")

    names = received(drive, 33, 3, push)
    drive.redis.zadd(drive.keys.unacked, dict.fromkeys(names, NOW + 90_000))  # all extended at once
    outcomes = [Outcomes(name) for name in names]
    for outcome in outcomes:
        outcome.release("*")
    if one_call:
        drive.settle(*outcomes, at=NOW + 50)
    else:
        for turn, outcome in enumerate([*outcomes[::2], *outcomes[1::2]]):
            drive.settle(outcome, at=NOW + 50 + turn)
    assert bodies(drive) == [*range(33)]


def test_late_message_comes_back_to_where_it_was_received_from(drive: Drive) -> None:
    """What was delayed, or failed, became ready later than it was sent: its place is behind what was ready before."""
    drive.send("d", delay_ms=10)
    drive.send("a", "b", at=NOW + 5)
    drive.call("promote", drive.standard_keys(), NOW + 10, 10)
    drive.receive("L-1", 2, at=NOW + 20)
    drive.receive("M-1", 1, at=NOW + 20)
    for lease in ("M-1", "L-1"):
        outcomes = Outcomes(lease)
        outcomes.release("*")
        drive.settle(outcomes, at=NOW + 30)
    assert drive.state("ready")["ready"] == [
        own("a", NOW + 5, back_ms=NOW + 30),
        own("b", NOW + 5, back_ms=NOW + 30),
        own("d", back_ms=NOW + 30, since_ms=NOW + 10),
    ]
    # A nack sends it to the tail, where its old place counts no more.
    drive.receive("L-2", at=NOW + 40)
    outcomes = Outcomes("L-2")
    outcomes.nack(1, 0)
    drive.settle(outcomes, at=NOW + 41)
    assert drive.state("ready") == {
        "ready": [own("a", NOW + 5, receives=1, nacks=1, ready_ms=NOW + 41)]
    }


def test_unknown_order_is_left_as_it_was_given(drive: Drive) -> None:
    """Of other senders, within one ms: one call keeps the order of its leases, a later call goes to the front."""
    drive.send("a", "c", "b", "d", "f", "e")
    for lease in ("L", "M", "N"):
        drive.receive(lease, 2)
    outcomes = [Outcomes("L"), Outcomes("M")]
    for outcome in outcomes:
        outcome.release("*")
    drive.settle(*outcomes)
    ids = [item.split()[1] for item in drive.state("ready")["ready"]]
    assert ids == ["a", "c", "b", "d"]
    drive.redis.hset(drive.keys.stats, "reaped_ms", NOW + 30_000)
    drive.call("reap", drive.standard_keys("N"), NOW + 30_000, 1000)
    ids = [item.split()[1] for item in drive.state("ready")["ready"]]
    assert ids == ["f", "e", "a", "c", "b", "d"]


def test_reap_keeps_the_order_of_leases_that_no_time_tells(drive: Drive) -> None:
    """Of other senders, within one ms: the leases are read latest first, and each goes in front of the one before."""
    drive.send("a", "c", "b", "d", "f", "e")
    names = ["L", "M", "N"]
    for lease in names:
        drive.receive(lease, 2)
    drive.redis.hset(drive.keys.stats, "reaped_ms", NOW + 30_000)
    drive.run(reap(drive.keys, names, 1000, only="several", now_ms=NOW + 30_000))
    ids = [item.split()[1] for item in drive.state("ready")["ready"]]
    assert ids == ["a", "c", "b", "d", "f", "e"]


def test_a_clock_that_was_set_back_changes_no_order(drive: Drive) -> None:
    """A message that was stored behind another has its place behind it, although it bears an earlier time."""
    for name, at in (("first", NOW + 7), ("second", NOW + 10), ("third", NOW + 5)):
        drive.send(name, at=at)
    drive.receive("L", 1, at=NOW + 20)
    drive.receive("M", 2, at=NOW + 20)
    for lease in ("L", "M"):
        outcomes = Outcomes(lease)
        outcomes.release("*")
        drive.settle(outcomes, at=NOW + 30)
    ids = [item.split()[1] for item in drive.state("ready")["ready"]]
    assert ids == ["first", "second", "third"]


@pytest.mark.slow
def test_what_a_lease_passes_is_bounded(drive: Drive) -> None:
    """A lease goes behind at most 1,000 messages or 256 KiB that came back before, and little more is read."""
    names = received(drive, 3300, 1000)
    first, last = Outcomes(names[0]), Outcomes(names[3])
    first.release("*")
    last.release("*")
    middle = Outcomes(names[1])
    middle.release("*")
    drive.settle(first, at=NOW + 9)
    drive.settle(middle, at=NOW + 9)
    assert bodies(drive) == [*range(2000)]
    drive.settle(last, at=NOW + 9)
    assert bodies(drive) == [*range(1000), *range(3000, 3300), *range(1000, 2000)]


@pytest.mark.slow
def test_what_all_leases_of_a_call_pass_is_bounded(drive: Drive) -> None:
    """Two thousand messages: a call that gives back many leases does not stop the server for each of them."""
    names = received(drive, 1030, 10)
    for first in range(99, 0, -10):
        head = []
        for name in reversed(names[first - 9 : first + 1]):
            outcomes = Outcomes(name)
            outcomes.release("*")
            head.append(outcomes)
        drive.settle(*head, at=NOW + 9)
    assert bodies(drive)[:1000] == [*range(1000)]
    late = []
    for name in (names[100], names[101], names[102]):
        outcomes = Outcomes(name)
        outcomes.release("*")
        late.append(outcomes)
    drive.settle(*late, at=NOW + 9)
    assert bodies(drive) == [
        *range(1020, 1030),
        *range(1000),
        *range(1010, 1020),
        *range(1000, 1010),
    ]


def test_passed_messages_stay_where_a_user_may_not_push() -> None:
    """The call fails, and neither what stands at the head nor what comes back is lost."""
    with guarded() as drive:
        first, last = received(drive, 4, 2)[:2]
        for name in (first, last):
            if name == last:
                deny(drive, "lpush")
            outcomes = Outcomes(name)
            outcomes.release("*")
            with nullcontext() if name == first else pytest.raises(UnfinishedError):
                drive.settle(outcomes, at=NOW + 9)
        assert bodies(drive) == [0, 1]
        assert len(drive.held(f"{drive.keys.lease_prefix}{last}")) == 2


@pytest.mark.slow
def test_reap_leaves_leases_that_would_have_to_pass_too_many(
    drive: Drive, expired: Callable[[list[int]], list[str]]
) -> None:
    """They are left for the next call, in their order, instead of stopping the server."""
    names = expired([100] * 10 + [2] * 5)
    at = NOW + 1009
    while drive.run(reap(drive.keys, names[:10], 1000, only="several", now_ms=at)).leases:
        pass
    assert bodies(drive) == [*range(1000)]
    done = [
        drive.run(reap(drive.keys, names[10:], 1000, only="several", now_ms=at + 9))
        for _ in range(5)
    ]
    assert [(call.leases, call.left) for call in done] == [(1, 4), (1, 3), (1, 2), (1, 1), (1, 0)]
    assert sorted(bodies(drive)) == [*range(1010)]


def test_large_messages_are_passed_by_few(drive: Drive) -> None:
    """With bodies of 200 KiB two are passed; no call reads more than twice its bound."""
    ids, leases = IdSource(), IdSource()
    for number in range(8):
        drive.send(ids.message_id(), body=lambda _, number=number: b"%200000d" % number)
    names = [leases.lease_id() for _ in range(4)]
    for name in names:
        drive.receive(name, 2)
    for name in names[:3]:
        outcomes = Outcomes(name)
        outcomes.release("*")
        drive.settle(outcomes)
    assert bodies(drive)[:2] == [0, 1]
    before = drive.replied_bytes()
    outcomes = Outcomes(names[3])
    outcomes.release("*")
    drive.settle(outcomes)
    assert drive.replied_bytes() - before < 10_000
    assert sorted(bodies(drive)) == [*range(8)]


def test_bytes_that_are_passed_are_bounded_for_a_lease_and_for_a_call(drive: Drive) -> None:
    """Bodies of 100 kB are read by one, one and two: a lease passes four of them, and the next of its call two."""
    ids, leases = IdSource(), IdSource()
    for number in range(16):
        drive.send(ids.message_id(), body=lambda _, number=number: b"%100000d" % number)
    released = []
    for name in [leases.lease_id() for _ in range(8)]:
        drive.receive(name, 2)
        released.append(Outcomes(name))
        released[-1].release("*")
    for outcomes in reversed(released[:6]):
        drive.settle(outcomes)
    assert bodies(drive) == [*range(12)]
    drive.settle(*released[6:])
    assert bodies(drive) == [0, 1, 14, 15, 2, 3, 12, 13, *range(4, 12)]


@pytest.fixture
def expired(drive: Drive) -> Callable[[list[int]], list[str]]:
    """Leases of these sizes whose deadlines are a ms apart."""

    def make(sizes: list[int]) -> list[str]:
        ids, leases = IdSource(), IdSource()
        numbers = count()
        names = []
        for turn, size in enumerate(sizes):
            sent = {ids.message_id(): b"%d" % next(numbers) for _ in range(size)}
            drive.send(*sent, body=sent.__getitem__, at=NOW + turn)
            names.append(leases.lease_id(1000))
            drive.receive(names[-1], size, at=NOW + turn, visibility_ms=1000)
        return names

    return make


@pytest.mark.slow
def test_reaper_keeps_the_order_over_any_number_of_leases(
    drive: Drive, expired: Callable[[list[int]], list[str]]
) -> None:
    """More leases than a call takes, overdue in several passes, those of single messages between them."""
    draw = random.Random(7)
    sizes = [draw.choice([1, 1, 2, 3, 12]) for _ in range(260)]
    names = expired(sizes)
    drive.redis.hset(drive.base.partition("{")[0] + "queues", drive.keys.queue, 1)
    reaper = Reaper(drive.client, drive.namespace, budget_ms=10_000)
    alone = [size == 1 for size in sizes for _ in range(size)]
    for turn in (40, 41, 150, 259):
        at = NOW + 1000 + turn
        drive.redis.hset(drive.keys.stats, "reaped_ms", at)
        reaper.tick(at)
        gone = sum(sizes[: turn + 1])
        assert bodies(drive) == [n for n in range(gone) if not alone[n]]
        assert bodies(drive, "suspect") == [n for n in range(gone) if alone[n]]
    assert drive.redis.zcard(drive.keys.unacked) == 0
    assert len(names) == 260
