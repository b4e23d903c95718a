"""Limits that several clients change at once, beside divisions too, are the same in all shards in the end."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from qworker import QWorker
from qworker.client.manage.balancing import Balancer
from qworker.client.manage.limit import Limit
from qworker.client.manage.limits import remove_limit, set_limit
from qworker.client.manage.reshard import divide
from qworker.client.manage.shared_limits import NOTHING, first_share, words_of
from qworker.client.queue import Queue
from qworker.engine import shards as commands
from qworker.engine.groups import limits
from qworker.engine.groups import set_limit as write
from qworker.engine.raw import raw
from qworker.engine.shares import declare, share, shared_limits
from qworker.errors import InvalidOptionError, QueueNotFoundError, ServerError, ShardsChangedError
from qworker.fsck.check import check
from qworker.fsck.damage import Damage, DamageKind
from qworker.fsck.shares import check_shares
from qworker.fsck.unread import Unread
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


def perform(app: QWorker, plan: Generator[Any, Any, Any]) -> None:
    """Perform a plan without its pauses."""
    for _ in steps(app.client, plan):
        pass


def both(
    app: QWorker,
    one: Callable[[Queue], Any],
    other: Callable[[Queue], Any],
    queue: Callable[[], Queue],
) -> Iterator[Queue]:
    """Let a client make a change while another one is halfway with its own, wherever it is; yields each queue.

    Shares are divided after the change is stored, and not interrupted here.
    """
    for stop in itertools.count():
        changed, met, is_stored = queue(), False, False
        for at, step in enumerate(steps(app.client, one(known_anew(changed)))):
            is_stored |= script_of(step) == "share"
            if at == stop and not is_stored:
                met = True
                perform(app, other(known_anew(changed)))
        if not met:
            return
        yield changed


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.slow
def test_two_clients_that_change_different_options_of_a_limit_change_both(
    app: QWorker, shards: int
) -> None:
    """Wherever the first one is halfway; all shards have both, and each client says what it has stored."""
    numbers = itertools.count()

    def queue() -> Queue:
        made = app.queue(f"orders{next(numbers)}")
        made.set_limit("b", weight=2)
        made.divide(shards, wait=0)
        return made

    concurrency = partial(change, concurrency=5)
    for changed in both(app, concurrency, partial(change, rate="100/s"), queue):
        assert of_shards(changed) == [{"b": "c=5 r=100/1000 b=10 w=2"}] * shards
        assert changed.limits()["b"] == Limit(concurrency=5, rate="100/s", burst=10, weight=2)


def change(queue: Queue, name: str = "b", **given: Any) -> Any:
    """The plan of a change of a limit."""
    return set_limit(queue.ref, name, **given)


def test_a_limit_that_is_removed_beside_a_change_has_no_option_of_before(app: QWorker) -> None:
    """Wherever the change is halfway: it is as if one came after the other."""
    numbers = itertools.count()

    def queue() -> Queue:
        made = app.queue(f"orders{next(numbers)}")
        made.set_limit("b", weight=2)
        return made

    for changed in both(
        app, partial(change, concurrency=5), lambda it: remove_limit(it.ref, "b"), queue
    ):
        assert changed.limits() in ({}, {"b": Limit(concurrency=5)})


@pytest.mark.slow
def test_two_clients_that_change_options_of_a_limit_over_queues_change_both(app: QWorker) -> None:
    """Also if one of them adds a queue; every queue shows the same limit."""
    numbers = itertools.count()
    for name in ("other", "third"):
        app.queue(name).create()

    def queue() -> Queue:
        made = app.queue(f"orders{next(numbers)}")
        made.create()
        perform(app, change(made, f"{made.name}/", weight=2, concurrency=3, with_queues=["other"]))
        return made

    def concurrency(it: Queue) -> Any:
        return change(it, f"{it.name}/", concurrency=5)

    def rate(it: Queue) -> Any:
        return change(it, f"{it.name}/", rate="100/s", with_queues=["third"])

    for changed in both(app, concurrency, rate, queue):
        name = f"{changed.name}/"
        shared = changed.shared_limits()[name]
        assert shared.queues == (changed.name, "other", "third")
        assert shared.limit == Limit(concurrency=5, rate="100/s", burst=10, weight=2)
        assert {app.queue(one).limits()[name] for one in shared.queues} == {shared.limit}


@pytest.mark.slow
@pytest.mark.parametrize("where", ["orders", "other"])
@pytest.mark.nightly("test_two_clients_that_change_options_of_a_limit_over_queues_change_both")
def test_a_limit_that_is_changed_while_it_becomes_one_over_queues_has_both(
    app: QWorker, where: str
) -> None:
    """Wherever either is halfway. A change of one of the other queues alone is overwritten if it comes first."""
    numbers = itertools.count()

    def queue() -> Queue:
        made = app.queue(f"orders{next(numbers)}")
        made.create()
        app.queue(f"other-{made.name}").create()
        made.set_limit(f"{made.name}/", rate="7/s", concurrency=1)
        return made

    def widen(it: Queue) -> Any:
        return change(it, f"{it.name}/", rate="100/s", with_queues=[f"other-{it.name}"])

    def concurrency(it: Queue) -> Any:
        changed = it if where == "orders" else app.queue(f"other-{it.name}")
        return change(changed, f"{it.name}/", concurrency=5)

    for first, second in itertools.permutations([widen, concurrency]):
        for changed in both(app, first, second, queue):
            shared = changed.shared_limits()[f"{changed.name}/"]
            slots = {5} if where == "orders" else {1, 5}
            assert shared.limit.concurrency in slots
            assert replace(shared.limit, concurrency=None) == Limit(rate="100/s", burst=10)
            assert len(shared.queues) == 2
            assert (
                app.queue(shared.queues[1]).limits()
                == changed.limits()
                == {shared.name: shared.limit}
            )


@pytest.mark.slow
def test_what_a_queue_had_stays_if_its_limit_does_not_become_one_over_queues(app: QWorker) -> None:
    """Another queue is broken, so the call fails; or the client dies, then `fsck` lets it hold again."""
    queue, other, broken = (app.queue(name) for name in ("orders", "other", "third"))
    had = Limit(concurrency=2, rate="7/s", burst=1)
    for each in (queue, other):
        each.create()
        each.set_limit("s/", rate="7/s", concurrency=2)
    broken.create()
    app.client.execute(raw("RPUSH", broken.keys.limits, "x"))
    with pytest.raises(ServerError, match="WRONGTYPE"):
        queue.set_limit("s/", concurrency=1, with_queues=["other", "third"])
    assert of_shards(queue) == of_shards(other) == [{"s/": had.words}]
    app.client.execute(raw("DEL", broken.keys.limits))
    for step in steps(app.client, change(queue, "s/", concurrency=1, with_queues=["other"])):
        if script_of(step) == "declare":
            break
    assert of_shards(queue) == of_shards(other) == [{"s/": f"{had.words} s=1"}]
    assert queue.limits() == {"s/": had}
    for repair in (False, True):
        found = [*check(app.client, app.namespace, repair=repair)]
        assert [(one.queue, one.kind) for one in found if isinstance(one, Damage)] == [
            ("orders", DamageKind.SHARE), ("other", DamageKind.SHARE),
        ]  # fmt: skip
    assert of_shards(queue) == of_shards(other) == [{"s/": had.words}]
    assert not [*check(app.client, app.namespace)]


@pytest.mark.parametrize(
    "shards",
    [
        pytest.param(
            1,
            marks=pytest.mark.nightly(
                "test_a_queue_that_is_removed_while_it_gets_its_first_limit_leaves_none"
            ),
        ),
        2,
    ],
)
@pytest.mark.slow
def test_a_queue_that_is_removed_while_it_gets_its_first_limit_leaves_none(
    app: QWorker, shards: int
) -> None:
    """Wherever the client is that sets it: what runs is counted before, in several calls."""
    for stop in itertools.count():
        queue = app.queue(f"orders{stop}")
        queue.divide(shards, wait=0)
        for first in range(0, 600, 300):
            queue.send_many([b""] * 300, group=f"g{first}")
        queue.receive(300)
        queue.receive(300)
        met = False
        with suppress(QueueNotFoundError):
            for at, _ in enumerate(steps(app.client, change(queue, concurrency=5))):
                if at == stop:
                    met = True
                    queue.remove()
        if not met:
            break
        left = app.client.execute(raw("KEYS", f"{app.namespace}:{{{queue.name}*", decode=list))
        # Before its limits were read: then it is a new queue with this limit.
        assert not left or (stop == 0 and queue.keys.meta.encode() in left), (stop, left)


def test_a_limit_that_others_change_all_the_time_is_given_up(app: QWorker) -> None:
    """After many attempts; nothing of it is stored."""
    queue, number = app.queue("orders"), itertools.count(1)

    def beside_others() -> None:
        for step in steps(app.client, change(queue, concurrency=5)):
            if script_of(step) == "limit":
                app.client.execute(write(queue.keys, "b", f"m={next(number)}"))

    with pytest.raises(InvalidOptionError, match="was changed by other clients in each of 100"):
        beside_others()
    assert queue.limits() == {"b": Limit(max_waiting=100)}


@pytest.mark.slow
def test_two_queues_that_leave_a_limit_at_once_have_left_it(app: QWorker) -> None:
    """Wherever the first one is halfway."""
    numbers = itertools.count()

    def queue() -> Queue:
        made = app.queue(f"orders{next(numbers)}")
        made.create()
        app.queue(f"other-{made.name}").create()
        perform(
            app, change(made, f"{made.name}/", concurrency=3, with_queues=[f"other-{made.name}"])
        )
        return made

    def leave(it: Queue) -> Any:
        return remove_limit(it.ref, f"{it.name}/")

    def leave_other(it: Queue) -> Any:
        return remove_limit(app.queue(f"other-{it.name}").ref, f"{it.name}/")

    for changed in both(app, leave, leave_other, queue):
        assert changed.limits() == app.queue(f"other-{changed.name}").limits() == {}
        assert app.client.execute(shared_limits(app.namespace)) == {}


def test_many_async_clients_that_change_options_of_a_limit_change_all(app: QWorker) -> None:
    """None loses its change."""
    given: list[dict[str, Any]] = [
        {"concurrency": 5}, {"rate": "100/s"}, {"weight": 2}, {"max_waiting": 9},
    ]  # fmt: skip

    async def change_all() -> None:
        queue = app.aqueue("orders")
        await asyncio.gather(*(queue.set_limit("s", **one) for one in given))
        await app.aclose()

    asyncio.run(change_all())
    assert app.queue("orders").limits() == {
        "s": Limit(concurrency=5, rate="100/s", burst=10, weight=2, max_waiting=9)
    }


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


@pytest.mark.parametrize(
    "seed",
    [
        *range(3),
        *(
            pytest.param(
                seed,
                marks=pytest.mark.nightly(
                    "test_changes_of_two_clients_beside_divisions_end_alike_in_all_shards"
                ),
            )
            for seed in range(3, 12)
        ),
    ],
)
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


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(
            "the division",
            marks=pytest.mark.nightly(
                "test_no_new_shard_of_a_queue_that_leaves_a_shared_limit_keeps_a_share"
            ),
        ),
        "the leave",
    ],
)
@pytest.mark.slow
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
        assert not [
            *check_shares(
                app.client,
                app.namespace,
                ["other"],
                Unread(app.client, app.namespace),
                repair=False,
            )
        ]


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
        app.client.execute(declare(app.namespace, "s/", "", words))
        app.client.execute(share(queue.keys, [("s/", 1, first_share(NOTHING))]))
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
    """Of two clients of an earlier version that add queues at once the later one writes the list without the other."""
    for name in ("orders", "other", "third"):
        app.queue(name).create()
    queue, other = app.queue("orders"), app.queue("other")
    queue.set_limit("s/", with_queues=["other"], concurrency=4)
    words = words_of(Limit(concurrency=4), ["orders", "third"], 10**13)
    before = app.client.execute(shared_limits(app.namespace))["s/"]
    app.client.execute(declare(app.namespace, "s/", before, words))
    app.client.run(Balancer(app.namespace, rest_ms=0).balance())
    assert of_shards(other) == [{}]
    assert "s/\nother" not in app.client.execute(shared_limits(app.namespace))
    assert not [*check(app.client, app.namespace)]


@pytest.mark.slow
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
