"""Settle received messages, and extend their visibility."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from msgspec import structs

from qworker.client.limits import check_visibility_ms
from qworker.client.message import Message, Receipt
from qworker.client.per_shard import where_held
from qworker.client.plan import Plan, each_soon
from qworker.client.queue_ref import QueueRef
from qworker.durations import Duration, duration_ms
from qworker.engine.extend import split, split_all
from qworker.engine.options import MAX_VISIBILITY_MS
from qworker.engine.result import read_results
from qworker.engine.settle import LIGHT, Outcomes, Settled, result_effect, settle
from qworker.errors import (
    InvalidOptionError,
    InvalidResultError,
    QworkerError,
    ServerError,
    StaleReceiptError,
)
from qworker.formats import size
from qworker.telemetry.logger import logger
from qworker.wire.codec import encode
from qworker.wire.numbers import whole
from qworker.wire.result import MAX_KEEP_MS, MAX_RESULT, write_value

__all__ = [
    "ack",
    "bury",
    "complete",
    "extend",
    "extend_all",
    "nack",
    "note_ack",
    "release",
    "split_off",
    "working",
]

_log = logger(__name__)

#: Leases per call; messages per call of acks, and of extensions.
_LEASES: Final = 64
_ACKS: Final = 64_000
_EXTENDED: Final = 1_000
#: Messages that one call moves, and bytes of their bodies (or one message): other calls wait for it.
_MOVED: Final = 250
_MOVED_BYTES: Final = 2**20
#: Seconds that a shard has to reply while others wait.
_SOON_S: Final = 0.5


def ack(queue: QueueRef, *messages: Message) -> Plan[list[Message]]:
    """Finish messages; returns those whose ack counted. A stale receipt changes nothing.

    One call per queue or shard. A failure of one of several shards costs the others nothing: it is logged
    (`settle_failed`), and raised only if nothing counted.
    """
    return (yield from _settle(queue, messages, note_ack, moves=False))


def nack(
    queue: QueueRef, *messages: Message, delay: Duration = 0, error: str = ""
) -> Plan[list[Message]]:
    """Count a failure of messages; each comes back after `delay`, or is dead at max receives.

    In atomic calls of up to 250 messages of a queue or shard and 1 MiB, and 64 leases. Returns those that counted;
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
    released = yield from _release(queue, messages, duration_ms(delay, "delay"))
    return _some(released, queue, messages)


def bury(queue: QueueRef, *messages: Message, error: str = "") -> Plan[list[Message]]:
    """Move messages to the dead letters with reason `rejected`. Otherwise as `nack`."""

    def note(outcomes: Outcomes, message: Message) -> None:
        outcomes.bury(message.receipt.index, "rejected", ("", error))

    return _some((yield from _settle(queue, messages, note)), queue, messages)


@where_held
def complete(
    queue: QueueRef, message: Message, result: object, *, keep: Duration | None = None
) -> Plan[Message]:
    """Ack a message and store its result, for those who wait for it; both or neither.

    `result` is any JSON value, up to 1 MiB; bytes are JSON that is written already. `keep`: for how long (1 s to 30
    days), default as its sender asked. Raises `StaleReceiptError` if the ack does not count, `InvalidResultError`, and
    `OutOfMemoryError` if the server is full and the result is larger than 512 bytes: nothing was changed.
    """
    asked_ms = whole(message.flags.get("r"))
    if keep is None and not asked_ms:
        raise InvalidOptionError(
            "keep", "is missing: the sender asked for no result", "say how long, such as keep='1h'"
        )
    keep_ms = asked_ms if keep is None else duration_ms(keep, "keep", minimum_ms=1000)
    keep_ms = min(keep_ms or 0, MAX_KEEP_MS)
    value = result if isinstance(result, bytes) else encode(result)
    if len(value) > MAX_RESULT:
        raise InvalidResultError(
            "result",
            f"has {len(value):,} bytes of JSON",
            f"at most {size(MAX_RESULT)}: store it elsewhere and keep a reference to it",
        )
    stored = write_value(value, queue.keyring, queue.namespace, queue.keys.name, message.id)
    outcomes = Outcomes(message.receipt.lease_id)
    outcomes.ack_with(message.receipt.index, [result_effect(stored, keep_ms)])
    settled: Settled = yield settle(queue.keys, [outcomes], heavy=len(stored) > LIGHT)
    # A call that is repeated because its reply was lost finds the message acked, with this result.
    if not settled.counted[0] and (yield read_results([queue.keys], message.id)) != [stored]:
        raise StaleReceiptError(queue.keys.queue, str(message.receipt))
    return message


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
    in their order and with their new receipts (the old ones are stale); leaves out the others. A failure of one of
    several shards costs the others nothing: it is logged (`settle_failed`), and raised only if nothing was held.
    """
    wanted_ms = duration_ms(visibility, "visibility", maximum_ms=MAX_VISIBILITY_MS)
    wanted = list(messages)
    if wanted_ms == 0:
        return (yield from _release(queue, wanted, 0))
    extended: dict[Receipt, Message] = {}
    #: A call in doubt is repeated with the leases that it may have created.
    new_leases: dict[str, str] = {}
    done: set[str] = set()

    def extend_in(shard: QueueRef, some: Sequence[Message], counted: list[Message]) -> Plan[None]:
        left = {
            message.receipt: message for message in some if message.receipt.lease_id not in done
        }
        for page in _pages(_by_lease(left.values()), _EXTENDED):
            leases = {}
            for lease in page:
                old = lease[0].receipt.lease_id
                new = new_leases.get(old) or new_leases.setdefault(
                    old, shard.ids.lease_id(wanted_ms)
                )
                leases[old] = new, [message.receipt.index for message in lease]
            flat = [message for lease in page for message in lease]
            deadlines: list[int] = yield split_all(shard.keys, leases, wanted_ms)
            done.update(leases)
            for message, deadline_ms in zip(flat, deadlines, strict=True):
                if deadline_ms:
                    old_receipt = message.receipt
                    receipt = structs.replace(
                        old_receipt, lease_id=new_leases[old_receipt.lease_id]
                    )
                    extended[old_receipt] = structs.replace(
                        message, receipt=receipt, deadline_ms=deadline_ms
                    )
                    counted.append(extended[old_receipt])

    yield from _shard_by_shard(queue, wanted, extend_in)
    return [extended.pop(message.receipt) for message in wanted if message.receipt in extended]


@where_held
def working(queue: QueueRef, message: Message, visibility: Duration | None = None) -> Plan[Message]:
    """Report that a message is still worked on: it gets its visibility timeout once more, from now.

    Returns the message with its new receipt and deadline, as `extend` does, but is refused once half of its time to
    live is over, so that others have their turn. `visibility` None is the message's own, else the queue's. Raises
    `TooLateError`, `StaleReceiptError`.
    """
    wanted_ms = check_visibility_ms(visibility) or message.own_visibility_ms or None
    return _held(queue, message, (yield from split_off(queue, message, wanted_ms, half=True)))


def split_off(
    queue: QueueRef, message: Message, wanted_ms: int | None, *, half: bool = False
) -> Plan[Message | None]:
    """Give a message its own lease; returns it with its new receipt, None if the old one is stale.

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
    """Add the ack of a message to the outcomes of its lease; it also releases the message's unique key."""
    unique = message.flags.get("u")
    if unique:
        outcomes.uniques += (message.receipt.index, unique, message.id)
    else:
        outcomes.acks.append(message.receipt.index)


