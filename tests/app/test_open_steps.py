"""Async workflows: steps that have begun in other coroutines when the function ends."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from qworker import QWorker, Retry, Run
from qworker.client.execute.aio import AsyncClient
from qworker.engine.command import Command
from qworker.testing import drain


class Charges:
    """A step that takes a while, and notes its calls."""

    def __init__(self, lasts_s: float = 0.03) -> None:
        self.made: list[int] = []
        self._lasts_s = lasts_s

    async def charge(self, number: int) -> int:
        """Be called once for each number: the next time what is recorded is there."""
        self.made.append(number)
        await asyncio.sleep(self._lasts_s)
        return number


async def quick() -> None:
    """End before a charge does."""
    await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", ["step", "sleep", "wait", "gather", "each"])
def test_what_begins_after_the_park_does_not_cancel_a_step(app: QWorker, kind: str) -> None:
    """A task group cancels its other tasks when one of them ends by an error, as this one does."""
    charges = Charges()

    @app.workflow
    async def order(run: Run) -> int:
        async def second() -> None:
            await run.step(quick)
            match kind:
                case "step":
                    await run.step(quick)
                case "sleep":
                    await run.sleep("1ms")
                case "wait":
                    await run.wait(str, name="second")
                case "gather":
                    await run.gather([])
                case _:
                    async for _ in run.each([1]):
                        pass

        async with asyncio.TaskGroup() as group:
            group.create_task(run.wait(str, name="first"))
            group.create_task(second())
            charged = group.create_task(run.step(charges.charge, 1))
        return charged.result()

    handle = order.start()
    drain(app, include_delayed=False)
    assert handle.status().state == "waiting"
    for name in ("first", "second"):
        handle.signal("", name=name)
    drain(app)
    assert handle.result(0) == 1
    assert charges.made == [1]


def test_a_loop_that_is_interrupted_does_not_cancel_a_step(app: QWorker) -> None:
    """A worker that stops ends the function between two items; what is beside them ends first."""
    charges = Charges(0.3)

    @app.workflow
    async def order(run: Run) -> int:
        async def loop() -> None:
            async for _ in run.each([1, 2, 3]):
                await run.step(quick)

        async with asyncio.TaskGroup() as group:
            group.create_task(loop())
            charged = group.create_task(run.step(charges.charge, 1))
        return charged.result()

    handle = order.start()
    for _ in range(4):
        drain(app, interrupt_after=1)
    assert handle.result(0) == 1
    assert charges.made == [1]


@pytest.mark.parametrize("nested", [False, True])
def test_steps_that_wait_do_not_wait_for_each_other(
    app: QWorker, logs: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch, nested: bool
) -> None:
    """Each of them ends where it waits, and is no step that the other, or one within it, has to let end."""
    monkeypatch.setattr("qworker.app.runs.open_steps._END_S", 5.0)

    @app.workflow
    async def order(run: Run) -> list[str]:
        async def first() -> str:
            return await run.wait(str, name="first")

        async def second() -> str:
            return await run.wait(str, name="second")

        async def outer() -> str:
            return await run.step(first)

        return await asyncio.gather(run.step(outer if nested else first), run.step(second))

    handle = order.start()
    for name in ("first", "second"):
        drain(app, include_delayed=False)
        handle.signal(name, name=name)
    drain(app, include_delayed=False)
    assert handle.result(0) == ["first", "second"]
    assert "step_given_up" not in {line["event"] for line in logs}


def test_a_step_within_an_open_step_begins_after_the_park(app: QWorker) -> None:
    """Without it the open step could not be recorded, and would be called again."""
    charges = Charges()

    @app.workflow
    async def order(run: Run) -> int:
        async def outer() -> int:
            await charges.charge(1)
            return await run.step(charges.charge, 2)

        _, charged = await asyncio.gather(run.wait(str, name="first"), run.step(outer))
        return charged

    handle = order.start()
    drain(app, include_delayed=False)
    handle.signal("", name="first")
    drain(app)
    assert handle.result(0) == 2
    assert charges.made == [1, 2]


def test_no_step_begins_after_a_failure(app: QWorker) -> None:
    """The message is about to go back: what a step does then would not be recorded, and be done again."""
    charges = Charges()
    wrongs = ["no"]

    async def check() -> None:
        if wrongs:
            raise ValueError(wrongs.pop())

    @app.workflow(retry=Retry.fixed("10ms"))
    async def order(run: Run) -> list[int]:
        async def both() -> list[int]:
            first = await run.step(charges.charge, 1)
            await asyncio.sleep(0)
            return [first, await run.step(charges.charge, 2)]

        return (await asyncio.gather(both(), run.step(check)))[0]

    handle = order.start()
    drain(app, errors="collect")
    assert handle.result(0) == [1, 2]
    assert charges.made == [1, 2]


def test_a_run_that_returns_waits_for_its_steps(app: QWorker) -> None:
    """Of one that ran on behind it nothing would be recorded, and a worker that stops would cut it off."""
    charges = Charges()
    tasks: list[asyncio.Task[int]] = []

    @app.workflow
    async def order(run: Run) -> str:
        async def both() -> int:
            await run.step("first", charges.charge, 1)
            return await run.step("second", charges.charge, 2)

        tasks.append(asyncio.create_task(both()))
        await asyncio.sleep(0.01)
        return "done"

    handle = order.start()
    drain(app)
    assert handle.result(0) == "done"
    assert charges.made == [1]
    recorded = app.queue("default").run_steps(handle.id)
    assert recorded is not None
    assert [step.name for step in recorded] == ["first"]


def test_a_run_that_returns_gives_up_steps_that_do_not_end(
    app: QWorker, monkeypatch: pytest.MonkeyPatch, logs: list[dict[str, object]]
) -> None:
    """After the time that a run has at a sleep or a failure: it ends nevertheless, and so does the step."""
    monkeypatch.setattr("qworker.app.runs.open_steps._END_S", 0.05)
    cancelled: list[str] = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("hang")
            raise

    tasks: list[asyncio.Task[None]] = []

    @app.workflow
    async def order(run: Run) -> str:
        tasks.append(asyncio.create_task(run.step(hang)))
        await asyncio.sleep(0)
        return "done"

    handle = order.start()
    drain(app)
    assert handle.result(0) == "done"
    assert cancelled == ["hang"]
    given_up = [line for line in logs if line["event"] == "step_given_up"]
    assert [(line["run"], line["step"]) for line in given_up] == [(handle.id, "hang")]


def test_a_step_that_is_read_late_does_not_begin(
    app: QWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply that says whether it is recorded arrives when its run has failed, and waits for another step."""
    charges, seen = Charges(), list[str]()
    execute = AsyncClient.execute

    async def until(event: str) -> None:
        while event not in seen:
            await asyncio.sleep(0.001)
        for _ in range(50):
            await asyncio.sleep(0)

    async def late(client: AsyncClient, command: Command[Any], **options: Any) -> Any:
        reply = await execute(client, command, **options)
        if "late" in command.args:
            seen.append("read")
            await until("failed")
            seen.append("returned")
        return reply

    monkeypatch.setattr(AsyncClient, "execute", late)

    async def check() -> None:
        await until("read")
        seen.append("failed")
        raise ValueError

    @app.workflow(retry=Retry.none())
    async def order(run: Run) -> None:
        late = run.step("late", charges.charge, 1)
        await asyncio.gather(run.step(until, "returned"), late, check())

    # A first delivery that was not delayed has nothing to read.
    handle = order.options(delay="1ms").start()
    drain(app, errors="collect")
    assert handle.status().state == "dead"
    assert "returned" in seen
    assert charges.made == []


