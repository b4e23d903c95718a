"""Limits that several clients change at once, beside divisions too, are the same in all shards in the end."""

from __future__ import annotations

import itertools
import random
from collections.abc import Generator
from typing import Any

import pytest

from qworker import QWorker
from qworker.client.manage.balancing import Balancer
from qworker.client.manage.limit import Limit
from qworker.client.manage.limits import remove_limit, set_limit
from qworker.client.manage.reshard import divide
from qworker.client.manage.shared_limits import words_of, zero_share
from qworker.client.queue import Queue
from qworker.engine import shards as commands
from qworker.engine.groups import limits
from qworker.engine.shares import declare, share, shared_limits
from qworker.errors import ShardsChangedError
from qworker.fsck.check import check
from qworker.fsck.damage import Damage, DamageKind
from qworker.fsck.shares import check_shares
from tests.shards.test_divisions import script_of, steps


def known_anew(queue: Queue) -> Queue:
    """The queue as another client sees it."""
    return Queue(queue.client, queue.ref.namespace, queue.keys.name)


def of_shards(queue: Queue) -> list[dict[str, str]]:
    """The limits of each shard."""
    kept = queue.client.execute(commands.read_shards(queue.keys)).kept
    shards = [queue.ref.shard_of(number) for number in range(kept)]
    return [queue.client.execute(limits(shard.keys)) for shard in shards]


def changes(queue: Queue, chance: random.Random) -> Generator[Any, Any, None]:
    """One to four changes of two limits."""
    for _ in range(chance.randint(1, 4)):
        name = chance.choice(["acme/*", "b"])
        if chance.random() < 0.5:
            yield from set_limit(queue.ref, name, concurrency=chance.randint(1, 3))
        else:
            yield from remove_limit(queue.ref, name)


def interleaved(chance: random.Random, plans: list[Generator[Any, None, Any]]) -> None:
    """Make the steps of several plans in a random order."""
    while plans:
        plan = chance.choice(plans)
        try:
            next(plan)
        except (StopIteration, ShardsChangedError):  # The later of two divisions wins.
            plans.remove(plan)


def test_the_last_of_two_clients_that_set_a_limit_sets_it_in_all_shards(app: QWorker) -> None:
    """Wherever the first one is halfway: its later writes do not stay behind in some shards."""
    for stop in itertools.count():
        queue = app.queue(f"orders{stop}")
        queue.divide(2, wait=0)
        met = False
        plan = set_limit(known_anew(queue).ref, "b", concurrency=1)
        for at, _ in enumerate(steps(app.client, plan)):
            if at == stop:
                met = True
                queue.set_limit("b", concurrency=2)
        if not met:
            break
        assert of_shards(queue) in ([{"b": "c=1"}] * 2, [{"b": "c=2"}] * 2), stop


@pytest.mark.parametrize("seed", range(12))
def test_changes_of_two_clients_beside_divisions_end_alike_in_all_shards(
    app: QWorker, seed: int
) -> None:
    """In any order of their steps."""
    chance = random.Random(seed)
    queue = app.queue("orders")
    queue.set_limit("b", concurrency=1)
    queue.divide(chance.randint(1, 3), wait=0)
    plans = [changes(known_anew(queue), chance) for _ in range(2)]
    plans += [divide(known_anew(queue).ref, chance.randint(1, 3), wait=0) for _ in range(seed % 3)]
    interleaved(chance, [steps(app.client, plan) for plan in plans])
    first, *others = of_shards(queue)
    assert others == [first] * len(others)


@pytest.mark.parametrize("first", ["the division", "the leave"])
def test_no_new_shard_of_a_queue_that_leaves_a_shared_limit_keeps_a_share(
    app: QWorker, first: str
) -> None:
    """Else its groups would never run there, and the limit could neither be set nor removed."""
    other = app.queue("other")
    other.create()
    for stop in itertools.count():
        queue = app.queue(f"orders{stop}")
        queue.create()
        queue.set_limit("s/", with_queues=["other"], concurrency=4)
        plans = [divide(known_anew(queue).ref, 2, wait=0), remove_limit(queue.ref, "s/")]
        running, meanwhile = plans if first == "the division" else reversed(plans)
        met = False
        for at, _ in enumerate(steps(app.client, running)):
            if at == stop:
                met = True
                for _ in steps(app.client, meanwhile):
                    pass
        if not met:
            break
        assert of_shards(queue) == [{}, {}], stop
        assert not [*check_shares(app.client, app.namespace, ["other"], repair=False)]


