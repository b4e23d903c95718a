"""Queues as text and for `--json`: rows of a list, one queue in full."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from qworker.cli.framework.output import Block, Fields, Hanging, Heading, Table
from qworker.cli.framework.terminal import Cell, Column
from qworker.client.inspect.peek import Inspection
from qworker.client.inspect.rates import COUNTERS
from qworker.client.manage.attribute_text import read_attributes
from qworker.errors import BrokenQueueError
from qworker.formats import ago, count, moment, moment_after, rate, span
from qworker.health.queues import OVERDUE_S

if TYPE_CHECKING:
    from qworker.client.namespace.workers import Worker

__all__ = [
    "queue_document",
    "queue_row",
    "queue_text",
    "state_of",
]


def state_of(queue: Inspection | BrokenQueueError) -> Cell:
    """Return the state of a queue in a word or two."""
    if isinstance(queue, BrokenQueueError):
        return Cell("broken", "bad")
    states = []
    if queue.unread:
        states.append("partly unread")
    if (late_s := queue.overdue_s) > OVERDUE_S:
        states.append(f"overdue {span(late_s)}")
    if queue.paused:
        states.append("paused" if queue.paused == "all" else f"paused {queue.paused}")
    if queue.limited_until_ms is not None:
        states.append(f"rate limited {span((queue.limited_until_ms - queue.now_ms) / 1000)}")
    if queue.is_full:
        states.append("full")
    if not states:
        return Cell("ok", "good")
    is_bad = states[0].startswith("overdue") or bool(queue.unread)
    return Cell(", ".join(states), "bad" if is_bad else "warn")


def queue_row(name: str, queue: Inspection | BrokenQueueError) -> list[Cell | str]:
    """Write a queue as a row: name, ready, delayed, unacked, dead, oldest, state."""
    if isinstance(queue, BrokenQueueError):
        return [name, "", "", "", "", "", state_of(queue)]
    return [
        name,
        count(queue.ready),
        count(queue.delayed),
        count(queue.unacked),
        Cell(count(queue.dead), "warn" if queue.dead else ""),
        span(queue.oldest_age_s) if queue.ready else "",
        state_of(queue),
    ]


def queue_document(
    name: str,
    queue: Inspection | BrokenQueueError,
    *,
    rates: Mapping[str, float] | None = None,
    full: bool = False,
) -> dict[str, Any]:
    """Write a queue for `--json`: messages, seconds, bytes. `full` adds attributes and counters."""
    if isinstance(queue, BrokenQueueError):
        return {"queue": name, "broken": {"key": queue.key, "type": queue.found}}
    document: dict[str, Any] = {
        "queue": name,
        "broken": None,
        "ready": queue.ready,
        "in_groups": queue.grouped,
        "delayed": queue.delayed,
        "unacked": queue.unacked,
        "dead": queue.dead,
        "oldest_age_seconds": queue.oldest_age_s,
        "overdue_seconds": queue.overdue_s,
        "paused": queue.paused,
        "limited_until_ms": queue.limited_until_ms,
        "full": queue.is_full,
    }
    if rates is not None:
        document["rates_per_second"] = {name: round(per_s, 3) for name, per_s in rates.items()}
    if full:
        attributes = read_attributes(queue.meta)
        document |= {
            "now_ms": queue.now_ms,
            "ready_by_priority": {str(p): n for p, n in enumerate(queue.ready_by_priority)},
            "suspect": queue.suspect,
            "leases": queue.leases,
            "stored": queue.stored,
            "next_due_ms": queue.next_due_ms,
            "next_deadline_ms": queue.next_deadline_ms,
            "attributes": {one.field: one.value for one in attributes},
            "attributes_set": [one.field for one in attributes if one.is_set],
            "counters": queue.stats,
        }
    return document


def queue_text(
    inspection: Inspection, rates: Mapping[str, float], workers: Iterable[Worker] | None
) -> Iterator[Block]:
    """Write one queue in full, and what to do about it at the end.

    `workers`: those of the namespace; None if they could not be read.
    """
    served = None
    if workers is not None:
        served = sum(worker.listens_to(inspection.queue) for worker in workers)
    number = "unknown" if served is None else count(served)
    yield Fields({**_sizes(inspection), "workers": number, **_times(inspection)})
    yield Heading("ATTRIBUTES")
    rows: list[list[Cell | str]] = [
        [attribute.name, attribute.text, _origin(attribute.problem, is_set=attribute.is_set)]
        for attribute in read_attributes(inspection.meta)
    ]
    yield Table([Column("ATTRIBUTE"), Column("VALUE"), Column("FROM", wide=True)], rows)
    yield Heading("COUNTERS")
    yield _counters(inspection.stats, rates)
    steps = _next_steps(inspection, served)
    if steps:
        yield Heading("WHAT TO DO")
        for step in steps:
            yield Hanging("- ", step)


def _counters(stats: Mapping[str, int], rates: Mapping[str, float]) -> Table:
    columns = [Column("COUNTER"), Column("TOTAL", number=True)]
    columns += [Column("PER SECOND", number=True)] if rates else []
    columns += [Column("MEANING", wide=True)]
    return Table(
        columns,
        [
            [
                name,
                count(stats.get(name, 0)),
                *([rate(rates[name])] if rates else []),
                Cell(meaning + _reasons(name, stats), "dim"),
            ]
            for name, meaning in COUNTERS.items()
            if stats.get(name) or name in ("sent", "acked")
        ],
    )


def _sizes(queue: Inspection) -> dict[str, Cell | str]:
    now_ms = queue.now_ms
    ready = count(queue.ready)
    if queue.oldest_ready_ms is not None:
        ready += f", the oldest {span(queue.oldest_age_s)} old"
    levels = [f"{n:,} of priority {p}" for p, n in enumerate(queue.ready_by_priority) if n and p]
    if queue.suspect:
        levels.append(
            f"{queue.suspect:,} suspect (delivered alone, as they may have killed a worker)"
        )
    if queue.grouped:
        levels.append(f"{queue.grouped:,} in groups, see qworker limit groups {queue.queue}")
    if levels:
        ready += f" ({', '.join(reversed(levels))})"
    delayed = count(queue.delayed)
    if queue.next_due_ms is not None:
        delayed += f", the next due {ago(queue.next_due_ms, now_ms)}"
    unacked = count(queue.unacked)
    if queue.next_deadline_ms is not None:
        unacked += f", in {count(queue.leases, 'lease')}, the next deadline {ago(queue.next_deadline_ms, now_ms)}"
    return {
        "queue": queue.queue,
        "state": state_of(queue),
        "ready": ready,
        "delayed": delayed,
        "unacked": unacked,
        "dead": Cell(count(queue.dead), "warn" if queue.dead else ""),
    }


def _times(queue: Inspection) -> dict[str, Cell | str]:
    changed_ms, now_ms = queue.modified_ms, queue.now_ms
    last_set = {} if changed_ms is None else {"last set": moment_after(changed_ms, now_ms)}
    return {**last_set, "read at": moment(now_ms)}


def _origin(problem: str, *, is_set: bool) -> Cell:
    if problem:
        return Cell(f"default: {problem}", "bad")
    return Cell("set") if is_set else Cell("default", "dim")


def _reasons(counter: str, stats: Mapping[str, int]) -> str:
    if counter != "dead":
        return ""
    reasons = {name[5:]: number for name, number in stats.items() if name.startswith("dead:")}
    parts = [f"{number:,} {name}" for name, number in sorted(reasons.items(), key=lambda r: -r[1])]
    return f": {', '.join(parts)}" if parts else ""


def _next_steps(queue: Inspection, workers: int | None) -> list[str]:
    name, steps = queue.queue, []
    steps += [f"a shard cannot be read, {unread}" for unread in queue.unread]
    if queue.overdue_s > OVERDUE_S:
        steps.append("messages are overdue, as no reaper serves this queue: qworker doctor")
    if queue.paused:
        steps.append(f"it is paused: qworker queue resume {name}")
    if queue.limited_until_ms is not None:
        steps.append(f"a handler raised RateLimited; to continue now: qworker queue resume {name}")
    if queue.ready and workers == 0:
        steps.append(f"no worker receives from it: qworker run MODULE --queues {name}")
    if queue.is_full:
        steps.append(
            f"it is full and refuses sends: add workers, or qworker queue set {name} maxlen=N"
        )
    if queue.dead:
        steps.append(f"it has dead letters: qworker dead ls {name}")
    return steps
