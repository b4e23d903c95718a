"""Queues for people and programs: rows of a list, one queue in full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from qworker.cli.attributes import read_attributes
from qworker.cli.formats import ago, count, moment, moment_after, rate, span
from qworker.cli.rates import COUNTERS
from qworker.cli.screen import Cell, Column, print_fields, print_hanging, print_heading, print_table
from qworker.client.commands.inspecting import Inspection
from qworker.errors import BrokenQueueError
from qworker.wire.numbers import whole

__all__ = [
    "OVERDUE_S",
    "is_full",
    "overdue_s",
    "print_queue",
    "queue_document",
    "queue_row",
    "state_of",
]

#: A reaper comes by every second, and waits up to 6 s after a gap: what is late by more is not being reaped.
OVERDUE_S: Final = 10.0


def overdue_s(inspection: Inspection) -> float:
    """Seconds by which the first due message or visibility deadline is late; 0 where none is."""
    times = (inspection.next_due_ms, inspection.next_deadline_ms)
    late_ms = [inspection.now_ms - each for each in times if each is not None]
    return max(0, *late_ms, 0) / 1000


def is_full(inspection: Inspection) -> bool:
    """Say whether the queue is at its maxlen and refuses what is sent."""
    maxlen = whole(inspection.meta.get("maxlen")) or 0
    return 0 < maxlen <= inspection.stored


def state_of(found: Inspection | BrokenQueueError) -> Cell:
    """Say in a word or two whether a queue works."""
    if isinstance(found, BrokenQueueError):
        return Cell("broken", "bad")
    states = []
    if (late_s := overdue_s(found)) > OVERDUE_S:
        states.append(f"overdue {span(late_s)}")
    if found.paused:
        states.append("paused" if found.paused == "all" else f"paused {found.paused}")
    if is_full(found):
        states.append("full")
    if not states:
        return Cell("ok", "good")
    return Cell(", ".join(states), "bad" if states[0].startswith("overdue") else "warn")


def queue_row(name: str, found: Inspection | BrokenQueueError) -> list[Cell | str]:
    """Write a queue as a row: name, ready, delayed, unacked, dead, oldest, state."""
    if isinstance(found, BrokenQueueError):
        return [name, "", "", "", "", "", state_of(found)]
    return [
        name,
        count(found.ready),
        count(found.delayed),
        count(found.unacked),
        Cell(count(found.dead), "warn" if found.dead else ""),
        span(found.oldest_age_s) if found.ready else "",
        state_of(found),
    ]


def queue_document(
    name: str,
    found: Inspection | BrokenQueueError,
    *,
    rates: Mapping[str, float] | None = None,
    full: bool = False,
) -> dict[str, Any]:
    """Write a queue for programs: messages, seconds, bytes. `full` adds attributes and counters."""
    if isinstance(found, BrokenQueueError):
        return {"queue": name, "broken": {"key": found.key, "type": found.found}}
    document: dict[str, Any] = {
        "queue": name,
        "broken": None,
        "ready": found.ready,
        "delayed": found.delayed,
        "unacked": found.unacked,
        "dead": found.dead,
        "oldest_age_seconds": found.oldest_age_s,
        "overdue_seconds": overdue_s(found),
        "paused": found.paused,
        "full": is_full(found),
    }
    if rates is not None:
        document["rates_per_second"] = {name: round(each, 3) for name, each in rates.items()}
    if full:
        attributes = read_attributes(found.meta)
        document |= {
            "now_ms": found.now_ms,
            "ready_by_priority": {str(p): n for p, n in enumerate(found.ready_by_priority)},
            "suspect": found.suspect,
            "leases": found.leases,
            "stored": found.stored,
            "next_due_ms": found.next_due_ms,
            "next_deadline_ms": found.next_deadline_ms,
            "attributes": {each.field: each.value for each in attributes},
            "attributes_set": [each.field for each in attributes if each.is_set],
            "counters": found.stats,
        }
    return document


def print_queue(found: Inspection, rates: Mapping[str, float], *, workers: int) -> None:
    """Print one queue in full, and what to do about it at the end; `workers` take from it."""
    print_fields({**_sizes(found), "workers": count(workers), **_times(found)})
    print_heading("ATTRIBUTES")
    rows: list[list[Cell | str]] = [
        [each.name, each.text, Cell(*_origin(each.problem, is_set=each.is_set))]
        for each in read_attributes(found.meta)
    ]
    print_table([Column("ATTRIBUTE"), Column("VALUE"), Column("FROM", wide=True)], rows)
    print_heading("COUNTERS")
    shown = [name for name in COUNTERS if found.stats.get(name) or name in ("sent", "acked")]
    columns = [Column("COUNTER"), Column("TOTAL", number=True)]
    columns += [Column("PER SECOND", number=True)] if rates else []
    columns += [Column("MEANING", wide=True)]
    print_table(
        columns,
        [
            [
                name,
                count(found.stats.get(name, 0)),
                *([rate(rates[name])] if rates else []),
                Cell(COUNTERS[name] + _reasons(name, found.stats), "dim"),
            ]
            for name in shown
        ],
    )
    steps = _next_steps(found, workers)
    if steps:
        print_heading("WHAT TO DO")
        for step in steps:
            print_hanging("- ", step)


def _sizes(found: Inspection) -> dict[str, Cell | str]:
    now_ms = found.now_ms
    ready = count(found.ready)
    if found.ready:
        ready += f", the oldest for {span(found.oldest_age_s)}"
    levels = [f"{n:,} of priority {p}" for p, n in enumerate(found.ready_by_priority) if n and p]
    if found.suspect:
        levels.append(f"{found.suspect:,} suspect (handed out alone, a worker may have died of it)")
    if levels:
        ready += f" ({', '.join(reversed(levels))})"
    delayed = count(found.delayed)
    if found.next_due_ms is not None:
        delayed += f", the next due {ago(found.next_due_ms, now_ms)}"
    unacked = count(found.unacked)
    if found.next_deadline_ms is not None:
        unacked += f", in {count(found.leases, 'lease')}, the next deadline {ago(found.next_deadline_ms, now_ms)}"
    return {
        "queue": found.queue,
        "state": state_of(found),
        "ready": ready,
        "delayed": delayed,
        "unacked": unacked,
        "dead": Cell(count(found.dead), "warn" if found.dead else ""),
    }


def _times(found: Inspection) -> dict[str, Cell | str]:
    changed_ms, now_ms = found.modified_ms, found.now_ms
    last_set = {} if changed_ms is None else {"last set": moment_after(changed_ms, now_ms)}
    return {**last_set, "read at": moment(now_ms)}


def _origin(problem: str, *, is_set: bool) -> tuple[str, str]:
    if problem:
        return f"default: {problem}", "bad"
    return ("set", "") if is_set else ("default", "dim")


def _reasons(counter: str, stats: Mapping[str, int]) -> str:
    if counter != "dead":
        return ""
    reasons = {name[5:]: number for name, number in stats.items() if name.startswith("dead:")}
    parts = [f"{number:,} {name}" for name, number in sorted(reasons.items(), key=lambda r: -r[1])]
    return f": {', '.join(parts)}" if parts else ""


def _next_steps(found: Inspection, workers: int) -> list[str]:
    name, steps = found.queue, []
    if overdue_s(found) > OVERDUE_S:
        steps.append("messages are overdue: no reaper works on this queue: qworker doctor")
    if found.paused:
        steps.append(f"it is paused: qworker queue resume {name}")
    if found.ready and not workers:
        steps.append(f"no worker takes from it: qworker run MODULE --queues {name}")
    if is_full(found):
        steps.append(
            f"it is full and refuses what is sent: add workers, or qworker queue set {name} maxlen=N"
        )
    if found.dead:
        steps.append(f"it has dead letters: qworker dead ls {name}")
    return steps
