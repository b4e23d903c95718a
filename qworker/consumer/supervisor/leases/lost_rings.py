"""Rings of dead children: a server may have just answered a wait of the one that died, and the token is gone.

Others that wait at the same doorbell would sleep on beside the message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import structlog
from redis.crc import key_slot

from qworker.engine.doorbells import ring
from qworker.engine.poll import MAX_POLLED, poll
from qworker.engine.raw import raw
from qworker.errors import QworkerError

if TYPE_CHECKING:
    from qworker.client.execute.recurring import RecurringCalls
    from qworker.engine.command import Command
    from qworker.wire.keys import QueueKeys

__all__ = ["ring_again"]

_log = structlog.get_logger(__name__)

#: Queues in more slots of a Cluster than this have no waits whose tokens could be lost, see `child.receive.doorbells`.
_MAX_SLOTS: Final = 16


def ring_again(calls: RecurringCalls, queues: Sequence[QueueKeys]) -> None:
    """Ring at those queues that have messages and whose doorbells hold no token; three trips per server.

    A queue that cannot be asked is left to the looks of its workers.
    """
    parts = [*_parts(queues, clustered=calls.factory.clustered)]
    answers = calls.execute_each([poll(part) for part in parts])
    waiting = [
        part[number]
        for part, polled in zip(parts, answers, strict=True)
        if not isinstance(polled, QworkerError)
        for number, found in polled.available.items()
        if not found.problem
    ]
    silent = calls.execute_each([_has_token(keys) for keys in waiting])
    rung = calls.execute_each(
        [ring(keys) for keys, token in zip(waiting, silent, strict=True) if token is False]
    )
    failed = [error for error in (*answers, *silent, *rung) if isinstance(error, QworkerError)]
    if failed:
        _log.warning("doorbell_not_rung", error=str(failed[0]), calls=len(failed))


def _has_token(keys: QueueKeys) -> Command[bool]:
    def decode(reply: Any) -> bool:
        return bool(reply)

    return raw("EXISTS", keys.wake, decode=decode)


def _parts(queues: Sequence[QueueKeys], *, clustered: bool) -> Iterator[Sequence[QueueKeys]]:
    """Divide queues into those of one poll; none if children do not wait for them."""
    slots: dict[int, list[QueueKeys]] = {}
    for keys in queues:
        slots.setdefault(int(key_slot(keys.wake.encode())) if clustered else 0, []).append(keys)
    if len(slots) > _MAX_SLOTS:
        return
    for of_slot in slots.values():
        for first in range(0, len(of_slot), MAX_POLLED):
            yield of_slot[first : first + MAX_POLLED]
