"""`qworker demo` on a small folder: the account, its JSON, and that nothing is left running."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import pytest

from qworker.demo.app import QUEUES, app, index_file
from qworker.demo.run import Demo
from qworker.demo.sources import find_sources
from qworker.demo.view import PlainView
from qworker.store.embedded.store import PrivateStore
from tests.consumer.forkserver import ROOT, Order, WarmProcess, can_fork, start_module
from tests.timing import DEADLINE_S

pytestmark = pytest.mark.slow

BODY = "class A:\n    def method(self):\n        return [n for n in range(10)]\n\n\n"
_PROGRAM: Final = "tests.demo.program"


def folder(root: Path, *, good: int, size: int = 1) -> Path:
    """Write `good` modules, one with syntax that Python 3.7 lacks and one that is not UTF-8."""
    for number in range(good):
        (root / f"good_{number:03}.py").write_text("import os\n" + BODY * size)
    (root / "new.py").write_text("if (n := 1): pass\n")
    (root / "latin.py").write_bytes(b"# coding: latin-1\nname = '\xe9'\n")
    return root


@dataclass
class Run:
    """A demo in its own process, and the files that it writes to."""

    process: subprocess.Popen[bytes] | WarmProcess
    output: Path
    errors: Path

    @property
    def out(self) -> str:
        return self.output.read_text()

    @property
    def err(self) -> str:
        return self.errors.read_text()


def start(path: Path, *words: str) -> Run:
    run_dir = path.parent / f"{path.name}-run"
    run_dir.mkdir()
    output, errors = run_dir / "out", run_dir / "err"
    arguments = [str(path), *words]
    order = Order(_PROGRAM, arguments, str(ROOT), dict(os.environ), nursery=True)
    with output.open("wb") as out, errors.open("wb") as err:
        return Run(start_module(order, out, err), output, errors)


def test_a_worker_is_killed_and_everything_is_accounted_for(tmp_path):
    """Others handle its messages, and the last line of stdout is one JSON object; other lines go to stderr."""
    run = start(folder(tmp_path, good=98, size=150), "--json")
    assert run.process.wait(DEADLINE_S) == 0, run.err
    document = json.loads(run.out.splitlines()[-1])
    assert len(run.out.splitlines()) == 1
    # 100 files to index and 100 to check, 100 summaries; one is too new, one is not UTF-8. A file that the killed
    # worker had indexed but not acked is indexed again, and sends its summary again.
    assert (document["lost"], document["dead"]) == (0, 2)
    assert 300 <= document["sent"] <= 300 + document["duplicates"]
    assert document["handled"] == document["sent"] - 2
    assert document["dead_by_reason"] == {"max_receives": 1, "rejected": 1}
    # Of three tries of the one that is too new, unless one of them was the kill.
    assert document["retried"] in (1, 2)
    assert (document["files"], document["indexed"]) == (100, 100)
    assert document["symbols"] == 98 * 150 * 2
    assert document["seconds"] > 0
    assert document["messages_per_s"] == pytest.approx(
        document["sent"] / document["seconds"], rel=0.01
    )
    assert document["workers_killed"] == 1
    assert document["redelivered"] >= 1
    assert "killed with SIGKILL while it held" in run.err
    assert "are back in their queues" in run.err


def test_a_message_that_vanishes_from_the_queue_is_reported_as_lost(tmp_path):
    """The test takes a message out of the list, and the run ends with exit code 1.

    The account is plain lines of ASCII, and the environment is as before.
    """
    before, written = dict(os.environ), io.StringIO()
    view = PlainView(written)
    with (
        PrivateStore() as store,
        Demo(store, find_sources(folder(tmp_path, good=8)), view, procs=1) as demo,
    ):
        demo.send()
        queue = app.queue(index_file.queue)
        victim = queue.peek(1)[0]
        queue.pop(1)
        demo.work()
        outcome = demo.outcome()
    assert outcome.account.lost == {victim.id}
    assert outcome.exit_code == 1
    assert outcome.document()["lost"] == 1
    view.end(outcome)
    assert dict(os.environ) == before
    assert written.getvalue().isascii()
    assert "\x1b" not in written.getvalue()
    lost = "  lost                    1   sent, and neither handled nor dead\n"
    assert lost in written.getvalue()


@pytest.mark.nightly("test_a_worker_is_killed_and_everything_is_accounted_for")
def test_a_killed_worker_of_divided_queues_held_the_messages_of_its_leases(tmp_path):
    """Leases are numbered by the shards that a worker receives from, not by the queues."""
    # Enough that not all are done when the demo, on a busy machine, looks for the moment of its kill.
    with (
        PrivateStore() as store,
        Demo(store, find_sources(folder(tmp_path, good=500, size=40)), _silent(), procs=1) as demo,
    ):
        app.queue("totals").divide(2)
        app.queue("files").divide(3)
        demo.send()
        demo.work()
        outcome = demo.outcome()
    kill = demo._kill
    assert kill is not None
    assert kill.held
    assert {key.partition("}")[0].partition("{")[2].split("/")[0] for key in kill.leases} <= {
        *QUEUES
    }
    assert outcome.account.lost == frozenset()
    assert outcome.exit_code == 0


def test_ctrl_c_stops_everything_and_says_what_waited(tmp_path):
    run = start(folder(tmp_path, good=400, size=300))
    children = _wait_for_children(run.process.pid, 3)
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(DEADLINE_S) == 130, run.err
    assert "stopped by SIGINT; the workers are stopped, nothing is left running" in run.out
    assert run.out.isascii()  # no live display in a file
    assert "\x1b" not in run.out
    assert "Traceback" not in run.err
    _assert_gone(children)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_kept_store_is_stopped_by_ctrl_c_and_by_sigterm(tmp_path, number):
    """The workers have ended; the rest of the demo cleans up as well."""
    run = start(folder(tmp_path, good=2), "--keep")
    _wait_until(lambda: "The store runs until you press Ctrl-C" in run.out)
    directory = Path(run.out.partition("--url unix://")[2].partition("/s ")[0])
    assert directory.is_dir()
    run.process.send_signal(number)
    assert run.process.wait(DEADLINE_S) == 0, run.err
    assert not directory.exists()


def test_a_killed_demo_leaves_neither_workers_nor_a_store(tmp_path):
    run = start(folder(tmp_path, good=400, size=300))
    children = _wait_for_children(run.process.pid, 3)
    _wait_until(lambda: "unix://" in run.out)
    store = next(line for line in run.out.splitlines() if "unix://" in line)
    directory = Path(store.partition("unix://")[2].partition("/s,")[0])
    assert directory.is_dir()
    run.process.kill()
    run.process.wait(DEADLINE_S)
    _assert_gone(children)
    _wait_until(lambda: not directory.exists())


def _silent() -> PlainView:
    return PlainView(io.StringIO())


def _wait_for_children(pid: int, number: int) -> list[psutil.Process]:
    """Wait until two workers and the store's watcher run."""
    process = psutil.Process(pid)
    number += can_fork()  # the nursery
    _wait_until(lambda: len(process.children()) >= number)
    return process.children(recursive=True)


def _assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=DEADLINE_S)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def _wait_until(condition) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
