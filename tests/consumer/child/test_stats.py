"""What is counted of handled messages."""

from __future__ import annotations

import asyncio

import pytest

from qworker import Discard, QWorker, Release, Retry
from qworker.consumer.board.counters import BUCKETS_S, OUTCOMES, TaskCounts
from qworker.engine import reap
from qworker.testing import advance
from qworker.wire.keys import QueueKeys
from tests.consumer.driving import drain, redis_of


def outcomes(counts: TaskCounts) -> dict[str, int]:
    """The outcomes that were counted at all."""
    return {name: n for name, n in zip(OUTCOMES, counts.outcomes, strict=True) if n}


def test_each_end_of_a_message_is_counted_for_its_task(app: QWorker) -> None:
    """Outcomes stand under the number of their task, which is its place in the order of names."""

    @app.task(retry=Retry.fixed("1m"))
    def beta(n: int) -> None:
        if n == 1:
            raise Discard
        if n == 2:
            raise Release("1m")
        if n == 3:
            raise ValueError

    @app.task
    async def alpha() -> None:
        await asyncio.sleep(0)

    for n in range(5):
        beta.send(n)
    alpha.send()

    board = drain(app)

    assert outcomes(board.counters.read(0)) == {"acked": 1}
    assert outcomes(board.counters.read(1)) == {
        "acked": 2,
        "nacked": 1,
        "released": 1,
        "discarded": 1,
    }
    assert (board.handled, board.failed, board.stale) == (6, 1, 0)


def test_the_last_failure_is_counted_as_buried(app: QWorker) -> None:
    """A failure at max receives is the message's end, and counted so."""

    @app.task(max_receives=2, retry=Retry.fixed(0))
    def fail() -> None:
        raise ValueError

    fail.send()

    board = drain(app)

    assert outcomes(board.counters.read(0)) == {"nacked": 1, "buried": 1}


def test_what_does_not_reach_its_handler_has_no_running_time(app: QWorker) -> None:
    """Arguments that do not fit are counted as buried, not as a handler of no time."""

    @app.task
    def handle(n: int) -> None: ...

    app.queue("default").send({"task": "handle", "args": ["x"]})

    counts = drain(app).counters.read(0)

    assert outcomes(counts) == {"buried": 1}
    assert (sum(counts.run), sum(counts.wait)) == (0, 0)


def test_running_times_fall_into_their_buckets(app: QWorker) -> None:
    """A handler of 20 ms is counted below 25 ms, with its seconds in the sum."""

    @app.task
    async def nap() -> None:
        await asyncio.sleep(0.03)

    nap.send_many([nap.call()] * 3)

    counts = drain(app).counters.read(0)

    assert sum(counts.run) == 3
    assert 0.06 <= counts.run_s < 60  # a sleep may end a little early
    assert sum(counts.run[: BUCKETS_S.index(0.025) + 1]) == 0


def test_the_wait_counts_from_when_the_message_became_ready(app: QWorker) -> None:
    """A delay is not a wait, neither the sender's nor that of a retry; the time in the queue after it is."""

    @app.task(queue="mail", retry=Retry.fixed("1h"))
    def fail() -> None:
        raise ValueError

    keys = QueueKeys(app.namespace, "mail")
    fail.send_later("1h")
    advance(app, "3610s")
    app.client.execute(reap.promote(keys))
    first = drain(app).counters.read(0)
    advance(app, "3620s")
    app.client.execute(reap.promote(keys))
    second = drain(app).counters.read(0)

    assert (sum(first.wait), sum(second.wait)) == (1, 1)
    assert 10 <= first.wait_s < 60
    assert 20 <= second.wait_s < 60


def test_the_wait_of_a_message_sent_now_counts_from_its_send(app: QWorker) -> None:
    """What was ready at once, plain items included, has waited since it was sent or seen."""

    @app.task(queue="mail")
    def handle() -> None: ...

    handle.send()
    advance(app, "30s")
    with redis_of(app) as redis:
        redis.rpush(QueueKeys(app.namespace, "mail").ready[0], '{"task": "handle", "args": []}')

    counts = drain(app).counters.read(0)

    assert sum(counts.wait) == 2
    assert 30 <= counts.wait_s < 60


def test_a_batch_falls_into_the_buckets_that_its_values_say() -> None:
    """A value counts in the first bucket whose bound is not below it; above all bounds there is one more."""
    counts = TaskCounts.none()

    counts.add_runs([0.0001, 0.0002, 900.0, 900.5, 0.0, -1.0, 0.0001])

    assert counts.run == [4, 1, *[0] * (len(BUCKETS_S) - 3), 1, 1]
    assert counts.run_s == pytest.approx(1799.5004)
    counts.add_runs([])
    assert sum(counts.run) == 7


@pytest.mark.slow
def test_all_messages_of_a_batch_share_its_time(app: QWorker) -> None:
    """Each message of a batch handler is counted with its share of the call."""

    @app.task(batch=10)
    async def load(items: list[int]) -> None:
        await asyncio.sleep(1)

    load.send_many(load.call(n) for n in range(10))

    counts = drain(app).counters.read(0)

    assert sum(counts.run) == 10
    assert 0.9 <= counts.run_s < 60  # a sleep may end a little early
