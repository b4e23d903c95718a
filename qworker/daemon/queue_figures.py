"""The figures of a queue, added up over its shards or over queues that share a label, and the metrics they become."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from qworker.client.relay import Outbox
from qworker.engine.groups import LargeGroup
from qworker.engine.inspect import Inspection
from qworker.wire.groups import ORDERED
from qworker.wire.reasons import DEATH_REASONS

__all__ = ["MAX_GROUPS", "Figures", "families", "known_counters"]

#: Reasons of dead letters per queue at most; handlers may choose their own.
_MAX_REASONS: Final = 20

#: Counter in `stats` → metric (without `_total`) and help.
_COUNTERS: Final = {
    "sent": ("qworker_sent", "Messages stored by a send."),
    "received": ("qworker_received", "Deliveries."),
    "acked": ("qworker_acked", "Messages done."),
    "followed": ("qworker_followed", "Messages that acks have sent to other queues."),
    "results": ("qworker_results", "Results of messages kept."),
    "nacked": ("qworker_nacked", "Deliveries that failed."),
    "released": ("qworker_released", "Messages given back uncounted."),
    "unknown": (
        "qworker_unknown",
        "Deliveries to workers without the task or without the key; the message was put back.",
    ),
    "expired": ("qworker_expired", "Messages whose time to live was over."),
    "timeouts": ("qworker_timeouts", "Deliveries whose lease ran out or whose worker died."),
    "redriven": ("qworker_redriven", "Dead letters put back to ready."),
    "stale": (
        "qworker_stale_receipts",
        "Settlements that found nothing to settle: their lease had run out, or an earlier attempt, whose reply was "
        "lost, had counted.",
    ),
    "promoted": ("qworker_promoted", "Delayed messages moved to ready."),
    "parked": ("qworker_runs_parked", "Times that runs began to sleep or wait."),
}
_GAUGES: Final = {
    "ready": ("qworker_messages_ready", "Messages that can be received now."),
    "delayed": ("qworker_messages_delayed", "Messages that wait for their due time."),
    "unacked": ("qworker_messages_unacked", "Messages received and not yet settled."),
    "dead": ("qworker_messages_dead", "Dead letters."),
    "oldest_s": (
        "qworker_oldest_ready_age_seconds",
        "How long the oldest ready message has been ready; its delays do not count. Of groups, 32 are looked at.",
    ),
    "late_s": (
        "qworker_reap_lateness_seconds",
        "How long the most overdue message or lease has been due.",
    ),
    "outbox": (
        "qworker_outbox_messages",
        "Messages that acks have sent to other queues, and that are not stored there yet.",
    ),
    "outbox_s": (
        "qworker_outbox_age_seconds",
        "How long the oldest message that waits for another queue has waited.",
    ),
}
#: Gauges of queues that have groups or a journal.
_OF_SOME: Final = {
    "grouped": (
        "qworker_group_messages_waiting",
        "Messages that wait in groups, for their turn, a slot or a rate; they count as ready, too.",
    ),
    "journal_entries": ("qworker_journal_entries", "Entries of the journal."),
    "journal_bytes": ("qworker_journal_bytes", "Approximate size of the journal."),
    "journal_shed": (
        "qworker_journal_shed",
        "1 while the journal is not written because the server is nearly full.",
    ),
    "journal_unread": (
        "qworker_journal_unread_ratio",
        "Unread share of the journal's cap, for the slowest reader; from 1 on, it misses entries.",
    ),
}
#: Gauges of the groups with the most waiting messages, this many over all queues: label values must be few.
MAX_GROUPS: Final = 10
_OF_GROUPS: Final = (
    ("qworker_large_group_waiting", "Messages that wait in one of the ten largest groups."),
    ("qworker_large_group_running", "Running messages of one of the ten largest groups."),
    (
        "qworker_large_group_wait_seconds",
        "How long the first waiting message of one of the ten largest groups has waited.",
    ),
)
_REASON: Final = "dead:"


@dataclass(slots=True)
class Figures:
    """The figures of a queue, or of several together (ages: the greatest)."""

    gauges: dict[str, float] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(
        # All from 0 on, so that the first death of a reason shows as an increase.
        default_factory=lambda: Counter(dict.fromkeys(DEATH_REASONS, 0))
    )
    #: Its largest groups, over its shards: name, waiting, running, seconds that the first one has waited.
    groups: list[tuple[str, int, int, float]] = field(default_factory=list)
    paused_in: bool = False
    paused_out: bool = False

    def add(self, seen: Inspection) -> None:
        """Add a queue or shard."""
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
        self.add_outboxes(())
        self.count(seen.stats)
        if seen.journal != "off" or seen.journal_entries:
            for name, number in (
                ("journal_entries", seen.journal_entries),
                ("journal_bytes", seen.journal_bytes),
            ):
                self.gauges[name] = self.gauges.get(name, 0.0) + number
            self._most("journal_shed", seen.journal_shed)
        if seen.meta.get("groups") == "1":
            self.gauges["grouped"] = self.gauges.get("grouped", 0.0) + seen.grouped
        self.paused_in = self.paused_in or seen.paused in ("in", "all")
        self.paused_out = self.paused_out or seen.paused in ("out", "all")

    def count(self, stats: Mapping[str, int]) -> None:
        """Add the counters of a queue or shard."""
        for name, number in stats.items():
            if name in _COUNTERS:
                self.counters[name] += max(0, number)
        reasons = sorted(name for name in stats if name.startswith(_REASON))
        for at, name in enumerate(reasons):
            reason = name.removeprefix(_REASON)
            if at >= _MAX_REASONS and reason not in DEATH_REASONS:
                reason = "other"
            self.reasons[reason] += max(0, stats[name])

    def add_unread(self, ratio: float) -> None:
        """Add the unread share of a journal's cap, for its slowest reader."""
        self._most("journal_unread", ratio)

    def add_outboxes(self, waiting: Sequence[Outbox]) -> None:
        """Add the messages that wait for other queues."""
        entries = sum(outbox.entries for outbox in waiting)
        self.gauges["outbox"] = self.gauges.get("outbox", 0.0) + entries
        self._most("outbox_s", max((outbox.age_s for outbox in waiting), default=0.0))

    def add_groups(self, now_ms: int, groups: Sequence[LargeGroup]) -> None:
        """Add the largest groups of a queue or shard."""
        for group in groups:
            waited_s = 0.0 if group.since_ms is None else max(0, now_ms - group.since_ms) / 1000
            name = group.name.removeprefix(ORDERED)
            self.groups.append((name, group.waiting, group.running, waited_s))

    def _most(self, name: str, number: float) -> None:
        self.gauges[name] = max(self.gauges.get(name, 0.0), number)


