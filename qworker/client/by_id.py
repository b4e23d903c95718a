"""Operations on single messages by their ids, in any state. Each finds them first, which takes O(n)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import is_dataclass, replace
from functools import partial
from typing import Final

import msgspec

from qworker.client.cancel import leave_tombstone
from qworker.client.dead.verbs import find_dead
from qworker.client.inspect.find import Search, WaitingMessage, call_pages, find_delayed
from qworker.client.inspect.peek import find, show
from qworker.client.inspect.stats import inspections
from qworker.client.message import Stored
from qworker.client.per_shard import chained, everywhere, until_found
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine import dead, inspect
from qworker.engine import message as commands
from qworker.engine.command import Command
from qworker.engine.options import QueueAttributes
from qworker.engine.run import signal_run
from qworker.errors import InvalidBodyError, RunUnknownError, SignalGivenError
from qworker.wire.codec import encode
from qworker.wire.memo import MAX_MEMO, read_memo, write_memo
from qworker.wire.names import check_step_name
from qworker.wire.numbers import whole

__all__ = [
    "Details",
    "delete",
    "delete_waiting",
    "describe",
    "details",
    "enqueue",
    "hold",
    "signal",
]


#: A message that goes back may be missed by a search, which is then repeated. Sends, receives and acks go its way.
_WALKS: Final = 5


class Details(msgspec.Struct, frozen=True):
    """A message at an instant `now_ms`, with its times relative to it; None if one does not apply.

    `ttl_ms` is left of its time to live, `delay_ms` is its first delay (until it is moved), `visibility_ms` is the
    timeout of its next receiver; `due_in_ms` and `requeue_in_ms` are negative if a reaper is late.
    """

    message: Stored
    now_ms: int
    ttl_ms: int | None
    delay_ms: int | None
    visibility_ms: int
    at_most_once: bool
    due_in_ms: int | None
    requeue_in_ms: int | None


@until_found
def details(queue: QueueRef, message_id: str) -> Plan[Details | None]:
    """Find a message as `show` does, with its times relative to now; None if it is not found."""
    message = yield from show(queue, message_id)
    return None if message is None else (yield from describe(queue, message))


def describe(queue: QueueRef, message: Stored) -> Plan[Details]:
    """Add to a message its times relative to now."""
    inspection: inspect.Inspection = yield inspect.inspect(queue.keys)
    now_ms, flags = inspection.now_ms, message.flags
    expiry_ms, own_ms, ready_ms = (whole(flags.get(flag)) for flag in "xvt")
    queue_ms = whole(inspection.meta.get("visibility_ms")) or QueueAttributes().visibility_ms
    left_ms = None if message.at_ms is None else message.at_ms - now_ms
    first = message.receives == 0 and message.sent_ms is not None
    delay_ms = ready_ms - (message.sent_ms or 0) if first and ready_ms is not None else None
    return Details(
        message,
        now_ms,
        None if expiry_ms is None else expiry_ms - now_ms,
        delay_ms,
        own_ms or queue_ms,
        own_ms == 0,
        left_ms if message.state == "delayed" else None,
        left_ms if message.state == "unacked" else None,
    )


@everywhere(chained)
def hold(queue: QueueRef, *message_ids: str) -> Plan[list[str]]:
    """Take ready and delayed messages out of the queue without losing them; returns the ids of those held now.

    They wait in state `held`, also past their time to live, until you enqueue or delete them. O(n): one walk through
    the queue, and half a walk more for each message in the middle of a list.
    """
    held = yield from _pick_ready(queue, message_ids, partial(_hold, queue))
    missing = [message_id for message_id in message_ids if message_id not in held]
    delayed = yield from find_delayed(queue, missing)
    due = [hit for hit in delayed if hit.due_ms != commands.NEVER_MS]
    held.update((yield from _pick(due, partial(_hold, queue))))
    return [message_id for message_id in dict.fromkeys(message_ids) if message_id in held]


@everywhere(chained)
def enqueue(queue: QueueRef, *message_ids: str) -> Plan[list[str]]:
    """Move delayed and held messages to the tail of ready now; returns the ids of those that moved. O(n)."""

    def command(hits: Sequence[WaitingMessage]) -> Command[list[bool]]:
        return commands.enqueue(queue.keys, [hit.item for hit in hits])

    done = yield from _pick((yield from find_delayed(queue, message_ids)), command)
    return [message_id for message_id in dict.fromkeys(message_ids) if message_id in done]


def delete_waiting(queue: QueueRef, message_ids: Sequence[str]) -> Plan[set[str]]:
    """Delete ready, delayed and held messages of one shard; returns the ids of those deleted. O(n), as `hold`."""

    def command(hits: Sequence[WaitingMessage]) -> Command[list[bool]]:
        return commands.delete(queue.keys, [hit.item for hit in hits], [hit.spot for hit in hits])

    gone = yield from _pick_ready(queue, message_ids, command)
    missing = [message_id for message_id in message_ids if message_id not in gone]
    gone.update((yield from _pick((yield from find_delayed(queue, missing)), command)))
    return gone


def signal(
    queue: QueueRef, message_id: str, name: str, value: object, *, replace: bool = False
) -> Plan[None]:
    """Give a run a signal by its name: if the run waits for it, it continues at once, otherwise when it waits.

    `value` is any JSON value. A signal with the same value may be repeated. Raises `SignalGivenError` for another one,
    `RunEndedError`, `RunUnknownError`, `RunTooLargeError`, and `InvalidBodyError`. O(1); O(n) of a run that has not
    recorded anything or is unknown: one search, and up to four more while messages go back, as by a retry.

    `replace`: if the run is dead, another value takes the place of the first one, unless its wait had timed out.
    Redrive the run afterwards.
    """
    body = _encoded(value)
    if len(body) > MAX_MEMO:
        raise InvalidBodyError("signal", f"has {len(body):,} bytes of JSON", "at most 1 MiB")
    # Other names are those of this library.
    field = f"!{check_step_name(name, 'signal')}"
    names = queue.namespace, queue.keys.name, message_id, field
    given = write_memo(body, queue.keyring, *names)
    counts = yield from _give(queue, message_id, field, given)
    if counts is None:
        counts = yield from _give_unrecorded(queue, message_id, field, given)
    if counts is None:
        raise RunUnknownError(queue.keys.name, message_id)
    first = read_memo(counts, queue.keyring, *names)
    if first and first != body and replace:
        counts = yield from _replace(queue, message_id, field, given)
        first = body if counts == given else first
    if first != body:
        raise SignalGivenError(queue.keys.name, message_id, name)


def _encoded(signal: object) -> bytes:
    """Write a signal as JSON. Raises `InvalidBodyError`, also for one that a wait for its own type would refuse."""
    try:
        body = encode(signal)
    except InvalidBodyError as error:
        raise error.at("signal") from error
    if isinstance(signal, msgspec.Struct) or is_dataclass(signal):
        try:
            with suppress(TypeError, NameError):  # of annotations that only the wait can read
                msgspec.json.decode(body, type=type(signal))
        except msgspec.ValidationError as error:
            name = type(signal).__name__
            raise InvalidBodyError("signal", f"is no {name}", str(error)) from error
    return body


def _give(queue: QueueRef, message_id: str, field: str, given: bytes) -> Plan[bytes | None]:
    """Give a signal to a run that has recorded something; returns the one that counts, None if it has not."""
    for shard in (yield from queue.every_shard()):
        counts: bytes | None = yield signal_run(shard.keys, message_id, field, given)
        if counts is not None:
            return counts
    return None


def _give_unrecorded(
    queue: QueueRef, message_id: str, field: str, given: bytes
) -> Plan[bytes | None]:
    """Search for the message of a run to give it a signal; returns the one that counts, None if there is no run."""
    before = yield from _went_back(queue)
    for _ in range(_WALKS):
        for shard in (yield from queue.every_shard()):
            # The state of what is no run would be kept forever. One without the flag records something first.
            if _is_run((yield from show(shard, message_id))):
                counts: bytes | None = yield signal_run(
                    shard.keys, message_id, field, given, known=True
                )
                if counts is not None:
                    return counts
        after = yield from _went_back(queue)
        counts = yield from _give(queue, message_id, field, given)
        if counts is not None or after == before:
            return counts
        before = after
    return None


def _went_back(queue: QueueRef) -> Plan[list[tuple[int, int, int]]]:
    """Count for each shard the messages that left a lease without an ack, became ready, or were redriven."""
    looks = []
    for seen in (yield from inspections(queue)):
        received, acked, unacked, promoted, redriven = (
            seen.stats.get(name, 0)
            for name in ("received", "acked", "unacked", "promoted", "redriven")
        )
        looks.append((received - acked - unacked, promoted, redriven))
    return looks


def _replace(queue: QueueRef, message_id: str, field: str, given: bytes) -> Plan[bytes | None]:
    """Replace the signal of a dead run; returns the one that counts, or None if the run is not dead."""
    for shard in (yield from queue.every_shard()):
        dead_letter = yield from find_dead(shard, message_id)
        if dead_letter is not None:
            entry = dead_letter.entry.in_stream
            counts: bytes | None = yield signal_run(
                shard.keys, message_id, field, given, known=True, dead_letter=entry
            )
            return counts
    return None


def _is_run(message: Stored | None) -> bool:
    return message is not None and "c" in message.flags


@until_found
def delete(queue: QueueRef, message_id: str) -> Plan[Stored | None]:
    """Delete a message in any state; returns it as it was found, or None. O(n).

    The handler of an unacked message is asked to stop, as by `cancel`: an ack before that ends it as usual, and it is
    dropped if it comes back. It is returned as `marked`, like a message that moved while it was being deleted; all
    others are gone.
    """
    message, spot = yield from find(queue, message_id)
    if message is None:
        return None
    if message.state == "dead":
        dead_letter = yield from find_dead(queue, message_id)
        if dead_letter is not None:
            yield dead.drop(queue.keys, [dead_letter.entry])
        return message
    deleted = False
    if message.state != "unacked":
        [deleted] = yield commands.delete(queue.keys, [message.item], [spot])
    if not deleted:
        yield from leave_tombstone(queue, message_id)
    return replace(message, marked=not deleted)


def _hold(queue: QueueRef, hits: Sequence[WaitingMessage]) -> Command[list[bool]]:
    return commands.hold(queue.keys, [hit.item for hit in hits], [hit.spot for hit in hits])


def _pick_ready(
    queue: QueueRef,
    message_ids: Sequence[str],
    command: Callable[[Sequence[WaitingMessage]], Command[list[bool]]],
) -> Plan[set[str]]:
    """Move ready messages; returns the ids of those that still waited."""
    moved: set[str] = set()
    search = Search(queue, message_ids)
    while not search.ended:
        taken = yield from _pick((yield from search.page()), command)
        search.took(len(taken))
        moved.update(taken)
    return moved


def _pick(
    hits: Sequence[WaitingMessage],
    command: Callable[[Sequence[WaitingMessage]], Command[list[bool]]],
) -> Plan[list[str]]:
    """Move messages in as many calls as they need; returns the ids of those that still waited."""
    done: list[str] = []
    for page in call_pages(hits):
        first = 0
        while first < len(page):
            # A call reads a limited number: repeat it for messages without a result.
            moved: list[bool] = yield command(page[first:])
            done += [hit.id for hit, flag in zip(page[first:], moved, strict=False) if flag]
            first += len(moved)
    return done
