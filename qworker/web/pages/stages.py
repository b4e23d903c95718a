"""Parts of a work in time, as a graph: stages one after the other, and in each the lanes that ran at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from qworker.formats import count, span
from qworker.web.pages.life import TimelineEntry

__all__ = ["Part", "Stage", "stages_of"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """A part, and when it began and ended, in ms."""

    start_ms: int
    end_ms: int
    of: T


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps between two instants at which nothing ran: lanes side by side, the steps of each one after the other."""

    start_ms: int
    end_ms: int
    lanes: Sequence[Sequence[TimelineEntry]]

    @property
    def alone(self) -> TimelineEntry | None:
        """The only step; None if there are several."""
        return self.lanes[0][0] if len(self.lanes) == 1 and len(self.lanes[0]) == 1 else None

    @property
    def title(self) -> str:
        """How many steps ran side by side."""
        return f"{count(sum(map(len, self.lanes)), 'step')} side by side"

    @property
    def note(self) -> str:
        """How long all of them took."""
        return f"took {span((self.end_ms - self.start_ms) / 1000)} together"


def stages_of(
    parts: Sequence[Part[T]],
    first_ms: int,
    last_ms: int,
    write: Callable[[Part[T], int, tuple[int, int]], TimelineEntry],
) -> list[Stage]:
    """Arrange parts that overlap in time side by side, in as few lanes as they need.

    A part follows the one that had ended last before it began. `write` makes a step of a part; it gets when the one
    before it, or the stage before, had ended, and between which instants it is drawn: those of its stage if others ran
    beside it, else `first_ms` and `last_ms`.
    """
    stages: list[Stage] = []
    open_lanes: list[list[Part[T]]] = []
    before_ms, end_ms = first_ms, first_ms

    def close() -> None:
        if open_lanes:
            begun_ms = open_lanes[0][0].start_ms
            axis = (begun_ms, end_ms) if len(open_lanes) > 1 else (first_ms, last_ms)
            lanes = [
                [
                    write(part, lane[at - 1].end_ms if at else before_ms, axis)
                    for at, part in enumerate(lane)
                ]
                for lane in open_lanes
            ]
            stages.append(Stage(begun_ms, end_ms, lanes))

    for part in sorted(parts, key=lambda part: (part.start_ms, part.end_ms)):
        if part.start_ms >= end_ms:
            close()
            open_lanes, before_ms = [[part]], end_ms
        else:
            free = [lane for lane in open_lanes if lane[-1].end_ms <= part.start_ms]
            if free:
                max(free, key=lambda lane: lane[-1].end_ms).append(part)
            else:
                open_lanes.append([part])
        end_ms = max(end_ms, part.end_ms)
    close()
    return stages