def known_counters(stats: Mapping[str, int]) -> dict[str, int]:
    """Return the counters of a queue that are exported and not 0."""
    known = {name: stats[name] for name in _COUNTERS if stats.get(name)}
    return known | {name: n for name, n in stats.items() if n and name.startswith(_REASON)}


def families(figures: Mapping[str, Figures]) -> Iterator[Metric]:
    """Yield metrics of the figures of queues, which are given by label."""
    for key, (name, words) in _GAUGES.items():
        gauge = GaugeMetricFamily(name, words, labels=["queue"])
        for queue, of_queue in figures.items():
            gauge.add_metric([queue], of_queue.gauges[key])
        yield gauge
    for key, (name, words) in _OF_SOME.items():
        gauge = GaugeMetricFamily(name, words, labels=["queue"])
        for queue, of_queue in figures.items():
            if key in of_queue.gauges:
                gauge.add_metric([queue], of_queue.gauges[key])
        yield gauge
    yield from _groups(figures)
    paused = GaugeMetricFamily(
        "qworker_queue_paused",
        "1 while sends (in) or receives (out) are paused.",
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


def _groups(figures: Mapping[str, Figures]) -> Iterator[Metric]:
    """Yield the metrics of the groups with the most waiting messages of all queues."""
    found: dict[tuple[str, str], list[float]] = {}
    for queue, of_queue in figures.items():
        for name, waiting, running, waited_s in of_queue.groups:
            # An ordered group and a fair one of the same name are one here; so are those of two shards.
            one = found.setdefault((queue, name), [0, 0, 0.0])
            one[:] = [one[0] + waiting, one[1] + running, max(one[2], waited_s)]
    chosen = heapq.nlargest(MAX_GROUPS, found, key=lambda which: (found[which][0], which))
    for at, (name, words) in enumerate(_OF_GROUPS):
        gauge = GaugeMetricFamily(name, words, labels=["queue", "group"])
        for queue, group in sorted(chosen):
            gauge.add_metric([queue, group], found[queue, group][at])
        yield gauge
