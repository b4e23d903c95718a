"""One reading of a namespace: queues, workers, reapers, findings, and the points that it adds to the last hour."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from qworker.client.execute.backoff import AWAY
from qworker.client.inspect.many import inspect_many
from qworker.client.inspect.peek import Inspection
from qworker.client.namespace.workers import read_reapers, read_workers
from qworker.client.per_shard import of_one_key
from qworker.errors import BrokenQueueError, QworkerError, UnavailableError
from qworker.health.server import examine
from qworker.monitor.history import Series
from qworker.monitor.sample import Sample

if TYPE_CHECKING:
    from qworker.monitor.namespace import Namespace
    from qworker.wire.shards import Shards

__all__ = ["Pass"]

T = TypeVar("T")

_CHECKS_S: Final = 15.0
#: The pause between full readings, as a multiple of what one takes the server and this process: they use less than
#: 0.5 % of a server's time.
_REST: Final = 150
#: Rates are over at least this long.
_RATE_MS: Final = 5_000
#: Points of a sparkline of a queue, and of all queues.
_QUEUE_APART_S: Final = 30.0
_TOTAL_APART_S: Final = 10.0


class Pass:
    """One reading, and when the next of everything is due."""

    def __init__(self, namespace: Namespace, every_s: float) -> None:
        self._namespace = namespace
        self._every_s = every_s
        self._due_s = 0.0
        self._took_s = 0.0
        self._checks_s = 0.0
        self._checks_took_s = 0.0
        self._totals = {
            name: Series(_TOTAL_APART_S)
            for name in ("sent", "done", "failed", "ready", "oldest", "dead")
        }
        self._ready: dict[str, Series] = {}
        self._done: dict[str, Series] = {}

    def take(self, last: Sample, watched: Collection[str]) -> Sample:
        """Read everything if that is due, else only the queues on open pages. Raises `ServerError`."""
        started_s = self._namespace.spent_s()
        if time.monotonic() < self._due_s and not last.problem:
            return self._people(self.some(last, watched))
        queues = self._namespace.queues
        shards = queues.list()
        sample = self._people(self._inspected(replace(last, queues={}), last, shards))
        queues.shards, queues.unread = shards, sample.unread
        queues.inspections = {
            name: queue
            for name, queue in sample.queues.items()
            if isinstance(queue, Inspection | BrokenQueueError)
        }
        now_s = time.monotonic()
        # Waiting for a node that is away costs no server anything: a reading takes as long as the last whole one.
        if not queues.away:
            self._took_s = self._namespace.spent_s() - started_s
        self._due_s = now_s + max(self._every_s / 2, _REST * self._took_s)
        self._remember(sample, now_s)
        if now_s >= self._checks_s:
            started_s = self._namespace.spent_s()
            sample = replace(sample, findings=tuple(examine(self._namespace)))
            if not queues.away:
                self._checks_took_s = self._namespace.spent_s() - started_s
            self._checks_s = time.monotonic() + max(_CHECKS_S, _REST * self._checks_took_s)
        return sample

    def some(self, last: Sample, names: Collection[str]) -> Sample:
        """Read some queues again; one that is gone disappears."""
        if not names:
            return last
        found = self._namespace.queues.look_up(names)
        kept = {name: queue for name, queue in last.queues.items() if name not in names}
        return self._inspected(replace(last, queues=kept), last, found)

    def _inspected(
        self,
        sample: Sample,
        last: Sample,
        shards: Mapping[str, Shards],
    ) -> Sample:
        """Add inspections, or errors. If none of these queues can be read, raises that of a server that is alone."""
        namespace = self._namespace
        queues, unread = dict(sample.queues), 0
        for name, outcome in inspect_many(namespace.client, namespace.namespace, shards).items():
            queues[name] = outcome
            if isinstance(outcome, Inspection | BrokenQueueError):
                continue
            unread += 1
            if unread == len(shards) and not namespace.client.factory.clustered:
                raise outcome
            if (node := namespace.queues.node_away(name)) is not None:
                queues[name] = UnavailableError(
                    f"node {node} of the Cluster does not answer: {outcome}"
                )
        earlier = {}
        for name, queue in queues.items():
            before, base = last.queues.get(name), last.earlier.get(name)
            if not isinstance(queue, Inspection):
                continue
            # The base moves on while rates stay over a few seconds.
            if (
                before is not queue
                and isinstance(before, Inspection)
                and (base is None or before.now_ms - base.now_ms >= _RATE_MS)
            ):
                base = before
            if base is not None:
                earlier[name] = base
        return replace(
            sample,
            queues=dict(sorted(queues.items())),
            earlier=earlier,
            totals=self._totals,
            ready=self._ready,
            done=self._done,
            problem="",
        )

    def _people(self, sample: Sample) -> Sample:
        """Read workers and reapers."""
        namespace = self._namespace
        now_ms = namespace.now_ms()
        unlisted = namespace.queues.unlisted
        unknown = {"queues": str(unlisted)} if unlisted else {}
        return replace(
            sample,
            now_ms=now_ms,
            workers=self._known("workers", lambda: read_workers(namespace, now_ms), unknown),
            reapers=self._known("reapers", lambda: read_reapers(namespace, now_ms), unknown),
            problem="",
            unknown=unknown,
        )

    def _known(
        self, name: str, read: Callable[[], list[T]], unknown: dict[str, str]
    ) -> Sequence[T]:
        """Read a list; one that cannot be read is empty, and named in `unknown`.

        Its node of a Cluster is away, or its key is broken.
        """
        try:
            return tuple(read())
        except QworkerError as error:
            away = isinstance(error, AWAY) and self._namespace.client.factory.clustered
            if not away and not of_one_key(error):
                raise
            unknown[name] = str(error)
            return ()

    def _remember(self, sample: Sample, now_s: float) -> None:
        read = sample.read()
        if not sample.unread:
            self._remember_totals(sample, read, now_s)
        for queue in read:
            of_queue = sample.flow(queue.queue)
            self._keep(self._ready, queue.queue, now_s, queue.ready)
            if of_queue is not None:
                self._keep(self._done, queue.queue, now_s, of_queue.done)
        for kept in (self._ready, self._done):
            for gone in kept.keys() - sample.queues.keys():
                del kept[gone]

    def _remember_totals(self, sample: Sample, read: list[Inspection], now_s: float) -> None:
        """Add points to the figures of all queues; sums of a part of them would look like a fall."""
        flow = sample.total_flow()
        figures = {
            "ready": float(sum(queue.ready for queue in read)),
            "oldest": max((queue.oldest_age_s for queue in read), default=0.0),
            "dead": float(sum(queue.dead for queue in read)),
        }
        if flow is not None:
            figures |= flow._asdict()
        for name, value in figures.items():
            self._totals[name].add(now_s, value)

    @staticmethod
    def _keep(kept: dict[str, Series], queue: str, now_s: float, value: float) -> None:
        """Append a point; a queue in which nothing ever happened costs no memory."""
        if value or queue in kept:
            kept.setdefault(queue, Series(_QUEUE_APART_S)).add(now_s, value)
