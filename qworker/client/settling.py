"""Saying what received messages came to, and asking for more time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import structlog
from msgspec import structs

from qworker.client.commands.extending import split, split_all
from qworker.client.commands.settling import Outcomes, Settled, settle
from qworker.client.limits import check_visibility_ms
from qworker.client.message import Message, Receipt
from qworker.client.options import MAX_VISIBILITY_MS
from qworker.client.plan import Plan, each_soon
from qworker.client.queue_ref import QueueRef
from qworker.client.spreading import where_held
from qworker.durations import Duration, duration_ms
from qworker.errors import QworkerError, ServerError, StaleReceiptError

__all__ = [
    "ack",
    "bury",
    "extend",
    "extend_all",
    "nack",
    "note_ack",
    "release",
    "split_off",
    "working",
]

_log = structlog.get_logger(__name__)

#: Leases that one call settles; messages that it moves, and that it only acks.
_LEASES: Final = 64
_MESSAGES: Final = 1_000
_ACKS: Final = 64_000
#: Seconds that a shard has to answer while others wait to be told.
_SOON_S: Final = 0.5


def ack(queue: QueueRef, *messages: Message) -> Plan[list[Message]]:
    """Finish messages; returns those whose ack counted. A stale one changes nothing.

    One call per queue or shard. What one of several shards fails at costs the others nothing: it is logged
    (`settle_failed`), and raised only where nothing counted.
    """
    return (yield from _settle(queue, messages, note_ack, most=_ACKS))


def nack(
    queue: QueueRef, *messages: Message, delay: Duration = 0, error: str = ""
) -> Plan[list[Message]]:
    """Count a failure of messages; each comes back after `delay`, or is dead at max receives.

    In one atomic call per queue or shard (of up to 1,000 messages, and 64 leases). Returns those that counted; raises
    `StaleReceiptError` where none did.
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
    """Give messages back uncounted, to the head of ready in their order, or after `delay`. Else as `nack`."""
    delay_ms = duration_ms(delay, "delay")

    def note(outcomes: Outcomes, message: Message) -> None:
        outcomes.release(message.receipt.index, delay_ms)

    return _some((yield from _settle(queue, messages, note)), queue, messages)


def bury(queue: QueueRef, *messages: Message, error: str = "") -> Plan[list[Message]]:
    """Move messages to the dead letters, with reason `rejected`. Else as `nack`."""

    def note(outcomes: Outcomes, message: Message) -> None:
        outcomes.bury(message.receipt.index, "rejected", ("", error))

    return _some((yield from _settle(queue, messages, note)), queue, messages)


@where_held
def extend(queue: QueueRef, message: Message, visibility: Duration) -> Plan[Message]:
    """Give a message a new visibility timeout from now; 0 makes it visible now.

    Returns the message with its new receipt (the old one is stale). Raises `StaleReceiptError`.
    """
    wanted_ms = duration_ms(visibility, "visibility", maximum_ms=MAX_VISIBILITY_MS)
    if wanted_ms == 0:
        yield from release(queue, message)
        return message
    return _held(queue, message, (yield from split_off(queue, message, wanted_ms)))


def extend_all(
    queue: QueueRef, messages: Iterable[Message], visibility: Duration
) -> Plan[list[Message]]:
    """Give messages a new visibility timeout from now; 0 makes them visible now.

    In one atomic call per queue or shard (of up to 1,000 messages, and 64 leases). Returns those that were still held,
    in their order and with their new receipts (the old ones are stale); the others are left out. What one of several
    shards fails at costs the others nothing: it is logged (`settle_failed`), and raised only where nothing was held.
    """
    wanted_ms = duration_ms(visibility, "visibility", maximum_ms=MAX_VISIBILITY_MS)
    asked = list(messages)
    if wanted_ms == 0:
        return (
            yield from _settle(queue, asked, lambda noted, each: noted.release(each.receipt.index))
        )
    held: dict[Receipt, Message] = {}
    #: A call in doubt is made again with the leases that it may have made.
    made: dict[str, str] = {}
    answered: set[str] = set()

    def extend_in(place: QueueRef, some: Sequence[Message], counted: list[Message]) -> Plan[None]:
        left = {each.receipt: each for each in some if each.receipt.lease_id not in answered}
        for page in _pages(_by_lease(left.values()), _MESSAGES):
            leases = {}
            for lease in page:
                old = lease[0].receipt.lease_id
                new = made.get(old) or made.setdefault(old, place.ids.lease_id(wanted_ms))
                leases[old] = new, [each.receipt.index for each in lease]
            flat = [each for lease in page for each in lease]
            deadlines: list[int] = yield split_all(place.keys, leases, wanted_ms)
            answered.update(leases)
            for each, deadline_ms in zip(flat, deadlines, strict=True):
                if deadline_ms:
                    receipt = structs.replace(each.receipt, lease_id=made[each.receipt.lease_id])
                    held[each.receipt] = structs.replace(
                        each, receipt=receipt, deadline_ms=deadline_ms
                    )
                    counted.append(held[each.receipt])

    yield from _shard_by_shard(queue, asked, extend_in)
    return [held.pop(each.receipt) for each in asked if each.receipt in held]


