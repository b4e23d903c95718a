"""The fork server of the tests: what it starts is what `qworker run` starts."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.consumer.driving import until
from tests.consumer.forkserver import can_fork, fork_server
from tests.consumer.workers import Lab

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_fork(), reason="forks on Linux, unless QWORKER_TEST_COLD is set"),
]

PORTRAIT = r"""
import gc, locale, re
import qworker

PACKAGE = os.path.dirname(qworker.__file__)

def status(pid):
    lines = open(f"/proc/{pid}/status").read().splitlines()
    return [line for line in lines if line.startswith(("SigB", "SigI", "SigC", "Umask"))]

def files(pid):
    links = []
    for each in os.listdir(f"/proc/{pid}/fd"):
        try:
            links.append(os.readlink(f"/proc/{pid}/fd/{each}"))
        except FileNotFoundError:
            continue
    # Connections, and modules and scripts that are being read, come and go. libffi keeps itself open from the first
    # callback on that ctypes makes, here in the process that is forked.
    passing = re.compile("socket:|.*/libffi[.]so|" + re.escape(PACKAGE))
    return sorted(re.sub(r"\d+", "N", link) for link in links if not passing.match(link))

def of_stream(stream):
    return [
        stream.name, stream.mode, stream.encoding, stream.errors,
        stream.write_through, stream.line_buffering, type(stream.buffer).__name__,
        os.get_inheritable(stream.fileno()),
    ]

@app.task
def sit(way):
    parent = os.getppid()
    note(way, {
        "environ": {name: value for name, value in os.environ.items()},
        "directory": os.getcwd(),
        "path": sys.path,
        "arguments": sys.argv,
        "main": sys.modules["__main__"].__spec__.name,
        "streams": [of_stream(sys.stdout), of_stream(sys.stderr)],
        "handlers": [getattr(signal.getsignal(n), "__name__", signal.getsignal(n)) for n in (1, 2, 13, 15)],
        "status": [status(os.getpid()), status(parent)],
        "files": [files(os.getpid()), files(parent)],
        "session": os.getsid(0) == os.getpid(),
        "group": os.getpgrp() == os.getpid(),
        "parents": [os.getsid(parent), os.getpgid(parent)],
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "garbage": [gc.isenabled(), gc.get_threshold()],
        "limits": sys.getrecursionlimit(),
        "locale": locale.getlocale(),
        "loop": type(asyncio.get_event_loop_policy()).__name__,
    })
"""


def sockets_of(pid: int) -> set[str]:
    """The sockets that a process has open, each with a number of its own."""
    links = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            links.add(os.readlink(descriptor))
    return {link for link in links if link.startswith("socket:")}


@pytest.mark.nightly("test_the_end_of_a_forked_worker_is_told")
def test_a_forked_worker_is_as_one_that_was_started(lab: Lab, tmp_path: Path) -> None:
    """Handlers find the same environment, paths, streams, signals and descriptors, and so does their supervisor.

    So they do in a child that replaces another one, which the nursery forks.
    """
    lab.app(PORTRAIT)
    started = Lab(lab.url, lab.namespace, tmp_path, warm=False)
    for way, each in (("forked", lab), ("started", started)):
        with each.worker() as worker:
            # Before, the supervisor starts threads, and the C library blocks all signals meanwhile.
            until(lambda worker=worker: worker.events("worker_ready"))
            lab.send("sit", way)
            until(lambda way=way: lab.notes(way))
            assert {note.pid for note in lab.notes(way)} == set(worker.children())
            if way == "forked":
                os.kill(worker.children()[0], signal.SIGKILL)
                lab.send("sit", "replaced")
                until(lambda: lab.notes("replaced"))
                assert {note.pid for note in lab.notes("replaced")} == set(worker.children())
            inherited = sockets_of(fork_server().process.pid)
            assert inherited
            assert not inherited & set().union(*map(sockets_of, worker.pids()))
        assert worker.process.returncode == 0
    started.close()
    [[usual]] = lab.noted("started")
    for way in ("forked", "replaced"):
        [[portrait]] = lab.noted(way)
        assert portrait.keys() == usual.keys()
        assert {
            name: (portrait[name], usual[name]) for name in usual if portrait[name] != usual[name]
        } == {}


def test_the_end_of_a_forked_worker_is_told(lab: Lab) -> None:
    """By its exit code, or the signal that ended it; a wait that is too short raises as that of a `Popen` does."""
    lab.app("@app.task\ndef handle(): ...\n")
    worker = lab.start()
    until(lambda: worker.events("child_started"))
    assert worker.process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        worker.process.wait(0.01)
    (child,) = map(psutil.Process, worker.children())
    os.kill(worker.process.pid, signal.SIGKILL)
    assert worker.wait() == worker.process.returncode == -signal.SIGKILL
    worker.process.terminate()  # as for a Popen, this is no error
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    assert lab.start(spec="nothing").wait() == 2
