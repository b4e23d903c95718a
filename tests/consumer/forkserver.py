"""Warm starts: a fork server that has imported what `qworker run` imports, and workers that it forks.

Most of the start of a worker is its imports, in two processes. A test that is about what workers do pays for them
once per pytest process. What is started how, and what differs, is in CONTRIBUTING.md.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

__all__ = [
    "NURSERY",
    "ROOT",
    "UNUSED",
    "ForkServer",
    "Order",
    "WarmProcess",
    "can_fork",
    "fork_server",
    "start_module",
]

ROOT: Final = Path(__file__).parents[2]
#: Imported for nothing where they are installed, by redis-py, and by structlog for tracebacks in colour: a sixth of the
#: start of each process, and another sixth of a supervisor's.
UNUSED: Final = ("opentelemetry", "rich")
#: The name of a process from which a supervisor has its later children forked.
NURSERY: Final = "nursery"
#: What an interpreter reads as it starts, or the C library: a forked process has what the fork server has.
_AT_START: Final = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "GLIBC_", "TZ")


class Order(msgspec.Struct, frozen=True):
    """One process to fork: what stands behind `python -m`, its directory and its environment.

    `terminal`: what it writes to is its controlling terminal, from which it reads as well, in a session of its own.
    `nursery`: it starts children when it has more than one thread, too.
    """

    module: str
    arguments: list[str]
    directory: str
    environ: dict[str, str]
    terminal: bool = False
    nursery: bool = False


class WarmProcess:
    """A forked process, as far as `subprocess.Popen` goes; the fork server collects it and tells its exit code."""

    def __init__(self, arguments: Sequence[str], pid: int, pidfd: int, news: socket.socket) -> None:
        self.args = list(arguments)
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd = pidfd
        self._news = news

    def poll(self) -> int | None:
        """Return the exit code once it has ended, negative for a signal."""
        return self._read_within(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; raises `TimeoutExpired` after so many seconds."""
        code = self._read_within(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, signum: int) -> None:
        """Send a signal to the process if it has not ended."""
        if self.poll() is None:
            try:
                signal.pidfd_send_signal(self._pidfd, signum)
            except ProcessLookupError:
                return  # it ends just now

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _read_within(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._news], [], [], timeout)[0]:
            news = self._news.recv(32)
            if not news:
                raise RuntimeError(f"the fork server has ended before its process {self.pid}")
            self.returncode = int(news)
            self._news.close()
            os.close(self._pidfd)
        return self.returncode


class ForkServer:
    """The fork server of one pytest process. It ends when this end of its socket is closed: at the latest with us."""

    def __init__(self) -> None:
        self.environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("QWORKER") and name != "PYTHONPATH"
        }
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.consumer.forked", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                cwd=ROOT,
                env=self.environ,
                stdin=subprocess.DEVNULL,
            )

    def close(self) -> None:
        """End it."""
        self._orders.close()
        self.process.wait()

    def resembles(self, environ: Mapping[str, str], usual: Mapping[str, str]) -> bool:
        """Whether an interpreter would start alike in an environment, which imports from the paths of the usual one."""
        paths = {name: path for name, path in usual.items() if name == "PYTHONPATH"}
        same = {**self.environ, **paths}
        return _read_at_start(environ) == _read_at_start(same)

    def start(
        self, order: Order, log: BinaryIO | int, errors: BinaryIO | int | None = None
    ) -> WarmProcess:
        """Fork a process that writes to `log`, a file or its descriptor, and its errors to `errors` if that is given.

        Returns once it is a process of its own, before it has done anything.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            streams = [_descriptor(log), _descriptor(log if errors is None else errors)]
            socket.send_fds(self._orders, [msgspec.json.encode(order)], [theirs.fileno(), *streams])
        words, (pidfd, *_), _, _ = socket.recv_fds(ours, 32, 1)
        return WarmProcess([order.module, *order.arguments], int(words), pidfd, ours)


@cache
def fork_server() -> ForkServer:
    """Return the fork server of this process, which the first caller starts, and which ends with this process."""
    server = ForkServer()
    atexit.register(server.close)
    return server


def can_fork() -> bool:
    """Whether workers may be forked here: on Linux, unless QWORKER_TEST_COLD is set."""
    return sys.platform == "linux" and not os.environ.get("QWORKER_TEST_COLD")


def start_module(
    order: Order, out: BinaryIO, errors: BinaryIO | None = None
) -> WarmProcess | subprocess.Popen[bytes]:
    """Start what an order says: forked, or by exec where that cannot be."""
    if can_fork():
        return fork_server().start(order, out, errors)
    return subprocess.Popen(
        [sys.executable, "-m", order.module, *order.arguments],
        cwd=order.directory,
        env=order.environ,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out if errors is None else errors,
    )


def _descriptor(stream: BinaryIO | int) -> int:
    return stream if isinstance(stream, int) else stream.fileno()


def _read_at_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_AT_START)}
