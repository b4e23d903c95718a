"""What a worker does every two seconds: it describes itself, and reads what concerns it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import structlog

from qworker.consumer.shards import ShardWatch
from qworker.consumer.supervisor.operators.control import Control
from qworker.consumer.supervisor.operators.paused import PausedTasks
from qworker.consumer.supervisor.operators.presence import Presence
from qworker.consumer.supervisor.operators.reapers import ReaperWatch
from qworker.consumer.supervisor.operators.verbs import HoldsChildren, operator_verbs

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.consumer.manifest import Manifest
    from qworker.consumer.options import RunOptions
    from qworker.consumer.supervisor.processes.totals import Totals

__all__ = ["RegularChecks"]

_log = structlog.get_logger(__name__)


class ChecksItself(HoldsChildren, Protocol):
    """A supervisor, as its checks use it."""

    @property
    def totals(self) -> Totals:
        """What its children have counted."""

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
        self._presence = Presence(
            client,
            namespace,
            manifest.app,
            [task.name for task in manifest.tasks],
            owns=bool(manifest.schedules),
        )
        self._paused = PausedTasks(client, namespace)
        self._control = Control(client, namespace, self._presence.name, operator_verbs(worker))
        self._shards = ShardWatch(client, namespace, manifest.queues, manifest.shards)
        self._burst = options.burst
        self._reapers = None if options.reaper else ReaperWatch(client, namespace)

    @property
    def reapers_seen(self) -> int | None:
        """Reapers seen lately; None if unknown, or if the worker carries one."""
        return self._reapers.seen if self._reapers is not None else None

    def run(self) -> None:
        """Make all checks. Raises `ServerError`."""
        worker, presence = self._worker, self._presence
        if not self._burst and self._shards.changed():
            _log.info("shards_changed", queues=worker.queues)
            worker.reload()
        if presence.write(
            worker.children,
            worker.queues,
            self._concurrency,
            worker.totals.handled,
            leaving=worker.leaving,
        ):
            worker.leave()
        self._control.check(presence.seen_ms)
        self._paused.check(worker.children, presence.seen_ms)
        if self._reapers is not None:
            self._reapers.check()

    def update(self, manifest: Manifest, *, schedules_changed: bool) -> None:
        """Take over the manifest of a newer child."""
        self._presence.name_tasks([task.name for task in manifest.tasks])
        if schedules_changed:
            self._presence.own(schedules=bool(manifest.schedules))

    def withdraw(self) -> None:
        """Remove the worker's documents. Raises `ServerError`."""
        self._presence.withdraw()