@where_held
def working(queue: QueueRef, message: Message, visibility: Duration | None = None) -> Plan[Message]:
    """Say that a message is still worked on: it gets its visibility timeout once more, from now.

    Returns the message with its new receipt and deadline, as `extend` does; but refused when half of its time to
    live is over, so that others have their turn. `visibility` None is the message's own, else the queue's. Raises
    `TooLateError`, `StaleReceiptError`.
    """
    wanted_ms = check_visibility_ms(visibility) or message.own_visibility_ms or None
    return _held(queue, message, (yield from split_off(queue, message, wanted_ms, half=True)))


def split_off(
    queue: QueueRef, message: Message, wanted_ms: int | None, *, half: bool = False
) -> Plan[Message | None]:
    """Give a message a lease of its own; returns it with its new receipt, None where the old one is stale.

    `wanted_ms` None takes the queue's visibility; `half`: refused as `working` is.
    """
    lease_id = queue.ids.lease_id(wanted_ms)
    old = message.receipt
    deadline_ms: int = yield split(
        queue.keys, old.lease_id, old.index, lease_id, wanted_ms, half=half
    )
    if not deadline_ms:
        return None
    return structs.replace(
        message, receipt=Receipt(lease_id, old.index, old.shard), deadline_ms=deadline_ms
    )


def note_ack(outcomes: Outcomes, message: Message) -> None:
    """Add the ack of a message to what its lease came to; one with a unique key releases that too."""
    unique = message.flags.get("u")
    if unique:
        outcomes.uniques += (message.receipt.index, unique, message.id)
    else:
        outcomes.acks.append(message.receipt.index)


def _settle(
    queue: QueueRef,
    messages: Sequence[Message],
    note: Callable[[Outcomes, Message], None],
    *,
    most: int = _MESSAGES,
) -> Plan[list[Message]]:
    """Say of messages what they came to, shard by shard; returns those that counted."""

    def settle_in(place: QueueRef, some: Sequence[Message], counted: list[Message]) -> Plan[None]:
        return _settle_in(place, some, note, counted, most)

    return (yield from _shard_by_shard(queue, messages, settle_in))


def _shard_by_shard(
    queue: QueueRef,
    messages: Sequence[Message],
    tell: Callable[[QueueRef, Sequence[Message], list[Message]], Plan[None]],
) -> Plan[list[Message]]:
    """Tell each shard of its messages; returns those that counted, which `tell` adds to its list.

    A shard that does not answer soon is told again after the others have been.
    """
    shards: dict[int, list[Message]] = {}
    for message in messages:
        shards.setdefault(message.receipt.shard, []).append(message)
    counted: list[Message] = []
    refused: QworkerError | None = None
    waiting = list(shards)
    if len(shards) > 1:
        for number in shards:
            place = queue.shard(number)
            plan = each_soon(tell(place, shards[number], counted), _SOON_S)
            try:
                yield from plan
            except ServerError:
                continue  # it has its time below
            except QworkerError as error:
                _log.warning("settle_failed", queue=place.keys.queue, error=str(error))
                refused = error
            waiting.remove(number)
    for number in waiting:
        place = queue.shard(number)
        try:
            yield from tell(place, shards[number], counted)
        except QworkerError as error:
            if not counted:
                raise
            _log.warning("settle_failed", queue=place.keys.queue, error=str(error))
    if refused is not None and not counted:
        raise refused
    return counted


def _settle_in(
    queue: QueueRef,
    messages: Sequence[Message],
    note: Callable[[Outcomes, Message], None],
    counted: list[Message],
    most: int,
) -> Plan[None]:
    """Settle messages of one shard in calls of some leases; those that count are added to `counted`."""
    for page in _pages(_by_lease(messages), most):
        outcomes = []
        flat: list[Message] = []
        for held in page:
            outcomes.append(Outcomes(held[0].receipt.lease_id))
            for message in held:
                note(outcomes[-1], message)
            # The script answers acks with a unique key before the others of a lease.
            unique = bool(outcomes[-1].uniques)
            flat += sorted(held, key=lambda each: not each.flags.get("u")) if unique else held
        settled: Settled = yield settle(queue.keys, outcomes)
        counted += [message for message, hit in zip(flat, settled.counted, strict=True) if hit]


def _by_lease(messages: Iterable[Message]) -> list[list[Message]]:
    leases: dict[str, list[Message]] = {}
    for message in messages:
        leases.setdefault(message.receipt.lease_id, []).append(message)
    return list(leases.values())


def _pages(leases: Sequence[list[Message]], most: int) -> Iterator[list[list[Message]]]:
    page: list[list[Message]] = []
    number = 0
    for held in leases:
        if page and (len(page) == _LEASES or number + len(held) > most):
            yield page
            page, number = [], 0
        page.append(held)
        number += len(held)
    if page:
        yield page


def _some(counted: list[Message], queue: QueueRef, messages: Sequence[Message]) -> list[Message]:
    if messages and not counted:
        first = messages[0].receipt
        raise StaleReceiptError(queue.shard(first.shard).keys.queue, str(first))
    return counted


def _held(queue: QueueRef, message: Message, held: Message | None) -> Message:
    if held is None:
        raise StaleReceiptError(queue.keys.queue, str(message.receipt))
    return held