def _release(queue: QueueRef, messages: Sequence[Message], delay_ms: int) -> Plan[list[Message]]:
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
        leases = _by_lease(some)
        pages = [*(_pages(_cut(leases), _MOVED, _MOVED_BYTES) if moves else _pages(leases, _ACKS))]
        return _settle_in(shard, pages[::-1] if last_first else pages, note, counted)

    return (yield from _shard_by_shard(queue, messages, settle_in))


def _shard_by_shard(
    queue: QueueRef,
    messages: Sequence[Message],
    settle_in: Callable[[QueueRef, Sequence[Message], list[Message]], Plan[None]],
) -> Plan[list[Message]]:
    """Settle the messages of each shard; returns those that counted, which `settle_in` adds to its list.

    A shard that does not reply soon is tried again after the others.
    """
    shards: dict[int, list[Message]] = {}
    for message in messages:
        shards.setdefault(message.receipt.shard, []).append(message)
    counted: list[Message] = []
    refused: QworkerError | None = None
    waiting = list(shards)
    if len(shards) > 1:
        for number in shards:
            shard = queue.shard(number)
            plan = each_soon(settle_in(shard, shards[number], counted), _SOON_S)
            try:
                yield from plan
            except ServerError:
                continue  # It has more time below.
            except QworkerError as error:
                _log.warning("settle_failed", queue=shard.keys.queue, error=str(error))
                refused = error
            waiting.remove(number)
    for number in waiting:
        shard = queue.shard(number)
        try:
            yield from settle_in(shard, shards[number], counted)
        except QworkerError as error:
            if not counted:
                raise
            _log.warning("settle_failed", queue=shard.keys.queue, error=str(error))
    if refused is not None and not counted:
        raise refused
    return counted


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


def _by_lease(messages: Iterable[Message]) -> list[list[Message]]:
    leases: dict[str, list[Message]] = {}
    for message in messages:
        leases.setdefault(message.receipt.lease_id, []).append(message)
    return list(leases.values())


def _cut(leases: Iterable[list[Message]]) -> Iterator[list[Message]]:
    """Cut leases into pieces that one call moves. Two pieces of a lease never fit in one call."""
    for lease in leases:
        piece: list[Message] = []
        size = 0
        for message in lease:
            if piece and (len(piece) == _MOVED or size + len(message.body) > _MOVED_BYTES):
                yield piece
                piece, size = [], 0
            piece.append(message)
            size += len(message.body)
        yield piece


def _pages(
    leases: Iterable[list[Message]], most: int, most_bytes: int | None = None
) -> Iterator[list[list[Message]]]:
    page: list[list[Message]] = []
    number = size = 0
    for lease in leases:
        more = 0 if most_bytes is None else sum(len(message.body) for message in lease)
        over = number + len(lease) > most or (most_bytes is not None and size + more > most_bytes)
        if page and (len(page) == _LEASES or over):
            yield page
            page, number, size = [], 0, 0
        page.append(lease)
        number, size = number + len(lease), size + more
    if page:
        yield page


def _without_unique(message: Message) -> bool:
    return not message.flags.get("u")


def _some(counted: list[Message], queue: QueueRef, messages: Sequence[Message]) -> list[Message]:
    if messages and not counted:
        first = messages[0].receipt
        raise StaleReceiptError(queue.shard(first.shard).keys.queue, str(first))
    return counted


def _held(queue: QueueRef, message: Message, extended: Message | None) -> Message:
    if extended is None:
        raise StaleReceiptError(queue.keys.queue, str(message.receipt))
    return extended
