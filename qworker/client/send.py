"""Send messages to a queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qworker.client.new_message import new_message, new_messages
from qworker.client.per_shard import everywhere
from qworker.client.placement import send_call, store_placed
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.durations import Duration
from qworker.engine.options import DEFAULT_MAXSIZE, SMALLEST_MAXSIZE, SendOptions
from qworker.engine.send import MAX_PER_CALL, NewMessage, SendCall, Sent, confirm
from qworker.errors import (
    BodyTooLargeError,
    ShardDrainingError,
)

__all__ = [
    "NewMessage",
    "SendOptions",
    "check_sizes",
    "replicated",
    "send",
    "send_many",
    "store",
]


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


def send_many(
    queue: QueueRef,
    /,
    bodies: Iterable[object],
    options: SendOptions | None = None,
    **given: object,
) -> Plan[list[str]]:
    """Store many messages, all checked first, in atomic calls of up to 1,000. Returns their ids."""
    chosen = SendOptions.of(options, given)
    messages = new_messages(queue, bodies, chosen)
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
            sent: Sent = yield SendCall(send_call(queue, messages, options), queue.keys.meta)
        except (ShardDrainingError, BodyTooLargeError):
            pass  # nothing was stored
        else:
            queue.learn_from_send(sent.shards)
            if queue.unannounced:
                yield from queue.announce()
            return [*sent.ids]
    yield from check_sizes(queue, messages, named)
    try:
        return (yield from store_placed(queue, messages, options))
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


@everywhere(min)
def replicated(queue: QueueRef, replicas: int, *, within: Duration = "1s") -> Plan[int]:
    """Wait up to `within` (1ms-2s) until `replicas` have all that was stored before; returns how many have."""
    confirmed: int = yield confirm(queue.keys, replicas, within)
    return confirmed
