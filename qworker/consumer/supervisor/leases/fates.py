"""The outcomes of messages that a dead child had started, for the metrics and the log.

A child counts outcomes of its handlers, but not of a handler that kills it, nor those that it had no time to count. Its
supervisor settles these messages, and counts them with the same outcomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from qworker.consumer.supervisor.leases.postmortem import Death

__all__ = ["Fate", "log_fates"]

_log = structlog.get_logger(__name__)

#: Messages that one line of the log names, and messages that have their own lines.
_NAMED: Final = 20


@dataclass(frozen=True, slots=True)
class Fate:
    """How one message ended, as one of `OUTCOMES`.

    `counted_as`: queue and task of its counts. `blame` 1.0: it killed the child; less: it or one of several others did;
    0: it did not. `message_id` and `receive_count` are None if its lease could not be read. `dead`: this was its last
    try.
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


def log_fates(fates: Sequence[Fate], death: Death) -> None:
    """Log messages that were running: a line for each that is to blame, and one for all that may be."""
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
    cut_off = [fate for fate in fates if death.stopping and fate.outcome == "released"]
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
