"""Processes that handlers start: what they get of the child they come from, which is nothing that acts in its name.

A program that is started by exec gets no descriptor of ours, and the usual signals. A process that is only forked
(`os.fork`, `multiprocessing`, `pty.fork`) is a copy of the child, down to its connections: as long as it held their
sockets, the server would go on waiting for a dead child, and would give it the next message.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import structlog

if TYPE_CHECKING:
    from qworker.consumer.broker import Broker
    from qworker.consumer.delivery import Delivery

__all__ = ["ForkGuard", "leave_signals_to_supervisor"]

_log = structlog.get_logger(__name__)

#: The signals that end a worker: its supervisor acts on them, and a child that gets them as well does not.
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STDERR: Final = 2


def leave_signals_to_supervisor() -> None:
    """Let the signals that end a worker do nothing here.

    By a handler and not by SIG_IGN, which every program that a handler starts would inherit: `Popen.terminate()` would
    do nothing. What is caught is reset by exec.
    """
    for signum in _SIGNALS:
        if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:  # nohup
            signal.signal(signum, _nothing)
    # Blocked by who started it; not to be handed on to what a handler starts.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


class ForkGuard:
    """Makes a forked copy of a child harmless, at once and in the copy alone. `sockets` are the child's own."""

    def __init__(self, *sockets: socket.socket) -> None:
        self._sockets: Sequence[socket.socket] = sockets
        self._broker: Broker | None = None
        self._thread = threading.local()

    def install(self) -> None:
        """Guard every fork from now on, for as long as the process lives."""
        os.register_at_fork(
            before=self._block, after_in_parent=self._unblock, after_in_child=self._forked
        )

    def mind(self, broker: Broker) -> None:
        """Guard a broker's connections as well."""
        self._broker = broker

    def _block(self) -> None:
        """Hold signals back until the copy treats them as any process does: it would not hear a quick `terminate()`."""
        self._thread.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._thread.mask)

    def _forked(self) -> None:
        # Its last words would be taken for the child's.
        faulthandler.enable(_STDERR)
        for each in self._sockets:
            each.close()
        if self._broker is not None:
            self._broker.let_go(_end_copy)
        for signum in _SIGNALS:
            if signal.getsignal(signum) is _nothing:
                usual = signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL
                signal.signal(signum, usual)
        self._unblock()


def _nothing(_signum: int, _frame: FrameType | None) -> None:
    """Do nothing."""


def _end_copy(
    delivery: Delivery | None = None, error: BaseException | None = None, **_: Any
) -> NoReturn:
    """End a copy that comes out of its handler: the message is the child's, whose handler goes on."""
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    else:
        _log.warning(
            "forked_handler_returned",
            task=delivery.task.name if delivery is not None and delivery.task else None,
            advice="end what os.fork() makes with os._exit()",
        )
        if error is not None:
            traceback.print_exception(error)
            code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue  # closed
    os._exit(code & 0xFF)
