"""Overdue leases of a queue, in the order of reaping."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

__all__ = ["OverdueLeases"]


class OverdueLeases:
    """Leases of one kind among overdue ones, which are given in the order of delivery.

    Leases of several messages are taken from the end, so that messages return to the head of ready in their old order.
    `lone` ones, whose messages go behind the other suspects, are taken from the beginning. `skipped` are of the other
    kind, in the order of delivery; `moved` were reaped or set aside, or are not overdue any more.
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
        """Return the leases that a call reaps first."""
        return set(ids[:number] if self.lone else ids[len(ids) - number :])

    def give_back(self, ids: Sequence[str]) -> None:
        """Put leases back, to be taken first."""
        if self.lone:
            self.waiting.extendleft(reversed(ids))
        else:
            self.waiting.extend(ids)

    def skip(self, ids: Sequence[str]) -> None:
        """Pass over leases of the other kind, given in the order in which the call met them."""
        if self.lone:
            self.skipped.extend(ids)
        else:
            self.skipped.extendleft(ids)