def test_a_time_limit_does_not_wait_for_steps(app: QWorker) -> None:
    """A run that waits for a step when its time is over fails at once, and the step ends before it is called again."""
    cancelled: list[str] = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("hang")
            raise

    @app.workflow(time_limit="100ms", retry=Retry.none())
    async def order(run: Run) -> None:
        step = asyncio.create_task(run.step(hang))
        await run.wait(str, name="first")
        await step

    handle = order.start()
    since = time.monotonic()
    drain(app, errors="collect", include_delayed=False)
    assert time.monotonic() - since < 10
    assert handle.status().state == "dead"
    assert cancelled == ["hang"]


def test_a_time_limit_keeps_the_positions_of_loops(app: QWorker) -> None:
    """Also if the function has failed before, and waits for a step: items that are done do not come again."""
    seen: list[int] = []

    @app.workflow(time_limit="1s", retry=Retry.fixed("10ms"))
    async def order(run: Run) -> None:
        async for item in run.each([1, 2, 3]):
            seen.append(item)
            if seen == [1, 2, 3]:
                seen.append(0)
                step = asyncio.create_task(run.step(asyncio.Event().wait))
                await asyncio.sleep(0.01)
                raise ValueError(step)

    handle = order.start()
    drain(app, errors="collect")
    assert handle.status().state == "ok"
    assert seen == [1, 2, 3, 0, 3]
