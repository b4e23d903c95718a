"""A cancelled message never runs, however long it waits: its tombstone is forgotten only after a walk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from qworker.client import tombstones
from qworker.client.execute.sync import Client
from qworker.client.inspect.find import id_of
from qworker.client.plan import Trips, run_plans
from qworker.client.tombstones import forget_tombstones
from qworker.daemon.pruning import Pruning
from qworker.daemon.reaper import Reaper
from qworker.daemon.tick import Tick
from qworker.engine.attributes import configure
from qworker.engine.calls import NUMBERS_PER_MS
from qworker.engine.command import Command
from qworker.engine.message import enqueue, hold
from qworker.engine.receive import Batch
from qworker.engine.settle import Outcomes
from qworker.errors import UnavailableError
from tests.lua.drive import NOW, Drive
from tests.timing import Clock

OpenQueue = Callable[..., Drive]

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def cancel(queue: Drive, *ids: str, until_ms: int = NOW + DAY_MS) -> None:
    """Leave tombstones, as for the rest of a group."""
    queue.redis.zadd(queue.keys.cancelled, dict.fromkeys(ids, until_ms))


def send_all(queue: Drive, ids: list[str]) -> None:
    """Send more messages than a call takes."""
    for first in range(0, len(ids), 1000):
        queue.send(*ids[first : first + 1000])


def ids_of(batch: Batch) -> list[str]:
    """The ids of received messages."""
    return [id_of(item).decode() for item in batch.items]


@pytest.fixture
def turn(client: Client, namespace: str, clock: Clock) -> Callable[[int], int]:
    """A pass of a reaper, in which every queue has its turn; returns how much it forgot."""
    reaper = Reaper(client, namespace, clock=clock)
    reaper.tick(NOW)

    def tick(now_ms: int) -> int:
        clock.now_s += 301
        return reaper.tick(now_ms).pruned

    return tick


def delayed(queue: Drive) -> None:
    queue.send("a", delay_ms=3 * DAY_MS)


def paused(queue: Drive) -> None:
    queue.send("a", priority=5)
    queue.run(configure(queue.keys, {"paused": "out"}, now_ms=NOW))


def held(queue: Drive) -> None:
    queue.send("a")
    hold_all(queue)


def suspect(queue: Drive) -> None:
    queue.send("a")
    queue.redis.rename(queue.keys.ready[0], queue.keys.suspect)
    queue.run(configure(queue.keys, {"paused": "out"}, now_ms=NOW))


@pytest.mark.parametrize("wait", [delayed, paused, held, suspect])
def test_a_message_that_outlasts_its_tombstone_is_deleted(
    open_queue: OpenQueue, turn: Callable[[int], int], wait: Callable[[Drive], None]
) -> None:
    """An hour before the tombstone expires. Then the id is free: another message of it is delivered."""
    queue = open_queue("q")
    wait(queue)
    queue.send("b", delay_ms=2 * DAY_MS)
    cancel(queue, "a", "gone")
    before = queue.state("ready:5", "delayed", "suspect", "cancelled")
    assert turn(NOW + DAY_MS - HOUR_MS - 1) == 0
    assert queue.state(*before) == before
    assert turn(NOW + DAY_MS - HOUR_MS) == 2
    assert [*queue.state("ready:5", "delayed", "suspect", "cancelled")] == ["delayed"]
    assert queue.stats("cancelled", "stored") == {"cancelled": 1, "stored": 1}
    queue.run(configure(queue.keys, {"paused": ""}, now_ms=NOW))
    queue.send("a")
    turn(NOW + 4 * DAY_MS)
    assert ids_of(queue.receive("L")) == ["a", "b"]


def test_a_reaper_that_was_away_forgets_nothing_before_its_walk(
    open_queue: OpenQueue, turn: Callable[[int], int]
) -> None:
    """Tombstones that expired meanwhile are as good as others."""
    queue = open_queue("q")
    queue.send("a", delay_ms=3 * DAY_MS)
    cancel(queue, "a")
    assert turn(NOW + 2 * DAY_MS) == 1
    assert queue.state("delayed", "cancelled") == {}


def test_the_tombstone_of_a_message_in_a_lease_is_kept(
    open_queue: OpenQueue, turn: Callable[[int], int]
) -> None:
    """It is looked for an hour later again, not in every round; a message that comes back meets it."""
    queue = open_queue("q")
    queue.send("a", "b")
    queue.receive("L")
    queue.redis.zadd(queue.keys.unacked, {"L": NOW + 9 * DAY_MS})
    cancel(queue, "b", "gone")
    due_ms = NOW + DAY_MS - HOUR_MS
    assert turn(due_ms) == 1
    assert queue.state("cancelled") == {"cancelled": {"b": due_ms + 2 * HOUR_MS}}
    assert turn(due_ms + HOUR_MS - 1) == 0
    assert queue.state("cancelled") == {"cancelled": {"b": due_ms + 2 * HOUR_MS}}
    outcomes = Outcomes("L")
    outcomes.release(1)
    outcomes.release(2)
    queue.settle(outcomes, at=due_ms + HOUR_MS)
    assert ids_of(queue.receive("M")) == ["a"]
    assert queue.state("cancelled") == {}


def test_a_cancel_during_the_walk_keeps_its_tombstone_for_longer(
    client: Client, open_queue: OpenQueue
) -> None:
    """The one that the walk has found is extended; what another cancel has set since is not shortened."""
    queue = open_queue("q")
    queue.send("a")
    queue.receive("L")
    cancel(queue, "a", until_ms=NOW)
    walk = Trips(forget_tombstones(queue.keys, NOW + HOUR_MS))
    trips = count()
    while (trip := walk.next()) is not None:
        if next(trips) == 1:
            cancel(queue, "a", until_ms=NOW + DAY_MS)
        walk.answers = client.execute_each(trip.commands)
    assert queue.state("cancelled") == {"cancelled": {"a": NOW + DAY_MS}}


@pytest.mark.slow
def test_a_walk_takes_its_share_of_passes_and_is_begun_anew_after_a_restart(
    client: Client, namespace: str, open_queue: OpenQueue
) -> None:
    """Tombstones go after all messages: whatever ends a walk, none is forgotten before its message."""
    queue = open_queue("q")
    ids = [f"m{number}" for number in range(3000)]
    send_all(queue, ids)
    queue.run(configure(queue.keys, {"paused": "out"}, now_ms=NOW))
    cancel(queue, *ids[::2], until_ms=NOW)
    looks = count()

    def walked() -> list[tuple[int, int]]:
        """How many messages and tombstones each pass leaves; a look at the clock takes 10 ms, the share is 50 ms."""
        reaper = Reaper(client, namespace, clock=lambda: next(looks) / 100)
        left = []
        while queue.redis.exists(queue.keys.cancelled) and len(left) < most:
            reaper.tick(NOW)
            left.append(
                (queue.redis.llen(queue.keys.ready[0]), queue.redis.zcard(queue.keys.cancelled))
            )
        return left

    most = 2
    first = walked()
    assert first[-1][0] < 3000
    most = 50
    second = walked()
    assert all(stones == 1500 for messages, stones in first + second if messages > 1500)
    assert 3 <= len(second) < 50
    assert second[-1] == (1500, 0)


def test_the_walk_of_a_queue_that_is_removed_ends_and_those_of_others_go_on(
    client: Client, open_queue: OpenQueue
) -> None:
    """The next one in the order has a walk of its own, which is not begun anew."""
    queues = [open_queue(name) for name in "ab"]
    for queue in queues:
        cancel(queue, "m", until_ms=NOW)
    keys = [queue.keys for queue in queues]
    pruning = Pruning(client.execute_each, clock=Clock())
    pruning._due, pruning._share_s = 2.0, 0.0
    for _, work in pruning.slice(keys, Tick(2), NOW):
        deque(work, 0)
    assert [*pruning._unfinished] == ["a", "b"]
    walk = pruning._unfinished["b"]
    for _, work in pruning.slice(keys[1:], Tick(1), NOW):
        deque(work, 0)
    assert pruning._unfinished == {"b": walk}


@pytest.mark.slow
def test_walks_of_two_reapers_at_once_miss_nothing(client: Client, open_queue: OpenQueue) -> None:
    """What one deletes moves the messages that the other comes to next; each is deleted once."""
    queue = open_queue("q")
    ids = [f"m{number}" for number in range(4000)]
    send_all(queue, ids)
    cancel(queue, *ids[500:3500:3])
    plans = [forget_tombstones(queue.keys, NOW + DAY_MS) for _ in range(2)]
    assert sum(run_plans(client.execute_each, plans)) == 1000
    assert queue.stats("cancelled") == {"cancelled": 1000}
    assert queue.redis.llen(queue.keys.ready[0]) == 3000


def test_no_tombstone_is_forgotten_while_every_walk_finds_messages(
    client: Client, open_queue: OpenQueue
) -> None:
    """What is deleted meanwhile moves the others, so only a walk that found nothing has seen all."""
    queue = open_queue("q")
    queue.send("a")
    (item,) = queue.redis.lrange(queue.keys.ready[0], 0, -1)
    cancel(queue, "a", "b")
    walk = Trips(forget_tombstones(queue.keys, NOW + DAY_MS))
    while (trip := walk.next()) is not None:
        walk.answers = client.execute_each(trip.commands)
        if not queue.redis.exists(queue.keys.ready[0]):
            queue.redis.rpush(queue.keys.ready[0], item)
            cancel(queue, "a")
    assert walk.result == 0
    assert queue.redis.zscore(queue.keys.cancelled, "b") == NOW + DAY_MS


def release(queue: Drive) -> None:
    outcomes = Outcomes("L")
    outcomes.release(0)
    queue.settle(outcomes)
    assert not queue.redis.exists(queue.keys.unacked)


def hold_all(queue: Drive) -> None:
    queue.run(hold(queue.keys, queue.redis.lrange(queue.keys.ready[0], 0, -1), now_ms=NOW))


def enqueue_all(queue: Drive) -> None:
    if items := queue.redis.zrange(queue.keys.delayed, 0, -1):
        queue.run(enqueue(queue.keys, items, now_ms=NOW))


@pytest.mark.parametrize("move", [release, hold_all, enqueue_all])
def test_a_message_that_moves_during_the_walk_does_not_run(
    client: Client, open_queue: OpenQueue, move: Callable[[Drive], None]
) -> None:
    """Before whichever trip of the walk it moves: it is deleted, or keeps its tombstone."""
    for late in count():
        queue = open_queue(f"q{late}")
        queue.send("a", delay_ms=9 * DAY_MS if move is enqueue_all else None)
        if move is release:
            queue.receive("L")
        queue.send("b")
        cancel(queue, "a")
        trips = count()

        def execute_each(commands: list[Command[Any]]) -> list[Any]:
            if next(trips) == late:  # noqa: B023
                move(queue)  # noqa: B023
            return client.execute_each(commands)

        [forgotten] = run_plans(execute_each, [forget_tombstones(queue.keys, NOW + DAY_MS)])
        assert forgotten in (0, 1)
        if next(trips) <= late:
            assert late > 5
            break
        enqueue_all(queue)
        assert ids_of(queue.receive("M")) == ["b"]


@pytest.mark.bad_input("data found: key of another type")
def test_a_broken_key_keeps_the_tombstones_of_its_queue_alone(
    client: Client, namespace: str, open_queue: OpenQueue
) -> None:
    """What cannot be read may hold a message; other queues have their walks."""
    broken, other = open_queue("a"), open_queue("b")
    for queue in (broken, other):
        queue.send("m", delay_ms=9 * DAY_MS)
        cancel(queue, "m", until_ms=NOW)
    broken.redis.set(broken.keys.ready[7], "x")
    clock = Clock()
    reaper = Reaper(client, namespace, clock=clock)
    ticks = [reaper.tick(NOW)]
    clock.now_s += 301
    ticks.append(reaper.tick(NOW))
    assert sum(tick.errors for tick in ticks) >= 1
    assert broken.state("cancelled") == {"cancelled": {"m": NOW}}
    assert other.state("delayed", "cancelled") == {}


def promise(source: Drive, *ids: str, at_ms: int) -> None:
    """Write messages for the queue `q` into the outbox of another one, as acks do."""
    for place, each in enumerate(ids):
        number = at_ms * NUMBERS_PER_MS + place
        words = {"priority": 0, "delay": "", "ttl": "", "head": f"q1 {each} ", "tail": "\n{}"}
        source.redis.xadd(source.keys.outbox("q"), words, id=f"{number}-0")
        source.redis.hset(source.keys.out, "q", f"out-ab {number}")


@pytest.mark.parametrize("cause", ["paused", "full"])
def test_a_cancelled_message_that_comes_late_does_not_run(
    open_queue: OpenQueue, turn: Callable[[int], int], cause: str
) -> None:
    """Its tombstone is kept for as long as its message is in an outbox; those of other messages are forgotten."""
    queue, source = open_queue("q"), open_queue("p")
    source.send("x")
    refuses = {"paused": "in"} if cause == "paused" else {"maxlen": "1"}
    queue.send("first")
    queue.run(configure(queue.keys, refuses, now_ms=NOW))
    cancel(queue, "m60", "late", "gone", until_ms=NOW + DAY_MS)
    promise(source, *(f"m{number}" for number in range(80)), at_ms=NOW + DAY_MS // 2 - 1)
    promise(source, "late", at_ms=NOW + DAY_MS // 2)
    assert turn(NOW + DAY_MS) == 2
    for days in (2, 30):
        assert turn(NOW + days * DAY_MS) == 0
    assert queue.state("cancelled") == {"cancelled": {"m60": NOW + DAY_MS}}
    queue.run(configure(queue.keys, {"paused": "", "maxlen": ""}, now_ms=NOW))
    later_ms = NOW + 31 * DAY_MS
    assert turn(later_ms) == 1
    ids = ids_of(queue.receive("L", 100, at=later_ms))
    assert ids == ["first", *(f"m{number}" for number in range(80) if number != 60), "late"]


@pytest.mark.parametrize("together", [1, 250])
def test_no_tombstone_is_forgotten_while_another_queue_cannot_be_asked(
    client: Client, open_queue: OpenQueue, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """Its node may be away with an outbox; a key of another type in the place of one holds no message."""
    monkeypatch.setattr(tombstones, "_ASKED", together)
    queue, source = open_queue("q"), open_queue("p")
    cancel(queue, "a", until_ms=NOW)
    source.redis.set(source.keys.outbox("q"), "x")
    away = UnavailableError("node")

    def execute_each(commands: list[Command[Any]]) -> list[Any]:
        asked = [source.keys.outbox("q") in (*each.keys, *each.args) for each in commands]
        done = client.execute_each(commands)
        return [away if of_it else one for of_it, one in zip(asked, done, strict=True)]

    plan = forget_tombstones(queue.keys, NOW, [queue.keys, source.keys])
    assert run_plans(execute_each, [plan]) == [away]
    assert queue.redis.exists(queue.keys.cancelled)
    [forgotten] = run_plans(
        client.execute_each, [forget_tombstones(queue.keys, NOW, [queue.keys, source.keys])]
    )
    assert forgotten == 1
