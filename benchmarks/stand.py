"""Where benchmarks run: their own server on a loopback port, our processes beside it, and what both cost."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import psutil

from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.engine.raw import raw
from qworker.store.connections import ConnectionFactory
from qworker.store.embedded.private import PrivateStore
from qworker.wire.keys import reapers_key, workers_key
from tests.relay import Relay

__all__ = ["NAMESPACE", "PAD", "Background", "Plan", "Spent", "Stand", "cpu_s", "wait_until"]

NAMESPACE = "bench"
#: With a number before it, arguments of about 100 bytes of JSON.
PAD = "x" * 56
_DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure, against whom, and where to report progress."""

    messages: int
    rounds: int
    peers: tuple[str, ...]
    say: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Spent:
    """What the server has spent so far: CPU seconds, reads of its sockets (round trips), commands run."""

    cpu_s: float
    reads: int
    commands: int

    def __sub__(self, before: Spent) -> Spent:
        return Spent(
            self.cpu_s - before.cpu_s, self.reads - before.reads, self.commands - before.commands
        )

    def per(self, messages: int) -> dict[str, float]:
        """Give measures per message."""
        return {
            "cpu_us": self.cpu_s / messages * 1e6,
            "round_trips": self.reads / messages,
            "commands": self.commands / messages,
        }


