"""What the daemon tells Prometheus of queues: the truth as Redis holds it.

Every process that reaps exports the same queue figures, so queries use `max by (queue)`. They are read when they are
asked for, over connections of their own, and kept for a few seconds: a scrape never waits for a pass nor a pass for
a scrape.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from qworker.client.commands.command import Command
from qworker.client.commands.inspecting import Inspection, inspect
from qworker.client.journal import ReaderLag, lags
from qworker.client.options import QueueAttributes
from qworker.client.plan import run_plans
from qworker.client.sync import Client
from qworker.errors import QworkerError, concerns_the_call
from qworker.telemetry.logs import Seldom
from qworker.wire.keys import QueueKeys
from qworker.wire.numbers import whole
from qworker.wire.reasons import DEATH_REASONS

__all__ = ["MAX_QUEUES", "OTHER", "QueueCollector"]

_log = structlog.get_logger(__name__)

#: Queues with a label of their own; the rest is added up under `OTHER`.
MAX_QUEUES: Final = 1000
OTHER: Final = "__other__"
#: Seconds for which figures are kept.
KEPT_S: Final = 3.0
#: Figures are also kept this many times as long as it took to read them: at most 5 % of a server's time.
_KEPT_TIMES: Final = 20.0
_GIVE_UP_S: Final = 0.5
#: Queues that are looked at in one trip: 7 ms of the server, which serves others in between.
READ_AT_ONCE: Final = 100
#: Different reasons of dead letters per queue; handlers may choose their own.
_MOST_REASONS: Final = 20

#: Counter in `stats` → metric (without `_total`) and help.
_COUNTERS: Final = {
    "sent": ("qworker_sent", "Messages stored by a send."),
    "received": ("qworker_received", "Deliveries."),
    "acked": ("qworker_acked", "Messages done."),
    "nacked": ("qworker_nacked", "Deliveries that failed."),
    "released": ("qworker_released", "Messages given back uncounted."),
    "unknown": (
        "qworker_unknown",
        "Deliveries to workers that knew no such task, or held no such key; the message was put back.",
    ),
    "expired": ("qworker_expired", "Messages whose time to live was over."),
    "timeouts": ("qworker_timeouts", "Deliveries whose lease ran out or whose worker died."),
    "redriven": ("qworker_redriven", "Dead letters put back to ready."),
    "stale": (
        "qworker_stale_receipts",
        "Settlements that found nothing to settle: their lease had run out, or an earlier try, whose reply was lost, "
        "had counted.",
    ),
    "promoted": ("qworker_promoted", "Delayed messages moved to ready."),
}
_GAUGES: Final = {
    "ready": ("qworker_messages_ready", "Messages that can be received now."),
    "delayed": ("qworker_messages_delayed", "Messages that wait for their due time."),
    "unacked": ("qworker_messages_unacked", "Messages received and not settled."),
    "dead": ("qworker_messages_dead", "Dead letters."),
    "oldest_s": (
        "qworker_oldest_ready_age_seconds",
        "How long the oldest ready message has been ready; its delays do not count.",
    ),
    "late_s": ("qworker_reap_lateness_seconds", "How long the next thing to reap has been due."),
}
#: The same of the journal, only of queues that have one.
_JOURNAL: Final = {
    "journal_entries": ("qworker_journal_entries", "Entries of the journal."),
    "journal_bytes": ("qworker_journal_bytes", "Size of the journal, about."),
    "journal_shed": (
        "qworker_journal_shed",
        "1 while the journal is not written because the server is nearly full.",
    ),
    "journal_unread": (
        "qworker_journal_unread_ratio",
        "What the slowest reader has not read, as a part of the journal's cap: from 1 on it misses entries.",
    ),
}
_REASON: Final = "dead:"


@dataclass(slots=True)
class _Figures:
    """The figures of a queue, or of several together (ages: the greatest)."""

    gauges: dict[str, float] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(
        # All from 0 on, so that the first death of a reason shows as an increase.
        default_factory=lambda: Counter(dict.fromkeys(DEATH_REASONS, 0))
    )
    paused_in: bool = False
    paused_out: bool = False

    def add(self, seen: Inspection) -> None:
        due = [at for at in (seen.next_due_ms, seen.next_deadline_ms) if at is not None]
        late_s = max(0, seen.now_ms - min(due)) / 1000 if due else 0.0
        for name, number in (
            ("ready", seen.ready),
            ("delayed", seen.delayed),
            ("unacked", seen.unacked),
            ("dead", seen.dead),
        ):
            self.gauges[name] = self.gauges.get(name, 0.0) + number
        self._most("oldest_s", seen.oldest_age_s)
        self._most("late_s", late_s)
        for name, number in seen.stats.items():
            if name in _COUNTERS:
                self.counters[name] += max(0, number)
        reasons = sorted(name for name in seen.stats if name.startswith(_REASON))
        for at, name in enumerate(reasons):
            reason = name.removeprefix(_REASON)
            if at >= _MOST_REASONS and reason not in DEATH_REASONS:
                reason = "other"
            self.reasons[reason] += max(0, seen.stats[name])
        if seen.journal != "off" or seen.journal_entries:
            for name, number in (
                ("journal_entries", seen.journal_entries),
                ("journal_bytes", seen.journal_bytes),
            ):
                self.gauges[name] = self.gauges.get(name, 0.0) + number
            self._most("journal_shed", seen.journal_shed)
        self.paused_in = self.paused_in or seen.paused in ("in", "all")
        self.paused_out = self.paused_out or seen.paused in ("out", "all")

    def add_unread(self, ratio: float) -> None:
        """Note what the slowest reader of a queue's journal has not read."""
        self._most("journal_unread", ratio)

    def _most(self, name: str, number: float) -> None:
        self.gauges[name] = max(self.gauges.get(name, 0.0), number)


