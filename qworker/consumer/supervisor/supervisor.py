"""The supervisor: holds no user code, starts the children that do, and watches them.

The main thread watches processes: exits, time limits, memory, stalls, signals. A second thread (see `lease_thread`)
speaks to the server: it extends leases, gives back messages behind slow handlers, and settles for dead children.
Neither waits for the other.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

import structlog

from qworker.client.execute.sync import Client
from qworker.consumer.supervisor.ended_children import EndedChildren
from qworker.consumer.supervisor.hooks import Hooks
from qworker.consumer.supervisor.lease_thread import LeaseThread
from qworker.consumer.supervisor.limits import LimitEnforcer
from qworker.consumer.supervisor.manifests import Manifests
from qworker.consumer.supervisor.processes.descendants import adopts, reap_adopted
from qworker.consumer.supervisor.processes.exits import await_end
from qworker.consumer.supervisor.processes.pool import ChildPool
from qworker.consumer.supervisor.processes.spawn import Starter
from qworker.consumer.supervisor.processes.totals import Totals
from qworker.consumer.supervisor.reload import Reloader
from qworker.consumer.supervisor.watches import Watch
from qworker.errors import AppLoadError

if TYPE_CHECKING:
    from qworker.consumer.manifest import Manifest
    from qworker.consumer.options import RunOptions
    from qworker.consumer.supervisor.leases.lease_keeper import LeaseKeeper
    from qworker.consumer.supervisor.processes.process import ChildProcess
    from qworker.store.connections import ConnectionFactory
    from qworker.telemetry.options import LogOptions

__all__ = ["EXIT_WATCHDOG", "Supervisor"]

_log = structlog.get_logger(__name__)

EXIT_WATCHDOG: Final = 70
_TURN_S: Final = 0.05
#: What sending the last outcomes may take beyond the grace time.
_GOODBYE_S: Final = 0.5


class Supervisor:
    """Runs the children of one app until it is asked to stop. `starter` may have started the first children already."""

    def __init__(
        self,
        app: str,
        factory: ConnectionFactory,
        options: RunOptions,
        logs: LogOptions,
        hooks: Hooks | None = None,
        starter: Starter | None = None,
    ) -> None:
        self._client = Client(factory, give_up_s=20.0)
        self._options = options
        self._hooks = hooks or Hooks()
        self.totals = Totals()
        self._pool = ChildPool(starter or Starter(app, factory.url, options, logs), self.totals)
        self._manifests = Manifests(self, self._client, options, self._hooks)
        self._lease_thread = LeaseThread(
            self._client, lambda: self.children, self._manifests.run_checks, self.totals.note_fates
        )
        self._watch = Watch(options)
        grace_ms = options.cancel_grace_ms
        self._limits = LimitEnforcer(
            self._watch, self._lease_thread, None if grace_ms is None else grace_ms / 1000
        )
        self._ended = EndedChildren(
            self._pool, self._watch, self.totals, self._lease_thread, burst=options.burst
        )
        self._reloader = Reloader(self.reload) if options.reload else None
        self._adopts = adopts()
        #: How often it was asked to stop, whether to leave, and whether to reload.
        self._stops = 0
        self.leaving = False
        self._reload_wanted = False
        self._stop_by = 0.0
        self._exit_code = 0

    @property
    def children(self) -> list[ChildProcess]:
        """The living children."""
        return self.totals.children

    @property
    def wanted(self) -> int:
        """How many children it keeps."""
        return self._pool.wanted

    @property
    def manifest(self) -> Manifest | None:
        """The newest manifest; None before the first one."""
        return self._manifests.newest

    @property
    def queues(self) -> list[str]:
        """The queues that it receives from; none before the first manifest."""
        return self.manifest.queues if self.manifest is not None else []

    @property
    def keeper(self) -> LeaseKeeper:
        """The keeper of the children's leases."""
        return self._lease_thread.keeper

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop, or to leave."""
        return self._stops > 0 or self.leaving

    @property
    def served(self) -> bool:
        """Whether the server has answered in the last seconds."""
        return self._lease_thread.answering_since is not None

    @property
    def reapers_seen(self) -> int | None:
        """Reapers seen lately; None if unknown, or if this process carries one."""
        checks = self._manifests.checks
        return checks.reapers_seen if checks is not None else None

    # -- asking, from any thread ---------------------------------------------------------------

    def stop(self, *_: object) -> None:
        """Stop gracefully; a second call ends the children at once. Fit for a signal handler."""
        self._stops += 1

    def leave(self) -> None:
        """Receive nothing more, and end when running handlers have ended, however long that takes."""
        self.leaving = True

    def reload(self) -> None:
        """Replace all children gracefully."""
        self._reload_wanted = True

    def scale(self, wanted: int) -> None:
        """Keep another number of children, at least 1, until the worker ends.

        Surplus children receive nothing more, and end when their running handlers have ended.
        """
        self._pool.wanted = wanted

    # -- the loop ------------------------------------------------------------------------------

    def run(self) -> int:
        """Run children until a signal, the end of a burst or a fatal error; returns the exit code.

        Raises `AppLoadError` if the first child cannot import the app.
        """
        self._lease_thread.start()
        if self._reloader is not None:
            self._reloader.start()
        try:
            self._pool.start_all()
            while not self.stopping and self._pool.alive:
                self._turn()
                await_end(self.children, _TURN_S)
            if self.children:
                self._stop_all()
        finally:
            for child in self.children:
                child.kill("stopped")
            for child in self.children:
                child.wait(_GOODBYE_S)
            if self._reloader is not None:
                self._reloader.stop()
            if self._manifests.checks is not None:
                self._lease_thread.later(self._manifests.checks.withdraw)
            self._lease_thread.end(max(0.0, self._stop_by - time.monotonic()) + _GOODBYE_S)
            self._client.close()
        return self._exit_code

    def _turn(self) -> None:
        if self._reload_wanted:
            self._reload_wanted = False
            _log.info("worker_reloading")
            self._stop_children(self.children, "reload")
            self._pool.hurry()
        stuck = []
        idle = any(self._watch.is_idle(child) for child in self.children)
        for child in self.children:
            if self._check(child) and (leases := self._watch.stuck_leases(child, beside_idle=idle)):
                stuck.append((child, leases))
        if stuck:
            self._lease_thread.recall_leases(stuck)
        if surplus := self._pool.resize():
            self._stop_children(surplus, "scaled")
        self._pool.start_due()
        if self._options.burst and self._pool.is_quiet():
            for child in self.children:
                child.board.over = 1
        self._after_turn()

    def _after_turn(self) -> None:
        if self._adopts:
            reap_adopted(child.pid for child in self.children)
        self._hooks.on_turn()

    def _stop_children(self, children: list[ChildProcess], why: str) -> None:
        """Ask children to end, and give back their unstarted messages."""
        for child in children:
            child.stop(why)
        self._lease_thread.recall(children)

    # -- watching ------------------------------------------------------------------------------

    def _check(self, child: ChildProcess) -> bool:
        """Check one child; returns whether it continues."""
        self._manifests.read(child)
        code = child.ended()
        if code is not None:
            self._child_ended(child, code)
            return False
        if child.killed:
            return False
        reason = self._limits.enforce(child)
        if reason == "watchdog":
            self._note_stall(child)
        return not reason

    def _note_stall(self, child: ChildProcess) -> None:
        """The first stall of a slot costs the child; a second one in a row means that a new child does not help."""
        slot = self._pool.slot_of(child)
        if slot is not None and slot.stalled(child.board.handled) and not self.stopping:
            self._exit_code = EXIT_WATCHDOG
            self.stop()

    def _child_ended(self, child: ChildProcess, code: int) -> None:
        """Settle for an ended child, and replace it; a burst may end instead."""
        self._manifests.read(child)
        problem = self._ended.settle(child, code, stopping=self.stopping)
        if problem:
            if self.manifest is None:
                raise AppLoadError(problem)
            self._exit_code = 1
            self.stop()

    # -- ending --------------------------------------------------------------------------------

    def _stop_all(self) -> None:
        """Give back unstarted messages at once, wait for running handlers, then end those that still run."""
        begun = time.monotonic()
        grace_s = self._options.grace_ms / 1000
        # A worker that leaves gives its handlers all their time, until it is asked to stop.
        unlimited = not self._stops
        _log.info("worker_stopping", grace_seconds=None if unlimited else grace_s)
        children = self.children
        for child in children:
            self._manifests.read(child)
        self._stop_children(children, "stopped")
        for child in children:
            if child.starting:
                child.kill("stopped")  # it holds no message, and may take long to import the app
        self._stop_by = math.inf if unlimited else begun + grace_s
        while self.children and time.monotonic() < self._stop_by and self._stops < 2:
            for child in self.children:
                self._check(child)
            self._after_turn()
            time.sleep(_TURN_S / 5)
            if unlimited and self._stops:
                unlimited, self._stop_by = False, time.monotonic() + grace_s
        self._stop_by = min(self._stop_by, time.monotonic() + grace_s)
        if self._stops > 1:
            self._stop_by = time.monotonic()
        for child in self.children:
            _log.warning("child_cut_off", pid=child.pid, running=len(child.board.running.views()))
            child.kill("stopped")
        for child in self.children:
            code = child.wait()
            assert code is not None
            self._child_ended(child, code)
        _log.info("worker_stopped", seconds=round(time.monotonic() - begun, 2))
