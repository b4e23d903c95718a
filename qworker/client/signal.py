"""Signals for runs: each by its name, given once, before or after the run waits for it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import is_dataclass
from typing import Final

import msgspec

from qworker.client.dead.verbs import find_dead
from qworker.client.inspect.peek import show
from qworker.client.inspect.stats import inspections
from qworker.client.message import Stored
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine.run import signal_run
from qworker.errors import InvalidBodyError, RunUnknownError, SignalGivenError
from qworker.wire.codec import encode
from qworker.wire.memo import MAX_MEMO, read_memo, write_memo
from qworker.wire.names import check_step_name

__all__ = ["signal"]

#: A message that goes back may be missed by a search, which is then repeated. Sends, receives and acks go its way.
_WALKS: Final = 5


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
            raise InvalidBodyError("signal", f"is not a valid {name}", str(error)) from error
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
    # Its shard may be a new one.
    yield from queue.every_shard(refresh=True)
    before = yield from _went_back(queue)
    for _ in range(_WALKS):
        for shard in (yield from queue.every_shard()):
            # State of anything but a run would be kept forever. A run without the flag records something first.
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
    counted = []
    for seen in (yield from inspections(queue)):
        received, acked, unacked, promoted, redriven = (
            seen.stats.get(name, 0)
            for name in ("received", "acked", "unacked", "promoted", "redriven")
        )
        counted.append((received - acked - unacked, promoted, redriven))
    return counted


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
