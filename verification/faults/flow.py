"""Faults of flow control: the faults of single messages, under a load of groups and limits.

Ordered groups, fair ones with and without a parent, one with a concurrency, one with a rate, and messages without a
group. What groups promise is read from the history, outside of Redis:

- `disordered`: starts in an ordered group before an earlier message of it had ended, or after a later one had begun;
- `at_once`: the most handlers of the capped group that ran at a time;
- `rated_most`: the most messages of the rated group that were delivered to children in two seconds.

That each group is drained and each slot free is in every row: the queues run empty, and `fsck` counts slots again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from verification.faults.group_producer import CAPPED, ORDERED, RATED
from verification.faults.history import Event, events_of
from verification.faults.load import Load
from verification.faults.producer import Sending
from verification.faults.row import Row, at_least, at_most, exactly
from verification.faults.stage import Stage
from verification.faults.under import COMMON, SINGLE, under

__all__ = ["AT_ONCE", "ROWS", "STALLED", "figures_of", "most_at_once", "running_changes"]

MEMBERS: Final = Sending(rate=320, chunk=4, backlog=600, nap_ms=5)
#: How many of the capped group may run at a time, and how many of the rated one a second.
AT_ONCE: Final = 3
RATE: Final = 50
BURST: Final = 10
#: A worker that is frozen or cut off may still run messages that were delivered again meanwhile.
STALLED: Final = {"F9", "F9c", "F25", "F27", "F40b"}
_WINDOW_NS: Final = 2 * 10**9


def figures_of(history: Path) -> Mapping[str, float]:
    """Read what groups promise from the histories of all processes."""
    ended_at: dict[int, int] = {}
    ordered: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    capped: list[Event] = []
    rated: list[int] = []
    confirmed: dict[str, list[range]] = defaultdict(list)
    members = 0
    for event in events_of(history):
        ended_at[event.pid] = max(event.at, ended_at.get(event.pid, 0))
        match event.word, event.rest:
            case "sent", (producer, first, last) if _kind(producer).startswith(ORDERED):
                confirmed[producer].append(range(int(first), int(last) + 1))
            case (("started" | "done"), (key, *_)):
                producer, _, number = key.rpartition("-")
                members += event.word == "done"
                if _kind(producer).startswith(ORDERED):
                    ordered[producer].append((event.at, int(number), event.word))
            case "delivered", (at_ms, *keys):
                # The note itself comes later, by seconds if the child is frozen in between.
                at = int(at_ms) * 10**6
                rated += [at for key in keys if _kind(key.rpartition("-")[0]) == RATED]
        ran = event.rest[0] if event.word in ("started", "done", "failed") else ""
        if _kind(ran.rpartition("-")[0]) == CAPPED:
            capped.append(event)
    return {
        "members": members,
        "ordered_groups": len(ordered),
        "disordered": sum(
            _disordered(events, [n for numbers in confirmed[producer] for n in numbers])
            for producer, events in ordered.items()
        ),
        "at_once": most_at_once(capped, ended_at),
        "rated_most": _most_within(sorted(rated)),
    }


def _kind(producer: str) -> str:
    return producer.rpartition("/")[2]


def _disordered(events: Iterable[tuple[int, int, str]], confirmed: Iterable[int]) -> int:
    """Count the starts of a group that came too soon or too late, among messages whose send was confirmed."""
    left, wrong, latest = sorted(confirmed), 0, 0
    known, done, at = set(left), set[int](), 0
    for _, number, word in sorted(events):
        if number not in known:
            continue  # its place in the order is in doubt
        if word == "done":
            done.add(number)
            continue
        while at < len(left) and left[at] in done:
            at += 1
        earlier = at < len(left) and left[at] < number
        wrong += earlier or number < latest
        latest = max(latest, number)
    return wrong


def most_at_once(events: Iterable[Event], ended_at: Mapping[int, int]) -> int:
    """The most handlers that ran at a time."""
    running = most = 0
    for _, change in running_changes(events, ended_at):
        running += change
        most = max(most, running)
    return most


def running_changes(events: Iterable[Event], ended_at: Mapping[int, int]) -> list[tuple[int, int]]:
    """When (ns) handlers began (1) and ended (-1), in order; one of a killed process ended with its last note."""
    begun: dict[tuple[int, str], int] = {}
    changes: list[tuple[int, int]] = []
    for event in sorted(events, key=lambda each: each.at):
        run = (event.pid, event.rest[0])
        if event.word == "started":
            begun[run] = event.at
        elif run in begun:
            changes += [(begun.pop(run), 1), (event.at, -1)]
    changes += [
        change for (pid, _), at in begun.items() for change in ((at, 1), (ended_at[pid], -1))
    ]
    return sorted(changes)


def _most_within(times: list[int]) -> int:
    most = first = 0
    for last, at in enumerate(times):
        while times[first] < at - _WINDOW_NS:
            first += 1
        most = max(most, last - first + 1)
    return most


def _limit(before: Row) -> Row:
    def prepare(stage: Stage) -> None:
        before.before(stage)
        queue = stage.queue()
        queue.set_limit(CAPPED, concurrency=AT_ONCE)
        queue.set_limit(RATED, rate=f"{RATE}/s", burst=BURST)
        queue.set_limit("tenant/", concurrency=8, weight=2)

    return replace(before, before=prepare)


def _with_groups(row: Row) -> Row:
    """Play the course of a row under a load of groups."""
    promised = [at_least("members", 20), at_least("ordered_groups", 2)]
    # What a server has forgotten runs again, beside and after what has gone on since.
    if not row.takes and not row.undoes:
        promised.append(at_most("rated_most", 2 * RATE * 1.05 + BURST))
        if row.name not in STALLED:
            promised += [exactly("disordered", 0), at_most("at_once", AT_ONCE)]
    return under(_limit(row), f"G{row.name[1:]}", _load(row.load), figures_of, *promised)


def _load(load: Load) -> Load:
    return replace(
        load,
        app="verification.faults.group_jobs:app",
        producer="verification.faults.group_producer",
        sending=MEMBERS,
    )


ROWS = [_with_groups(SINGLE[name]) for name in COMMON]
