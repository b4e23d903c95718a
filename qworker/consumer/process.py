"""One child process as its supervisor holds it: the process, its board and its control socket."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

import msgspec

from qworker.consumer.board import Board, ChildState, boot_time, memory_file
from qworker.consumer.descendants import end_session, has_ended
from qworker.consumer.manifest import CONFIG_VARIABLE, STACKS, STOP, ChildConfig, Manifest
from qworker.consumer.stacks import STACKS_S, ask_for_stacks, read_file, read_stacks
from qworker.wire.keys import QueueKeys

if TYPE_CHECKING:
    from qworker.consumer.board import RunningView
    from qworker.consumer.manifest import TaskEntry

__all__ = ["ChildProcess"]

#: What a child may overrun its limit by before it is ended: an async handler is cancelled within this.
_MERCY_S: Final = 0.5
_WAIT_S: Final = 0.005


class ChildProcess:
    """A started child; raises `OSError` where none can be.

    `stopping`: why it was asked to end, or ''. `killed`: why it was ended without being asked, or ''.
    """

    def __init__(self, config: ChildConfig, slots: int) -> None:
        self.number = config.number
        self.board = Board.create(slots)
        self._stacks = memory_file("qworker-stacks")
        #: A time limit may end it while an operator asks where it is.
        self._stacks_lock = threading.Lock()
        ours, theirs = socket.socketpair()
        self._control = ours
        self._control.setblocking(False)
        settings = msgspec.structs.replace(
            config,
            board=self.board.descriptor,
            control=theirs.fileno(),
            stacks=self._stacks,
            slots=slots,
        )
        # What a handler prints is seen when it is printed, not when the child ends.
        environment = {"PYTHONUNBUFFERED": "1", **os.environ}
        environment[CONFIG_VARIABLE] = msgspec.json.encode(settings).decode()
        # As multiprocessing does it: -O, -W and -X hold for children too.
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        try:
            # close_fds keeps every other descriptor out of the child: a sibling that held our end of
            # a control socket would keep that socket open after our death.
            self.process = subprocess.Popen(
                # -P: the current directory is not looked into for what we import. See app_names.
                [sys.executable, *flags, "-P", "-m", "qworker.consumer.child"],
                pass_fds=(self.board.descriptor, theirs.fileno(), self._stacks),
                env=environment,
                stdin=subprocess.DEVNULL,
                # What its handlers start is known by it, and ends with it.
                start_new_session=True,
            )
        except OSError:
            self.close()
            raise
        finally:
            theirs.close()
        self.started = time.monotonic()
        self.manifest: Manifest | None = None
        self.keys: tuple[QueueKeys, ...] = ()
        #: Per shard, how long a message may wait for its batch to fill up, in seconds.
        self.max_waits_s: tuple[float, ...] = ()
        self.stopping = ""
        self.killed = ""
        self._code: int | None = None
        #: What was told of it, once.
        self.noted: set[str] = set()
        #: Where its threads were when it was ended for a handler, if that could be seen.
        self.stacks = ""
        #: Processes of its session that it has left behind.
        self.left = 0
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

    @property
    def starting(self) -> bool:
        """Whether it has not come as far as to receive anything."""
        return self.board.state == ChildState.STARTING

    @property
    def tasks(self) -> list[TaskEntry]:
        """Its tasks, by their numbers on the board; none before the manifest has come."""
        return self.manifest.tasks if self.manifest is not None else []

    def task_name(self, number: int) -> str:
        """The name of a task by its number on the board."""
        return self.tasks[number].name if number < len(self.tasks) else "?"

    def read_manifest(self) -> Manifest | None:
        """Return the manifest when it arrives, once; None before and after."""
        try:
            while chunk := self._control.recv(65536):
                self._received += chunk
        except (BlockingIOError, ConnectionError):
            pass
        line, end, self._received = self._received.partition(b"\n")
        if not end:
            self._received = line
            return None
        try:
            manifest = msgspec.json.decode(line, type=Manifest)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            manifest = Manifest(error=f"its child said something else than what it holds: {error}")
        self.manifest = manifest
        self.keys = tuple(QueueKeys(manifest.namespace, shard) for shard in manifest.shards)
        waits_s = dict.fromkeys(manifest.queues, 0.0)
        for task in manifest.tasks:
            if task.queue in waits_s:
                waits_s[task.queue] = max(waits_s[task.queue], task.max_wait_s)
        self.max_waits_s = tuple(waits_s.get(keys.name, 0.0) for keys in self.keys)
        return manifest

    def stop(self, why: str) -> None:
        """Ask the child to take nothing new and to end when what runs has ended."""
        if not self.stopping:
            self.stopping = why
        self.board.stop = True
        try:
            self._control.send(STOP)
        except OSError:
            return  # it has ended

    def kill(self, why: str, overdue: tuple[RunningView, ...] = ()) -> None:
        """End the process at once, if it has not ended by itself; `overdue` are the handlers that it is ended for."""
        if self._code is None and not has_ended(self.process):
            self.killed = why
            self.overdue = overdue
            # Not by Popen, which would collect it if it ends just now.
            os.kill(self.pid, signal.SIGKILL)

    def dump_stacks(self, within_s: float = STACKS_S) -> str:
        """Return the Python stacks of its threads, whatever holds them up; '' where they do not come in time."""
        thread = self.board.stacks_thread
        if not 0 < thread < 2**31 or has_ended(self.process):
            return ""
        with self._stacks_lock:
            self._empty_stacks()
            ask_for_stacks(self.pid, thread)
            return read_stacks(self._stacks, within_s)

    def ask_for_stacks(self) -> bool:
        """Ask it for its stacks, which `told_stacks` shows in a moment; False where it cannot be asked."""
        if not self.board.stacks_thread or self.killed or has_ended(self.process):
            return False
        with self._stacks_lock:
            self._empty_stacks()
        try:
            self._control.send(STACKS)
        except OSError:
            return False  # it has ended
        return True

    def told_stacks(self) -> str:
        """What it has told of its stacks so far."""
        return read_file(self._stacks)

    def _empty_stacks(self) -> None:
        os.ftruncate(self._stacks, 0)
        os.lseek(self._stacks, 0, os.SEEK_SET)

    def overdue_handlers(self) -> tuple[RunningView, ...]:
        """The handlers that have run past their limit, and past what a cancellation takes."""
        now = boot_time()
        return tuple(
            view for view in self.board.running() if view.limit and now > view.limit + _MERCY_S
        )

    def ended(self) -> int | None:
        """The exit code once the process has ended; negative for a signal. What it has left of its session ends too."""
        if self._code is None and has_ended(self.process):
            # Before its pid may become that of another process.
            self.left = end_session(self.pid)
            self._code = self.process.wait()
        return self._code

    def wait(self, within_s: float = math.inf) -> int | None:
        """Wait for the end of a process that is about to; returns what `ended` does."""
        deadline = time.monotonic() + within_s
        while (code := self.ended()) is None and time.monotonic() < deadline:
            time.sleep(_WAIT_S)
        return code

    def reason(self, code: int) -> str:
        """Why it has ended with an exit code: one of `totals.REASONS`."""
        if self.killed:
            return self.killed
        # A handler may end the process with code 0; a child that comes to its end says so on the board.
        if code != 0 or self.board.state < ChildState.STOPPING:
            return "crashed"
        if self.board.state == ChildState.RECYCLED:
            return "recycled"
        return "rss" if self.stopping == "rss" else "stopped"

    def close(self) -> None:
        """Free the board and the control socket of an ended child."""
        self._control.close()
        self.board.close()
        os.close(self._stacks)
