"""Metrics of queues, read from Redis for each scrape.

Every process that reaps exports the same figures, so queries use `max by (queue)`. A scrape reads them over its
own connections and keeps them for a few seconds: it never waits for a pass, nor a pass for it.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import structlog
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from qworker.client.execute.backoff import AWAY
from qworker.client.execute.recurring import WITHIN_S
from qworker.client.execute.sync import Client
from qworker.client.manage.journal import ReaderLag, lags
from qworker.client.plan import run_plans
from qworker.client.relay import Outbox, outboxes_of
from qworker.daemon.queue_figures import MAX_GROUPS, Figures, families, known_counters
from qworker.engine.command import Command
from qworker.engine.groups import LargeGroup, largest
from qworker.engine.inspect import Inspection, inspect
from qworker.engine.options import QueueAttributes
from qworker.errors import QworkerError, ServerError, concerns_the_call
from qworker.store.nodes import Address
from qworker.telemetry.throttle import LogThrottle
from qworker.wire.keys import QueueKeys
from qworker.wire.numbers import whole

__all__ = ["MAX_QUEUES", "OTHER", "QueueCollector"]

_log = structlog.get_logger(__name__)

#: Queues with their own label, by default; the others are added up under `OTHER`.
MAX_QUEUES: Final = 1000
OTHER: Final = "__other__"
#: Seconds for which figures are kept.
KEPT_S: Final = 3.0
#: Figures are also kept this many times as long as reading them took: scrapes use at most 5 % of a server's time.
_KEPT_TIMES: Final = 20.0
_GIVE_UP_S: Final = 0.5
#: Queues that are read in one trip: 2 ms of the server, for which others wait.
READ_AT_ONCE: Final = 50


class QueueCollector(Collector):
    """Exports the figures of the queues that `queues()` returns; nothing while the server does not answer.

    In a Cluster, those of queues whose node answers. The first `max_queues` by name have their own labels; 0: none.
    """

    def __init__(
        self,
        client: Client,
        queues: Callable[[], Sequence[QueueKeys]],
        *,
        max_queues: int = MAX_QUEUES,
        kept_s: float = KEPT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._queues = queues
        self._max_queues = max_queues
        self._kept_s = kept_s
        self._clock = clock
        self._throttle = LogThrottle(clock=clock)
        self._lock = threading.Lock()
        self._figures: dict[str, Figures] = {}
        self._good_until = float("-inf")
        #: The last counters of each queue or shard that is part of a sum.
        self._counted: dict[str, dict[str, int]] = {}
        #: Nodes of a Cluster that did not serve in this reading.
        self._away: dict[Address, ServerError] = {}

    def describe(self) -> Iterable[Metric]:
        """Name the metrics without a call to the server: a registry asks on registration."""
        return families({})

    def collect(self) -> Iterator[Metric]:
        """Read the figures of all queues, O(queues) calls in trips of fifty; or return those of a few seconds ago."""
        with self._lock:
            if self._clock() >= self._good_until:
                self._refresh()
            figures = self._figures
        yield from families(figures)

    def _refresh(self) -> None:
        started = self._clock()
        try:
            figures = self._read()
        except QworkerError as error:
            # Old figures would look like a queue at rest.
            figures = {}
            if (suppressed := self._throttle.admit("unread")) is not None:
                _log.warning("queue_figures_unread", problem=str(error), held_back=suppressed)
        self._figures = figures
        ended = self._clock()
        # A server that does not answer in time is not used.
        used_s = ended - started - (WITHIN_S if self._away else 0.0)
        self._good_until = ended + max(self._kept_s, _KEPT_TIMES * used_s)

    def _read(self) -> dict[str, Figures]:
        figures: dict[str, Figures] = {}
        queues = self._queues()
        self._away.clear()
        counted: dict[str, dict[str, int]] = {}
        divided = {keys.name for keys in queues if keys.shard}
        chunks = [queues[at : at + READ_AT_ONCE] for at in range(0, len(queues), READ_AT_ONCE)]
        # Two at a time: the server reads one chunk while the other is added up here.
        with ThreadPoolExecutor(2) as pool:
            for readings in pool.map(self._read_chunk, chunks):
                for keys, seen, behind, waiting, groups in readings:
                    # The first of them by name have labels: the same ones at every scrape and in every process.
                    named = keys.name in figures or len(figures) < self._max_queues
                    of_queue = figures.setdefault(keys.name if named else OTHER, Figures())
                    if isinstance(seen, QworkerError):
                        self._unread(keys.queue, seen)
                        known = self._counted.get(keys.queue, {})
                        of_queue.count(known)
                    else:
                        known = known_counters(seen.stats)
                        self._add(of_queue, keys, seen, behind)
                        if isinstance(waiting, QworkerError):
                            self._unread(keys.queue, waiting)
                        elif waiting is not None:
                            of_queue.add_outboxes(waiting)
                        if isinstance(groups, QworkerError):
                            self._unread(keys.queue, groups)
                        elif groups is not None and named:
                            of_queue.add_groups(*groups)
                    if not named or keys.name in divided:
                        # If a part were missing and the sum fell, Prometheus would see a reset counter, and count all
                        # that is left as an increase.
                        counted[keys.queue] = known
        figures = {name: of_queue for name, of_queue in figures.items() if of_queue.gauges}
        if self._away and not figures:
            raise next(iter(self._away.values()))
        self._counted = counted
        return figures

    def _add(
        self,
        of_queue: Figures,
        keys: QueueKeys,
        seen: Inspection,
        behind: list[ReaderLag] | QworkerError,
    ) -> None:
        of_queue.add(seen)
        if isinstance(behind, QworkerError):
            self._unread(keys.queue, behind)
        elif behind:
            most = whole(seen.meta.get("journal_cap")) or QueueAttributes().journal_cap
            of_queue.add_unread(max(lag.unread_bytes for lag in behind) / most)

    def _read_chunk(self, queues: Sequence[QueueKeys]) -> list[_Reading]:
        """Read queues in one trip; in a few more the journal readers, outboxes and groups of those that have some."""
        inspections: list[Inspection | QworkerError] = self._ask([*map(inspect, queues)])
        journalled = [
            keys
            for keys, seen in zip(queues, inspections, strict=True)
            if isinstance(seen, Inspection) and (seen.journal != "off" or seen.journal_entries)
        ]
        lagging = run_plans(self._ask, [*map(lags, journalled)])
        behind = dict(zip(journalled, lagging, strict=True))
        followed = [
            keys
            for keys, seen in zip(queues, inspections, strict=True)
            if isinstance(seen, Inspection) and "followed" in seen.stats
        ]
        waiting = dict(
            zip(followed, run_plans(self._ask, [*map(outboxes_of, followed)]), strict=True)
        )
        sizes = {
            keys: seen.grouped
            for keys, seen in zip(queues, inspections, strict=True)
            if isinstance(seen, Inspection) and seen.grouped
        }
        # A queue behind ten larger ones hardly has one of the ten largest groups.
        grouped = heapq.nlargest(MAX_GROUPS, sizes, key=sizes.__getitem__)
        found = self._ask([largest(keys, MAX_GROUPS) for keys in grouped]) if grouped else []
        groups = dict(zip(grouped, found, strict=True))
        return [
            (keys, seen, behind.get(keys, []), waiting.get(keys), groups.get(keys))
            for keys, seen in zip(queues, inspections, strict=True)
        ]

    def _ask(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Execute commands in one trip; each reading waits only once for a node of a Cluster that is away."""
        factory = self._client.factory
        nodes = [factory.last_node(command.key) for command in commands]
        reachable = [number for number, node in enumerate(nodes) if node not in self._away]
        answers = self._client.execute_each(
            [commands[number] for number in reachable],
            give_up_s=_GIVE_UP_S,
            within_s=WITHIN_S if factory.clustered else None,
        )
        results = dict(zip(reachable, answers, strict=True))
        for number, answer in results.items():
            node = nodes[number]
            if factory.clustered and node is not None and isinstance(answer, AWAY):
                self._away[node] = answer
        return [
            results[number] if number in results else self._away[node]  # type: ignore[index]
            for number, node in enumerate(nodes)
        ]

    def _unread(self, queue: str, error: QworkerError) -> None:
        """Log an error that concerns one queue or one node alone, and raise any other."""
        if self._client.factory.clustered and isinstance(error, AWAY):
            if (suppressed := self._throttle.admit("away")) is not None:
                _log.warning("queue_figures_unread", problem=str(error), held_back=suppressed)
            return
        if not concerns_the_call(error):
            raise error
        if (suppressed := self._throttle.admit(queue)) is not None:
            _log.error(
                "queue_figures_unread", queue=queue, problem=str(error), held_back=suppressed
            )


#: A queue, its figures, how far the readers of its journal are behind, what waits for other queues, and its largest
#: groups with the server's time.
_Reading = tuple[
    QueueKeys,
    Inspection | QworkerError,
    list[ReaderLag] | QworkerError,
    list[Outbox] | QworkerError | None,
    tuple[int, list[LargeGroup]] | QworkerError | None,
]
