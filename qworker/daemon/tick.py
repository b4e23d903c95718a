"""What one pass of the reaper came to: the value that log lines, metrics and tests read."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Fired", "Tally", "Tick"]


@dataclass(frozen=True, slots=True)
class Fired:
    """Slots of the schedules of one task that were fired."""

    queue: str
    task: str
    slots: int


@dataclass(frozen=True, slots=True)
class Tick:
    """One pass. Times in ms since 1970 by the server's clock."""

    now_ms: int
    queues: int
    """Queues looked at."""
    promoted: int
    """Delayed messages moved to ready."""
    ended: int
    """Delayed messages that had expired or been cancelled."""
    leases: int
    """Leases reaped."""
    messages: int
    """Messages of those leases."""
    dead: int
    """Of these, messages buried."""
    suspects: int
    """Of these, messages that will be delivered alone."""
    set_aside: int
    """Leases that could not be reaped and were put behind the others."""
    trimmed: int
    """Expired messages removed from the head of ready."""
    pruned: int
    """Idle lanes, expired unique keys and tombstones forgotten."""
    fired: tuple[Fired, ...]
    skipped: int
    """Slots of schedules that were missed and skipped by their policy."""
    broken: tuple[str, ...]
    """Queues with a key of another type."""
    errors: int
    """Calls that failed for one queue alone."""
    lateness_ms: int
    """How long the latest of the moved messages and leases had been due."""
    next_wake_ms: int | None
    """When the next thing is due; None where nothing is in sight."""
    more: bool
    """The time was up before all was done: there is work now."""
    reapers: int
    """Reapers seen lately, this one included."""
    looking_s: float
    """How long it took to look at all queues."""
    elapsed_s: float
    """How long the whole pass took."""

    @property
    def idle(self) -> bool:
        """Whether there was nothing to do."""
        done = (self.moved, self.leases, self.set_aside, self.pruned, self.skipped, self.errors)
        return not (any(done) or self.fired or self.broken or self.more)

    @property
    def moved(self) -> int:
        """Messages put back to ready, dead or done."""
        return self.promoted + self.ended + self.messages + self.trimmed


@dataclass(slots=True)
class Tally:
    """A `Tick` while it is being counted."""

    queues: int
    now_ms: int = 0
    promoted: int = 0
    ended: int = 0
    leases: int = 0
    messages: int = 0
    dead: int = 0
    suspects: int = 0
    set_aside: int = 0
    trimmed: int = 0
    pruned: int = 0
    fired: dict[tuple[str, str], int] = field(default_factory=dict)
    skipped: int = 0
    broken: set[str] = field(default_factory=set)
    errors: int = 0
    lateness_ms: int = 0
    next_wake_ms: int | None = None
    more: bool = False
    looking_s: float = 0.0

    def fire(self, queue: str, task: str) -> None:
        """Note a slot that was fired."""
        self.fired[queue, task] = self.fired.get((queue, task), 0) + 1

    def late(self, lateness_ms: int) -> None:
        """Note how late something was moved."""
        self.lateness_ms = max(self.lateness_ms, lateness_ms)

    def wake_at(self, at_ms: int) -> None:
        """Note when something will be due; what is past waits for the next tick."""
        if at_ms > self.now_ms and (self.next_wake_ms is None or at_ms < self.next_wake_ms):
            self.next_wake_ms = at_ms

    def tick(self, reapers: int, elapsed_s: float) -> Tick:
        """Close the count."""
        return Tick(
            now_ms=self.now_ms,
            queues=self.queues,
            promoted=self.promoted,
            ended=self.ended,
            leases=self.leases,
            messages=self.messages,
            dead=self.dead,
            suspects=self.suspects,
            set_aside=self.set_aside,
            trimmed=self.trimmed,
            pruned=self.pruned,
            fired=tuple(Fired(queue, task, slots) for (queue, task), slots in self.fired.items()),
            skipped=self.skipped,
            broken=tuple(sorted(self.broken)),
            errors=self.errors,
            lateness_ms=self.lateness_ms,
            next_wake_ms=self.next_wake_ms,
            more=self.more,
            reapers=reapers,
            looking_s=self.looking_s,
            elapsed_s=elapsed_s,
        )
