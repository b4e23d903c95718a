"""Plans that are performed side by side: one trip has a step of each."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from qworker import QWorker
from qworker.client.plan import Plan, side_by_side
from qworker.engine.command import Together
from qworker.engine.raw import raw
from qworker.errors import BrokenQueueError, QworkerError, UnavailableError
from tests.chaos import ChaosProxy


@pytest.fixture
def app(namespace: str, store_url: str) -> Iterator[QWorker]:
    """An app of its own."""
    with closing(QWorker(namespace, url=store_url)) as app:
        yield app


def ask(app: QWorker, plan: Plan[Any], way: str) -> Any:
    """Run a plan by the sync or the async client."""
    if way == "sync":
        return app.client.run(plan, give_up_s=1)

    async def run() -> Any:
        try:
            return await app.aqueue("q").client.run(plan, give_up_s=1)
        finally:
            await app.aclose()

    return asyncio.run(run())


def reads(key: str, times: int) -> Plan[list[bytes]]:
    """Read a key so many times; a list of what it read."""
    found = []
    for _ in range(times):
        found.append((yield raw("GET", key)))
    return found


def counting(plan: Plan[Any], trips: list[int]) -> Plan[Any]:
    """Note how many commands each trip has."""
    reply = None
    try:
        while True:
            step = plan.send(reply)
            assert isinstance(step, Together)
            trips.append(len(step.commands))
            reply = yield step
    except StopIteration as end:
        return end.value


@pytest.mark.parametrize("way", ["sync", "async"])
def test_plans_of_any_length_end_with_their_own_results(app: QWorker, way: str) -> None:
    """In their order; each trip is filled up with the next plan when one has ended, up to the width."""
    lengths, trips = [3, 0, 1, 5, 2, 2], list[int]()
    for number in range(len(lengths)):
        app.client.ask("SET", f"{app.namespace}:{number}", number)
    plans = [reads(f"{app.namespace}:{number}", times) for number, times in enumerate(lengths)]
    answers = ask(app, counting(side_by_side(plans, 3), trips), way)
    assert answers == [[b"%d" % number] * times for number, times in enumerate(lengths)]
    assert sum(trips) == sum(lengths)
    assert max(trips) == 3
    assert len(trips) < sum(lengths)


@pytest.mark.parametrize("way", ["sync", "async"])
def test_an_error_is_raised_in_its_plan_alone(app: QWorker, way: str) -> None:
    """A plan may continue after it, as by itself; otherwise it is the plan's result."""
    key = f"{app.namespace}:list"
    app.client.ask("RPUSH", key, "x")

    def goes_on() -> Generator[Any, Any, object]:
        try:
            yield raw("GET", key)
        except QworkerError:
            return (yield raw("LRANGE", key, 0, -1))

    good, continued, failed = ask(
        app, side_by_side([reads(key + "s", 2), goes_on(), reads(key, 2)], 9), way
    )
    assert (good, continued) == ([None, None], [b"x"])
    assert isinstance(failed, QworkerError)
    assert not isinstance(failed, UnavailableError | BrokenQueueError)


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_server_that_is_away_fails_every_plan_after_one_wait(app: QWorker, way: str) -> None:
    """And does not leave a reply behind for the next call."""
    with ChaosProxy(app.url) as proxy:
        far = QWorker(app.namespace, url=proxy.url)
        assert ask(far, side_by_side([reads("k", 1)], 9), way) == [[None]]
        proxy.blackhole = True
        answers: Sequence[Any] = ask(far, side_by_side([reads("k", 1), reads("k", 2)], 9), way)
        assert [isinstance(answer, QworkerError) for answer in answers] == [True, True]
        proxy.heal()
        assert ask(far, side_by_side([reads("k", 3)], 9), way) == [[None] * 3]
        far.close()


def reads_together(keys: Sequence[str]) -> Plan[list[Any]]:
    """Read keys in one step; what was read, or that it could not be."""
    replies = yield Together([raw("GET", key) for key in keys])
    return ["wrong" if isinstance(reply, QworkerError) else reply for reply in replies]


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_step_of_several_commands_gets_their_replies(app: QWorker, way: str) -> None:
    """In the trip of the other plans; an error among them is a reply."""
    key = app.namespace
    app.client.ask("MSET", key, "1", key + "b", "2")
    app.client.ask("RPUSH", key + "l", "x")
    plans = [reads_together([key, key + "l", key + "b"]), reads(key, 2), reads_together([])]
    trips = list[int]()
    answers = ask(app, counting(side_by_side(plans, 9), trips), way)
    assert answers == [[b"1", "wrong", b"2"], [b"1", b"1"], []]
    assert trips == [4, 1]
