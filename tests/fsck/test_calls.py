"""`fsck` and groups of calls: a call that is anywhere is not accused, and one that is gone lets its group go on."""

from __future__ import annotations

from typing import Any

import pytest

from qworker import Bury, Failure, QWorker, SyncRun, chain, group
from qworker.client.queue import Queue
from qworker.fsck.check import check
from qworker.fsck.damage import Damage, DamageKind
from qworker.testing import drain
from tests.topologies.servers import client_of


def _started(app: QWorker, policy: Any) -> Any:
    """Start a group g in the queue back: a chain from calls to more, a group in more, and a call in calls that dies."""

    @app.task(queue="calls", result="1h")
    def first() -> int:
        return 1

    @app.task(queue="more", result="1h")
    def double(number: int) -> int:
        return 2 * number

    @app.task(queue="more", result="1h")
    def inner(values: list[int | Failure]) -> int:
        return len(values)

    @app.task(queue="calls", result="1h")
    def die() -> int:
        raise Bury("no use")

    @app.task(queue="back", result="1h")
    def last(values: list[int | Failure]) -> list[str]:
        return [one.state if isinstance(one, Failure) else str(one) for one in values]

    members = [chain(first.call(), double.then()), group([double.call(2)]).then(inner), die.call()]
    handle = group(members, policy=policy).then(last).start(id="g")
    queue = app.queue("back")
    with client_of(queue.client.factory.url) as redis:
        redis.hset(queue.ref.keys.join("g"), "@made", 1)  # long ago
    return handle


def found(queue: Queue, *, repair: bool = False) -> list[Damage]:
    """What a check of the namespace finds; nothing was left unchecked."""
    reports = [*check(queue.client, queue.ref.namespace, repair=repair)]
    assert not [report for report in reports if isinstance(report, str)]
    return [report for report in reports if isinstance(report, Damage)]


@pytest.mark.slow
def test_a_call_that_is_somewhere_is_not_accused(app: QWorker) -> None:
    """As any step of a chain, as a group in the group, in an outbox, and as a dead letter that is counted."""
    _started(app, "successes")
    queue = app.queue("back")
    assert found(queue) == []
    app.queue("more").pause("in")  # the second step waits in an outbox
    drain(app, queues=["calls"])
    assert found(queue) == []
    app.queue("more").resume()
    drain(app, queues=["calls"])
    assert found(queue) == []
    drain(app)
    assert found(queue) == []
    state = queue.call_group("g")
    assert state is not None
    assert (state.state, state.dead) == ("blocked", (2,))


@pytest.mark.slow
def test_a_call_that_is_gone_is_counted_as_discarded(app: QWorker) -> None:
    """By a repair: the callback is sent, with a failure in its place."""
    handle = _started(app, "all")
    queue, calls = app.queue("back"), app.queue("calls").ref.keys
    with client_of(queue.client.factory.url) as redis:
        redis.delete(calls.ready[0])
        redis.hset(calls.stats, "stored", 0)
    [lost] = found(queue)
    assert (lost.kind, lost.where) == (DamageKind.LOST_CALL, "calls g")
    assert lost.problem.startswith("it waits for 2 calls (0, 2) whose messages are gone")
    found(queue, repair=True)
    drain(app)
    assert handle.result(0) == ["discarded", "1", "discarded"]
    assert found(queue) == []


@pytest.mark.slow
def test_an_id_that_a_run_and_a_group_share_is_named(app: QWorker) -> None:
    """An earlier version gave it to both; they have one key for their results. Nothing is repaired, and it ends."""

    @app.task(queue="calls", result="1h")
    def call() -> int:
        return 1

    @app.task(queue="back", result="1h")
    def last(values: list[int]) -> int:
        return sum(values)

    @app.workflow(queue="back")
    def work(run: SyncRun) -> None:
        run.wait(str, name="go")

    queue, calls = app.queue("back"), group([call.call()], policy="successes").then(last)
    calls.start(id="both")
    assert found(queue) == []
    with client_of(queue.client.factory.url) as redis:
        redis.rename(queue.ref.keys.join("both"), queue.ref.keys.join("aside"))
        work.options(id="both").start()
        redis.rename(queue.ref.keys.join("aside"), queue.ref.keys.join("both"))
    for repair in (False, True):
        [damage] = found(queue, repair=repair)
        assert (damage.kind, damage.where, damage.repaired) == (
            DamageKind.SHARED_ID,
            "id both",
            False,
        )
    drain(app)
    app.handle("back", "both").signal("go", name="go")
    drain(app)
    assert found(queue) == [], "both have ended"


def test_calls_are_not_given_up_beside_a_key_of_another_type(app: QWorker) -> None:
    """They may be behind it; the report says so, and the other queues are checked."""
    _started(app, "all")
    queue, calls = app.queue("back"), app.queue("calls").ref.keys
    with client_of(queue.client.factory.url) as redis:
        for key in (calls.dead, calls.joins):
            redis.set(key, "of another program")
        redis.hset(app.queue("more").ref.keys.stats, "unacked", 7)
        reports = [*check(queue.client, queue.ref.namespace)]
    kinds = [(one.queue, one.kind) for one in reports if isinstance(one, Damage)]
    assert kinds == [("calls", DamageKind.WRONG_TYPE)] * 2 + [("more", DamageKind.COUNTER)]
    texts = [one for one in reports if isinstance(one, str)]
    assert any(text.startswith("calls: groups of calls were not checked") for text in texts), texts
    assert any(text.startswith("the calls that groups wait for were not checked") for text in texts)


def test_groups_are_not_checked_beside_an_invalid_lease(app: QWorker) -> None:
    """The report names the lease as the reason: the queue is not too busy."""
    _started(app, "all")
    queue = app.queue("back")
    with client_of(queue.client.factory.url) as redis:
        redis.zadd(queue.ref.keys.unacked, {b"no lease \xff": 9e12})
    texts = [one for one in check(queue.client, queue.ref.namespace) if isinstance(one, str)]
    assert (
        "back: could not check 1 group of calls: it has over 5,000 leases, or one without a name: repair that first"
    ) in texts
