"""What became of the messages that a dead child had started: for the metrics and for the log.

A child counts what its handlers come to, but not the handler that takes it along, nor what it had no time for. Its
supervisor settles those messages, and counts them with the same outcomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from qworker.consumer.death import Death

__all__ = ["Fate", "tell_of"]

_log = structlog.get_logger(__name__)

#: Messages that a line of the log names; and messages that have lines of their own.
_NAMED: Final = 20


@dataclass(frozen=True, slots=True)
class Fate:
    """How one message ended, as one of `OUTCOMES`.

    `counted_as`: queue and task of its counts. `blame` 1.0: its child died of it; less: it or one of others did; 0: it
    did not. `message_id` and `receive_count` are unknown where its lease could not be read. `dead`: that was its last
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


def tell_of(fates: Sequence[Fate], death: Death) -> None:
    """Write the lines of those that were running: one for each that is to blame, and one for all that may be."""
    guilty = [each for each in fates if each.blame == 1.0]
    for each in guilty[:_NAMED]:
        _log.warning(
            "message_failed",
            queue=each.queue,
            task=each.task,
            message_id=each.message_id,
            receive_count=each.receive_count,
            reason=each.outcome,
            error=each.error[0],
            exception=each.error[1],
            dead=each.dead,
            pid=death.pid,
        )
    if guilty[_NAMED:]:
        _log_many("messages_failed", guilty[_NAMED:], death.outcome, death.pid)
    if shared := [each for each in fates if 0 < each.blame < 1]:
        _log_many("messages_suspected", shared, death.outcome, death.pid)
    cut_off = [each for each in fates if death.stopping and each.outcome == "released"]
    if cut_off:
        _log_many("messages_cut_off", cut_off, "stopped", death.pid)


def _log_many(event: str, fates: Sequence[Fate], reason: str, pid: int) -> None:
    _log.warning(
        event,
        queues=sorted({each.queue for each in fates}),
        tasks=sorted({each.task for each in fates})[:_NAMED],
        messages=len(fates),
        message_ids=[each.message_id for each in fates[:_NAMED]],
        reason=reason,
        pid=pid,
    )
