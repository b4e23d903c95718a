"""The result of an audit: numbers, and samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

__all__ = ["HOLES", "SAMPLES", "WRONG", "AuditResult", "iso"]

#: Maximum number of messages listed for each kind of finding.
SAMPLES: Final = 20
#: Maximum number of holes listed.
HOLES: Final = 100
#: Kinds of findings, in the order of the output; any of them makes the audit fail.
WRONG: Final = (
    *("lost", "acked_twice", "started_after_ack", "step_twice", "group_decided_twice"),
    *("group_undecided", "duplicate_rows", "gaps"),
)


@dataclass(frozen=True, slots=True)
class AuditResult:
    """Numbers of messages, but for `events`, `duplicate_rows`, `gaps` (holes) and `missing` (events in them)."""

    since: datetime | None
    until: datetime | None
    first_event: datetime | None
    last_event: datetime | None
    events: int
    messages: int
    ended: Mapping[str, int]
    dead: int
    redriven: int
    open: int
    in_redis: int | None
    lost: int | None
    acked_twice: int
    started_after_ack: int
    unsure: int
    duplicate_rows: int
    gaps: int
    #: Gaps in which anything may have happened.
    untold: int
    missing: int
    #: Steps of runs that were recorded, and those recorded twice.
    steps: int = 0
    step_twice: int = 0
    #: Groups of calls by their outcome, and `open` ones; `begun`: those whose beginning is in the record.
    groups: Mapping[str, int] = field(default_factory=dict)
    groups_begun: int = 0
    group_decided_twice: int = 0
    group_undecided: int = 0
    group_unsure: int = 0
    holes: tuple[dict[str, Any], ...] = ()
    doubled: tuple[dict[str, Any], ...] = ()
    samples: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    unheard: tuple[str, ...] = ()

    @property
    def wrong(self) -> dict[str, int]:
        """Kind of finding → number; empty on a clean run."""
        numbers = {name: getattr(self, name) or 0 for name in WRONG}
        numbers["gaps"] -= self.untold
        return {name: number for name, number in numbers.items() if number}

    @property
    def doubts(self) -> dict[str, int]:
        """The doubts of the record, as numbers: messages, groups of calls, and stretches without a record."""
        numbers = {name: getattr(self, name) for name in ("unsure", "group_unsure", "untold")}
        return {name: number for name, number in numbers.items() if number}

    def document(self) -> dict[str, Any]:
        """The result as JSON takes it; times in ISO 8601."""
        return {
            "ok": not self.wrong and not self.doubts,
            "window": {"since": iso(self.since), "until": iso(self.until)},
            "data": {"first": iso(self.first_event), "last": iso(self.last_event)},
            **{
                name: getattr(self, name)
                for name in (
                    *("events", "messages", "dead", "redriven", "open", "in_redis"),
                    *("lost", "acked_twice", "started_after_ack", "unsure", "duplicate_rows"),
                    *("gaps", "untold", "missing"),
                    *("steps", "step_twice", "groups_begun", "group_decided_twice"),
                    *("group_undecided", "group_unsure"),
                )
            },
            "ended": dict(self.ended),
            "groups": dict(self.groups),
            "holes": list(self.holes),
            "doubled": list(self.doubled),
            "samples": {name: list(rows) for name, rows in self.samples.items()},
            "unheard": list(self.unheard),
        }


def iso(moment: datetime | None) -> str | None:
    """Write a time as JSON has it."""
    return None if moment is None else moment.isoformat(timespec="milliseconds")
