"""One call under examination: where each message was, and where it may be now."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from verification.interleavings.fixed import NOW, Call
from verification.interleavings.view import Location, View

__all__ = ["Counts", "Course", "Stand", "place_of", "say_stand"]

Counts = tuple[int, int, int, int]
#: Where a message may stand afterwards, and its counts; None: it may be gone.
Stand = tuple[str, Counts] | None


@dataclass
class Course:
    """One call under examination; `stands` has the places where each message may be after its verbs."""

    call: Call
    before: View
    result: Any
    after: View
    counted: dict[str, int]
    stands: dict[str, list[Stand]] = field(default_factory=dict)
    #: Counters that must have counted this much.
    counts: dict[str, int] = field(default_factory=dict)

    def was(self, name: str) -> Location:
        """Where a message stood."""
        return self.before.locations[name][0]

    def may(self, name: str, *stands: Stand) -> None:
        """Say where a message may stand now."""
        self.stands[name] = list(stands)

    def standing(self, name: str) -> list[Stand]:
        """Where a message may stand by what was said so far."""
        return self.stands.get(name) or [self.stood(name)]

    def stood(self, name: str) -> Stand:
        """Where a message stood, and its counts; None for one that was not there."""
        locations = self.before.locations.get(name)
        return (place_of(locations[0]), locations[0].counts) if locations else None

    def over(self, name: str) -> bool:
        """Whether a message has expired, or was cancelled."""
        return self.before.expiries.get(name, NOW + 1) <= NOW or name in self.before.cancelled

    @property
    def limit(self) -> int:
        """Max receives of the queue."""
        return int(self.before.meta.get("max_receives", "5"))

    def breach(self) -> str | None:
        """Compare what was said with what is."""
        for name in sorted(
            self.before.locations.keys() | self.after.locations.keys() | self.stands.keys()
        ):
            locations = self.after.locations.get(name)
            now: Stand = (
                None if locations is None else (place_of(locations[0]), locations[0].counts)
            )
            if now not in (said := self.standing(name)):
                should = " or ".join(map(say_stand, said))
                return f"{name} {say_stand(self.stood(name))} is now {say_stand(now)}, should be {should}"
        for counter, right in self.counts.items():
            if self.counted.get(counter, 0) != right:
                return f"it counted {counter} {self.counted.get(counter, 0)}, not {right}"
        return None


def place_of(location: Location) -> str:
    return f"{location.place} {location.at}" if location.at else location.place


def say_stand(stand: Stand) -> str:
    if stand is None:
        return "gone"
    place, (receives, nacks, timeouts, shared) = stand
    return f"{place} ({receives} receives, {nacks} nacks, {timeouts} timeouts, {shared} shared)"
