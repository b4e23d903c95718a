"""Send messages to a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from qworker.client.per_shard import everywhere
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.durations import Duration
from qworker.engine.command import Command
from qworker.engine.options import DEFAULT_MAXSIZE, LARGEST_MAXSIZE, SMALLEST_MAXSIZE, SendOptions
from qworker.engine.send import MAX_PER_CALL, UNTIL_END, NewMessage, SendCall, Sent, confirm
from qworker.engine.send import send as send_command
from qworker.errors import (
    BodyTooLargeError,
    BrokenQueueError,
    BusyError,
    ClusterMovingError,
    InDoubtError,
    InvalidError,
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
from qworker.wire.codec import check_size, encode
from qworker.wire.envelope import tail
from qworker.wire.groups import flag_of, parent_of
from qworker.wire.shards import Shards

__all__ = [
    "NewMessage",
    "SendOptions",
    "check_sizes",
    "new_message",
    "replicated",
    "send",
    "send_all",
    "store",
]

#: Flags of messages that others wait for: of results, runs and chains.
_AWAITED: Final = frozenset("rcj")
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


def send(
    queue: QueueRef, /, body: object, options: SendOptions | None = None, **given: object
) -> Plan[str]:
    """Store one message: bytes as they are, any other value as JSON. Returns its id.

    Options as in `SendOptions`, by value or by keyword: delay, eta, ttl, priority, group, ordered, unique,
    unique_until, unique_for, debounce, debounce_max, max_receives, visibility, maxlen, replicas, within, fsync. With a
    unique key that another message holds, nothing is stored (or with debounce in its place), and that message's id is
    returned. Raises `NotReplicatedError` or `NotSyncedError`, the message being stored.
    """
    chosen = SendOptions.of(options, given)
    [message_id] = yield from store(queue, [new_message(queue, body, chosen)], chosen)
    return message_id


def send_all(
    queue: QueueRef,
    /,
    bodies: Iterable[object],
    options: SendOptions | None = None,
    **given: object,
) -> Plan[list[str]]:
    """Store many messages, all checked first, in atomic calls of up to 1,000. Returns their ids."""
    chosen = SendOptions.of(options, given)
    messages = _new_messages(queue, bodies, chosen)
    return (yield from store(queue, messages, chosen, named="bodies"))


def store(
    queue: QueueRef,
    messages: Sequence[NewMessage],
    options: SendOptions,
    *,
    named: str = "messages",
) -> Plan[list[str]]:
    """Store messages that `new_message` has made, in atomic calls of up to 1,000; returns an id for each.

    A body over the queue's maxsize is refused before anything is stored; its error calls the messages `named`.

    The messages of a call go to one shard together, except those with a unique key, which decides the shard. If a
    unique key keeps a message out, its id is that of the message that holds the key.
    """
    if not messages:
        return []
    if queue.stale:
        # Once: from then on replies of the first shard report them.
        yield from queue.look_up(sure=False)
    if len(messages) == 1 and queue.whole and messages[0].size <= DEFAULT_MAXSIZE:
        # Most sends are like this, and each step of a plan costs a microsecond.
        try:
            sent: Sent = yield SendCall(_call(queue, messages, options))
        except (ShardDrainingError, BodyTooLargeError):
            pass  # nothing was stored
        else:
            queue.learn_from_send(sent.shards)
            if queue.unannounced:
                yield from queue.announce()
            return [*sent.ids]
    yield from check_sizes(queue, messages, named)
    try:
        return (yield from _store_all(queue, messages, options))
    except BodyTooLargeError as error:
        # The script refused it: the limit is lower than the default, or was just lowered.
        _refuse_larger(messages, error.maxsize, named)
        raise


def check_sizes(queue: QueueRef, messages: Sequence[NewMessage], named: str) -> Plan[None]:
    """Read the limit if the script would check it too late: above the default, or in a later call of several.

    The script checks a limit that was set, one call at a time; a queue without one has the default.
    """
    largest = max(message.size for message in messages)
    at_once = len(messages) <= MAX_PER_CALL and not queue.shards.divided
    if largest > DEFAULT_MAXSIZE or (largest > SMALLEST_MAXSIZE and not at_once):
        _refuse_larger(messages, (yield from queue.maxsize()), named)


def _refuse_larger(messages: Sequence[NewMessage], maxsize: int, named: str) -> None:
    for position, message in enumerate(messages):
        if message.size > maxsize:
            field = "body" if len(messages) == 1 and named != "bodies" else f"{named}[{position}]"
            raise BodyTooLargeError(field, message.size, maxsize)


def _store_all(
    queue: QueueRef, messages: Sequence[NewMessage], options: SendOptions
) -> Plan[list[str]]:
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
        call = _call(
            queue,
            messages[first : first + MAX_PER_CALL],
            options,
            earlier=(*before, *ids),
            # A replica that has the last call has those before it.
            confirmed=first + MAX_PER_CALL >= len(messages),
        )
        # After its first part a send does not go elsewhere: that would store messages twice.
        sent: Sent = yield SendCall(call, elsewhere=elsewhere and not first)
        ids += sent.ids
        if learn is not None:
            learn(sent.shards)
    return ids


def _call(
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


@everywhere(min)
def replicated(queue: QueueRef, replicas: int, *, within: Duration = "1s") -> Plan[int]:
    """Wait up to `within` (1ms-2s) until `replicas` have all that was stored before; returns how many have."""
    confirmed: int = yield confirm(queue.keys, replicas, within)
    return confirmed


def new_message(
    queue: QueueRef,
    body: object,
    options: SendOptions,
    *,
    flags: dict[str, str] | None = None,
    sending: Callable[[bytes, dict[str, str]], None] | None = None,
    message_id: str | None = None,
    group: str = "",
) -> NewMessage:
    """Make a message of a body: bytes as they are, anything else as JSON. Raises `InvalidError`s.

    `sending` gets the body and the header flags, and may change the flags. Without a `message_id` it draws one. `group`
    is the stored name of a group for options without one.
    """
    data = body if isinstance(body, bytes) else encode(body)
    check_size(data, LARGEST_MAXSIZE)
    flags = {} if flags is None else flags
    if options.max_receives is not None:
        flags["m"] = str(options.max_receives)
    if options.priority:
        flags["p"] = str(options.priority)
    if options.unique is not None:
        _mark_unique(flags, options)
    if options.group is not None:
        group = flag_of(options.group, options.ordered)
    if group:
        flags["g"] = group
    if options.visibility_ms is not None:
        flags["v"] = str(options.visibility_ms)
        if options.visibility_ms == 0:
            flags["m"] = "1"  # At most once: a failed or lost message is dead.
    if sending is not None:
        sending(data, flags)
    if message_id is None:
        message_id = queue.ids.message_id()
    if queue.protected:
        data = queue.protect(message_id, data, flags)
    if options.unique is None:
        return NewMessage(message_id, tail(data, flags), flags.get("u", ""), group=group)
    if options.unique_for_ms is not None:
        return NewMessage(
            message_id, tail(data, flags), options.unique, f"={options.unique_for_ms}", group
        )
    held = f"~{options.debounce_max_ms or 0}" if options.debounce_ms is not None else UNTIL_END
    return NewMessage(message_id, tail(data, flags), flags.get("u", ""), held, group)


def _mark_unique(flags: dict[str, str], options: SendOptions) -> None:
    """Set the flags of a unique key that the message frees: at its end, or (flag l) at its delivery."""
    if options.unique is None or options.unique_for_ms is not None:
        return
    flags["u"] = options.unique
    if options.debounce_ms is not None or options.unique_until == "started":
        flags["l"] = "1"
    if options.debounce_ms is not None and not _AWAITED.isdisjoint(flags):
        raise InvalidOptionError(
            "debounce",
            "is set for a message whose result is kept",
            "a later message may replace it, and its result would never come; send it by a task without result=",
        )


def _new_messages(
    queue: QueueRef, bodies: Iterable[object], options: SendOptions
) -> list[NewMessage]:
    """Make a message of each body. Raises the `InvalidError` of the first that is refused, with its index."""
    messages = []
    for index, body in enumerate(bodies):
        try:
            messages.append(new_message(queue, body, options))
        except InvalidError as error:
            path = error.field.removeprefix("body")
            dot = "." if path and path == error.field else ""
            raise error.at(f"bodies[{index}]{dot}{path}") from error
    return messages