class Background:
    """A process beside the benchmark, with all that it starts."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self._log = process, log

    def check(self) -> None:
        """Raise if it has ended."""
        if self.process.poll() is not None:
            said = self._log.read_text(errors="replace")[-600:]
            raise RuntimeError(f"{self.process.args!r} ended: {self.process.returncode}\n{said}")

    def metrics_url(self) -> str:
        """Name its page of metrics; it has to log as JSON."""
        wait_until(lambda: b"metrics_served" in self._log.read_bytes())
        lines = map(json.loads, self._log.read_text().splitlines())
        port = next(line["port"] for line in lines if line["event"] == "metrics_served")
        return f"http://127.0.0.1:{port}/metrics"

    def family(self) -> list[psutil.Process]:
        """List the process and its descendants."""
        me = psutil.Process(self.process.pid)
        return [me, *me.children(recursive=True)]

    def cpu_s(self) -> float:
        """CPU seconds of the family."""
        return sum(cpu_s(process.pid) for process in self.family())

    def signal(self, number: int) -> None:
        """Send a signal to the family."""
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)


class Stand:
    """A new server without persistence on a loopback port: every contender of every round gets one."""

    #: The program of all of them; None: the one that `qworker run` would take.
    binary: ClassVar[str | None] = None
    #: How far away it is, in ms; 0 is right beside.
    rtt_ms: ClassVar[float] = 0.0

    def __init__(self) -> None:
        self._port = str(_free_port())
        self._looks = 0
        self._store = PrivateStore(
            arguments=("--port", self._port, "--appendonly", "no", "--save", ""), binary=self.binary
        )

    @classmethod
    @contextmanager
    def away(cls, rtt_ms: float) -> Iterator[None]:
        """Put servers that start meanwhile this far away, instead of where the command line puts them."""
        usual, cls.rtt_ms = cls.rtt_ms, rtt_ms
        try:
            yield
        finally:
            cls.rtt_ms = usual

    def __enter__(self) -> Self:
        self._store.__enter__()
        near = self.url = f"redis://127.0.0.1:{self._port}/0"
        self._relay = Relay(near, rtt_ms=self.rtt_ms) if self.rtt_ms else None
        if self._relay is not None:
            self.url = self._relay.__enter__().url
        self.directory, self.engine = self._store.directory, self._store.engine
        self.factory = ConnectionFactory(self.url)
        self.client = Client(self.factory)
        self._near = Client(ConnectionFactory(near))
        #: It looks at the server, and has no part in what is measured.
        self.redis = ConnectionFactory(near).redis()
        return self

    def __exit__(self, *error: object) -> None:
        self.redis.close()
        self.client.close()
        self._near.close()
        if self._relay is not None:
            self._relay.__exit__(None, None, None)
        self._store.__exit__(None, None, None)

    def spent(self) -> Spent:
        """Read what the server has spent so far, without commands and trips of this and of `stored`."""
        stats = self.redis.info("stats")
        calls = self.redis.info("commandstats")
        commands = sum(stat["calls"] for name, stat in calls.items() if name != "cmdstat_info")
        reads = stats["total_reads_processed"]
        return Spent(cpu_s(self._store.pid), reads - self._looks, commands - self._looks)

    def thread_s(self) -> float:
        """Read the CPU seconds of the server's thread that runs commands; of all threads but on Linux."""
        path = Path(f"/proc/{self._store.pid}/task/{self._store.pid}/schedstat")
        return int(path.read_text().split()[0]) / 1e9 if path.exists() else cpu_s(self._store.pid)

    def about(self) -> str:
        """Name the server, its version and its allocator, which decides what a long queue costs."""
        allocator = self.redis.info("memory")["mem_allocator"]
        return f"{self.engine.name} {self.engine.version} ({allocator})"

    def memory(self) -> int:
        """Bytes that the server's data takes.

        Without the buffers of its clients, and as the least of several looks: what a call needs comes and goes.
        """
        looks: list[int] = []
        for _ in range(5):
            info = self.redis.info("memory")
            looks.append(info["used_memory"] - info["mem_clients_normal"])
            time.sleep(0.02)
        return min(looks)

    def queue(self, name: str = "work") -> Queue:
        """Name a queue in the namespace `bench`."""
        return Queue(self.client, NAMESPACE, name)

    def near(self, name: str) -> Queue:
        """Name a queue for what is no part of what is measured, right beside the server."""
        return Queue(self._near, NAMESPACE, name)

    @contextmanager
    def start(self, *words: str, **environ: str) -> Iterator[Background]:
        """Run a Python module (`words`: its name and arguments) until the context ends."""
        log = self.directory / f"{words[0]}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", *words],
                env=dict(os.environ, **environ),
                stdout=out,
                stderr=out,
            )
        try:
            yield Background(process, log)
        finally:
            process.terminate()
            process.wait()

    @staticmethod
    def popen(*words: str) -> subprocess.Popen[str]:
        """Run a Python module that is talked to over its input and output."""
        return subprocess.Popen(
            [sys.executable, "-m", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @contextmanager
    def qworker(self, *words: str, **environ: str) -> Iterator[Background]:
        """Run `qworker` with the words, and wait until its workers or its reaper are there."""
        key = workers_key(NAMESPACE) if words[0] == "run" else reapers_key(NAMESPACE)
        environ = {"QWORKER_URL": self.url, "QWORKER_NAMESPACE": NAMESPACE, **environ}
        with self.start("qworker", *words, "--metrics-port", "0", **environ) as running:

            def is_there() -> bool:
                running.check()
                if words[0] == "daemon":
                    return bool(self.redis.exists(key))
                return any(b'"state":"running"' in hval for hval in self.redis.hvals(key))

            wait_until(is_there)
            yield running

    def stored(self, queue: Queue) -> int:
        """Count the messages of a queue that are not done, with a plain command."""
        self._looks += 1
        return self.client.execute(
            raw("HGET", queue.keys.stats, "stored", decode=lambda reply: int(reply or 0))
        )


def wait_until(
    condition: Callable[[], bool], *, limit_s: float = _DEADLINE_S, step_s: float = 0.005
) -> None:
    """Ask again and again until the condition holds; raises `TimeoutError` after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing came of it in {limit_s:g} s")
        time.sleep(step_s)


def cpu_s(pid: int) -> float:
    """CPU seconds of a process with all its threads, to the nanosecond where the kernel counts so."""
    files = list(Path(f"/proc/{pid}/task").glob("*/schedstat"))
    # Without the files, or where a thread ends meanwhile, in hundredths of a second.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        if files:
            return sum(int(path.read_text().split()[0]) for path in files) / 1e9
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
