"""Faults of chains, groups of calls and runs: the faults of single messages, under a load of flows.

A chain sends five messages over two queues; a group has four calls, one of which is a group of two, and a callback; a
run takes ten steps, sleeps once and waits for a signal, another one gathers twice, the first time also a group. A race
is a group of three calls, one of them a chain and one delayed, whose first success cancels the rest. A crowd
(rows whose names end with m) is a group of a thousand calls over four queues, whose callback has the last word.

All their messages count as sent once the start is confirmed, so a flow that stops anywhere is a lost message, and one
that continues twice is acked more often than it was handled. The history shows more kinds of damage: a step of a chain
or a callback that was sent as two messages (`forked`), a step of a run that had two values (`rewritten`), and a
callback or a gather whose values were not those of its calls, in order (`misplaced`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from verification.faults.history import events_of
from verification.faults.load import CROWD_QUEUES
from verification.faults.producer import Sending
from verification.faults.row import Row, at_least, exactly
from verification.faults.under import COMMON, SINGLE, under

__all__ = ["ROWS", "figures_of"]

FLOWS: Final = Sending(rate=40, chunk=1, backlog=300)
#: The faults that flows go through.
_OF_FLOWS: Final = (*COMMON, "F51", "F57", "F57c")
CROWDS: Final = Sending(rate=2, chunk=1, backlog=500)
#: The faults that crowds go through.
_OF_CROWDS: Final = ["F1", "F1w", "F3", "F5", "F20", "F21a", "F26l", "F31", "F57c"]


_WHOLE: Final = (at_least("groups", 1), exactly("forked", 0), exactly("misplaced", 0))
_FLOWS: Final = (
    at_least("chains", 1),
    at_least("runs", 1),
    at_least("gathers", 1),
    at_least("races", 1),
    at_least("rest_cancelled", 1),
    *_WHOLE,
)


def figures_of(history: Path) -> Mapping[str, float]:
    """Count the flows that came to their end, and the steps that were forked or rewritten."""
    links: dict[str, set[str]] = {}
    values: dict[tuple[str, str], set[str]] = {}
    ended: set[str] = set()
    late: set[str] = set()
    nested: set[str] = set()
    misplaced: set[str] = set()
    for event in events_of(history):
        match event.word, event.rest:
            case "link", (key, message_id):
                links.setdefault(key, set()).add(message_id)
            case "value", (key, step, value):
                values.setdefault((key, step), set()).add(value)
            case "ended", (key,):
                ended.add(key)
            case "started", (key, _) if "/late-" in key:
                late.add(key.replace("/late-", "/won-"))
            case "done", (key,) if "/inner-" in key or "/mid-" in key:
                nested.add(key)
            case "misplaced", (key,):
                misplaced.add(key)
    runs, groups, gathers, races = (
        sum(part in key for key in ended) for part in ("/run-", "/all-", "/gathered-", "/won-")
    )
    return {
        "chains": len(ended) - runs - groups - gathers - races,
        "groups": groups,
        "nested": len(nested),
        "runs": runs,
        "gathers": gathers,
        "races": races,
        "rest_cancelled": sum("/won-" in key for key in ended - late),
        "misplaced": len(misplaced),
        "forked": sum(len(ids) > 1 for ids in links.values()),
        "rewritten": sum(len(drawn) > 1 for drawn in values.values()),
    }


def _with_flows(row: Row) -> Row:
    """Play the course of a row under a load of flows."""
    # What the old master had confirmed and the new one had not got is done again, with other values.
    exact = [] if row.undoes else [exactly("rewritten", 0)]
    return under(
        row,
        f"C{row.name[1:]}",
        replace(
            row.load,
            app="verification.faults.flow_jobs:app",
            producer="verification.faults.flow_producer",
            queues="load,aload",
            sending=FLOWS,
        ),
        figures_of,
        *_FLOWS,
        *exact,
    )


def _with_crowds(row: Row) -> Row:
    """Play the course of a row under a load of crowds."""
    return under(
        row,
        f"C{row.name[1:]}m",
        replace(
            row.load,
            app="verification.faults.crowd_jobs:app",
            producer="verification.faults.crowd_producer",
            queues=",".join(CROWD_QUEUES),
            sending=CROWDS,
        ),
        figures_of,
        *_WHOLE,
    )


ROWS = [
    *(_with_flows(SINGLE[name]) for name in _OF_FLOWS),
    *(_with_crowds(SINGLE[name]) for name in _OF_CROWDS),
]
