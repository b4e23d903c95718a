"""The supervisor's second thread: only it speaks to the server, and the first one never waits for it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

import structlog

from qworker.consumer.board.clock import boot_time
from qworker.consumer.failure import failure_text, name_of
from qworker.consumer.supervisor.leases.lease_keeper import LeaseKeeper
from qworker.errors import QworkerError, ServerError
from qworker.telemetry.throttle import LogThrottle

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.consumer.board.states import LeaseView
    from qworker.consumer.supervisor.leases.fates import Fate
    from qworker.consumer.supervisor.leases.postmortem import Death
    from qworker.consumer.supervisor.processes.process import ChildProcess

__all__ = ["LeaseThread"]

_log = structlog.get_logger(__name__)

_KEEP_S: Final = 0.1
_CHECK_S: Final = 0.05
#: How often the regular checks are made, which show that the server answers, and after which time it does not.
_CHECKS_S: Final = 2.0
_SILENCE_S: Final = 3.0
#: How long the end waits for a call that is under way.
_LAST_S: Final = 0.2


class LeaseThread:
    """Extends the leases of children all the time, and does other jobs in order.

    `children` returns the living ones. `run_checks` is called every two seconds, and speaks to the server; errors that
    it raises are logged. `note_fates` gets messages that dead children have not counted.
    """

    def __init__(
        self,
        client: Client,
        children: Callable[[], Sequence[ChildProcess]],
        run_checks: Callable[[], None],
        note_fates: Callable[[Sequence[Fate]], None] = lambda _: None,
    ) -> None:
        caller = f"{socket.gethostname()}:{os.getpid()}"
        self.keeper = LeaseKeeper(client, caller=caller, note_fates=note_fates)
        self._answering_since = self._answered_at = -_SILENCE_S
        self._clustered = client.factory.clustered
        self._children = children
        self._run_checks = run_checks
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._spoiled: set[int] = set()
        self._ended = threading.Event()
        self._throttle = LogThrottle(every_s=10.0)
        self._checks_at = 0.0
        self._thread = threading.Thread(target=self._run, name="qworker-keeper", daemon=True)

    @property
    def answering_since(self) -> float | None:
        """Since when the server has answered without a break; None while it does not."""
        silent = boot_time() - self._answered_at > _SILENCE_S
        return None if silent else self._answering_since

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self, within_s: float) -> None:
        """Do the remaining jobs within `within_s` seconds; the rest is left to visibility deadlines.

        It does not wait for a server that does not answer.
        """
        deadline = time.monotonic() + within_s
        done = threading.Event()
        self._jobs.put(done.set)
        while not done.wait(_CHECK_S) or self.keeper.unsettled:
            if self.answering_since is None or time.monotonic() > deadline:
                break
            if done.is_set():
                time.sleep(_CHECK_S)
        self._ended.set()
        # A call to a server that is away may take 20 s; it ends with the process.
        left_s = deadline - time.monotonic() if done.is_set() else _LAST_S
        self._thread.join(max(0.0, left_s))

    def recall(self, children: Sequence[ChildProcess]) -> None:
        """Give back messages that the children have not started."""
        self._jobs.put(
            lambda: self._recall([(child, child.board.leases.views()) for child in children])
        )

    def recall_leases(self, leases: Sequence[tuple[ChildProcess, Sequence[LeaseView]]]) -> None:
        """Give back what children have not started of some leases."""
        self._jobs.put(lambda: self._recall(leases))

    def settle_dead(self, child: ChildProcess, death: Death) -> None:
        """Settle the leases of a dead child, close its board, and ring for others if it could not do so itself."""
        self._jobs.put(lambda: self._settle_dead(child, death))
        if child.cut_off:
            self._jobs.put(lambda: self.keeper.ring_again(child.keys))

    def later(self, job: Callable[[], None]) -> None:
        """Do another job that speaks to the server."""
        self._jobs.put(job)

    # -- in the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        keep_at = 0.0
        while not self._ended.is_set():
            job, now = self._keep, time.monotonic()
            if now < keep_at:
                try:
                    job = self._jobs.get(timeout=keep_at - now)
                except Empty:
                    continue
            else:
                keep_at = now + _KEEP_S
            # Any error: without this thread every lease would run out.
            try:
                job()
            except QworkerError as error:
                if (suppressed := self._throttle.admit("failed")) is not None:
                    _log.warning("supervision_failed", error=str(error), held_back=suppressed)
            except Exception as error:  # noqa: BLE001
                _log.error(
                    "supervision_failed", error=name_of(error), exception=failure_text(error)
                )

    def _keep(self) -> None:
        children = self._children()
        for child in children:
            self._note_spoiled(child)
            self.keeper.doubtful.note(child.board, child.keys)
        away: ServerError | None = None
        try:
            self.keeper.extend_due([(child.board, child.keys) for child in children])
        except ServerError as error:
            if not self._clustered:
                raise
            away = error  # the other nodes of a Cluster serve
        self.keeper.settle_again()
        self.keeper.release_late()
        self.keeper.doubtful.give_back()
        now = time.monotonic()
        if now >= self._checks_at:
            self._checks_at = now + _CHECKS_S
            self._run_checks()
            answered_at = boot_time()
            if answered_at - self._answered_at > _SILENCE_S:
                self._answering_since = answered_at
            self._answered_at = answered_at
        if away is not None:
            raise away

    def _recall(self, leases: Sequence[tuple[ChildProcess, Sequence[LeaseView]]]) -> None:
        given_back = self.keeper.recall((child.board, child.keys, views) for child, views in leases)
        if given_back:
            pids = [child.pid for child, _ in leases]
            _log.info("messages_given_back", pids=pids, messages=given_back)

    def _settle_dead(self, child: ChildProcess, death: Death) -> None:
        try:
            self.keeper.settle_dead(child.board, child.keys, death)
        finally:
            self._note_spoiled(child)
            self._spoiled.discard(child.pid)
            child.close()

    def _note_spoiled(self, child: ChildProcess) -> None:
        """Log once that handlers of a child have written to its board: leases that cannot be read run out."""
        if child.board.spoiled and child.pid not in self._spoiled:
            self._spoiled.add(child.pid)
            _log.error("board_spoiled", pid=child.pid)
