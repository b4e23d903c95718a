"""How workers and children start, and what is said when they cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from qworker.consumer.child.process.green import check_unpatched
from qworker.consumer.options import RunOptions
from qworker.consumer.supervisor.processes.cpus import usable_cpus
from qworker.errors import AppLoadError, InvalidOptionError
from tests.consumer.workers import Lab
from tests.timing import DEADLINE_S

pytestmark = pytest.mark.slow

HANDLE = """
@app.task
def handle(n):
    note("handled", n)
"""


def run(lab: Lab, *flags: str) -> tuple[int, str]:
    """Run a worker to its end; returns its exit code and what it wrote."""
    worker = lab.start(*flags)
    return worker.wait(), worker.log.read_text()


@pytest.mark.parametrize(
    "closed",
    [
        pytest.param(
            "1>&-", marks=pytest.mark.nightly("test_a_worker_without_standard_streams_works")
        ),
        "0<&- 1>&- 2>&-",
    ],
)
def test_a_worker_without_standard_streams_works(lab: Lab, closed: str) -> None:
    """Closed stdin, stdout and stderr are not a problem, for the worker and for its children."""
    lab.app(HANDLE)
    lab.send("handle", 1)
    command = (
        f"exec {sys.executable} -m qworker run jobs --metrics-port 0 --procs 1 --burst {closed}"
    )
    process = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=lab.directory,
        env=lab.environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert "Traceback" not in process.stderr + process.stdout
    assert lab.noted("handled") == [[1]]


def test_an_import_error_is_shown_whole(lab: Lab) -> None:
    """The traceback of the user's module comes line by line, without frames of ours, the error last; exit code 2."""
    lab.app("""
def deeper(n):
    if n == 0:
        raise RuntimeError("the settings are missing")
    deeper(n - 1)

deeper(6)
""")
    code, log = run(lab)
    assert code == 2
    lines = log.splitlines()
    at = lines.index("Traceback (most recent call last):")
    assert lines[at + 1].lstrip().startswith('File "')
    assert "jobs.py" in lines[at + 1]
    assert lines[-2] == "RuntimeError: the settings are missing"
    assert lines[-1] == "error: 'jobs' cannot be imported: RuntimeError: the settings are missing"
    assert "[Previous line repeated 3 more times]" in log
    assert "manifest.py" not in log


def test_a_burst_gives_up_where_the_import_kills_the_process(lab: Lab) -> None:
    """After three children that died while they imported the app it ends with an error."""
    lab.app("os._exit(5)\n" + HANDLE)
    code, log = run(lab, "--burst")
    assert code == 2
    assert "exited with code 5 while it imported the app, 3 times" in log


def test_an_app_that_green_threads_have_patched_is_refused(lab: Lab) -> None:
    """What gevent replaces a child cannot do without: it says so instead of standing still."""
    (lab.directory / "gevent").mkdir()
    (lab.directory / "gevent" / "__init__.py").touch()
    (lab.directory / "gevent" / "monkey.py").write_text(
        "def is_module_patched(name): return name == 'socket'\n"
    )
    lab.app("import gevent.monkey\n" + HANDLE)
    code, log = run(lab)
    assert code == 2
    assert "gevent" in log
    assert "leave it out of what a worker imports" in " ".join(log.split())


@pytest.mark.parametrize(
    ("module", "question"),
    [("gevent.monkey", "is_module_patched"), ("eventlet.patcher", "is_monkey_patched")],
)
def test_what_green_threads_replace_is_told(
    module: str, question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By gevent and eventlet alike; one that has replaced nothing is not in the way."""
    replaced: set[str] = set()
    fake = SimpleNamespace(**{question: replaced.__contains__})
    monkeypatch.setitem(sys.modules, module, cast(Any, fake))
    check_unpatched()
    replaced.add("socket")
    with pytest.raises(AppLoadError, match=module.partition(".")[0]):
        check_unpatched()


def test_a_loop_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The option names what to install, before anything is started."""
    monkeypatch.setattr("qworker.consumer.options.find_spec", lambda name: None)
    with pytest.raises(InvalidOptionError, match="pip install uvloop"):
        RunOptions(loop="uvloop")
    assert RunOptions(loop="auto").loop == "auto"


@pytest.mark.parametrize(
    ("files", "membership", "cpus"),
    [
        ({}, "0::/\n", 3),
        ({"cpu.max": "max 100000"}, "0::/\n", 3),
        ({"cpu.max": "150000 100000"}, "0::/\n", 2),
        ({"cpu.max": "10000 100000"}, "0::/\n", 1),
        ({"a/cpu.max": "100000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b\n", 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu,cpuacct:/\n", 3),
        (
            {"cpu/a/cpu.cfs_quota_us": "200000", "cpu/a/cpu.cfs_period_us": "100000"},
            "5:memory:/\n4:cpu,cpuacct:/a\n",
            2,
        ),
        ({"cpu.max": "what is this"}, "nonsense\n\xff\n", 3),
    ],
)
def test_cpus_are_those_that_may_be_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    membership: str,
    cpus: int,
) -> None:
    """Affinity and the quota of any group above count, whichever is less; a part of a CPU is one."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2, 5}, raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "membership").write_text(membership, encoding="utf-8")
    assert usable_cpus(tmp_path, tmp_path / "membership") == cpus
