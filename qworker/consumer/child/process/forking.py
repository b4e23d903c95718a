"""Keeps processes that handlers start from acting for the child.

A program started by exec inherits none of our descriptors, and gets the usual signals. A process that is only forked
(`os.fork`, `multiprocessing`, `pty.fork`) is a copy of the child, down to its connections: while it held their sockets,
the server would serve the wait of a dead child, and deliver the next message to it.
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

from qworker.telemetry.logger import logger

if TYPE_CHECKING:
    from qworker.consumer.child.leases.delivery import Delivery
    from qworker.consumer.child.loop import Broker

__all__ = ["ForkGuard", "leave_signals_to_supervisor"]

_log = logger(__name__)

#: The signals that end a worker: its supervisor acts on them, and children ignore them.
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STDERR: Final = 2


def leave_signals_to_supervisor() -> None:
    """Ignore the signals that end a worker.

    With a handler and not SIG_IGN, which programs that handlers start would inherit: `Popen.terminate()` would do
    nothing. Handlers are reset by exec.
    """
    for signum in _SIGNALS:
        if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:  # nohup
            signal.signal(signum, _nothing)
    # The supervisor had blocked them; programs that handlers start must not inherit that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


class ForkGuard:
    """Makes a forked copy of a child harmless, at the fork and in the copy only. `sockets` are the child's own."""

    def __init__(self, *sockets: socket.socket) -> None:
        self._sockets: Sequence[socket.socket] = sockets
        self._broker: Broker | None = None
        self._thread = threading.local()

    def install(self) -> None:
        """Guard every fork from now on, for as long as the process lives."""
        os.register_at_fork(
            before=self._block, after_in_parent=self._unblock, after_in_child=self._forked
        )

    def protect(self, broker: Broker) -> None:
        """Guard a broker's connections as well."""
        self._broker = broker

    def _block(self) -> None:
        """Block signals until the copy treats them as usual: else it would miss an early `terminate()`."""
        self._thread.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._thread.mask)

    def _forked(self) -> None:
        # The stack of its crash must not count as the child's.
        faulthandler.enable(_STDERR)
        for own in self._sockets:
            own.close()
        if self._broker is not None:
            self._broker.detach(_end_copy)
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
    """End a copy whose handler has ended: the message belongs to the child, whose handler continues."""
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    else:
        _log.warning(
            "forked_handler_returned",
            task=delivery.task.name if delivery is not None and delivery.task else None,
            advice="end a process made by os.fork() with os._exit()",
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
