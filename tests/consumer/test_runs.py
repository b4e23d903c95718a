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
