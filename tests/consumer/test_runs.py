"""Runs of workers: children that are killed around their steps."""

from __future__ import annotations

import pytest

from qworker import QWorker, Run, SyncRun
from tests.consumer.driving import until
from tests.consumer.workers import Lab

APP = """
from pathlib import Path

def charge(point: str) -> int:
    note("charged", point)
    return 7

@app.workflow(queue="sync")
def sync_run(run: SyncRun, point: str) -> list[int]:
    if point == "called":
        return [run.step("charge", called, point), run.step(charge, point)]
    paid = run.step(charge, point)
    if point == "recorded":
        die_once(point)
    return [paid, run.step(charge, point)]

@app.workflow(queue="async")
async def async_run(run: Run, point: str) -> list[int]:
    if point == "called":
        return [await run.step("charge", called, point), await run.step(charge, point)]
    paid = await run.step(charge, point)
    if point == "recorded":
        die_once(point)
    return [paid, await run.step(charge, point)]

@app.workflow(queue="sync")
def sleeper(run: SyncRun) -> int:
    run.step(charge, "parked")
    run.sleep("100ms")
    return run.step(charge, "parked")

class Killer(Middleware):
    def after(self, context, outcome, error):
        # Its end is marked on the board, and not settled.
        if context.task == "sleeper":
            die_once("parked")

app.use(Killer())

def called(point: str) -> int:
    # Dies after the effect, before it is recorded.
    value = charge(point)
    die_once(point)
    return value

def die_once(point):
    path = Path(f"died-{current().task}-{point}")
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_killed_child_repeats_no_recorded_step(lab: Lab) -> None:
    """Killed after a step was recorded, it is not called again; killed before, it is: at least once.

    Killed when it has parked a run, before that is settled, the run sleeps anew.
    """
    lab.app(APP)
    app = QWorker(lab.namespace, url=lab.url)

    @app.workflow(queue="sync")
    def sync_run(run: SyncRun, point: str) -> list[int]:
        raise AssertionError("runs in workers alone")

    @app.workflow(queue="async")
    async def async_run(run: Run, point: str) -> list[int]:
        raise AssertionError("runs in workers alone")

    @app.workflow(queue="sync")
    def sleeper(run: SyncRun) -> int:
        raise AssertionError("runs in workers alone")

    with lab.worker("--procs", "1", "--concurrency", "2"):
        for point, times in (("recorded", 2), ("called", 3)):
            assert sync_run.start(point).result("1m") == [7, 7]
            assert async_run.start(point).result("1m") == [7, 7]
            assert lab.noted("charged").count([point]) == 2 * times
            for task in ("sync_run", "async_run"):
                until((lab.directory / f"died-{task}-{point}").exists)
        assert sleeper.start().result("1m") == 7
        assert lab.noted("charged").count(["parked"]) == 2
        until(lambda: all(app.queue(kind).inspect().unacked == 0 for kind in ("sync", "async")))
    app.close()


LOOPS = """
@app.workflow(queue="sync")
def sync_loop(run: SyncRun, number: int) -> int:
    for item in run.each(range(number), every=10, interval="1h"):
        note("sync", item)
        if item == 57 and number == 100:
            die_once()
        while number == 250 and item in (60, 200) and not os.path.exists(f"gate-{item}"):
            time.sleep(0.01)
        time.sleep(0.01)
    return number

@app.workflow(queue="async")
async def async_loop(run: Run, number: int) -> int:
    async for item in run.each(range(number), every=10, interval="1h"):
        note("async", item)
        if item == 57 and number == 100:
            die_once()
        while number == 250 and item in (60, 200) and not os.path.exists(f"gate-{item}"):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
    return number

def die_once():
    path = f"died-{current().task}"
    if not os.path.exists(path):
        open(path, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_loop_continues_in_another_worker(lab: Lab) -> None:
    """A worker that stops, by a signal or a drain, loses no item and repeats none; a killed one repeats at most ten."""
    lab.app(LOOPS)
    app = QWorker(lab.namespace, url=lab.url)

    @app.workflow(queue="sync")
    def sync_loop(run: SyncRun, number: int) -> int:
        raise AssertionError("runs in workers alone")

    @app.workflow(queue="async")
    async def async_loop(run: Run, number: int) -> int:
        raise AssertionError("runs in workers alone")

    handles = [sync_loop.start(250), async_loop.start(250)]
    for gate in (60, 200):
        with lab.worker("--procs", "1", "--concurrency", "2") as worker:
            for kind in ("sync", "async"):
                until(lambda kind=kind, gate=gate: [gate] in lab.noted(kind))
            worker.process.terminate()
            until(lambda: worker.events("worker_stopping"))
            (lab.directory / f"gate-{gate}").touch()
            assert worker.wait() == 0
            assert {event["loop"] for event in worker.events("run_interrupted")} == {"*each"}
            assert not worker.events("child_cut_off")
    with lab.worker("--procs", "1", "--concurrency", "2"):
        assert [handle.result("1m") for handle in handles] == [250, 250]
        for kind in ("sync", "async"):
            assert lab.noted(kind) == [[item] for item in range(250)]
        assert sync_loop.start(100).result("1m") == 100
        assert async_loop.start(100).result("1m") == 100
        for kind in ("sync", "async"):
            killed = [item for [item] in lab.noted(kind)[250:]]
            assert killed == [*range(58), *range(50, 100)]
    app.close()
