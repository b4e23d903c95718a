"""The outcomes of messages that a dead child had started, for the metrics and the log.

A child counts outcomes of its handlers, but not of a handler that kills it, nor those that it had no time to count. Its
supervisor settles these messages, and counts them with the same outcomes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

import structlog

from qworker.consumer.board.counters import ACKED, CANCELLED, CRASHED, NACKED, OTHER, RELEASED
from qworker.consumer.board.states import Mark
from qworker.consumer.supervisor.leases.dead_child_leases import task_of

if TYPE_CHECKING:
    from qworker.consumer.board.acked import AckedMessage
    from qworker.consumer.supervisor.leases.dead_child_leases import EndedLease
    from qworker.consumer.supervisor.leases.postmortem import Death
    from qworker.wire.envelope import Envelope
    from qworker.wire.keys import QueueKeys

__all__ = ["Fate", "fates_of", "log_fates"]

_log = structlog.get_logger(__name__)

#: The outcomes of messages that had ended, as they are settled.
_ENDED: Final[dict[int, str]] = {Mark.DONE: ACKED, Mark.FAILED: NACKED}
#: Messages that one line of the log names, and messages that have their own lines.
_NAMED: Final = 20


@dataclass(frozen=True, slots=True)
class Fate:
    """How one message ended, as one of `OUTCOMES`.

    `counted_as`: queue and task of its counts. `blame` 1.0: it killed the child; less: it or one of several others did;
    0: it did not. `message_id` and `receive_count` are None if its lease could not be read. `dead`: this was its last
    try; None if that is unknown, or if it was acked before its start. `lost`: it was acked, and never started.
    """

    queue: str
    task: str
    outcome: str
    counted_as: tuple[str, str]
    blame: float = 0.0
    message_id: str | None = None
    receive_count: int | None = None
    dead: bool | None = None
    error: tuple[str, str] = ("", "")
    lost: bool = False


def fates_of(
    ended: EndedLease,
    items: Mapping[int, Envelope],
    is_dead: Callable[[QueueKeys, Envelope | None, Death, tuple[int, int]], bool | None],
    lost: Container[int] = (),
) -> Iterator[Fate]:
    """Yield the outcomes of messages that the child has not counted, including those that were running.

    `items`: those that its lease still holds, by position. `is_dead` says whether a message to blame has had its last
    try. `lost`: positions of messages that were acked before their start, and never started.
    """
    keys, lease, death = ended.keys, ended.lease, ended.death
    for position, mark in enumerate(lease.marks):
        if mark != Mark.RUNNING and position not in ended.uncounted and position not in lost:
            continue
        message, envelope = (lease.slot, position), items.get(position)
        name, message_id, receive_count = _named(envelope, ended.acked.get(position), death)
        _, ran = death.running.get(message, (0.0, ""))
        task = ran or name
        if death.tasks and task and task not in death.tasks:
            continue  # children count only their own tasks
        blame = death.blame(message, ended.running) if mark == Mark.RUNNING else 0.0
        outcome = death.outcome if blame else _ENDED.get(mark, RELEASED)
        if mark == Mark.RUNNING and message in death.cancelled:
            outcome = CANCELLED
        elif position in lost and not death.stopping:
            outcome = CRASHED
        yield Fate(
            keys.name,
            task,
            outcome,
            death.tasks.get(task, (keys.name, task or OTHER)),
            blame,
            message_id,
            receive_count,
            is_dead(keys, envelope, death, message) if blame == 1.0 else None,
            death.error_of(message),
            lost=position in lost,
        )


def _named(
    envelope: Envelope | None, acked: AckedMessage | None, death: Death
) -> tuple[str, str | None, int | None]:
    """Task, id and receive count of a message: from its lease, or as its child has noted them with its ack."""
    if envelope is not None:
        return task_of(envelope), envelope.id, envelope.receives + 1
    if acked is not None:
        task = next(islice(death.tasks, acked.task, None), "")
        return task, acked.message_id, acked.receive_count
    return "", None, None


def log_fates(fates: Sequence[Fate], death: Death) -> None:
    """Log messages that were running, and those that were acked and did not start any more.

    A line for each one to blame, and one line each for all that may be to blame, that are lost, and that were cut off.
    """
    guilty = [fate for fate in fates if fate.blame == 1.0]
    for fate in guilty[:_NAMED]:
        _log.warning(
            "message_failed",
            queue=fate.queue,
            task=fate.task,
            message_id=fate.message_id,
            receive_count=fate.receive_count,
            reason=fate.outcome,
            error=fate.error[0],
            # The stack of a crash is in `child_ended` of this pid.
            exception=fate.error[1].partition("\n")[0] if death.stack else fate.error[1],
            dead=fate.dead,
            pid=death.pid,
        )
    if guilty[_NAMED:]:
        _log_many("messages_failed", guilty[_NAMED:], death.outcome, death.pid)
    if shared := [fate for fate in fates if 0 < fate.blame < 1]:
        _log_many("messages_suspected", shared, death.outcome, death.pid)
    if lost := [fate for fate in fates if fate.lost]:
        _log_many("messages_lost", lost, "stopped" if death.stopping else death.outcome, death.pid)
    cut_off = [
        fate for fate in fates if death.stopping and fate.outcome == RELEASED and not fate.lost
    ]
    if cut_off:
        _log_many("messages_cut_off", cut_off, "stopped", death.pid)


def _log_many(event: str, fates: Sequence[Fate], reason: str, pid: int) -> None:
    _log.warning(
        event,
        queues=sorted({fate.queue for fate in fates}),
        tasks=sorted({fate.task for fate in fates})[:_NAMED],
        messages=len(fates),
        message_ids=[fate.message_id for fate in fates[:_NAMED]],
        reason=reason,
        pid=pid,
    )