@pytest.mark.parametrize("first", ["the pass", "the leave"])
def test_a_pass_that_comes_late_leaves_no_share_in_a_queue_that_has_left(
    app: QWorker, first: str
) -> None:
    """Wherever either is halfway: a reaper may stand still for longer than the leaving client waits."""
    app.queue("other").create()
    for stop in itertools.count():
        queue = app.queue(f"orders{stop}")
        queue.create()
        # No pass has been made: it changes the shares of both.
        words = words_of(Limit(concurrency=4), [queue.name, "other"], 1)
        app.client.execute(declare(app.namespace, "s/", words))
        app.client.execute(share(queue.keys, [("s/", 1, zero_share())]))
        plans = [Balancer(app.namespace, rest_ms=0).balance(), remove_limit(queue.ref, "s/")]
        running, meanwhile = plans if first == "the pass" else reversed(plans)
        met = False
        for at, _ in enumerate(steps(app.client, running)):
            if at == stop:
                met = True
                for _ in steps(app.client, meanwhile):
                    pass
        if not met:
            break
        assert of_shards(queue) == [{}], stop
        left = app.client.execute(shared_limits(app.namespace))
        assert not [field for field in left if field.endswith(f"\n{queue.name}")], stop


def test_a_pass_frees_queues_that_were_left_out_of_a_limit_by_another_change(app: QWorker) -> None:
    """Of two clients that add queues at once the later one writes the list without the other's queue."""
    for name in ("orders", "other", "third"):
        app.queue(name).create()
    queue, other = app.queue("orders"), app.queue("other")
    queue.set_limit("s/", with_queues=["other"], concurrency=4)
    words = words_of(Limit(concurrency=4), ["orders", "third"], 10**13)
    app.client.execute(declare(app.namespace, "s/", words))
    app.client.run(Balancer(app.namespace, rest_ms=0).balance())
    assert of_shards(other) == [{}]
    assert "s/\nother" not in app.client.execute(shared_limits(app.namespace))
    assert not [*check(app.client, app.namespace)]


def test_fsck_gives_shards_the_limits_that_a_dead_client_has_not_written(app: QWorker) -> None:
    """Changed, added and removed in the first shard alone; that one counts."""
    queue = app.queue("orders")
    for name in ("changed", "removed"):
        queue.set_limit(name, concurrency=1)
    queue.divide(3, wait=0)
    for plan in (
        set_limit(queue.ref, "changed", concurrency=2),
        set_limit(queue.ref, "added", rate="5/s"),
        remove_limit(queue.ref, "removed"),
    ):
        for step in steps(app.client, plan):
            if script_of(step) == "limit" and "/" in step.keys[0].partition("{")[2]:
                break  # The client dies before it writes the second shard.
    assert of_shards(queue) == [
        {"changed": "c=2", "added": "r=5/1000 b=1"},
        {"changed": "c=1", "removed": "c=1"},
        {"changed": "c=1", "removed": "c=1"},
    ]
    found = [one for one in check(app.client, app.namespace) if isinstance(one, Damage)]
    assert [(one.queue, one.kind, one.where) for one in found] == [
        (f"orders/{number}", DamageKind.LIMIT, f"limit {name}")
        for number in (1, 2)
        for name in ("added", "changed", "removed")
    ]
    assert found[0].problem == "it has no limits, and the first shard rate 5/s, burst 1"
    assert all(
        one.repaired
        for one in check(app.client, app.namespace, repair=True)
        if isinstance(one, Damage)
    )
    assert of_shards(queue) == [{"changed": "c=2", "added": "r=5/1000 b=1"}] * 3
    assert not [*check(app.client, app.namespace)]
