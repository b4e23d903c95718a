"""Real workers: `qworker run` in processes of their own, and a history that outlives all of them.

    lab.app('''
    @app.task
    def double(n: int) -> None:
        note("doubled", n)
    ''')
    lab.send("double", 4)
    with lab.worker("--procs", "1") as worker:
        until(lambda: lab.noted("doubled") == [[4]])

A handler notes what it does with `note(word, ...)`: one JSON line, appended by one write, fsynced where `FSYNC` is set.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from qworker import QWorker
from qworker.client.queue import Queue
from qworker.client.sync import Client
from qworker.daemon.reaper import Reaper
from qworker.store.connection import ConnectionFactory
from tests.consumer.driving import DEADLINE_S

__all__ = ["Lab", "Note", "Worker"]

ROOT = Path(__file__).parents[2]
PRELUDE = """
import asyncio, ctypes, json, os, signal, sys, threading, time
from qworker import *

app = QWorker({namespace!r})
HISTORY = os.open({history!r}, os.O_APPEND | os.O_CREAT | os.O_WRONLY)

def note(*words):
    os.write(HISTORY, (json.dumps([time.time(), os.getpid(), *words]) + "\\n").encode())

"""


@dataclass(frozen=True)
class Note:
    """One line of the history: when, by which process, a word, and what came with it."""

    at: float
    pid: int
    word: str
    rest: list[Any]


def whole_lines(path: Path) -> list[str]:
    """Read the lines of a file that others append to; the last one may be on its way."""
    return path.read_text(errors="replace").rpartition("\n")[0].splitlines()


class Worker:
    """A `qworker run`: its process, its log, its children."""

    def __init__(self, command: list[str], directory: Path, environ: dict[str, str]) -> None:
        self.log = directory / f"worker-{time.monotonic_ns()}.log"
        self._terminated = self._waited_s = 0.0
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=directory,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """What the log tells, in order; all, or events of one name."""
        found = []
        for line in whole_lines(self.log):
            if line.startswith("{"):
                event = json.loads(line)
                if not name or event["event"] == name:
                    found.append(event)
        return found

    def children(self) -> list[int]:
        """The pids of the children that live."""
        try:
            return [child.pid for child in psutil.Process(self.process.pid).children()]
        except psutil.NoSuchProcess:
            return []

    def wait(self) -> int:
        """Wait until it has ended by itself, and return the exit code."""
        return self.process.wait(DEADLINE_S)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._terminated = time.monotonic()
        self._waited_s = _waited_for_a_core_s(self.process.pid)
        self.process.terminate()

    def end_s(self) -> float:
        """Wait until it has ended, and return the seconds since `terminate`, without those waited for a core.

        On a machine with more to do than cores the latter say nothing about the worker.
        """
        # Not reaped yet: the system still has its account.
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        waited_s = _waited_for_a_core_s(self.process.pid) - self._waited_s
        return time.monotonic() - self._terminated - waited_s

    def stop(self, within_s: float = DEADLINE_S) -> int:
        """Send SIGTERM and return the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(within_s)

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self.process.kill()
        self.process.wait(10)


def _waited_for_a_core_s(pid: int) -> float:
    """Seconds that a process could have run and had no core; 0 where the system keeps no such account."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


class Lab:
    """One namespace on one server, with apps, workers and a history.

    `server_pid`: the server's, where it is the test's own; else 0.
    """

    def __init__(self, url: str, namespace: str, directory: Path, *, server_pid: int = 0) -> None:
        self.url = url
        self.server_pid = server_pid
        self.namespace = namespace
        self.directory = directory
        self.history = directory / "history"
        self.history.touch()
        self.sender = QWorker(namespace, url=url)
        self._workers: list[Worker] = []

    def app(self, source: str, name: str = "jobs") -> None:
        """Write the module of an app: imports, `app` and `note` are there already."""
        head = PRELUDE.format(namespace=self.namespace, history=str(self.history))
        (self.directory / f"{name}.py").write_text(head + source)

    @property
    def environ(self) -> dict[str, str]:
        """The environment of a worker."""
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("QWORKER")},
            "PYTHONPATH": str(ROOT),
            "QWORKER_URL": self.url,
            "QWORKER_LOG_FORMAT": "json",
        }

    def start(
        self,
        *flags: str,
        spec: str = "jobs",
        python: tuple[str, ...] = (),
        environ: dict[str, str] | None = None,
    ) -> Worker:
        """Start `qworker run` with one child, unless the flags say otherwise."""
        given = () if "--procs" in flags else ("--procs", "1")
        command = [sys.executable, *python, "-m", "qworker", "run", spec, "--metrics-port", "0"]
        worker = Worker(
            [*command, *given, *flags], self.directory, {**self.environ, **(environ or {})}
        )
        self._workers.append(worker)
        return worker

    @contextmanager
    def worker(
        self, *flags: str, spec: str = "jobs", python: tuple[str, ...] = ()
    ) -> Iterator[Worker]:
        """Run a worker until the block ends, and stop it gracefully."""
        worker = self.start(*flags, spec=spec, python=python)
        yield worker
        worker.stop()

    @contextmanager
    def reaper(self, tick_s: float = 0.2) -> Iterator[None]:
        """Reap in a thread until the block ends."""
        client = Client(ConnectionFactory(self.url))
        reaper = Reaper(client, self.namespace, tick_ms=round(tick_s * 1000))
        ended = threading.Event()

        def reap() -> None:
            while not ended.wait(tick_s):
                try:
                    reaper.tick()
                except Exception:
                    continue  # a server that stands still is what some tests want

        thread = threading.Thread(target=reap)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(30)
            client.close()

    def queue(self, name: str = "default") -> Queue:
        """One of the queues."""
        return self.sender.queue(name)

    def send(self, task: str, *args: object, queue: str = "default", **options: object) -> str:
        """Send one call."""
        return self.queue(queue).send({"task": task, "args": list(args)}, **options)

    def send_all(self, task: str, count: int, queue: str = "default") -> None:
        """Send calls with the numbers from 0 on."""
        self.queue(queue).send_all([{"task": task, "args": [n]} for n in range(count)])

    def notes(self, word: str = "") -> list[Note]:
        """The history so far; all of it, or the lines of one word."""
        found = []
        for line in whole_lines(self.history):
            at, pid, *words = json.loads(line)
            if not word or words[0] == word:
                found.append(Note(at, pid, words[0], words[1:]))
        return found

    def noted(self, word: str) -> list[list[Any]]:
        """What was noted with a word, without times and processes."""
        return [each.rest for each in self.notes(word)]

    def close(self) -> None:
        """End what still runs."""
        for worker in self._workers:
            if worker.process.poll() is None:
                for pid in [worker.process.pid, *worker.children()]:
                    for signum in (signal.SIGCONT, signal.SIGKILL):
                        try:
                            os.kill(pid, signum)
                        except ProcessLookupError:
                            continue
                worker.process.wait(10)
        self.sender.close()
