"""Starts workers and daemons as users do, and reads what their handlers wrote."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from qworker import QWorker
from tests import servers
from tests.scenarios import app as scenario

__all__ = ["History", "Rig", "lives", "rig", "until"]


def until(condition: Callable[[], object], within_s: float, what: str) -> None:
    """Wait for a condition; fail with `what` when it does not come in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.02)


def lives(process: psutil.Process) -> bool:
    """Whether a process still runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@dataclass
class History:
    """The lines of the history file, by event."""

    path: Path
    _lines: list[list[str]] = field(default_factory=list)

    def read(self) -> History:
        """Read what was written so far."""
        text = self.path.read_text() if self.path.exists() else ""
        self._lines = [line.split() for line in text.splitlines()]
        return self

    def count(self, event: str) -> Counter[int]:
        """How often each number had an event."""
        return Counter(int(line[1]) for line in self._lines if line[0] == event)

    def times(self, event: str) -> dict[int, list[float]]:
        """When each number had an event."""
        found = defaultdict(list)
        for line in self._lines:
            if line[0] == event:
                found[int(line[1])].append(float(line[4]))
        return found

    def receives(self) -> dict[int, list[int]]:
        """The receive counts with which each number started."""
        found = defaultdict(list)
        for line in self._lines:
            if line[0] == "start":
                found[int(line[1])].append(int(line[3]))
        return found


class Rig:
    """One server, the processes around it, and the app bound to it."""

    def __init__(self, server: servers.Server, namespace: str, path: Path) -> None:
        self.server = server
        self.namespace = namespace
        self.history = History(path / "history")
        self.app = QWorker(namespace, url=server.url)
        self.app.tasks = scenario.app.tasks
        self._processes: list[subprocess.Popen[bytes]] = []
        self._log = (path / "log").open("ab")
        self._environ = dict(
            os.environ,
            QWORKER_URL=server.url,
            QWORKER_NAMESPACE=namespace,
            SCENARIO_NAMESPACE=namespace,
            SCENARIO_HISTORY=str(self.history.path),
        )

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start `qworker <words>`."""
        process = subprocess.Popen(
            [sys.executable, "-m", "qworker", *words, "--metrics-port", "0"],
            env=self._environ,
            stderr=self._log,
            stdout=self._log,
        )
        self._processes.append(process)
        return process

    def worker(self, *words: str, procs: int = 1) -> subprocess.Popen[bytes]:
        """Start a worker of the scenario app and wait until its children are there."""
        process = self.start("run", "tests.scenarios.app", "--procs", str(procs), *words)
        until(lambda: len(self.children(process)) >= procs, 10, "children started")
        return process

    @staticmethod
    def children(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
        """The child processes of a worker that hold user code."""
        try:
            found = psutil.Process(process.pid).children()
            return [each for each in found if "qworker.consumer.child" in " ".join(each.cmdline())]
        except psutil.Error:
            return []

    def send(self, task: str, *calls: tuple[object, ...]) -> list[str]:
        """Send calls of a task."""
        chosen = scenario.app.tasks[task]
        queue = self.app.queue(chosen.queue)
        operations = queue.operations
        options = chosen.default_options
        messages = [
            operations.new_message(chosen.signature.encode(call, {}), options) for call in calls
        ]
        return queue.store(messages, options)

    def drained(self, name: str = "work") -> bool:
        """Whether nothing is stored in a queue."""
        return self.app.queue(name).inspect().stored == 0

    def close(self) -> None:
        """End every process that is left."""
        for process in self._processes:
            children = self.children(process)
            if process.poll() is None:
                process.kill()
            process.wait()
            for child in children:
                if child.is_running():
                    child.send_signal(signal.SIGKILL)
        self.app.close()
        self._log.close()


@contextmanager
def rig(namespace: str, path: Path) -> Iterator[Rig]:
    """A rig on a server of its own."""
    with servers.start("valkey") as server:
        made = Rig(server, namespace, path)
        try:
            yield made
        finally:
            made.close()
