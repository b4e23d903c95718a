"""Where the messages of a send go: which shard takes them, and another if that one certainly has not stored them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine.command import Command
from qworker.engine.options import SendOptions
from qworker.engine.send import MAX_PER_CALL, NewMessage, SendCall, Sent
from qworker.engine.send import send as send_command
from qworker.errors import (
    BrokenQueueError,
    BusyError,
    ClusterMovingError,
    InDoubtError,
    InvalidOptionError,
    LoadingError,
    NoReplicasError,
    NotPersistedError,
    OutOfMemoryError,
    ReadOnlyError,
    ServerError,
    ShardDrainingError,
    UnavailableError,
)
from qworker.wire.groups import parent_of
from qworker.wire.shards import Shards

__all__ = ["send_call", "store_placed"]

#: Attempts of a send while its queue is being divided; each reads the shards again.
_ATTEMPTS: Final = 5
#: Errors of a shard that certainly did not store a message: another shard may take it.
_ELSEWHERE: Final = (
    BrokenQueueError,
    BusyError,
    ClusterMovingError,
    LoadingError,
    NoReplicasError,
    NotPersistedError,
    OutOfMemoryError,
    ReadOnlyError,
    UnavailableError,
)


def store_placed(
    queue: QueueRef, messages: Sequence[NewMessage], options: SendOptions
) -> Plan[list[str]]:
    """Store messages in the shards where they belong; returns an id for each. Raises `InvalidOptionError`."""
    if queue.single:
        return (yield from _store(queue, messages, options))
    ids = [""] * len(messages)
    left = list(range(len(messages)))
    for attempt in range(1, _ATTEMPTS + 1):
        _refuse_unique_in_groups(queue, messages)
        refused: list[int] = []
        for number, positions in _placed(queue, messages, left):
            chosen = [messages[position] for position in positions]
            earlier = [message_id for message_id in ids if message_id]
            try:
                if number is None:
                    stored = yield from _store_anywhere(queue, chosen, options, earlier)
                else:
                    stored = yield from _store_in(queue, number, chosen, options, earlier)
            except ShardDrainingError as error:
                if attempt == _ATTEMPTS:
                    raise
                yield from queue.refused(error)
                refused += positions
                continue
            for position, message_id in zip(positions, stored, strict=True):
                ids[position] = message_id
            yield from queue.announce()
        if not refused:
            break
        left = refused
    return ids


def _refuse_unique_in_groups(queue: QueueRef, messages: Sequence[NewMessage]) -> None:
    """Refuse a unique key and a group together in a divided queue: each would choose the shard.

    Chosen by the group, one key could be held in several shards; by the key, the limits and the order of a group would
    hold in each shard alone.
    """
    shards = queue.shards.active
    if shards > 1 and any(message.group and message.unique for message in messages):
        raise InvalidOptionError(
            "unique",
            f"is set together with group, and queue '{queue.keys.queue}' is divided into {shards} shards",
            "the group chooses the shard, so the key could be held in several; send the message without one of them, "
            f"or to a queue that is not divided: qworker queue shards {queue.keys.queue} 1",
        )


def _placed(
    queue: QueueRef, messages: Sequence[NewMessage], positions: Sequence[int]
) -> Iterator[tuple[int | None, list[int]]]:
    """Divide messages by shard: by group or unique key; the others (None) in as many as a call takes, for any shard.

    If there is only one shard they stay together, in their order.
    """
    if queue.shards.active == 1:
        yield None, list(positions)
        return
    keyed: dict[int, list[int]] = {}
    free: list[int] = []
    for position in positions:
        # A group lives in one shard, with all of its parent: there its limits are exact.
        key = parent_of(messages[position].group) or messages[position].unique
        if key:
            keyed.setdefault(queue.shards.of_key(key), []).append(position)
        else:
            free.append(position)
    for first in range(0, len(free), MAX_PER_CALL):
        yield None, free[first : first + MAX_PER_CALL]
    yield from keyed.items()


def _store_anywhere(
    queue: QueueRef, messages: Sequence[NewMessage], options: SendOptions, before: Sequence[str]
) -> Plan[list[str]]:
    """Store messages in the shard whose turn it is; if that certainly did not store them, in another."""
    *others, last = queue.in_turn()
    for number in others:
        try:
            return (yield from _store_in(queue, number, messages, options, before, elsewhere=True))
        except (ServerError, BrokenQueueError) as error:
            if not isinstance(error, _ELSEWHERE):
                raise
            queue.leave_out(number)
    return (yield from _store_in(queue, last, messages, options, before))


def _store_in(
    queue: QueueRef,
    number: int,
    messages: Sequence[NewMessage],
    options: SendOptions,
    before: Sequence[str],
    *,
    elsewhere: bool = False,
) -> Plan[list[str]]:
    """Store messages in one shard of the queue; the reply of the first one reports the shards."""
    shard = queue.shard(number)
    try:
        return (
            yield from _store(
                shard,
                messages,
                options,
                before,
                elsewhere=elsewhere,
                learn=queue.learn_from_send if number == 0 else None,
            )
        )
    except InDoubtError:
        queue.leave_out(number)
        raise


def _store(
    queue: QueueRef,
    messages: Sequence[NewMessage],
    options: SendOptions,
    before: Sequence[str] = (),
    *,
    elsewhere: bool = False,
    learn: Callable[[Shards], None] | None = None,
) -> Plan[list[str]]:
    """Store messages in one shard; `before`: ids that the same send has stored in others."""
    ids: list[str] = []
    for first in range(0, len(messages), MAX_PER_CALL):
        call = send_call(
            queue,
            messages[first : first + MAX_PER_CALL],
            options,
            earlier=(*before, *ids),
            # A replica that has the last call has those before it.
            confirmed=first + MAX_PER_CALL >= len(messages),
        )
        # After its first part a send does not go elsewhere: that would store messages twice.
        sent: Sent = yield SendCall(call, queue.keys.meta, elsewhere=elsewhere and not first)
        ids += sent.ids
        if learn is not None:
            learn(sent.shards)
    return ids


def send_call(
    queue: QueueRef,
    messages: Sequence[NewMessage],
    options: SendOptions,
    *,
    earlier: Sequence[str] = (),
    confirmed: bool = True,
) -> Callable[..., Command[Sent]]:
    """Make the call of a send that waits for its lane; it waits for replicas and disks only if `confirmed`."""
    return partial(
        send_command,
        queue.keys,
        messages,
        delay_ms=options.delay_ms if options.debounce_ms is None else options.debounce_ms,
        due_ms=options.eta_ms,
        ttl_ms=options.ttl_ms,
        priority=options.priority,
        maxlen=options.maxlen,
        replicas=options.replicas if confirmed else 0,
        fsync=options.fsync and confirmed,
        within_ms=options.within_ms,
        earlier=earlier,
    )
