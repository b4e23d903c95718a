"""Give dead letters other bodies."""

from __future__ import annotations

from qworker.client.dead.pages import entries
from qworker.client.dead.verbs import shard_of
from qworker.client.message import DeadLetter, Stored
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine import dead as commands
from qworker.engine.options import DEFAULT_MAXSIZE
from qworker.errors import InvalidOptionError
from qworker.wire.codec import StoredCall, check_size, decode, decode_call, encode
from qworker.wire.ids import EntryId

__all__ = ["edit_dead"]


def edit_dead(queue: QueueRef, entry_id: str, body: object) -> Plan[str]:
    """Give a dead letter another body, JSON as in `send`; returns its new entry id, to redrive it by.

    It keeps id, counts, reason and error, and moves to the end of the dead letters; one script writes the new entry
    before it deletes the old one. A call of a task must stay a call, and keeps the steps of its chain and its group of
    calls, unless the body names others (`then`, `gather`). Raises `InvalidError`s, also for an entry that does not
    exist or is foreign.
    """
    entry = EntryId.parse(entry_id)
    queue = shard_of(queue, entry)
    span = (entry.in_stream, entry.in_stream)
    dead_letters: list[DeadLetter] = yield entries(queue, "XRANGE", *span, 1)
    data = body if isinstance(body, bytes) else encode(body)
    if dead_letters and dead_letters[0].message.task:
        data = _followed_as_before(decode_call(data), data, dead_letters[0].message)
    else:
        decode(data)
    if len(data) > DEFAULT_MAXSIZE:  # The script checks smaller ones.
        check_size(data, (yield from queue.maxsize()))
    flags: dict[str, str] | None = None
    if dead_letters and queue.protected:
        flags = {}
        data = queue.protect(dead_letters[0].message.id, data, flags)
    elif dead_letters and dead_letters[0].message.flags.keys() & {"e", "s"}:
        raise InvalidOptionError(
            "entry id",
            f"{ascii(entry_id)[:80]} is signed or encrypted",
            "give the keys to edit it (QWORKER_KEYS_FILE)",
        )
    edited = yield commands.edit(queue.keys, entry, data, flags)
    if edited == "foreign":
        raise InvalidOptionError(
            "entry id",
            f"{ascii(entry_id)[:80]} is foreign",
            "only qworker's messages can be edited",
        )
    if edited is None:
        raise InvalidOptionError(
            "entry id",
            f"queue {queue.keys.queue!r} has no dead letter {ascii(entry_id)[:80]}",
            "it may have been redriven, edited or dropped",
        )
    return str(edited)


def _followed_as_before(call: StoredCall, data: bytes, message: Stored) -> bytes:
    """Add what follows the call, as in the old body: its chain would end here otherwise, and its group would wait."""
    old = decode_call(message.body)
    kept = b""
    if old.then and not call.then:
        kept += b',"then":' + bytes(old.then)
    if old.gather and not call.gather:
        kept += b',"gather":' + encode(old.gather)
    return data.rstrip()[:-1] + kept + b"}" if kept else data
