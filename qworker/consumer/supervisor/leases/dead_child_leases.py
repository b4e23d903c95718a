"""How the messages of a dead child's lease end."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from qworker.consumer.board.states import LeaseState, Mark
from qworker.engine.journal_groups import acked_headers, times_word
from qworker.engine.settle import Outcomes
from qworker.errors import InvalidError
from qworker.wire import codec

if TYPE_CHECKING:
    from qworker.consumer.board.acked import AckedMessage
    from qworker.consumer.board.states import LeaseView
    from qworker.consumer.supervisor.leases.postmortem import Death
    from qworker.wire.envelope import Envelope
    from qworker.wire.keys import QueueKeys

__all__ = ["EndedLease", "lost_of", "outcomes_of", "stale_of", "task_of", "times_of"]

#: A message that failed when its child died waits this long before the next try.
_CRASH_DELAY_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class EndedLease:
    """A lease of a dead child, as its board showed it.

    `acked`: its messages that were acked before their start, or were about to be, by position. `uncounted`: positions
    of messages that have ended, and that the child has not counted. `running`: messages of the child that ran. `until`:
    when a server that is away is given up.
    """

    keys: QueueKeys
    lease: LeaseView
    acked: Mapping[int, AckedMessage]
    uncounted: Sequence[int]
    death: Death
    running: int
    until: float


def outcomes_of(
    lease: LeaseView,
    items: Mapping[int, Envelope],
    death: Death,
    running: int,
    uncounted: Container[int] = (),
) -> Outcomes:
    """Decide how the messages of a lease end. `items`: at least the handled ones, by position.

    Handled messages are acked. Unstarted ones are released uncounted, and so are handled ones whose results died with
    the child; `stale_of` releases those of them that it had counted (not `uncounted`). Of `running` ones those to blame
    are nacked, and the others go back; if that is unknown, all of them share the blame.
    """
    outcomes = Outcomes(lease.lease_id)
    if lease.state is LeaseState.PENDING:
        outcomes.release("*")
    done = []
    for position, mark in enumerate(lease.marks):
        index = lease.index_of(position)
        if mark == Mark.DONE:
            done.append(position)
        elif mark == Mark.FAILED:
            outcomes.nack(index, _CRASH_DELAY_MS, times=times_of(lease))
        elif mark == Mark.RUNNING:
            _blame(outcomes, lease, position, death, running)
        elif mark == Mark.UNSTARTED and death.idle_before and not running:
            outcomes.share(index, times=times_of(lease))
        elif mark == Mark.SETTLING:
            if position in uncounted:
                outcomes.release(index, started=True, times=times_of(lease))
        elif mark != Mark.RECALLED:
            outcomes.release(index, times=times_of(lease))
    _ack(outcomes, lease, [(position, items[position]) for position in done if position in items])
    return outcomes


def lost_of(lease: LeaseView, acked: Container[int], items: Container[int]) -> list[int]:
    """Positions of messages that were acked before their start, and never started.

    `items`: the positions that the lease still holds; where it cannot be read, all. An ack on its way may have counted.
    """
    return [
        position
        for position, mark in enumerate(lease.marks)
        if position in acked
        and (mark == Mark.GONE or (mark == Mark.UNSTARTED and position not in items))
    ]


def stale_of(lease: LeaseView, uncounted: Container[int]) -> Outcomes:
    """Release messages that the child has counted as handled, and whose results died with it unless it settled them."""
    outcomes = Outcomes(lease.lease_id)
    for position, mark in enumerate(lease.marks):
        if mark == Mark.SETTLING and position not in uncounted:
            outcomes.release(lease.index_of(position), started=True, times=times_of(lease))
    return outcomes


def _ack(outcomes: Outcomes, lease: LeaseView, done: Iterable[tuple[int, Envelope]]) -> None:
    """Ack handled messages, free the unique keys that they hold, and write the journal from their bodies."""
    unique_ones, others = [], []
    for position, envelope in done:
        index = lease.index_of(position)
        unique = envelope.flags.get("u")
        event = task_of(envelope), envelope.header
        if unique is None:
            outcomes.acks.append(index)
            others.append(event)
        else:
            outcomes.uniques += (index, unique, envelope.id)
            unique_ones.append(event)
    if lease.delivered_ms:
        outcomes.groups = acked_headers(lease.delivered_ms, unique_ones + others)


def _blame(outcomes: Outcomes, lease: LeaseView, position: int, death: Death, running: int) -> None:
    """Decide how a message ends that ran when its child died."""
    index, message = lease.index_of(position), (lease.slot, position)
    times = times_of(lease, death, position)
    blame = death.blame(message, running)
    if message in death.cancelled:
        outcomes.cancel(index, times=times)
    elif blame == 1.0:
        limit = death.accused.get(message)
        error = death.error_of(message)
        outcomes.crash(index, max_receives=limit, error=error, times=times)
    elif blame:
        outcomes.share(index, times=times)
    else:
        outcomes.release(index, started=True, times=times)


def times_of(lease: LeaseView, death: Death | None = None, position: int = 0) -> str:
    """Write the times of a delivery for the journal, if it is on; with start and task if it ran at a death."""
    if not lease.delivered_ms:
        return ""
    ran = death.running.get((lease.slot, position)) if death is not None else None
    if death is None or ran is None:
        return times_word(lease.delivered_ms)
    started, task = ran
    return times_word(lease.delivered_ms, task, started - lease.delivered, death.at - started)


def task_of(envelope: Envelope) -> str:
    """The task that a body names; '-' if it cannot be read."""
    try:
        return codec.decode_call(envelope.body).task
    except InvalidError:
        return "-"
