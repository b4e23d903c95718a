"""A worker of a version without groups of calls beside one that has them: nothing is lost, and its limits show.

The version is taken out of git, so a copy without history has no such test.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from qworker import QWorker, SyncRun, group
from tests.consumer.driving import until
from tests.consumer.workers import ROOT, Lab
from tests.upgrade.test_earlier import take_out
from tests.upgrade.test_rolling import Mixed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

#: The last version that knew chains and runs, and no groups of calls.
_BEFORE: Final = "2dace0e02bb87b77105cbce7d197227aa3feee11"
_GROUPS, _RUNS = 8, 8
#: In place of the prelude of `Lab.app`, whose names this version alone has.
APP = """
import json, os, time
from qworker import QWorker, SyncRun
import qworker

app = QWorker({namespace!r})
HISTORY = os.open({history!r}, os.O_APPEND | os.O_CREAT | os.O_WRONLY)

def note(*words):
    os.write(HISTORY, (json.dumps([time.time(), os.getpid(), *words]) + "\\n").encode())

@app.task(queue="calls", result="1h", max_receives=1)
def square(number: int) -> int:
    note("squared", number, qworker.__file__)
    return number * number

@app.task(queue="ends", result="1h", max_receives=1)
def total(values: list[int]) -> int:
    return sum(values)

@app.workflow(queue="runs", result="1h")
def order(run: SyncRun, number: int) -> int:
    paid = run.step("charge", charge, number)
    run.sleep("50ms")
    return run.step("ship", charge, paid)

def charge(number: int) -> int:
    note("charged", number, qworker.__file__)
    return number + 1
"""


def _is_known() -> bool:
    found = subprocess.run(
        ["git", "-C", str(ROOT), "cat-file", "-e", f"{_BEFORE}:qworker"], capture_output=True
    )
    return found.returncode == 0


@pytest.fixture
def mixed(lab: Lab, tmp_path: Path) -> Iterator[Mixed]:
    """A lab with the app, where the earlier version (`old`) and this one (`new`) can be started."""
    text = APP.format(namespace=lab.namespace, history=str(lab.directory / "history"))
    (lab.directory / "jobs.py").write_text(text)
    directory = tmp_path / "earlier"
    directory.mkdir()
    mixed = Mixed(lab, ROOT)
    mixed.paths["old"] = str(take_out(_BEFORE, directory))
    yield mixed
    mixed.close()


def tasks(app: QWorker) -> tuple[Any, Any, Any]:
    """The same tasks, for the process that starts them."""

    @app.task(queue="calls", result="1h", max_receives=1)
    def square(number: int) -> int:
        return number * number

    @app.task(queue="ends", result="1h", max_receives=1)
    def total(values: list[int]) -> int:
        return sum(values)

    @app.workflow(queue="runs", result="1h")
    def order(run: SyncRun, number: int) -> int:
        return number

    return square, total, order


if _is_known():  # without, there is nothing to test, and nothing to skip

    def test_a_worker_without_groups_loses_none(
        mixed: Mixed, request: pytest.FixtureRequest
    ) -> None:
        """It runs calls and buries them, with the reason; redriven after the update they complete their groups.

        Runs that it knows go on with either version, and no step is called again that was recorded.
        """
        lab = mixed.lab
        app = QWorker(lab.namespace, url=lab.url)
        request.addfinalizer(app.close)
        square, total, order = tasks(app)
        old = [mixed.worker("old"), mixed.daemon("old")]
        groups = [
            group([square.call(n), square.call(n + 1)], policy="successes").then(total).start()
            for n in range(_GROUPS)
        ]
        runs = [order.start(n) for n in range(_RUNS)]
        calls = app.queue("calls")
        # Said by a dead letter with a reason for each call; its scripts do not tell the group, which waits.
        until(lambda: calls.inspect().dead == 2 * _GROUPS)
        assert {letter.reason for letter in calls.dead()} == {"bad_result"}
        assert {_state(app, handle.id) for handle in groups} == {"running"}
        new = [mixed.worker("new"), mixed.daemon("new")]
        for process in old:
            mixed.stop(process)
        calls.redrive(everything=True)
        assert [handle.result("1m") for handle in groups] == [
            n * n + (n + 1) * (n + 1) for n in range(_GROUPS)
        ]
        assert [handle.result("1m") for handle in runs] == [n + 2 for n in range(_RUNS)]
        charged = lab.noted("charged")
        assert len(charged) == 2 * _RUNS
        for name in ("calls", "ends", "runs"):
            seen = app.queue(name).inspect()
            assert (seen.stored, seen.dead) == (0, 0), name
        for process in new:
            mixed.stop(process)

    def _state(app: QWorker, group_id: str) -> str:
        found = app.queue("ends").call_group(group_id)
        return "" if found is None else found.state
