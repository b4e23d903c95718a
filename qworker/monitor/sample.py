"""The state that a dashboard shows at one instant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from qworker.client.inspect.peek import Inspection
from qworker.client.inspect.rates import rates_between
from qworker.client.namespace.workers import ReaperInfo, Worker
from qworker.errors import BrokenQueueError, QworkerError
from qworker.formats import count
from qworker.health.finding import Finding
from qworker.monitor.history import Series

__all__ = ["Flow", "Sample"]


#: Queues that a sentence names.
_NAMED: Final = 5


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
    `unknown`: lists that could not be read ("queues", "workers", "reapers"), and why.
    """

    number: int = 0
    now_ms: int = 0
    #: A queue that could not be read has its error: it is broken, or its node of a Cluster is away.
    queues: Mapping[str, Inspection | QworkerError] = field(default_factory=dict)
    earlier: Mapping[str, Inspection] = field(default_factory=dict)
    workers: Sequence[Worker] = ()
    reapers: Sequence[ReaperInfo] = ()
    findings: Sequence[Finding] | None = None
    #: Series of all queues together, by figure: sent, done, failed, ready, oldest, dead.
    totals: Mapping[str, Series] = field(default_factory=dict)
    #: Ready messages, and messages done per second, of queues that ever had any.
    ready: Mapping[str, Series] = field(default_factory=dict)
    done: Mapping[str, Series] = field(default_factory=dict)
    problem: str = ""
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def unread(self) -> dict[str, str]:
        """Why queues that are not broken could not be read."""
        return {
            name: str(queue)
            for name, queue in self.queues.items()
            if not isinstance(queue, Inspection | BrokenQueueError)
        }

    @property
    def partial(self) -> list[str]:
        """Say what could not be read, and why; nothing while all can be."""
        whys: dict[str, list[str]] = {}
        for name, why in self.unread.items():
            whys.setdefault(why, []).append(name)
        texts = [
            f"{count(len(names), 'queue')} not read ({', '.join(names[:_NAMED])}"
            f"{', …' if len(names) > _NAMED else ''}): {why}"
            for why, names in whys.items()
        ]
        return texts + [
            f"The list of {name} is not read: {why}" for name, why in self.unknown.items()
        ]

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
