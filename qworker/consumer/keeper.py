"""Keeps the leases of children, from outside of them.

A handler that holds the GIL for a minute keeps its lease, because not its own process extends it; and what a child
had in hand when it died goes back at once, because its board says what that was.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from qworker.commands.receiving import Outcomes, extend, settle
from qworker.consumer.board import LeaseState, Mark, boot_time
from qworker.errors import QworkerError
from qworker.keys import QueueKeys

if TYPE_CHECKING:
    from qworker.client import Client
    from qworker.consumer.board import Board, LeaseView, RunningView

__all__ = ["Death", "Keeper"]

_log = structlog.get_logger(__name__)

#: Leases are extended so often at least; the reaper's grace after a gap counts on it.
_HEARTBEAT_S: Final = 5.0
#: No lease is kept longer than this, whatever its handler does.
_LONGEST_S: Final = 12 * 3600.0
#: A store into shared memory is seen by the other side long before this has passed.
_SEEN_S: Final = 0.01
#: How long what was lost with its worker waits before the next try.
_CRASH_DELAY_MS: Final = 1000
_GIVE_UP_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Death:
    """How a child ended. `overdue`: the handlers for which it was killed. `idle_before`: the one before it in its
    place died with nothing started as well.
    """

    code: int
    overdue: tuple[RunningView, ...] = ()
    stopping: bool = False
    idle_before: bool = False

    @property
    def words(self) -> str:
        """The end in words: 'was ended by signal 11 (SIGSEGV)'."""
        if self.code >= 0:
            return f"exited with code {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = "unknown"
        return f"was ended by signal {-self.code} ({name})"


class Keeper:
    """Extends, recalls and settles leases over one client. Not thread-safe.

    `namespace` is set by the supervisor when it knows its app's.
    """

    def __init__(self, client: Client, namespace: str = "") -> None:
        self._client = client
        self.namespace = namespace
        self._first_seen: dict[str, float] = {}
        self.extended = 0
        self.lost = 0

    # -- extending -----------------------------------------------------------------------------

    def extend_due(self, boards: Iterable[tuple[Board, Sequence[str]]]) -> None:
        """Extend every lease that has run for a third of its visibility timeout, or for 5 s.

        Raises `ServerError` where the server cannot be reached; what is due stays due.
        """
        now = boot_time()
        due: dict[tuple[str, int], list[tuple[Board, LeaseView]]] = {}
        seen: set[str] = set()
        for board, queues in boards:
            for lease in board.held_leases():
                seen.add(lease.lease_id)
                first = self._first_seen.setdefault(lease.lease_id, now)
                wait_s = lease.visibility_s - min(lease.visibility_s / 3, _HEARTBEAT_S)
                if lease.deadline - now > wait_s or now - first > _LONGEST_S:
                    continue
                if lease.queue < len(queues):
                    key = (queues[lease.queue], round(lease.visibility_s * 1000))
                    due.setdefault(key, []).append((board, lease))
        for lease_id in self._first_seen.keys() - seen:
            del self._first_seen[lease_id]
        for (queue, visibility_ms), leases in due.items():
            self._extend(queue, visibility_ms, leases)

    def _extend(
        self, queue: str, visibility_ms: int, leases: Sequence[tuple[Board, LeaseView]]
    ) -> None:
        begun = boot_time()
        deadlines = self._client.execute(
            extend(
                QueueKeys(self.namespace, queue),
                [lease.lease_id for _, lease in leases],
                visibility_ms,
            ),
            give_up_s=visibility_ms / 1000,
        )
        for board, lease in leases:
            now = board.lease(lease.slot)
            if now is None or now.lease_id != lease.lease_id:
                continue  # settled meanwhile
            if deadlines[lease.lease_id]:
                board.set_deadline(lease.slot, begun + visibility_ms / 1000)
                self.extended += 1
            elif now.state is LeaseState.HELD and lease.state is LeaseState.HELD:
                # A lease that is only pending may not exist yet; one that is held and gone is lost.
                self._lose(board, lease, queue)

    def _lose(self, board: Board, lease: LeaseView, queue: str) -> None:
        if board.lost(lease.slot) or not set(lease.marks) & {Mark.UNSTARTED, Mark.RUNNING}:
            return  # all of it is handled: what remains is to be told so
        board.lose(lease.slot)
        self.lost += 1
        _log.warning("lease_lost", queue=queue, lease_id=lease.lease_id, messages=lease.count)

    # -- recalling -----------------------------------------------------------------------------

    def recall(self, board: Board, queues: Sequence[str], slots: Iterable[int]) -> int:
        """Give back what has not started of some leases, uncounted; returns how many messages that were."""
        slots = list(slots)
        for slot in slots:
            board.recall(slot)
        time.sleep(_SEEN_S)
        given_back = 0
        for slot in slots:
            lease = board.lease(slot)
            if lease is None:
                continue
            outcomes = Outcomes(lease.lease_id)
            if lease.state is LeaseState.PENDING:
                # The child has not read the reply of the call that makes it.
                outcomes.release("*")
            for place, mark in enumerate(lease.marks):
                if mark == Mark.UNSTARTED:
                    outcomes.release(_index(lease, place))
            if outcomes:
                given_back += self._settle(queues[lease.queue], outcomes)
                for place, mark in enumerate(lease.marks):
                    if mark == Mark.UNSTARTED:
                        board.mark(slot, place, Mark.GONE)
        return given_back

    # -- settling for the dead -----------------------------------------------------------------

    def settle_dead(self, board: Board, queues: Sequence[str], death: Death) -> int:
        """Settle what a dead child had in hand; returns the number of messages that were running.

        Handled ones are acked, unstarted ones released uncounted. A message that was the only one running, or that
        was over its time limit, is nacked; several running ones share the blame.
        """
        leases = board.held_leases()
        running = [
            (lease, place)
            for lease in leases
            for place, mark in enumerate(lease.marks)
            if mark == Mark.RUNNING
        ]
        overdue = {(view.lease, view.place) for view in death.overdue}
        for lease in leases:
            outcomes = Outcomes(lease.lease_id)
            if lease.state is LeaseState.PENDING:
                outcomes.release("*")
            for place, mark in enumerate(lease.marks):
                index = _index(lease, place)
                if mark == Mark.DONE:
                    outcomes.acks.append(index)
                elif mark == Mark.FAILED:
                    outcomes.nack(index, _CRASH_DELAY_MS)
                elif mark != Mark.RUNNING:
                    if death.idle_before and not running and not death.stopping:
                        outcomes.share(index)
                    else:
                        outcomes.release(index)
                elif death.stopping:
                    outcomes.release(index)
                elif (lease.slot, place) in overdue:
                    outcomes.nack(
                        index,
                        _CRASH_DELAY_MS,
                        error=(
                            "TimeLimitError",
                            "the handler ran past its time limit; its process was ended",
                        ),
                    )
                elif len(running) == 1 and not overdue:
                    outcomes.nack(
                        index,
                        _CRASH_DELAY_MS,
                        error=(
                            "WorkerDiedError",
                            f"the process {death.words} while only this message ran",
                        ),
                    )
                else:
                    outcomes.share(index)
            if outcomes:
                self._settle(queues[lease.queue], outcomes)
        return len(running)

    def _settle(self, queue: str, outcomes: Outcomes) -> int:
        """Settle, or leave it to the visibility deadline where the server cannot be reached."""
        try:
            settled = self._client.execute(
                settle(QueueKeys(self.namespace, queue), [outcomes]), give_up_s=_GIVE_UP_S
            )
        except QworkerError as error:
            _log.warning(
                "lease_left_to_expire", queue=queue, lease_id=outcomes.lease_id, error=str(error)
            )
            return 0
        return settled.per_lease[0]


def _index(lease: LeaseView, place: int) -> str:
    """The index in the lease: a message alone is 0, in company they count from 1."""
    return "0" if lease.count == 1 else str(place + 1)
