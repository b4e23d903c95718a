"""Looking before anything is moved: what waits, what it would become, and what cannot be moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from qworker.moving.waiting import Found, Place, SourceQueue, State

__all__ = ["PAGE", "Survey", "look"]

#: Entries that are read at a time.
PAGE: Final = 200
#: Refused messages that are named; all are counted.
_NAMED: Final = 100


@dataclass(slots=True)
class Survey:
    """What was found in one queue: messages that can be moved by state, others by reason.

    `functions` counts messages by what their own system calls the task. `refused` names the first 100 that cannot be
    moved. `left` counts what is not looked at, by reason.
    """

    queue: str
    states: Counter[State] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    functions: Counter[str] = field(default_factory=Counter)
    refused: list[Found] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)

    @property
    def movable(self) -> int:
        """Messages that can be moved."""
        return self.states.total()

    def add(self, found: Found) -> None:
        """Count one entry."""
        if found.content is None:
            self.reasons[found.reason] += 1
            if len(self.refused) < _NAMED:
                self.refused.append(found)
            return
        self.states[found.state] += 1
        if found.content.function:
            self.functions[found.content.function] += 1


def look(queue: SourceQueue, advance: Callable[[int], None] = lambda _: None) -> Survey:
    """Read all that waits in a queue; `advance` is told how many entries more were read. Changes nothing. O(n)."""
    survey = Survey(queue.name, left=Counter(queue.left))
    for place in queue.places:
        for page in _pages(place):
            for found in page:
                survey.add(found)
            advance(len(page))
    return survey


def _pages(place: Place) -> Iterator[list[Found]]:
    # What is added meanwhile is for the next look: a busy producer would never let this one end.
    left, start = place.size(), 0
    while left > 0:
        page = place.read(start, min(PAGE, left))
        if not page:
            return
        yield page
        start += len(page)
        left -= len(page)
