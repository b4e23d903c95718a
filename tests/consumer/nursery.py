"""A process with one thread, from which a supervisor with several has its later children forked.

A forked process has only the thread that forked it, and what the others had locked stays locked in it. So a nursery is
forked before there are others. Its grandchildren become children of the supervisor as orphans do, by adoption.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from tests.consumer.forkserver import NURSERY

__all__ = ["Nursery", "close_all_but"]

_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
#: Above all numbers that descriptors have in a child.
_HIGH: Final = 512
#: What ends or interrupts a whole group of processes, and not the nursery, which ends with its supervisor.
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_libc: Final = ctypes.CDLL(None, use_errno=True)

Become = Callable[[str, Collection[int], Mapping[str, str], int], NoReturn]


class _Request(msgspec.Struct):
    """A child to fork: its module, its environment, and the numbers of the descriptors that come along."""

    module: str
    environ: dict[str, str]
    numbers: list[int]


class Nursery:
    """The nursery of this process, which has one thread yet.

    `become` makes a child of a forked process: of a module, descriptors, an environment, and what to close then.
    """

    def __init__(self, become: Become) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if not os.fork():
            close_all_but({0, 1, 2, theirs.fileno()})
            _serve(theirs, become)
        theirs.close()

    def start(self, module: str, inherited: Sequence[int], environ: Mapping[str, str]) -> int:
        """Fork a child of this process; returns its pid when it is set up."""
        request = _Request(module, dict(environ), list(inherited))
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            socket.send_fds(self._requests, [msgspec.json.encode(request)], request.numbers)
            return int(self._requests.recv(32))
        finally:
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)


def close_all_but(kept: Collection[int]) -> None:
    """Close every other descriptor of this process."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                continue  # that of the listing


def _serve(requests: socket.socket, become: Become) -> NoReturn:
    """Fork for each request, until the supervisor has ended."""
    handlers = {signum: signal.signal(signum, signal.SIG_IGN) for signum in _SIGNALS}
    usual = Path("/proc/self/comm").read_text().strip()
    _libc.prctl(_PR_SET_NAME, NURSERY.encode())
    while True:
        words, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 16)
        if not words:
            os._exit(0)
        ready, done = os.pipe()
        middle = os.fork()
        if not middle:
            _leave_orphan(done)
            for signum, handler in handlers.items():
                signal.signal(signum, handler)
            _libc.prctl(_PR_SET_NAME, usual.encode())
            request = msgspec.json.decode(words, type=_Request)
            done = _place([*descriptors, done], request.numbers)
            become(request.module, request.numbers, request.environ, done)
        for descriptor in (done, *descriptors):
            os.close(descriptor)
        os.waitpid(middle, 0)
        with os.fdopen(ready, "rb") as told:
            requests.send(told.read())  # the end of it comes when the child is set up


def _leave_orphan(told: int) -> None:
    """Fork, write the pid and end; returns in the new process, which has got another parent."""
    here = os.getpid()
    pid = os.fork()
    if pid:
        os.write(told, b"%d" % pid)
        os._exit(0)
    while os.getppid() == here:
        time.sleep(0.0002)


def _place(descriptors: Sequence[int], numbers: Sequence[int]) -> int:
    """Give all descriptors but the last one these numbers, and the last one a high one, which is returned."""
    high = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _HIGH) for each in descriptors]
    for number, each in zip(numbers, high[:-1], strict=True):
        os.dup2(each, number, inheritable=False)
    return high[-1]
