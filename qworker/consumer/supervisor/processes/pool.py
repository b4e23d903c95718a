"""The slots of a worker, each with a child: starts the first ones, and the next when one has ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog

from qworker.consumer.supervisor.processes.restart import SHORT_LIFE_S, ChildSlot

if TYPE_CHECKING:
    from qworker.consumer.supervisor.processes.process import ChildProcess
    from qworker.consumer.supervisor.processes.spawn import Starter
    from qworker.consumer.supervisor.processes.totals import Totals

__all__ = ["ChildPool"]

_log = structlog.get_logger(__name__)


class ChildPool:
    """Keeps a child in each slot; `totals` has the living children."""

    def __init__(self, starter: Starter, totals: Totals) -> None:
        self._starter = starter
        self._totals = totals
        self._slots = [ChildSlot() for _ in range(starter.processes)]
        #: The number of children to keep; an operator may change it.
        self.wanted = starter.processes
        #: Pids of children whose slots were given up: none follows them, even if a slot of that number comes back.
        self._surplus: set[int] = set()

    @property
    def alive(self) -> bool:
        """Whether a child lives, or will."""
        return bool(self._totals.children) or any(
            slot.restart_at is not None for slot in self._slots
        )

    def is_quiet(self) -> bool:
        """Whether there was a moment in a burst at which no child had anything to do, and none was about to start."""
        boards = [child.board for child in self._totals.children]
        before = [board.quiet for board in boards]
        # Odd numbers that have not changed between the two reads were so at the same time.
        return (
            all(number % 2 for number in before)
            and before == [board.quiet for board in boards]
            and all(slot.restart_at is None for slot in self._slots)
        )

    def start_all(self) -> None:
        """Start a child in each slot."""
        for number in range(len(self._slots)):
            self._start(number)

    def start_due(self) -> None:
        """Start the children that are due."""
        now = time.monotonic()
        for number, slot in enumerate(self._slots):
            if slot.is_due(now):
                self._start(number)

    def hurry(self) -> None:
        """End the pauses of slots that wait for their next child."""
        for slot in self._slots:
            if slot.restart_at is not None:
                slot.restart_at = 0.0

    def resize(self) -> list[ChildProcess]:
        """Add or remove slots, up to the wanted number; returns the children to end."""
        before, wanted = len(self._slots), self.wanted
        if before == wanted:
            return []
        _log.info("worker_scaled", processes=wanted, before=before)
        self._slots += [ChildSlot(restart_at=0.0) for _ in range(before, wanted)]
        del self._slots[wanted:]
        self._starter.processes = wanted
        leaving = []
        for child in self._totals.children:
            child.board.peers = wanted
            if child.number >= wanted and child.pid not in self._surplus:
                self._surplus.add(child.pid)
                leaving.append(child)
        return leaving

    def slot_of(self, child: ChildProcess) -> ChildSlot | None:
        """The slot of a child; None if it was given up."""
        return None if child.pid in self._surplus else self._slots[child.number]

    def forget(self, child: ChildProcess) -> None:
        """Forget an ended child."""
        self._surplus.discard(child.pid)

    def replace(
        self, child: ChildProcess, slot: ChildSlot, reason: str, *, running: int
    ) -> float | None:
        """Decide when the next child starts; returns the pause if this one ended before it had imported the app."""
        # A message that kills its worker is stopped by its receive count, not by pauses that hold up the others.
        now = time.monotonic()
        worked = child.board.handled or running or now - child.started > SHORT_LIFE_S
        if reason == "crashed" and child.starting:
            slot.failed_starts += 1
            return slot.restart_later(now)
        slot.failed_starts = 0
        if reason == "crashed" and not worked:
            slot.restart_later(now)
        else:
            slot.restart(now)
        return None

    def _start(self, number: int) -> None:
        slot = self._slots[number]
        slot.restart_at = None
        try:
            child = self._starter.start(number)
        except OSError as error:
            _log.error("child_not_started", number=number, error=str(error))
            slot.restart_later(time.monotonic())
            return
        self._totals.add(child)
        _log.info("child_started", pid=child.pid, number=number)
