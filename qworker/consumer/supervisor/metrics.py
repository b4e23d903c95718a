"""Prometheus metrics of a worker: the counts on the boards of its children, read when scraped.

Children count in shared memory and the supervisor adds up, so there are no files of dead processes and no label with a
process id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from qworker.consumer.board.counters import BUCKETS_S, MAX_TASKS, OUTCOMES, TaskCounts

if TYPE_CHECKING:
    from qworker.consumer.supervisor.processes.totals import Counts
    from qworker.consumer.supervisor.supervisor import Supervisor

__all__ = ["ChildrenCollector"]


class ChildrenCollector(Collector):
    """Collects the metrics of one supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def describe(self) -> list[Metric]:
        """Describe nothing: registering must not need a running supervisor."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        yield from self._tasks()
        yield from self._children()

    def _tasks(self) -> Iterator[Metric]:
        handled = CounterMetricFamily(
            "qworker_handled",
            "Messages whose handler has ended, by outcome.",
            labels=("queue", "task", "outcome"),
        )
        run = HistogramMetricFamily(
            "qworker_handler_seconds", "Running time of handlers.", labels=("queue", "task")
        )
        wait = HistogramMetricFamily(
            "qworker_wait_seconds",
            "Time from when a message became ready (sent, due, or given back) until it was received.",
            labels=("queue", "task"),
        )
        counted = {**self._zeros(), **self._supervisor.totals.counts()}
        for labels, counts in sorted(counted.items()):
            for outcome, number in zip(OUTCOMES, counts.outcomes, strict=True):
                handled.add_metric((*labels, outcome), number)
            run.add_metric(labels, _buckets(counts.run), sum_value=counts.run_s)
            wait.add_metric(labels, _buckets(counts.wait), sum_value=counts.wait_s)
        yield handled
        yield run
        yield wait

    def _zeros(self) -> Counts:
        """Zero counts of every task: `rate` does not see the step from no series to 1.

        Without them the failure of a task that runs once a day would raise no alert.
        """
        manifest = self._supervisor.manifest
        tasks = manifest.tasks[: MAX_TASKS - 1] if manifest is not None else []
        return {(task.queue, task.name): TaskCounts.none() for task in tasks}

    def _children(self) -> Iterator[Metric]:
        supervisor = self._supervisor
        children = supervisor.children
        states = {"running": 0, "starting": 0, "stopped": 0}
        for child in children:
            states["stopped" if child.stopping else "running" if child.ready else "starting"] += 1
        gauge = GaugeMetricFamily("qworker_children", "Child processes.", labels=("state",))
        for state, number in states.items():
            gauge.add_metric((state,), number)
        yield gauge
        exits = CounterMetricFamily(
            "qworker_child_exits", "Ended child processes, by reason.", labels=("reason",)
        )
        for reason, number in supervisor.totals.exits.items():
            exits.add_metric((reason,), number)
        yield exits
        yield GaugeMetricFamily(
            "qworker_running_handlers",
            "Handlers that run now.",
            sum(len(child.board.running.views()) for child in children),
        )
        yield CounterMetricFamily(
            "qworker_lease_extensions", "Leases extended.", supervisor.keeper.extended
        )
        yield CounterMetricFamily(
            "qworker_leases_lost",
            "Leases that ran out while their child was working.",
            supervisor.keeper.lost,
        )
        yield CounterMetricFamily(
            "qworker_stale_outcomes",
            "Counted outcomes that changed nothing: their lease had run out, an earlier attempt whose reply was lost "
            "had counted, or their process died before it sent them.",
            supervisor.totals.stale + supervisor.keeper.stale,
        )
        reapers = GaugeMetricFamily(
            "qworker_reapers_seen",
            "Reapers that made a pass in the last 15 s, as seen by a worker without a reaper.",
        )
        if supervisor.reapers_seen is not None:
            reapers.add_metric((), supervisor.reapers_seen)
        yield reapers


def _buckets(counts: Sequence[int]) -> list[tuple[str, float]]:
    """Make buckets cumulative, as Prometheus needs them."""
    total, buckets = 0, []
    for bound, number in zip((*BUCKETS_S, inf), counts, strict=True):
        total += number
        buckets.append(("+Inf" if bound == inf else str(bound), float(total)))
    return buckets
