"""One child process, as its supervisor sees it: the process, its board and its control socket."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Final

import msgspec

from qworker.consumer.board.board import Board, memory_file
from qworker.consumer.board.clock import boot_time
from qworker.consumer.board.states import ChildState
from qworker.consumer.lifetime import command_of, environment_with
from qworker.consumer.manifest import CONFIG_VARIABLE, STOP, ChildConfig, Manifest
from qworker.consumer.supervisor.processes.descendants import end_session, has_ended
from qworker.consumer.supervisor.processes.exits import NO_PIDFD, open_pidfd
from qworker.consumer.supervisor.processes.stacks import ChildStacks
from qworker.wire.keys import QueueKeys

if TYPE_CHECKING:
    from qworker.consumer.board.states import LeaseView, RunningView
    from qworker.consumer.manifest import ManifestTask

__all__ = ["ChildProcess"]

#: A handler may overrun its limit by this much before its child is ended: an async one is cancelled first.
_MERCY_S: Final = 0.5
_WAIT_S: Final = 0.005


class ChildProcess:
    """A started child; raises `OSError` if it cannot be started.

    `stopping`: why it was asked to end, or ''. `killed`: why it was killed, or ''.
    """

    def __init__(self, config: ChildConfig, slots: int) -> None:
        self.number = config.number
        self.board = Board.create(slots)
        stacks = memory_file("qworker-stacks")
        ours, theirs = socket.socketpair()
        self._control = ours
        self._control.setblocking(False)
        settings = msgspec.structs.replace(
            config,
            board=self.board.descriptor,
            control=theirs.fileno(),
            stacks=stacks,
            slots=slots,
        )
        variable = msgspec.json.encode(settings).decode()
        try:
            # close_fds keeps every other descriptor out of the child: a sibling with our end of a control socket would
            # keep that socket open after our death.
            self.process = subprocess.Popen(
                command_of("qworker.consumer.child"),
                pass_fds=(self.board.descriptor, theirs.fileno(), stacks),
                env=environment_with(CONFIG_VARIABLE, variable),
                stdin=subprocess.DEVNULL,
                # Identifies processes that its handlers start, which end with it.
                start_new_session=True,
            )
        except OSError:
            self._control.close()
            self.board.close()
            os.close(stacks)
            raise
        finally:
            theirs.close()
        self.stacks = ChildStacks(stacks, self.process, self.board, self._control)
        #: Readable once it has ended, see `ends`.
        self.pidfd = open_pidfd(self.process.pid)
        self.started = time.monotonic()
        self.manifest: Manifest | None = None
        self.keys: tuple[QueueKeys, ...] = ()
        #: Per shard, how long a message may wait for its batch to fill up, in seconds.
        self.max_waits_s: tuple[float, ...] = ()
        self.stopping = ""
        self.killed = ""
        self._code: int | None = None
        #: Warnings that were logged for it, once each.
        self.noted: set[str] = set()
        #: Its stacks when it was ended for a handler, if they could be read.
        self.final_stacks = ""
        #: Processes that it has left behind in its session.
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
        """Whether it does not receive yet."""
        return self.board.state == ChildState.STARTING

    @property
    def tasks(self) -> list[ManifestTask]:
        """Its tasks, by number on the board; none before the manifest has come."""
        return self.manifest.tasks if self.manifest is not None else []

    def task_name(self, number: int) -> str:
        """The name of a task by its number on the board."""
        return self.tasks[number].name if number < len(self.tasks) else "?"

    def receipt(self, lease: LeaseView, position: int) -> str:
        """The receipt of a message on its board, as `message show` and `message cancel` take it."""
        shard = self.keys[lease.queue].shard if lease.queue < len(self.keys) else 0
        # Imported here: a child starts before a Redis client is imported.
        from qworker.client.message import Receipt

        return str(Receipt(lease.lease_id, lease.index_of(position), shard))

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
            manifest = Manifest(error=f"its child sent something else than a manifest: {error}")
        self.manifest = manifest
        self.keys = tuple(QueueKeys(manifest.namespace, shard) for shard in manifest.shards)
        waits_s = dict.fromkeys(manifest.queues, 0.0)
        for task in manifest.tasks:
            if task.queue in waits_s:
                waits_s[task.queue] = max(waits_s[task.queue], task.max_wait_s)
        self.max_waits_s = tuple(waits_s.get(keys.name, 0.0) for keys in self.keys)
        return manifest

    def stop(self, why: str) -> None:
        """Ask the child to receive nothing more and to end when running handlers have ended."""
        if not self.stopping:
            self.stopping = why
        self.board.stop = True
        try:
            self._control.send(STOP)
        except OSError:
            return  # it has ended

    def kill(self, why: str, overdue: tuple[RunningView, ...] = ()) -> None:
        """Kill the process if it has not ended; `overdue` are the handlers for which it is killed."""
        if self._code is None and not has_ended(self.process):
            self.killed = why
            self.overdue = overdue
            # Not with Popen, which would collect it if it ends just now.
            os.kill(self.pid, signal.SIGKILL)

    def overdue_handlers(self) -> tuple[RunningView, ...]:
        """The handlers that have run past their limit, and past the time that a cancellation takes."""
        now = boot_time()
        return tuple(
            view
            for view in self.board.running.views()
            if view.limit and now > view.limit + _MERCY_S
        )

    def cancelled_handlers(self, grace_s: float) -> tuple[RunningView, ...]:
        """The handlers that run on although their messages were cancelled `grace_s` ago; none of batches."""
        orders = self.board.orders
        if not orders.any_cancelled:
            return ()
        since = boot_time() - grace_s
        leases = {lease.slot: lease.lease_id for lease in self.board.leases.views()}
        return tuple(
            view
            for view in self.board.running.views()
            if view.lease in leases
            and view.task < len(self.tasks)
            and not self.tasks[view.task].batch
            and (at := orders.cancelled_at(leases[view.lease], view.position)) is not None
            and at <= since
        )

    def ended(self) -> int | None:
        """The exit code once the process has ended, negative for a signal. Kills the rest of its session."""
        if self._code is None and has_ended(self.process):
            # Before its pid is free for another process.
            self.left = end_session(self.pid)
            self._code = self.process.wait()
        return self._code

    def wait(self, within_s: float = math.inf) -> int | None:
        """Wait for the end of a process; returns what `ended` does."""
        deadline = time.monotonic() + within_s
        while (code := self.ended()) is None and time.monotonic() < deadline:
            time.sleep(_WAIT_S)
        return code

    @property
    def cut_off(self) -> bool:
        """Whether it ended at some point of its work, and not by itself after the last step."""
        return bool(self.killed or self._code or self.board.state < ChildState.STOPPING)

    def reason(self, code: int) -> str:
        """Why it has ended with an exit code: one of `totals.REASONS`."""
        if self.killed:
            return self.killed
        # A handler may end the process with code 0; a child that stops on purpose notes it on the board.
        if code != 0 or self.board.state < ChildState.STOPPING:
            return "crashed"
        if self.board.state == ChildState.RECYCLED:
            return "recycled"
        return "rss" if self.stopping == "rss" else "stopped"

    def close(self) -> None:
        """Free the board, the stacks and the control socket of an ended child."""
        if self.pidfd != NO_PIDFD:
            os.close(self.pidfd)
            self.pidfd = NO_PIDFD
        self._control.close()
        self.board.close()
        self.stacks.close()
