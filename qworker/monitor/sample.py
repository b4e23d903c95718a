"""What a dashboard knows at one instant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from qworker.client.inspect.peek import Inspection
from qworker.client.inspect.rates import rates_between
from qworker.client.namespace.workers import Reaper, Worker
from qworker.errors import BrokenQueueError
from qworker.health.finding import Finding
from qworker.monitor.history import Series

__all__ = ["Flow", "Sample"]


class Flow(NamedTuple):
    """Messages per second: stored by senders, done, failed. Of a queue, or of all queues."""

    sent: float = 0.0
    done: float = 0.0
    failed: float = 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Queues, workers and findings, each as it was last read; `number` grows with every reading.

    `now_ms` is the server's clock, 0 before the first reading. `problem` says why there is no newer reading. `earlier`
    are inspections a few seconds older, for rates. `findings` is None until the checks have been made once.
    """

    number: int = 0
    now_ms: int = 0
    queues: Mapping[str, Inspection | BrokenQueueError] = field(default_factory=dict)
    earlier: Mapping[str, Inspection] = field(default_factory=dict)
    workers: Sequence[Worker] = ()
    reapers: Sequence[Reaper] = ()
    findings: Sequence[Finding] | None = None
    #: Series of all queues together, by figure: sent, done, failed, ready, oldest, dead.
    totals: Mapping[str, Series] = field(default_factory=dict)
    #: Ready messages, and messages done per second, of queues that ever had any.
    ready: Mapping[str, Series] = field(default_factory=dict)
    done: Mapping[str, Series] = field(default_factory=dict)
    problem: str = ""

    def read(self) -> list[Inspection]:
        """Return the queues that could be read."""
        return [queue for queue in self.queues.values() if isinstance(queue, Inspection)]

    def rates(self, queue: str) -> dict[str, float]:
        """Return the gain per second of each counter of a queue; nothing before there are two readings of it."""
        earlier, later = self.earlier.get(queue), self.queues.get(queue)
        if earlier is None or not isinstance(later, Inspection):
            return {}
        return rates_between(earlier, later)

    def flow(self, queue: str) -> Flow | None:
        """Return the flow of a queue; None before there are two readings of it."""
        rates = self.rates(queue)
        if not rates:
            return None
        return Flow(
            rates["sent"], rates["acked"] + rates["discarded"], rates["nacked"] + rates["timeouts"]
        )

    def total_flow(self) -> Flow | None:
        """Return the flow of all queues together; None before there are two readings."""
        flows = [flow for name in self.queues if (flow := self.flow(name)) is not None]
        return Flow(*map(sum, zip(*flows, strict=True))) if flows else None
