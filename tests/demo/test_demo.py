"""`qworker demo` on a small folder: the account, its JSON, and that nothing is left running."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from qworker.demo.app import QUEUES, app, index_file
from qworker.demo.run import Demo
from qworker.demo.sources import find_sources
from qworker.demo.view import PlainView
from qworker.store.embedded.store import PrivateStore
from tests.timing import DEADLINE_S

pytestmark = pytest.mark.slow

BODY = "class A:\n    def method(self):\n        return [n for n in range(10)]\n\n\n"
COMMAND = (
    "import sys; from qworker.demo import run_demo; "
    "sys.exit(run_demo(sys.argv[1], json='--json' in sys.argv, procs=2))"
)


def folder(root: Path, *, good: int, size: int = 1) -> Path:
    """Write `good` modules, one with syntax that Python 3.7 lacks and one that is not UTF-8."""
    for number in range(good):
        (root / f"good_{number:03}.py").write_text("import os\n" + BODY * size)
    (root / "new.py").write_text("if (n := 1): pass\n")
    (root / "latin.py").write_bytes(b"# coding: latin-1\nname = '\xe9'\n")
    return root


def start(path: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(path), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(path: Path, *arguments: str) -> tuple[int, str, str]:
    process = start(path, *arguments)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_the_last_line_of_stdout_is_one_json_object_and_everything_is_accounted_for(tmp_path):
    code, out, err = run(folder(tmp_path, good=18), "--json")
    assert code == 0, err
    document = json.loads(out.splitlines()[-1])
    assert len(out.splitlines()) == 1
    # 20 files to index and 20 to check, 20 summaries; one is too new, one is not UTF-8. A file that the killed worker
    # had indexed but not acked is indexed again, and sends its summary again.
    assert (document["lost"], document["dead"]) == (0, 2)
    assert 60 <= document["sent"] <= 60 + document["duplicates"]
    assert document["handled"] == document["sent"] - 2
    assert document["dead_by_reason"] == {"max_receives": 1, "rejected": 1}
    # Of three tries of the one that is too new, unless one of them was the kill.
    assert document["retried"] in (1, 2)
    assert (document["files"], document["indexed"], document["symbols"]) == (20, 20, 36)
    assert document["seconds"] > 0
    assert document["messages_per_s"] == pytest.approx(
        document["sent"] / document["seconds"], rel=0.01
    )


def test_into_a_pipe_go_plain_lines_of_ascii(tmp_path):
    code, out, _ = run(folder(tmp_path, good=3))
    assert code == 0
    assert out.isascii()
    assert "\x1b" not in out
    assert "  lost                    0   sent, and neither handled nor dead\n" in out


def test_a_worker_is_killed_and_others_handle_its_messages(tmp_path):
    code, out, err = run(folder(tmp_path, good=150, size=300), "--json")
    document = json.loads(out.splitlines()[-1])
    assert code == 0, err
    assert document["workers_killed"] == 1
    assert document["redelivered"] >= 1
    assert document["lost"] == 0
    assert document["indexed"] == 152
    assert "killed with SIGKILL while it held" in err
    assert "are back in their queues" in err


def test_a_message_that_vanishes_from_the_queue_is_reported_as_lost(tmp_path):
    """The test takes a message out of the list, and the run ends with exit code 1."""
    with (
        PrivateStore() as store,
        Demo(store, find_sources(folder(tmp_path, good=8)), _silent(), procs=1) as demo,
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


def test_a_killed_worker_of_divided_queues_held_the_messages_of_its_leases(tmp_path):
    """Leases are numbered by the shards that a worker receives from, not by the queues."""
    # Enough that not all are done when the demo, on a busy machine, looks for the moment of its kill.
    with (
        PrivateStore() as store,
        Demo(store, find_sources(folder(tmp_path, good=900, size=40)), _silent(), procs=1) as demo,
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
    process = start(folder(tmp_path, good=400, size=300))
    children = _wait_for_children(process.pid, 3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, err
    assert "stopped by SIGINT; the workers are stopped, nothing is left running" in out
    assert "Traceback" not in err
    _assert_gone(children)


def test_a_killed_demo_leaves_neither_workers_nor_a_store(tmp_path):
    process = start(folder(tmp_path, good=400, size=300))
    children = _wait_for_children(process.pid, 3)
    store = next(line for line in process.stdout if "unix://" in line)
    directory = Path(store.partition("unix://")[2].partition("/s,")[0])
    assert directory.is_dir()
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    _assert_gone(children)
    _wait_until(lambda: not directory.exists())


def _silent() -> PlainView:
    return PlainView(io.StringIO())


def _wait_for_children(pid: int, number: int) -> list[psutil.Process]:
    """Wait until two workers and the store's watcher run."""
    process = psutil.Process(pid)
    _wait_until(lambda: len(process.children()) >= number)
    time.sleep(0.5)
    return process.children(recursive=True)


def _assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=DEADLINE_S)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def _wait_until(condition) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_environment_is_as_before(tmp_path):
    before = dict(os.environ)
    with (
        PrivateStore() as store,
        Demo(store, find_sources(folder(tmp_path, good=1)), _silent(), procs=1) as demo,
    ):
        demo.send()
        demo.work()
    assert dict(os.environ) == before
