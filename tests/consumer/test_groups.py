"""A worker of queues with groups: it comes again when a group may run, though nothing rings."""

from __future__ import annotations

import asyncio
import statistics
import time

import pytest

from qworker import QWorker
from tests.consumer.conftest import app
from tests.consumer.driving import running, until

__all__ = ["app"]

RATE = 50
MESSAGES = 60


@pytest.mark.parametrize("queues", [1, 3])
@pytest.mark.slow
def test_a_rate_is_used_and_kept(app: QWorker, queues: int) -> None:
    """By a child of one queue, which waits with its receive, and by one of several, which polls."""
    starts: list[float] = []

    @app.task(queue="crm", group="push")
    def push(number: int) -> None:
        starts.append(time.monotonic())

    for number in range(1, queues):

        @app.task(name=f"other{number}", queue=f"q{number}")
        def other() -> None: ...

    app.queue("crm").set_limit("push", rate=f"{RATE}/s", burst=5)
    push.send_many([push.call(number) for number in range(MESSAGES)])
    with running(app):
        until(lambda: len(starts) == MESSAGES)
    # Never faster than the rate and one burst; what is received starts a little later, so a start may be late alone.
    assert starts[-1] - starts[0] >= (MESSAGES - 5) / RATE - 0.25


@pytest.mark.slow
def test_an_ordered_group_goes_on_from_child_to_child(app: QWorker) -> None:
    """What one child ends lets another one receive, while neither has two of the group."""
    seen: list[int] = []

    @app.task(queue="ledger", group=lambda account, number: account, ordered=True)
    def book(account: str, number: int) -> None:
        seen.append(number)

    book.send_many([book.call("a", number) for number in range(100)])
    with running(app), running(app, number=1):
        until(lambda: len(seen) == 100)
    assert seen == list(range(100))


@pytest.mark.slow
def test_a_child_holds_little_of_a_flood_before_others(app: QWorker) -> None:
    """What it has received stands before all turns, so that is half of what runs, not as many as last 50 ms."""
    started: list[int] = []

    @app.task(queue="work", group=lambda number: "big" if number < flood else "small")
    async def work(number: int) -> None:
        started.append(number)
        await asyncio.sleep(0.02)

    flood, own = 3000, 20
    work.send_many([work.call(number) for number in range(flood)])
    before: list[int] = []
    with running(app, concurrency=8):
        until(lambda: len(started) > 50)  # the pace is known
        for number in range(flood, flood + own):
            work.send(number)
            sent_at = len(started)
            until(lambda number=number: number in started)  # type: ignore[misc]
            before.append(started.index(number) - sent_at)
    assert statistics.median(before) <= 9, before
