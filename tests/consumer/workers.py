"""Real workers: `qworker run` in their own processes, and a history that outlives all of them.

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
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

import qworker
from qworker import QWorker
from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.daemon.reaper import Reaper
from qworker.engine.command import Command
from qworker.engine.raw import raw
from qworker.store.connections import ConnectionFactory
from tests.consumer.driving import DEADLINE_S
from tests.consumer.forkserver import (
    NURSERY,
    ROOT,
    UNUSED,
    Order,
    WarmProcess,
    can_fork,
    fork_server,
)

__all__ = ["Lab", "Note", "Worker"]

#: A module that says of itself that it is not installed.
ABSENT = 'raise ModuleNotFoundError(f"No module named {__name__!r}", name=__name__)\n'
PRELUDE = """
import asyncio, ctypes, json, os, signal, sys, threading, time
from qworker import {names}

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


class GrowingFile:
    """The lines of a file that others append to, each read once: a test asks for them hundreds of times."""

    def __init__(self, path: Path, parse: Callable[[str], Any]) -> None:
        self._path, self._parse = path, parse
        self._at = 0
        self._parsed: list[Any] = []

    def read(self) -> list[Any]:
        """Return what each line is parsed to, but for None; the last line may be on its way."""
        if self._path.stat().st_size < self._at:
            self._at, self._parsed = 0, []
        with self._path.open("rb") as file:
            file.seek(self._at)
            whole = file.read().rpartition(b"\n")[0]
        if whole:
            self._at += len(whole) + 1
            parsed = map(self._parse, whole.decode(errors="replace").splitlines())
            self._parsed += [document for document in parsed if document is not None]
        return self._parsed


class Worker:
    """A `qworker run`: its process, its log, its children."""

    def __init__(
        self, command: list[str], directory: Path, environ: dict[str, str], *, warm: bool = False
    ) -> None:
        self.log = directory / f"worker-{time.monotonic_ns()}.log"
        self._events = GrowingFile(self.log, _event)
        self.process: subprocess.Popen[bytes] | WarmProcess
        with self.log.open("wb") as log:
            if warm:
                module, *arguments = command[command.index("-m") + 1 :]
                order = Order(module, arguments, str(directory), environ, nursery=True)
                self.process = fork_server().start(order, log)
                return
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
        return [event for event in self._events.read() if not name or event["event"] == name]

    def children(self) -> list[int]:
        """The pids of the children that live."""
        try:
            children = psutil.Process(self.process.pid).children()
        except psutil.NoSuchProcess:
            return []
        return [child.pid for child in children if not _is_nursery(child)]

    def wait(self) -> int:
        """Wait until it has ended, and return the exit code."""
        return self.process.wait(DEADLINE_S)

    def pids(self) -> list[int]:
        """Its own pid and those of its children."""
        return [self.process.pid, *self.children()]

    def stop(self, within_s: float = DEADLINE_S) -> int:
        """Send SIGTERM and return the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(within_s)

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self.process.kill()
        self.process.wait(DEADLINE_S)


class Lab:
    """One namespace on one server, with apps, workers and a history.

    A test may stop or kill its server only where that is its own. `warm`: its workers are forked from a process that
    has imported already, unless their interpreter is to start in another way.
    """

    def __init__(self, url: str, namespace: str, directory: Path, *, warm: bool = True) -> None:
        self.url = url
        self.namespace = namespace
        self.directory = directory
        self.history = directory / "history"
        self.history.touch()
        #: On the path of all of its workers, before packages: a `sitecustomize` there is run as they start.
        self.at_start = directory / "at_start"
        self.at_start.mkdir(exist_ok=True)
        for name in UNUSED:
            (self.at_start / f"{name}.py").write_text(ABSENT)
        self._notes = GrowingFile(self.history, _note)
        self.sender = QWorker(namespace, url=url)
        self._workers: list[Worker] = []
        self._warm = warm and can_fork()

    def app(self, source: str, name: str = "jobs") -> None:
        """Write the module of an app: imports, `app` and `note` are there already."""
        # Each is a module more that every process of a worker imports.
        names = [name for name in qworker.__all__ if name == "QWorker" or name in source]
        head = PRELUDE.format(
            names=", ".join(names), namespace=self.namespace, history=str(self.history)
        )
        (self.directory / f"{name}.py").write_text(head + source)

    @property
    def environ(self) -> dict[str, str]:
        """The environment of a worker, to which those of `UNUSED` are not installed."""
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("QWORKER")},
            "PYTHONPATH": f"{ROOT}{os.pathsep}{self.at_start}",
            "QWORKER_URL": self.url,
            "QWORKER_LOG_FORMAT": "json",
        }

    def start(
        self,
        *flags: str,
        spec: str = "jobs",
        python: tuple[str, ...] = (),
        environ: dict[str, str | None] | None = None,
    ) -> Worker:
        """Start `qworker run` with one child, unless the flags say otherwise; a variable of None is taken away."""
        given = () if "--procs" in flags else ("--procs", "1")
        command = [sys.executable, *python, "-m", "qworker", "run", spec, "--metrics-port", "0"]
        changed = {**self.environ, **(environ or {})}
        variables = {name: value for name, value in changed.items() if value is not None}
        worker = Worker(
            [*command, *given, *flags],
            self.directory,
            variables,
            warm=self._warm and not python and fork_server().resembles(variables, self.environ),
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
                    continue  # a server that is frozen is what some tests want

        thread = threading.Thread(target=reap)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(DEADLINE_S)
            client.close()

    @cached_property
    def server_pid(self) -> int:
        """The pid of the server."""
        command: Command[bytes] = raw("INFO", "server")
        (pid,) = re.findall(rb"process_id:(\d+)", self.sender.client.execute(command))
        return int(pid)

    def queue(self, name: str = "default") -> Queue:
        """One of the queues."""
        return self.sender.queue(name)

    def send(self, task: str, *args: object, queue: str = "default", **options: Any) -> str:
        """Send one call."""
        return self.queue(queue).send({"task": task, "args": list(args)}, **options)

    def send_many(self, task: str, count: int, queue: str = "default") -> None:
        """Send calls with the numbers from 0 on."""
        self.queue(queue).send_many([{"task": task, "args": [n]} for n in range(count)])

    def notes(self, word: str = "") -> list[Note]:
        """The history so far; all of it, or the lines of one word."""
        return [note for note in self._notes.read() if not word or note.word == word]

    def noted(self, word: str) -> list[list[Any]]:
        """What was noted with a word, without times and processes."""
        return [note.rest for note in self.notes(word)]

    def close(self) -> None:
        """End what still runs."""
        for worker in self._workers:
            if worker.process.poll() is None:
                for pid in worker.pids():
                    for signum in (signal.SIGCONT, signal.SIGKILL):
                        try:
                            os.kill(pid, signum)
                        except ProcessLookupError:
                            continue
                worker.process.wait(DEADLINE_S)
        self.sender.close()


def _is_nursery(process: psutil.Process) -> bool:
    try:
        return process.name() == NURSERY
    except psutil.NoSuchProcess:
        return False


def _event(line: str) -> dict[str, Any] | None:
    document: dict[str, Any] | None = json.loads(line) if line.startswith("{") else None
    return document


def _note(line: str) -> Note:
    at, pid, word, *rest = json.loads(line)
    return Note(at, pid, word, rest)


def _as_it_is(reply: bytes) -> bytes:
    return reply
