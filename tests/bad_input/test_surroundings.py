"""A worker in poor surroundings, and beside handlers that leave something behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.consumer.driving import until
from tests.consumer.workers import ROOT, Lab
from tests.timing import DEADLINE_S

pytestmark = pytest.mark.slow

HANDLE = """
@app.task
def handle(n: int) -> None:
    print("größer", chr(0xD800).encode("utf-8", "replace"))
    note("handled", n)
"""


@pytest.mark.bad_input("surroundings: nowhere to write, no HOME, no locale")
@pytest.mark.skipif(
    not Path("/proc").is_dir(), reason="needs a directory that no user can write to"
)
def test_a_worker_needs_no_home_no_place_to_write_and_no_locale(lab: Lab) -> None:
    """Started in a read-only directory, without HOME, TMPDIR or a locale: it works as anywhere else."""
    lab.app(HANDLE)
    lab.send_many("handle", 3)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "qworker",
            "run",
            "jobs",
            "--burst",
            "--procs",
            "1",
            "--metrics-port",
            "0",
        ],
        cwd="/proc",
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{ROOT}:{lab.directory}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "QWORKER_URL": lab.url,
            "HOME": "/proc/nonexistent",
            "TMPDIR": "/proc",
            "LC_ALL": "C",
        },
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert {n for (n,) in lab.noted("handled")} == {0, 1, 2}
    assert b"Traceback" not in done.stderr


@pytest.mark.bad_input("surroundings: no /dev/shm")
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks into /proc")
def test_a_worker_needs_no_shared_memory_file_system(lab: Lab) -> None:
    """The boards of its children are memory without a name: nothing of it is open in /dev/shm or /tmp."""
    lab.app(HANDLE)
    lab.send("handle", 0)
    with lab.worker() as worker:
        until(lambda: lab.notes("handled"))
        links = []
        for pid in (worker.process.pid, *worker.children()):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError):  # closed meanwhile
                    links.append(os.readlink(link))

    assert any("qworker-board" in link for link in links)
    assert not [link for link in links if link.startswith("/dev/shm")]


@pytest.mark.bad_input("surroundings: closed stdout, full disk under the log")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_under_the_log_stops_no_worker(lab: Lab) -> None:
    """Neither its own lines nor what handlers print can be written: messages are handled anyway."""
    lab.app(HANDLE)
    lab.send_many("handle", 3)
    with Path("/dev/full").open("wb") as full:
        process = subprocess.Popen(
            [sys.executable, "-m", "qworker", "run", "jobs", "--procs", "1", "--metrics-port", "0"],
            cwd=lab.directory,
            env={**lab.environ, "PYTHONUNBUFFERED": "", "QWORKER_LOG_LEVEL": "debug"},
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=full,
        )
    try:
        until(lambda: {n for (n,) in lab.noted("handled")} == {0, 1, 2})
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
    assert lab.queue().inspect().stored == 0


@pytest.mark.bad_input("surroundings: signal in the middle of a receive")
def test_signals_in_the_middle_of_a_receive_lose_nothing(lab: Lab) -> None:
    """A supervisor under a hail of signals, and its child as well, handle each message once."""
    lab.app(HANDLE)
    # Every Python reads it at its start: the supervisor imports no app. A signal with a handler interrupts what waits.
    (lab.at_start / "sitecustomize.py").write_text(
        "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: None)\n"
    )
    worker = lab.start()
    try:
        until(lambda: worker.events("child_started"))
        lab.send("handle", -1)
        until(lambda: lab.notes("handled"))
        (child,) = worker.children()
        for n in range(200):
            lab.send("handle", n)
            # Without the handler either would end by the first of them.
            psutil.Process(child).send_signal(signal.SIGUSR1)
            psutil.Process(worker.process.pid).send_signal(signal.SIGUSR1)
        until(lambda: len(lab.notes("handled")) == 201)
        until(lambda: lab.queue().inspect().stored == 0)
        assert worker.children() == [child]
    finally:
        assert worker.stop() == 0

    assert sorted(n for (n,) in lab.noted("handled")) == list(range(-1, 200))


@pytest.mark.bad_input("handler: threads and processes left behind")
def test_what_a_handler_started_keeps_its_worker_from_nothing(lab: Lab) -> None:
    """Threads and processes of a handler that ended: its message is acked, others run, the stop is in time."""
    lab.app("""
@app.task
def leave() -> None:
    import subprocess
    threading.Thread(target=time.sleep, args=(600,)).start()
    note("left", subprocess.Popen(["sleep", "600"], start_new_session=True).pid)

@app.task
def handle(n: int) -> None:
    note("handled", n)
""")
    lab.send("leave")
    lab.send_many("handle", 3)
    with lab.worker("--grace", "10m") as worker:
        until(lambda: len(lab.notes("handled")) == 3)
        until(lambda: lab.queue().inspect().stored == 0)
        assert worker.stop() == 0
        assert worker.events("child_cut_off") == []
    ((pid,),) = lab.noted("left")
    psutil.Process(pid).kill()
    assert lab.queue().inspect().stats["acked"] == 4


@pytest.mark.bad_input("number or time: prefetch times running time over the visibility")
def test_a_prefetched_batch_fits_into_its_visibility_timeout(lab: Lab) -> None:
    """However many messages a receive may take: those behind slow ones are not held until they expire."""
    lab.app("""
@app.task
def handle(n: int) -> None:
    note("handled", n, current().receive_count)
    time.sleep(0.2)
""")
    lab.send_many("handle", 15)
    with lab.worker("--batch", "1000", "--visibility", "1s"):
        until(lambda: len(lab.notes("handled")) > 2)
        most = max(lab.queue().inspect().unacked for _ in range(20))
        until(lambda: lab.queue().inspect().stored == 0)

    assert most <= 2
    assert sorted(lab.noted("handled")) == [[n, 1] for n in range(15)]