class QueueCollector(Collector):
    """Exports the figures of the queues that `queues()` names; nothing where the server does not answer."""

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
        self._seldom = Seldom(clock=clock)
        self._lock = threading.Lock()
        self._figures: dict[str, _Figures] = {}
        self._good_until = float("-inf")

    def describe(self) -> Iterable[Metric]:
        """Name the metrics without asking the server: a registry asks on registration."""
        return _families({})

    def collect(self) -> Iterator[Metric]:
        """Read the figures of all queues, O(queues) calls in trips of a hundred, or those of a few seconds ago."""
        with self._lock:
            if self._clock() >= self._good_until:
                self._refresh()
            figures = self._figures
        yield from _families(figures)

    def _refresh(self) -> None:
        started = self._clock()
        try:
            figures = self._read()
        except QworkerError as error:
            # Old figures would look like a queue at rest.
            figures = {}
            if (held := self._seldom.more("unread")) is not None:
                _log.warning("queue_figures_unread", problem=str(error), held_back=held)
        self._figures = figures
        ended = self._clock()
        self._good_until = ended + max(self._kept_s, _KEPT_TIMES * (ended - started))

    def _read(self) -> dict[str, _Figures]:
        figures: dict[str, _Figures] = {}
        queues = self._queues()
        chunks = [queues[at : at + READ_AT_ONCE] for at in range(0, len(queues), READ_AT_ONCE)]
        # Two at a time: the server looks at one chunk while the other is added up here.
        with ThreadPoolExecutor(2) as pool:
            for looks in pool.map(self._look, chunks):
                for keys, seen, behind in looks:
                    self._add(figures, keys, seen, behind)
        return figures

    def _add(
        self,
        figures: dict[str, _Figures],
        keys: QueueKeys,
        seen: Inspection | QworkerError,
        behind: list[ReaderLag] | QworkerError,
    ) -> None:
        if isinstance(seen, QworkerError):
            self._unread(keys.queue, seen)
            return
        # The first of them by name have labels: the same ones at every scrape and in every process.
        named = keys.name in figures or len(figures) < self._max_queues
        of_queue = figures.setdefault(keys.name if named else OTHER, _Figures())
        of_queue.add(seen)
        if isinstance(behind, QworkerError):
            self._unread(keys.queue, behind)
        elif behind:
            most = whole(seen.meta.get("journal_cap")) or QueueAttributes().journal_cap
            # That of the slowest reader.
            of_queue.add_unread(max(each.unread_bytes for each in behind) / most)

    def _look(self, queues: Sequence[QueueKeys]) -> list[_Look]:
        """Look at queues in one trip, and in a few more at the readers of those with a journal."""
        seen: list[Inspection | QworkerError] = self._ask([*map(inspect, queues)])
        read = [
            keys
            for keys, each in zip(queues, seen, strict=True)
            if isinstance(each, Inspection) and (each.journal != "off" or each.journal_entries)
        ]
        behind = dict(zip(read, run_plans(self._ask, [*map(lags, read)]), strict=True))
        return [(keys, each, behind.get(keys, [])) for keys, each in zip(queues, seen, strict=True)]

    def _ask(self, commands: Sequence[Command[Any]]) -> list[Any]:
        return self._client.execute_each(commands, give_up_s=_GIVE_UP_S)

    def _unread(self, queue: str, error: QworkerError) -> None:
        """Tell of an error that concerns one queue alone, and raise any other."""
        if not concerns_the_call(error):
            raise error
        if (held := self._seldom.more(queue)) is not None:
            _log.error("queue_figures_unread", queue=queue, problem=str(error), held_back=held)


#: A queue, what was seen of it, and how far the readers of its journal are behind.
_Look = tuple[QueueKeys, Inspection | QworkerError, list[ReaderLag] | QworkerError]


def _families(figures: dict[str, _Figures]) -> Iterator[Metric]:
    for key, (name, words) in _GAUGES.items():
        gauge = GaugeMetricFamily(name, words, labels=["queue"])
        for queue, of_queue in figures.items():
            gauge.add_metric([queue], of_queue.gauges[key])
        yield gauge
    for key, (name, words) in _JOURNAL.items():
        gauge = GaugeMetricFamily(name, words, labels=["queue"])
        for queue, of_queue in figures.items():
            if key in of_queue.gauges:
                gauge.add_metric([queue], of_queue.gauges[key])
        yield gauge
    paused = GaugeMetricFamily(
        "qworker_queue_paused",
        "1 where sends (in) or receives (out) pause.",
        None,
        ["queue", "state"],
    )
    for queue, of_queue in figures.items():
        paused.add_metric([queue, "in"], of_queue.paused_in)
        paused.add_metric([queue, "out"], of_queue.paused_out)
    yield paused
    for key, (name, words) in _COUNTERS.items():
        counter = CounterMetricFamily(name, words, labels=["queue"])
        for queue, of_queue in figures.items():
            counter.add_metric([queue], of_queue.counters[key])
        yield counter
    dead = CounterMetricFamily("qworker_dead", "Messages buried.", labels=["queue", "reason"])
    for queue, of_queue in figures.items():
        for reason, number in sorted(of_queue.reasons.items()):
            dead.add_metric([queue, reason], number)
    yield dead
