"""Settle received messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from qworker.client.lease_pages import by_lease, cut_leases, pages_of, shard_by_shard
from qworker.client.message import Message, check_received
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.durations import Duration, duration_ms
from qworker.engine.settle import Outcomes, Settled, settle
from qworker.errors import InvalidOptionError, StaleReceiptError

__all__ = [
    "ack",
    "bury",
    "is_followed",
    "nack",
    "note_ack",
    "release",
    "release_all",
]

#: Messages of one call of acks.
_ACKS: Final = 64_000
#: Messages that one call moves, and bytes of their bodies (or one message): other calls wait for it.
_MOVED: Final = 100
_MOVED_BYTES: Final = 2**20
#: Bytes of messages that one call acks: the server frees them, and reads them if the queue has a journal.
_ACKED_BYTES: Final = 2**22
#: Flags of a run, of a call with others behind it, and of a member of a group of calls.
_FOLLOWED: Final = {"c", "j", "i"}


def ack(queue: QueueRef, *messages: Message) -> Plan[list[Message]]:
    """Finish messages; returns those whose ack counted. A stale receipt changes nothing.

    Raises `InvalidOptionError`, before any is acked, for the message of a run, and for one that a chain or a group of
    calls continues from: use `complete`. One call per queue or shard. A failure of one of several shards does not
    affect the others: it is logged (`settle_failed`), and raised only if nothing counted.
    """
    check_received(messages)
    for message in messages:
        if is_followed(message):
            raise InvalidOptionError(
                "message",
                f"{message.id} is a run, or a call of a chain or a group of calls, which an ack does not continue",
                "end it with its value: queue.complete(message, value)",
            )
    return (yield from _settle(queue, messages, note_ack, moves=False))


def nack(
    queue: QueueRef, *messages: Message, delay: Duration = 0, error: str = ""
) -> Plan[list[Message]]:
    """Count a failure of messages; each comes back after `delay`, or is dead at max receives.

    In atomic calls of up to 100 messages of a queue or shard and 1 MiB, and 64 leases. Returns those that counted;
    raises `StaleReceiptError` if none did.
    """
    delay_ms = duration_ms(delay, "delay")

    def note(outcomes: Outcomes, message: Message) -> None:
        outcomes.nack(
            message.receipt.index,
            delay_ms,
            first_received_ms=message.first_received_ms,
            error=("", error),
        )

    return _some((yield from _settle(queue, messages, note)), queue, messages)


def release(queue: QueueRef, *messages: Message, delay: Duration = 0) -> Plan[list[Message]]:
    """Give messages back uncounted, to the head of ready in their order, or after `delay`. Otherwise as `nack`."""
    released = yield from release_all(queue, messages, duration_ms(delay, "delay"))
    return _some(released, queue, messages)


def bury(queue: QueueRef, *messages: Message, error: str = "") -> Plan[list[Message]]:
    """Move messages to the dead letters with reason `rejected`. Otherwise as `nack`."""

    def note(outcomes: Outcomes, message: Message) -> None:
        outcomes.bury(message.receipt.index, "rejected", ("", error))

    return _some((yield from _settle(queue, messages, note)), queue, messages)


def is_followed(message: Message) -> bool:
    """Whether a plain ack would leave a run, a chain or a group of calls waiting."""
    return not _FOLLOWED.isdisjoint(message.flags)


def note_ack(outcomes: Outcomes, message: Message) -> None:
    """Add the ack of a message to the outcomes of its lease; it also releases the message's unique key."""
    unique = message.flags.get("u")
    if unique:
        outcomes.uniques += (message.receipt.index, unique, message.id)
    else:
        outcomes.acks.append(message.receipt.index)


def release_all(queue: QueueRef, messages: Sequence[Message], delay_ms: int) -> Plan[list[Message]]:
    """Give messages back as `release` does; returns those that counted, in their order."""

    def note(outcomes: Outcomes, message: Message) -> None:
        outcomes.release(message.receipt.index, delay_ms)

    released = yield from _settle(queue, messages, note, last_first=True)
    counted = {message.receipt: message for message in released}
    return [counted.pop(message.receipt) for message in messages if message.receipt in counted]


def _settle(
    queue: QueueRef,
    messages: Sequence[Message],
    note: Callable[[Outcomes, Message], None],
    *,
    moves: bool = True,
    last_first: bool = False,
) -> Plan[list[Message]]:
    """Settle messages shard by shard; returns those that counted.

    `moves`: the script moves them, so a call takes fewer. `last_first`: make the last call of a shard first, for
    messages that go to the head of ready.
    """

    def settle_in(shard: QueueRef, some: Sequence[Message], counted: list[Message]) -> Plan[None]:
        leases = by_lease(some)
        if moves:
            pages = [*pages_of(cut_leases(leases, _MOVED, _MOVED_BYTES), _MOVED, _MOVED_BYTES)]
        else:
            pages = [*pages_of(leases, _ACKS, _ACKED_BYTES)]
        return _settle_in(shard, pages[::-1] if last_first else pages, note, counted)

    return (yield from shard_by_shard(queue, messages, settle_in))


def _settle_in(
    queue: QueueRef,
    pages: Sequence[list[list[Message]]],
    note: Callable[[Outcomes, Message], None],
    counted: list[Message],
) -> Plan[None]:
    """Settle messages of one shard, a page of leases per call; adds those that count to `counted`."""
    for page in pages:
        outcomes = []
        flat: list[Message] = []
        for lease in page:
            outcomes.append(Outcomes(lease[0].receipt.lease_id))
            for message in lease:
                note(outcomes[-1], message)
            # The script replies acks with a unique key before the others of a lease.
            unique = bool(outcomes[-1].uniques)
            flat += sorted(lease, key=_without_unique) if unique else lease
        settled: Settled = yield settle(queue.keys, outcomes)
        counted += [message for message, hit in zip(flat, settled.counted, strict=True) if hit]


def _without_unique(message: Message) -> bool:
    return not message.flags.get("u")


def _some(counted: list[Message], queue: QueueRef, messages: Sequence[Message]) -> list[Message]:
    if messages and not counted:
        first = messages[0].receipt
        raise StaleReceiptError(queue.shard(first.shard).keys.queue, str(first))
    return counted
