"""Counts the messages of a source before anything is moved: what they would become, and which cannot be moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from qworker.importers.source import SourceKey, SourceMessage, SourceQueue, State

__all__ = ["PAGE", "Survey", "survey_queue"]

#: Messages that are read at a time.
PAGE: Final = 200
#: Refused messages that are kept; all are counted.
_KEPT: Final = 100


@dataclass(slots=True)
class Survey:
    """The messages of one queue: those that can be moved by state, others by reason.

    `functions` counts messages by the other system's name of the task. `refused` holds the first 100 that cannot be
    moved. `left` counts messages that were not read, by reason.
    """

    queue: str
    states: Counter[State] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    functions: Counter[str] = field(default_factory=Counter)
    refused: list[SourceMessage] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)

    @property
    def movable(self) -> int:
        """Messages that can be moved."""
        return self.states.total()

    def add(self, message: SourceMessage) -> None:
        """Count one message."""
        if message.content is None:
            self.reasons[message.reason] += 1
            if len(self.refused) < _KEPT:
                self.refused.append(message)
            return
        self.states[message.state] += 1
        if message.content.function:
            self.functions[message.content.function] += 1


def survey_queue(queue: SourceQueue, on_progress: Callable[[int], None] = lambda _: None) -> Survey:
    """Read all messages of a queue; `on_progress` gets the number just read. Changes nothing. O(n)."""
    survey = Survey(queue.name, left=Counter(queue.left))
    for key in queue.keys:
        for page in _pages(key):
            for message in page:
                survey.add(message)
            on_progress(len(page))
    return survey


def _pages(key: SourceKey) -> Iterator[list[SourceMessage]]:
    # No more than there were at the start: with a busy producer this would never end.
    left, start = key.size(), 0
    while left > 0:
        page = key.read(start, min(PAGE, left))
        if not page:
            return
        yield page
        start += len(page)
        left -= len(page)
