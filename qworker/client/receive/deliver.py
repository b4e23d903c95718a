"""Make messages of a batch: bury foreign items, open protected ones, ack popped ones.

`NewLeases` holds the leases of one call until its caller has them. A call that ends otherwise (an error, an interrupt,
a cancelled coroutine) leaves them to `Unreturned`.
"""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import Any, Final, Self

from msgspec import structs

from qworker.client.message import Message, Receipt, deliver, deliver_unflagged
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.client.settle import is_followed, note_ack
from qworker.client.unreturned import ALL
from qworker.engine.extend import split
from qworker.engine.receive import Batch
from qworker.engine.settle import Outcomes, Settled, settle
from qworker.errors import (
    InDoubtError,
    ProtectionError,
    QworkerError,
    UnfinishedError,
    UnknownKeyError,
)
from qworker.telemetry.logger import logger

__all__ = ["NewLeases", "delivered"]

_log = logger(__name__)

#: The delay of a message whose key is unknown here.
_KEY_UNKNOWN_MS: Final = 5000


class NewLeases:
    """The leases that a call creates, `with NewLeases() as leases`: given back unless the call returns them.

    Enter a lease before the call that may create it.
    """

    def __init__(self) -> None:
        self._entered: dict[tuple[str, str], QueueRef] = {}

    def enter(self, queue: QueueRef, lease_id: str, index: str = ALL) -> None:
        """Enter a lease, or one message of it."""
        self._entered[lease_id, index] = queue

    def absent(self, lease_id: str) -> None:
        """Remove a lease that was not created."""
        self._entered.pop((lease_id, ALL), None)

    def not_created(self, queue: QueueRef, batch: Batch) -> None:
        """Remove the lease of a call that found no message; its first sending may yet make it, if it was repeated."""
        self.absent(batch.lease_id)
        if batch.resumed:
            self.leave(queue, batch.lease_id)

    def failed(self, queue: QueueRef, lease_id: str, error: QworkerError) -> None:
        """Remove a lease whose call failed; if it may have been created, leave it to be given back."""
        self.absent(lease_id)
        if isinstance(error, InDoubtError | UnfinishedError):
            self.leave(queue, lease_id)

    def leave(self, queue: QueueRef, lease_id: str, index: str = ALL) -> None:
        """Leave a lease, or one message of it, to be given back: the caller will not see it."""
        queue.unreturned.note(queue.keys, lease_id, index)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            for (lease_id, index), queue in self._entered.items():
                self.leave(queue, lease_id, index)


def delivered(
    queue: QueueRef, batch: Batch, leases: NewLeases, *, pop: bool = False
) -> Plan[list[Message]]:
    """Make messages of a batch: bury foreign items, and with `pop` ack the others.

    With `pop` it returns the messages whose ack counted, and raises the `QworkerError` of an ack that failed. Without
    `pop` it returns all others even if one cannot be buried.
    """
    outcomes = Outcomes(batch.lease_id)
    unflagged = None if queue.protected else deliver_unflagged(queue.keys, batch)
    if unflagged is not None:
        if not pop:
            return unflagged
        outcomes.acks += batch.indices
        acked: Settled = yield settle(queue.keys, [outcomes])
        return [message for message, hit in zip(unflagged, acked.counted, strict=True) if hit]
    messages: list[Message] = []
    for position, index in enumerate(batch.indices):
        message = deliver(queue.keys, batch, position)
        if message is None:
            outcomes.bury(index, "foreign")
            continue
        if queue.protected or "e" in message.flags:
            message = _opened(queue, message, batch.items[position], outcomes)
            if message is None:
                continue
        messages.append(message)
    if pop:
        return (yield from _popped(queue, messages, outcomes))
    if outcomes:
        try:
            yield settle(queue.keys, [outcomes])
        except QworkerError as error:
            _log.warning("message_not_settled", queue=queue.keys.queue, error=str(error))
            for index in set(batch.indices) - {message.receipt.index for message in messages}:
                leases.leave(queue, batch.lease_id, index)
    return (yield from _with_own_visibility(queue, messages, leases))


def _popped(
    queue: QueueRef, messages: list[Message], outcomes: Outcomes
) -> Generator[Any, Any, list[Message]]:
    """Ack messages, and return those whose ack counted: another receiver may hold the others by now."""
    # They have no value: chains and groups that continue see them as discarded.
    followed = [message for message in messages if is_followed(message)]
    # The script replies unique keys before other acks, and the rest last.
    messages = [message for message in messages if not is_followed(message)]
    messages.sort(key=lambda message: not message.flags.get("u"))
    for message in messages:
        note_ack(outcomes, message)
    for message in followed:
        outcomes.discard(message.receipt.index)
    if not outcomes:
        return []
    settled: Settled = yield settle(queue.keys, [outcomes])
    last = len(settled.counted) - len(followed)
    counted = [*settled.counted[: len(messages)], *settled.counted[last:]]
    acked = [message for message, hit in zip(messages + followed, counted, strict=True) if hit]
    acked.sort(key=lambda message: int(message.receipt.index))
    return acked


def _opened(queue: QueueRef, message: Message, item: bytes, outcomes: Outcomes) -> Message | None:
    """Open a protected message; None if it is buried, or nacked since its key is unknown here."""
    index = message.receipt.index
    try:
        return queue.opened(message, item)
    except UnknownKeyError as error:
        _log.warning(
            "key_unknown", queue=error.queue, message_id=error.message_id, error=error.problem
        )
        outcomes.nack(index, _KEY_UNKNOWN_MS, error=(type(error).__name__, error.problem))
    except ProtectionError as error:
        outcomes.bury(index, error.reason, (type(error).__name__, error.problem))
    return None


def _with_own_visibility(
    queue: QueueRef, messages: list[Message], leases: NewLeases
) -> Plan[list[Message]]:
    """Give each message with its own visibility timeout its own lease."""
    kept: list[Message] = []
    for message in messages:
        own_ms = message.own_visibility_ms if message.flags else None
        leased: Message | None = message
        if own_ms:
            leased = yield from _split_off(queue, message, own_ms, leases)
        if leased is not None:
            kept.append(leased)
    return kept


def _split_off(
    queue: QueueRef, message: Message, own_ms: int, leases: NewLeases
) -> Plan[Message | None]:
    """Split a message off; None if either lease may have it: then it is given back."""
    old, lease_id = message.receipt, queue.ids.lease_id(own_ms)
    leases.enter(queue, lease_id)
    try:
        deadline_ms: int = yield split(queue.keys, old.lease_id, old.index, lease_id, own_ms)
    except QworkerError as error:
        _log.warning("visibility_not_set", queue=queue.keys.queue, error=str(error))
        if not isinstance(error, InDoubtError | UnfinishedError):
            leases.absent(lease_id)
            return message
        leases.leave(queue, lease_id)
        leases.leave(queue, old.lease_id, old.index)
        return None
    if not deadline_ms:
        leases.absent(lease_id)
        return message
    receipt = Receipt(lease_id, old.index, old.shard)
    return structs.replace(message, receipt=receipt, deadline_ms=deadline_ms)
