"""A command line against the shared server, in a namespace of the test's own."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from qworker.cli.main import cli
from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.engine.attributes import configure
from qworker.engine.options import QueueAttributes
from qworker.engine.raw import raw
from qworker.engine.settle import Outcomes, settle
from qworker.store.connections import ConnectionFactory
from qworker.store.nodes import Address
from qworker.wire.codec import encode_call
from qworker.wire.keys import QueueKeys, reapers_key, workers_key
from tests.consumer.forkserver import Order, WarmProcess, can_fork, fork_server
from tests.timing import DEADLINE_S

#: The console script of the environment that runs the tests.
QWORKER = Path(sys.executable).with_name("qworker")


@dataclass(frozen=True)
class Ran:
    """What a command line came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@dataclass(frozen=True)
class Shop:
    """A namespace to put things into."""

    client: Client
    namespace: str
    url: str

    def queue(self, name: str = "emails") -> Queue:
        return Queue(self.client, self.namespace, name)

    def keys(self, name: str = "emails") -> QueueKeys:
        return QueueKeys(self.namespace, name)

    def ask(self, *words: str | int | bytes, node: Address | None = None) -> Any:
        return self.client.execute(raw(*words, node=node))

    def ask_each(self, *words: str) -> list[Any]:
        """Ask every master of a Cluster, or the one server."""
        return [self.ask(*words, node=node) for node in self.client.factory.masters()]

    def send(self, name: str = "emails", number: int = 1, **options: Any) -> list[str]:
        """Send calls of `send_email` with a number each."""
        bodies = [encode_call("send_email", [at], {}) for at in range(number)]
        return self.queue(name).send_many(bodies, **options)

    def bury(self, *errors: str, name: str = "emails", task: str = "send_email") -> None:
        """Leave a dead letter for each error."""
        queue = self.queue(name)
        queue.send_many([encode_call(task, [1], {})] * len(errors))
        for message, error in zip(queue.receive(len(errors)), errors, strict=True):
            queue.bury(message, error=error)

    def rate_limit(self, name: str = "emails", group: str | None = None) -> None:
        """Let a queue wait for a minute, or a group of it, as if a handler had raised `RateLimited`."""
        queue = self.queue(name)
        queue.send("limited", group=group)
        (message,) = queue.receive(1)
        asked = Outcomes(message.receipt.lease_id)
        asked.limit("0", 60_000)
        self.client.execute(settle(queue.keys, [asked]))

    def configure(self, name: str = "emails", **attributes: Any) -> None:
        """Set these attributes and no others."""
        meta = QueueAttributes(**attributes).meta()
        defaults = QueueAttributes().meta()
        changes = {key: value for key, value in meta.items() if value != defaults[key]}
        self.client.execute(configure(self.keys(name), changes))

    def break_queue(self, name: str) -> None:
        """Register a queue, one of whose keys holds another type."""
        self.ask("HSET", f"{self.namespace}:queues", name, 1)
        self.ask("SET", self.keys(name).delayed, "x")

    def now_ms(self) -> int:
        seconds, microseconds = self.ask("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000

    def add_worker(self, name: str = "web-1-a", *, age_ms: int = 0, **fields: Any) -> None:
        now_ms = self.now_ms()
        entry = {
            "name": name,
            "host": "web",
            "pid": 1,
            "app": "shop.tasks",
            "started_ms": now_ms - 3_600_000,
            "seen_ms": now_ms - age_ms,
            "queues": ["emails"],
            "concurrency": 4,
            "handled_per_s": 12.5,
            "children": [
                {
                    "pid": 77,
                    "state": "running",
                    "handled": 1234,
                    "failed": 5,
                    "rss_bytes": 52_428_800,
                    "running": [{"task": "send_email", "id": "lease-1:0", "seconds": 3.2}],
                }
            ],
            **fields,
        }
        self.ask("HSET", workers_key(self.namespace), name, json.dumps(entry))

    def add_reaper(self, name: str = "host:1:ab", *, age_ms: int = 0) -> None:
        self.ask("ZADD", reapers_key(self.namespace), self.now_ms() - age_ms, name)

    def dump(self) -> dict[bytes, bytes]:
        """Everything in the namespace, byte for byte."""
        keys = self.ask("KEYS", f"{self.namespace}:*")
        return {key: self.ask("DUMP", key) for key in keys}


@pytest.fixture
def shop(store_url: str, namespace: str) -> Iterator[Shop]:
    with Client(ConnectionFactory(store_url), give_up_s=5.0) as client:
        yield Shop(client, namespace, store_url)


def clean_environment(**variables: str) -> dict[str, str]:
    """The environment without what would configure us, plus `variables`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("QWORKER_", "REDIS_"))
        and name not in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS", "LINES")
    }
    return {**kept, "TERM": "xterm-256color", **variables}


@pytest.fixture
def in_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory without a configuration file."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a server that is away up at once."""
    monkeypatch.setattr("qworker.cli.framework.context._PATIENCE_S", 0.05)
    monkeypatch.setattr("qworker.cli.doctor._PATIENCE_S", 0.05)


@pytest.fixture
def bare(in_empty_directory: Path) -> Callable[..., Ran]:
    """Run a command line in this process, configured by nothing but its arguments and `env`."""

    def run(*args: str, stdin: str | bytes | None = None, env: dict[str, str] | None = None) -> Ran:
        wiped: dict[str, str | None] = {
            name: None for name in os.environ if name.startswith(("QWORKER_", "REDIS_"))
        }
        result = CliRunner().invoke(cli, list(args), input=stdin, env={**wiped, **(env or {})})
        return Ran(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def run(shop: Shop, bare: Callable[..., Ran]) -> Callable[..., Ran]:
    """Run a command line in this process, against the shop."""

    def run_in_shop(*args: str, stdin: str | bytes | None = None, **env: str) -> Ran:
        variables = {"QWORKER_URL": shop.url, "QWORKER_NAMESPACE": shop.namespace, **env}
        return bare(*args, stdin=stdin, env=variables)

    return run_in_shop


@pytest.fixture
def process(shop: Shop, tmp_path: Path) -> Callable[..., Ran]:
    """Run a command line in a separate process, its output in pipes."""

    def run_process(*args: str, stdin: bytes = b"", **env: str) -> Ran:
        variables = {"QWORKER_URL": shop.url, "QWORKER_NAMESPACE": shop.namespace, **env}
        environ = clean_environment(**variables)
        if not stdin and can_fork() and fork_server().resembles(environ, environ):
            return _run_forked(Order("qworker", list(args), str(tmp_path), environ))
        done = subprocess.run(
            [str(QWORKER), *args],
            input=stdin,
            capture_output=True,
            env=environ,
            cwd=tmp_path,
            timeout=60,
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run_process


def _run_forked(order: Order) -> Ran:
    pipes = [os.pipe(), os.pipe()]
    process = fork_server().start(order, *(writing for _, writing in pipes))
    for _, writing in pipes:
        os.close(writing)
    with ThreadPoolExecutor(2) as pool:
        out, err = pool.map(_read_whole, [reading for reading, _ in pipes])
    return Ran(process.wait(60), out, err)


def _read_whole(descriptor: int) -> str:
    with os.fdopen(descriptor) as file:
        return file.read()


def table(lines: Sequence[str]) -> list[dict[str, str]]:
    """Read a plain table whose cells hold no double spaces."""
    titles = re.split(r" {2,}", lines[0].strip())
    return [dict(zip(titles, re.split(r" {2,}", line.strip()), strict=False)) for line in lines[1:]]


@dataclass
class Terminal:
    """A command line on its own terminal, 100 columns by 30 lines unless the test says otherwise."""

    process: subprocess.Popen[bytes] | WarmProcess
    descriptor: int
    seen: str = ""

    def read_until(self, text: str, within_s: float = DEADLINE_S) -> str:
        """Read until `text` was shown; returns all that was."""
        deadline = time.monotonic() + within_s
        while text not in self.seen:
            self._read(deadline, f"{text!r} was not shown")
        return self.seen

    def write(self, keys: str) -> None:
        """Type, once the process waits: a signal just before `input` blocks would be seen after the next key only."""
        while psutil.Process(self.process.pid).status() != psutil.STATUS_SLEEPING:
            time.sleep(0.001)
        os.write(self.descriptor, keys.encode())

    def wait(self, within_s: float = DEADLINE_S) -> int:
        """Wait for the end; returns the exit code."""
        deadline = time.monotonic() + within_s
        while self.process.poll() is None:
            self._read(deadline, "it did not end")
        self._read(time.monotonic() + 0.05, "")
        return self.process.returncode

    def _read(self, deadline: float, problem: str) -> None:
        readable, _, _ = select.select([self.descriptor], [], [], 0.05)
        if readable:
            try:
                self.seen += os.read(self.descriptor, 65536).decode("utf-8", "replace")
            except OSError:  # Linux: the other end was closed.
                time.sleep(0.01)
        if problem and time.monotonic() > deadline:
            raise AssertionError(f"{problem}; seen so far:\n{self.seen}")


@pytest.fixture
def terminal(shop: Shop, tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Start command lines on terminals; what still runs is ended with the test."""
    started: list[Terminal] = []

    def start(*args: str, columns: int = 100, **env: str) -> Terminal:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        variables = {"QWORKER_URL": shop.url, "QWORKER_NAMESPACE": shop.namespace, **env}
        environ = clean_environment(**variables)
        process: subprocess.Popen[bytes] | WarmProcess
        if can_fork() and fork_server().resembles(environ, environ):
            order = Order("qworker", list(args), str(tmp_path), environ, terminal=True)
            process = fork_server().start(order, theirs)
        else:
            process = subprocess.Popen(
                [str(QWORKER), *args],
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                env=environ,
                cwd=tmp_path,
                start_new_session=True,
                # Its controlling terminal, so that Ctrl-C is a signal.
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            )
        os.close(theirs)
        started.append(Terminal(process, ours))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()
        os.close(each.descriptor)
