"""One child process as its supervisor holds it: the process, its board and its control socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

import msgspec

from qworker.consumer.board import Board, ChildState, boot_time
from qworker.consumer.child import CONFIG_VARIABLE, STOP
from qworker.consumer.manifest import ChildConfig, Manifest

if TYPE_CHECKING:
    from qworker.consumer.board import RunningView

__all__ = ["ChildProcess"]

#: What a child may overrun its limit by before it is ended: an async handler is cancelled within this.
_MERCY_S: Final = 0.5


class ChildProcess:
    """A started child. `stopping` says why it was asked to end, '' if it was not."""

    def __init__(self, config: ChildConfig, slots: int) -> None:
        self.number = config.number
        self.board = Board.create(slots)
        ours, theirs = socket.socketpair()
        self._control = ours
        self._control.setblocking(False)
        settings = msgspec.structs.replace(
            config, board=self.board.descriptor, control=theirs.fileno(), slots=slots
        )
        environment = dict(os.environ)
        environment[CONFIG_VARIABLE] = msgspec.json.encode(settings).decode()
        try:
            # close_fds keeps every other descriptor out of the child: a sibling that held our end of
            # a control socket would keep that socket open after our death.
            self.process = subprocess.Popen(
                [sys.executable, "-m", "qworker.consumer.child"],
                pass_fds=(self.board.descriptor, theirs.fileno()),
                env=environment,
                stdin=subprocess.DEVNULL,
            )
        finally:
            theirs.close()
        self.started = time.monotonic()
        self.manifest: Manifest | None = None
        self.stopping = ""
        self.overdue: tuple[RunningView, ...] = ()
        self._received = b""

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def ready(self) -> bool:
        """Whether it has imported the app and receives."""
        return self.board.state == ChildState.READY

    def read_manifest(self) -> Manifest | None:
        """Return the manifest when it arrives, once; None before and after."""
        if self.manifest is not None:
            return None
        try:
            while chunk := self._control.recv(65536):
                self._received += chunk
        except (BlockingIOError, ConnectionError):
            pass
        if not self._received.endswith(b"\n"):
            return None
        self.manifest = msgspec.json.decode(self._received, type=Manifest)
        return self.manifest

    def stop(self, why: str) -> None:
        """Ask the child to take nothing new and to end when what runs has ended."""
        if not self.stopping:
            self.stopping = why
        self.board.stop = True
        try:
            self._control.send(STOP)
        except OSError:
            return  # it has ended

    def kill(self, overdue: tuple[RunningView, ...] = ()) -> None:
        """End the process at once; `overdue` are the handlers that it is ended for."""
        self.overdue = overdue
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)

    def overdue_handlers(self) -> tuple[RunningView, ...]:
        """The handlers that have run past their limit, and past what a cancellation takes."""
        now = boot_time()
        return tuple(
            view for view in self.board.running() if view.limit and now > view.limit + _MERCY_S
        )

    def ended(self) -> int | None:
        """The exit code once the process has ended; negative for a signal."""
        return self.process.poll()

    def close(self) -> None:
        """Free the board and the control socket of an ended child."""
        self._control.close()
        self.board.close()
