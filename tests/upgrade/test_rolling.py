"""Workers, daemons and producers of two versions under load, of which the old ones stop one by one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from qworker.errors import StaleReceiptError
from tests.consumer.driving import until
from tests.consumer.forkserver import Order, WarmProcess, start_module
from tests.consumer.workers import ROOT, Lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

APP = """
import qworker

@app.task
def handle(key: str) -> None:
    note("handled", key, qworker.__file__)
"""
#: Sends until it is stopped; each key is noted once it is accepted.
PRODUCER = """
import sys
from jobs import *

running = True
def stop(*_):
    global running
    running = False
signal.signal(signal.SIGTERM, stop)
number = 0
while running:
    number += 1
    handle.send(f"{sys.argv[1]}-{number}")
    note("sent", f"{sys.argv[1]}-{number}")
    time.sleep(0.02)
"""
#: Sends, receives, and does not come back to it.
HOLD = """
from jobs import *

for number in range(30):
    handle.send(f"new-{number}")
    note("sent", f"new-{number}")
app.queue("default").receive(5, visibility="1s")
time.sleep(600)
"""
#: Settles what was received elsewhere, and tells what it receives itself.
SETTLE = """
import sys
from jobs import *

queue = app.queue("default")
queue.ack(queue.received(sys.argv[1]))
queue.release(queue.received(sys.argv[2]), delay="1h")
(message,) = queue.receive(2, visibility="1h")
print(message.receipt)
"""


@pytest.fixture
def mixed(lab: Lab, following: Path) -> Iterator[Mixed]:
    """A lab with the app, where both versions can be started."""
    lab.app(APP)
    (lab.directory / "producer.py").write_text(PRODUCER)
    mixed = Mixed(lab, following)
    yield mixed
    mixed.close()


class Mixed:
    """Processes of this version (`old`) and of the next one (`new`) on one namespace."""

    def __init__(self, lab: Lab, following: Path) -> None:
        self.lab = lab
        self.paths = {"old": str(ROOT), "new": str(following)}
        self._processes: list[subprocess.Popen[bytes] | WarmProcess] = []

    def environ(self, version: str) -> dict[str, str]:
        """The environment of a version."""
        path = f"{self.paths[version]}{os.pathsep}{self.lab.at_start}"
        return {**self.lab.environ, "PYTHONPATH": path}

    def start(self, version: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a Python process of a version."""
        with (self.lab.directory / f"{version}-{len(self._processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=self.lab.directory,
                env=self.environ(version),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self._processes.append(process)
        return process

    def start_module(
        self, version: str, module: str, *words: str
    ) -> subprocess.Popen[bytes] | WarmProcess:
        """Start a module with a version; with ours it is forked, as what forks has imported ours."""
        if self.paths[version] != str(ROOT):
            return self.start(version, "-m", module, *words)
        order = Order(
            module, [*words], str(self.lab.directory), self.environ(version), nursery=True
        )
        with (self.lab.directory / f"{version}-{len(self._processes)}.log").open("wb") as log:
            self._processes.append(start_module(order, log))
        return self._processes[-1]

    def daemon(self, version: str) -> subprocess.Popen[bytes] | WarmProcess:
        return self.start_module(
            version,
            *("qworker", "daemon", "--namespace", self.lab.namespace),
            *("--tick", "100ms", "--metrics-port", "0", "--durability", "off"),
        )

    def producer(self, version: str) -> subprocess.Popen[bytes] | WarmProcess:
        return self.start_module(version, "producer", version)

    def worker(self, version: str) -> subprocess.Popen[bytes] | WarmProcess:
        words = ("run", "jobs", "--procs", "1", "--metrics-port", "0")
        return self.start_module(version, "qworker", *words)

    def handled(self) -> Counter[str]:
        """How often each key was handled."""
        return Counter(key for key, _ in self.lab.noted("handled"))

    def by(self, version: str) -> set[str]:
        """The keys that a version has handled."""
        return {
            key for key, file in self.lab.noted("handled") if file.startswith(self.paths[version])
        }

    def sent(self) -> set[str]:
        return {key for (key,) in self.lab.noted("sent")}

    def stop(self, process: subprocess.Popen[bytes] | WarmProcess) -> None:
        """Stop a process as an upgrade does: with SIGTERM, and time to finish."""
        process.terminate()
        assert process.wait(60) == 0

    def close(self) -> None:
        """End what still runs."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def test_a_rolling_upgrade_loses_nothing(mixed: Mixed) -> None:
    """Both versions work side by side; the old ones stop one by one under load; each message is handled once."""
    old = [mixed.producer("old"), mixed.daemon("old"), mixed.worker("old")]
    until(lambda: mixed.by("old"))
    new = [mixed.daemon("new"), mixed.producer("new"), mixed.worker("new")]
    until(lambda: {key[:3] for key in mixed.by("new")} == {"old", "new"})
    for process in old:
        before = len(mixed.handled())
        mixed.stop(process)
        until(lambda before=before: len(mixed.handled()) > before + 20)
    mixed.stop(new[1])
    until(lambda: mixed.lab.queue().inspect().stored == 0)

    assert mixed.handled() == Counter(mixed.sent())
    assert not {key for key in mixed.by("old") if key.startswith("new")}
    assert mixed.lab.queue().inspect().dead == 0
    for process in (new[0], new[2]):
        mixed.stop(process)


@pytest.mark.bad_input("data found: unknown version")
def test_messages_of_the_next_version_wait_for_its_workers(mixed: Mixed) -> None:
    """Workers and daemons of this one leave them in place and count them, and handle what comes behind them.

    Among them five that a worker of the next version held when it died: a daemon of this one takes them back.
    """
    queue = mixed.lab.queue()
    held = mixed.start("new", "-c", HOLD)
    until(lambda: queue.inspect().unacked == 5)
    held.kill()
    held.wait()
    old = [mixed.daemon("old"), mixed.worker("old")]
    queue.send_many([{"task": "handle", "args": [f"old-{number}"]} for number in range(20)])
    until(lambda: len(mixed.by("old")) == 20 and not queue.inspect().unacked)
    waiting = queue.inspect()
    assert (waiting.ready, waiting.stored, waiting.dead) == (30, 30, 0)
    assert waiting.stats["unsupported"] >= 30

    mixed.worker("new")
    until(lambda: queue.inspect().stored == 0)

    assert len(mixed.by("new")) == 30
    assert mixed.handled() == Counter([*mixed.sent(), *(f"old-{number}" for number in range(20))])
    for process in old:
        mixed.stop(process)


def test_either_version_settles_the_leases_of_the_other(mixed: Mixed) -> None:
    """By receipt: an ack ends the message, a release gives it back, and both count once."""
    queue = mixed.lab.queue()
    queue.send_many([{"task": "handle", "args": [name]} for name in "abc"])
    mine = queue.receive(2, visibility="1h")

    done = subprocess.run(
        [sys.executable, "-c", SETTLE, *(str(message.receipt) for message in mine)],
        cwd=mixed.lab.directory,
        env=mixed.environ("new"),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert queue.ack(*mine) == []
    theirs = queue.received(done.stdout.strip())
    assert theirs.json()["args"] == ["c"]
    assert queue.ack(theirs) == [theirs]
    with pytest.raises(StaleReceiptError):
        queue.received(theirs.receipt)
    left = queue.inspect()
    assert (left.delayed, left.unacked, left.stats["acked"], left.stats["released"]) == (1, 0, 2, 1)
