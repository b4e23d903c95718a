"""The result of one pass of the reaper, which log lines, metrics and tests read."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Tick"]


@dataclass(slots=True)
class Tick:
    """One pass, counted while it runs. Times in ms since 1970 by the server's clock."""

    queues: int
    """Queues of the namespace."""
    now_ms: int = 0
    promoted: int = 0
    """Delayed messages moved to ready."""
    ended: int = 0
    """Delayed messages that had expired or been cancelled."""
    leases: int = 0
    """Leases reaped."""
    messages: int = 0
    """Messages of those leases."""
    dead: int = 0
    """Of these, messages buried."""
    suspects: int = 0
    """Of these, messages that will be delivered alone."""
    set_aside: int = 0
    """Leases that could not be reaped and were put behind the others."""
    trimmed: int = 0
    """Expired messages removed from the head of ready."""
    pruned: int = 0
    """Idle lanes, expired unique keys and tombstones forgotten."""
    fired: dict[tuple[str, str], int] = field(default_factory=dict)
    """Slots of schedules that were fired, by queue and task."""
    skipped: int = 0
    """Slots of schedules that were missed and skipped by their policy."""
    broken: set[str] = field(default_factory=set)
    """Queues with a key of another type."""
    errors: int = 0
    """Calls that failed for one queue alone."""
    lateness_ms: int = 0
    """How long the latest of the moved messages and leases had been due."""
    next_wake_ms: int | None = None
    """When the next thing is due; None if nothing is in sight."""
    more: bool = False
    """The time was up before all work was done."""
    reapers: int = 1
    """Reapers seen lately, this one included."""
    sweep_s: float = 0.0
    """How long the sweep of all queues took."""
    elapsed_s: float = 0.0
    """How long the whole pass took."""

    def fire(self, queue: str, task: str) -> None:
        """Count a slot that was fired."""
        self.fired[queue, task] = self.fired.get((queue, task), 0) + 1

    def late(self, lateness_ms: int) -> None:
        """Note how late something was moved."""
        self.lateness_ms = max(self.lateness_ms, lateness_ms)

    def wake_at(self, at_ms: int) -> None:
        """Note the next due time; a past one waits for the next tick."""
        if at_ms > self.now_ms and (self.next_wake_ms is None or at_ms < self.next_wake_ms):
            self.next_wake_ms = at_ms

    @property
    def idle(self) -> bool:
        """Whether there was nothing to do."""
        done = (self.moved, self.leases, self.set_aside, self.pruned, self.skipped, self.errors)
        return not (any(done) or self.fired or self.broken or self.more)

    @property
    def moved(self) -> int:
        """Messages put back to ready, dead or done."""
        return self.promoted + self.ended + self.messages + self.trimmed

    def log_fields(self) -> dict[str, Any]:
        """Return the non-zero counts, as fields of a log line."""
        fields = {name: value for name, value in asdict(self).items() if value}
        if self.fired:
            fields["fired"] = [
                {"queue": queue, "task": task, "slots": slots}
                for (queue, task), slots in self.fired.items()
            ]
        if self.broken:
            fields["broken"] = sorted(self.broken)
        return fields
