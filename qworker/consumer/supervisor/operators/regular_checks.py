"""Work of a worker every two seconds: it describes itself, and reads its requests and paused tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import structlog

from qworker.client.execute.recurring import RecurringCalls
from qworker.consumer.shards import ShardWatch
from qworker.consumer.supervisor.operators.control import Control
from qworker.consumer.supervisor.operators.paused import PausedTasks
from qworker.consumer.supervisor.operators.presence import WorkerPresence
from qworker.consumer.supervisor.operators.reapers import ReaperWatch
from qworker.consumer.supervisor.operators.verbs import HoldsChildren, operator_verbs
from qworker.errors import ServerError
from qworker.telemetry.throttle import LogThrottle

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.consumer.manifest import Manifest
    from qworker.consumer.options import RunOptions
    from qworker.consumer.supervisor.processes.totals import Totals

__all__ = ["RegularChecks"]

_log = structlog.get_logger(__name__)

_GIVE_UP_S: Final = 2.0


class ChecksItself(HoldsChildren, Protocol):
    """A supervisor, as its checks use it."""

    @property
    def totals(self) -> Totals:
        """The totals of its children."""

    @property
    def queues(self) -> list[str]:
        """The queues that it receives from."""

    @property
    def leaving(self) -> bool:
        """Whether it was asked to leave."""

    def leave(self) -> None:
        """Receive nothing more, and end when running handlers have ended."""

    def reload(self) -> None:
        """Replace all children."""


class RegularChecks:
    """The checks of one worker, made once its app is known. Not thread-safe."""

    def __init__(
        self, worker: ChecksItself, client: Client, manifest: Manifest, options: RunOptions
    ) -> None:
        self._worker = worker
        self._concurrency = options.concurrency or 0
        namespace = manifest.namespace
        self._throttle = LogThrottle()
        calls = RecurringCalls(client, give_up_s=_GIVE_UP_S)
        self._clustered = client.factory.clustered
        self._presence = WorkerPresence(
            calls,
            namespace,
            manifest.app,
            [task.name for task in manifest.tasks],
            owns=bool(manifest.schedules),
        )
        self._paused = PausedTasks(calls, namespace)
        self._control = Control(calls, namespace, self._presence.name, operator_verbs(worker))
        self._shards = ShardWatch(client, namespace, manifest.queues, manifest.shards)
        self._burst = options.burst
        self._reapers = None if options.reaper else ReaperWatch(calls, namespace)

    @property
    def reapers_seen(self) -> int | None:
        """Reapers seen lately; None if unknown, or if the worker carries one."""
        return self._reapers.seen if self._reapers is not None else None

    def run(self) -> None:
        """Make all checks. Raises `ServerError`; of a Cluster only if no check can be made."""
        failures: list[ServerError] = []
        checks = (self._check_shards, self._describe, self._check_control, self._check_paused)
        for check in checks:
            try:
                check()
            except ServerError as error:
                # Each check may read from a different node.
                if not self._clustered:
                    raise
                failures.append(error)
        if self._reapers is not None:
            self._reapers.check()
        if len(failures) == len(checks):
            raise failures[0]
        if failures and (suppressed := self._throttle.admit("failed")) is not None:
            _log.warning("checks_failed", error=str(failures[0]), held_back=suppressed)

    def _check_shards(self) -> None:
        if not self._burst and self._shards.changed():
            _log.info("shards_changed", queues=self._worker.queues)
            self._worker.reload()

    def _describe(self) -> None:
        worker = self._worker
        if self._presence.write(
            worker.children,
            worker.queues,
            self._concurrency,
            worker.totals.handled,
            leaving=worker.leaving,
        ):
            worker.leave()

    def _check_control(self) -> None:
        self._control.check(self._presence.seen_ms)

    def _check_paused(self) -> None:
        self._paused.check(self._worker.children, self._presence.seen_ms)

    def update(self, manifest: Manifest, *, schedules_changed: bool) -> None:
        """Take over the manifest of a newer child."""
        self._presence.name_tasks([task.name for task in manifest.tasks])
        if schedules_changed:
            self._presence.own(schedules=bool(manifest.schedules))

    def withdraw(self) -> None:
        """Remove the worker's documents. Raises `ServerError`."""
        self._presence.withdraw()
