"""The fork server, a process of its own: `python -m tests.consumer.forked DESCRIPTOR`, see `forkserver`.

It has one thread and has imported what a supervisor and a child import, but no app and nothing of a test. A forked
supervisor forks its first children in turn, and the process that it asks for the URL of the app, while it has one
thread; a child that it starts later, for one that was killed or recycled, its nursery forks.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import io
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import termios
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NoReturn

import msgspec

from tests.consumer.forkserver import UNUSED, Order
from tests.consumer.nursery import Nursery, close_all_but

__all__: list[str] = []

#: What the two processes of a worker import, as they start or later.
_IMPORTED: Final = (
    "asyncio",
    "encodings.idna",
    "qworker.app.app",
    "qworker.cli.main",
    "qworker.cli.run",
    "qworker.client.queue",
    "qworker.service.daemon",
    "qworker.service.worker",
    "qworker.consumer.child.main",
    "qworker.consumer.supervisor.app_url",
)
#: Where the standard library and packages are.
_PATHS: Final = tuple(sys.path[1:])


class ForkedChild:
    """A child that its supervisor has forked, as far as `ChildProcess` uses a `Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code once it has ended, negative for a signal."""
        return self._collect(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end, and return the exit code; raises `TimeoutExpired` after so many seconds."""
        deadline = time.monotonic() + (timeout or 0.0)
        while timeout is not None and self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"a forked child, {self.pid}", timeout)
            time.sleep(0.001)
        return self._collect(0)

    def _collect(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def main() -> None:
    """Serve until the other end is closed; in a forked process, run its order."""
    orders = socket.socket(fileno=int(sys.argv[1]))
    # Ctrl-C in a terminal is for pytest, which ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.modules.update(dict.fromkeys(UNUSED))  # type: ignore[arg-type]
    for name in _IMPORTED:
        importlib.import_module(name)
    if find_spec("uvloop"):
        importlib.import_module("uvloop")
    for name in UNUSED:
        del sys.modules[name]
    gc.collect()
    gc.freeze()
    forked = _serve(orders)
    if forked is not None:
        _run_order(*forked)


def _serve(orders: socket.socket) -> tuple[Order, list[int], int] | None:
    """Fork a process for each order and tell its pid and its end. Returns in the forked ones, and after the last order.

    A forked one gets its order, the descriptors for its output and its errors, and the one to close when it is set up.
    """
    with orders, selectors.DefaultSelector() as selector:
        selector.register(orders, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not orders:
                    selector.unregister(key.fileobj)
                    _tell_end(*key.data)
                    continue
                words, descriptors, _, _ = socket.recv_fds(orders, 1 << 20, 3)
                if not words:
                    return None
                news, *streams = descriptors
                pid, done = _fork()
                if not pid:
                    return msgspec.json.decode(words, type=Order), streams, done
                for stream in streams:
                    os.close(stream)
                pidfd = os.pidfd_open(pid)
                answer = socket.socket(fileno=news)
                socket.send_fds(answer, [b"%d" % pid], [pidfd])
                # As a number: the object would close it again in a forked process.
                selector.register(pidfd, selectors.EVENT_READ, (pid, pidfd, answer.detach()))


def _tell_end(pid: int, pidfd: int, news: int) -> None:
    _, status = os.waitpid(pid, 0)
    with suppress(BrokenPipeError):  # its test has ended already
        os.write(news, b"%d" % os.waitstatus_to_exitcode(status))
    os.close(pidfd)
    os.close(news)


def _fork() -> tuple[int, int]:
    """Fork; returns 0 and a descriptor in the new process. In this one the pid, when that descriptor is closed."""
    ready, done = os.pipe()
    pid = os.fork()
    if not pid:
        return 0, done
    os.close(done)
    os.read(ready, 1)
    os.close(ready)
    return pid, -1


def _run_order(order: Order, streams: Sequence[int], done: int) -> None:
    """Become what `python -m` with the order's module and arguments is."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
    if order.terminal:
        _take_terminal()
    close_all_but({0, 1, 2, done})
    _replace_environ(order.environ)
    os.chdir(order.directory)
    own = [path for path in order.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [order.directory, *own, *(path for path in _PATHS if path not in own)]
    sys.argv[1:] = order.arguments
    start = partial(_start_child, Nursery(_run_child) if order.nursery else None)
    from qworker.consumer.supervisor import app_url
    from qworker.consumer.supervisor.processes import process

    for starting in (app_url, process):
        starting.subprocess = SimpleNamespace(  # type: ignore[assignment]
            **{**vars(subprocess), "Popen": start}
        )
    os.close(done)
    _customize()
    runpy.run_module(order.module, run_name="__main__", alter_sys=True)


def _take_terminal() -> None:
    """Read from the terminal that this process writes to, and hear its keys as signals."""
    os.setsid()
    os.dup2(1, 0)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        old = getattr(sys, name)
        new = os.fdopen(number, mode, encoding=old.encoding, errors=old.errors, closefd=False)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _customize() -> None:
    """Run the module that an interpreter runs as it starts, if PYTHONPATH leads to one."""
    for path in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        if (file := Path(path, "sitecustomize.py")).is_file():
            runpy.run_path(str(file))
            return


def _start_child(
    nursery: Nursery | None,
    command: Sequence[str],
    *,
    pass_fds: Sequence[int],
    env: Mapping[str, str],
    **options: Any,
) -> ForkedChild | subprocess.Popen[bytes]:
    """Fork a child; where this process has more than one thread its nursery does, or an exec if it has none."""
    if len(os.listdir("/proc/self/task")) > 1:
        if nursery is None:
            return subprocess.Popen(command, pass_fds=pass_fds, env=env, **options)
        return ForkedChild(nursery.start(command[-1], pass_fds, env))
    pid, done = _fork()
    if not pid:
        _run_child(command[-1], pass_fds, env, done)
    return ForkedChild(pid)


def _run_child(
    module: str, inherited: Collection[int], environ: Mapping[str, str], done: int
) -> NoReturn:
    """Become what `python -P -m` with a module of the worker is."""
    code: object = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for signum in signal.valid_signals():
            if callable(signal.getsignal(signum)) and signum != signal.SIGINT:
                signal.signal(signum, signal.SIG_DFL)
        # Its input is nothing, as ours, in which no test writes.
        close_all_but({0, 1, 2, done, *inherited})
        _replace_environ(environ)
        del sys.path[0]
        del sys.argv[1:]
        for name, number in (("stdout", 1), ("stderr", 2)):
            _unbuffer(name, number)
        os.close(done)
        _customize()
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:  # the frames below are the supervisor's
        traceback.print_exc()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _replace_environ(environ: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environ)


def _unbuffer(name: str, number: int) -> None:
    """Replace a stream by one as PYTHONUNBUFFERED makes it."""
    old = getattr(sys, name)
    raw = io.FileIO(number, "w", closefd=False)
    new = io.TextIOWrapper(raw, old.encoding, old.errors, write_through=True)  # type: ignore[arg-type]
    raw.name = old.name
    new.mode = old.mode
    setattr(sys, name, new)
    setattr(sys, f"__{name}__", new)


if __name__ == "__main__":
    main()
