"""Workers of versions without groups of calls, or without `cancel_rest`, beside one of this: nothing is lost.

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

pytestmark = [
    pytest.mark.nightly("upgrade/test_rolling.py::test_a_rolling_upgrade_loses_nothing"),
    pytest.mark.timeout(240),
]

#: The last version that knew chains and runs, and no groups of calls.
_BEFORE: Final = "2dace0e02bb87b77105cbce7d197227aa3feee11"
#: The last version whose groups let the other calls run on after the first success.
_BEFORE_REST: Final = "718d74193be817f0c09060bd65634349a20a7d06"
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

@app.task(queue="ends", result="1h", max_receives=1)
def keep(value: int) -> int:
    note("kept", value, qworker.__file__)
    return value

@app.workflow(queue="runs", result="1h")
def order(run: SyncRun, number: int) -> int:
    paid = run.step("charge", charge, number)
    run.sleep("50ms")
    return run.step("ship", charge, paid)

def charge(number: int) -> int:
    note("charged", number, qworker.__file__)
    return number + 1
"""


def _is_known(commit: str) -> bool:
    found = subprocess.run(
        ["git", "-C", str(ROOT), "cat-file", "-e", f"{commit}:qworker"], capture_output=True
    )
    return found.returncode == 0


@pytest.fixture
def mixed(lab: Lab, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Mixed]:
    """A lab with the app, where the earlier version (`old`) and this one (`new`) can be started."""
    text = APP.format(namespace=lab.namespace, history=str(lab.directory / "history"))
    (lab.directory / "jobs.py").write_text(text)
    directory = tmp_path / "earlier"
    directory.mkdir()
    mixed = Mixed(lab, ROOT)
    mixed.paths["old"] = str(take_out(request.param, directory))
    yield mixed
    mixed.close()


def tasks(app: QWorker) -> tuple[Any, Any, Any, Any]:
    """The same tasks, for the process that starts them."""

    @app.task(queue="calls", result="1h", max_receives=1)
    def square(number: int) -> int:
        return number * number

    @app.task(queue="ends", result="1h", max_receives=1)
    def total(values: list[int]) -> int:
        return sum(values)

    @app.task(queue="ends", result="1h", max_receives=1)
    def keep(value: int) -> int:
        return value

    @app.workflow(queue="runs", result="1h")
    def order(run: SyncRun, number: int) -> int:
        return number

    return square, total, keep, order


if _is_known(_BEFORE):  # without, there is nothing to test, and nothing to skip

    @pytest.mark.parametrize("mixed", [_BEFORE], indirect=True)
    def test_a_worker_without_groups_loses_none(
        mixed: Mixed, request: pytest.FixtureRequest
    ) -> None:
        """It runs calls and buries them, with the reason; redriven after the update they complete their groups.

        Runs that it knows go on with either version, and no step is called again that was recorded.
        """
        lab = mixed.lab
        app = QWorker(lab.namespace, url=lab.url)
        request.addfinalizer(app.close)
        square, total, _, order = tasks(app)
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


if _is_known(_BEFORE_REST):

    @pytest.mark.parametrize("mixed", [_BEFORE_REST], indirect=True)
    def test_a_worker_that_does_not_cancel_the_rest_sends_the_callback(
        mixed: Mixed, request: pytest.FixtureRequest
    ) -> None:
        """Each callback comes once beside either version; the others are cancelled once this one alone is left."""
        lab = mixed.lab
        app = QWorker(lab.namespace, url=lab.url)
        request.addfinalizer(app.close)
        square, _, keep, _ = tasks(app)
        calls, ends = app.queue("calls"), app.queue("ends")

        def race(first: int, *, delay: str = "1s") -> list[int]:
            """Start groups whose later calls are due when the first one has ended, and wait until all is over."""
            firsts = range(first, first + 3 * _GROUPS, 3)
            handles = []
            for n in firsts:
                late = square.options(delay=delay)
                members = [square.call(n), late.call(n + 1), late.call(n + 2)]
                raced = group(members, policy="first", cancel_rest=True)
                handles.append(raced.then(keep).start())
            assert [handle.result("1m") for handle in handles] == [n * n for n in firsts]
            until(lambda: (calls.inspect().stored, ends.inspect().stored) == (0, 0), every_s=0.1)
            squared = sorted(number for number, _ in lab.noted("squared") if number >= first)
            assert len(set(squared)) == len(squared), "a call has run twice"
            assert set(firsts) <= set(squared)
            return squared

        old = [mixed.worker("old"), mixed.daemon("old")]
        assert race(0) == [*range(3 * _GROUPS)], "an earlier version lets the others run"
        new = [mixed.worker("new"), mixed.daemon("new")]
        race(100)
        for process in old:
            mixed.stop(process)
        before = calls.inspect().stats.get("cancelled", 0)
        assert race(200, delay="10s") == [*range(200, 200 + 3 * _GROUPS, 3)]
        seen = calls.inspect()
        assert seen.stats["cancelled"] - before == 2 * _GROUPS
        assert (seen.dead, ends.inspect().dead) == (0, 0)
        assert len(lab.noted("kept")) == 3 * _GROUPS
        for process in new:
            mixed.stop(process)
