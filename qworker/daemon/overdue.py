"""Overdue leases of a queue, in the order in which they are reaped."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

__all__ = ["OverdueLeases"]


class OverdueLeases:
    """Leases of one kind among those that are overdue, given in the order of their delivery.

    Those of several messages are taken from the end: what goes to the head of ready comes in its old order then. `lone`
    ones, whose messages go behind the other suspects, are taken from the beginning. `skipped` are of the other kind, in
    the order of delivery; `moved` were reaped, set aside, or are not overdue any more.
    """

    def __init__(self, ids: Sequence[str], *, lone: bool = False) -> None:
        self.lone = lone
        self.waiting = deque(ids)
        self.skipped: deque[str] = deque()
        self.moved: set[str] = set()

    def take(self, number: int) -> list[str]:
        """Take the next leases, in the order of their delivery."""
        number = min(number, len(self.waiting))
        if self.lone:
            return [self.waiting.popleft() for _ in range(number)]
        return [self.waiting.pop() for _ in range(number)][::-1]

    def first(self, ids: Sequence[str], number: int) -> set[str]:
        """Tell which of some leases a call comes to first."""
        return set(ids[:number] if self.lone else ids[len(ids) - number :])

    def give_back(self, ids: Sequence[str]) -> None:
        """Let leases be taken once more, first."""
        if self.lone:
            self.waiting.extendleft(reversed(ids))
        else:
            self.waiting.extend(ids)

    def skip(self, ids: Sequence[str]) -> None:
        """Pass over leases of the other kind, named in the order in which they were looked at."""
        if self.lone:
            self.skipped.extend(ids)
        else:
            self.skipped.extendleft(ids)
