"""Operations on single messages by their id, wherever they are. Each looks for them first, which takes O(n)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from qworker.client.commands import inspecting, redriving, removing, waiting
from qworker.client.commands.command import Command
from qworker.client.letter_pages import in_stream
from qworker.client.letters import letter_of
from qworker.client.looking import show
from qworker.client.message import Stored
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.client.spreading import chained, everywhere, nothing, until_found
from qworker.wire.numbers import whole

__all__ = ["Details", "cancel", "delete", "describe", "details", "enqueue", "hold"]

_DEFAULT_VISIBILITY_MS: Final = 30_000
_BYTES_PER_CALL: Final = 2**20
#: How long what is met is dropped.
_CANCEL_MS: Final = 7 * 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Details:
    """A message at an instant `now_ms`, with what its times mean then. None where something does not apply.

    `ttl_ms` is left of its time to live, `delay_ms` what it waited for at first (until it is moved), `visibility_ms`
    what a receiver gets; `due_in_ms` and `requeue_in_ms` are negative where a reaper is late.
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
    """Find a message as `show` does, and say what its times mean now; None if it is not seen."""
    message = yield from show(queue, message_id)
    return None if message is None else (yield from describe(queue, message))


def describe(queue: QueueRef, message: Stored) -> Plan[Details]:
    """Say what the times of a message mean now."""
    inspection: inspecting.Inspection = yield inspecting.inspect(queue.keys)
    now_ms, flags = inspection.now_ms, message.flags
    expiry_ms, own_ms, ready_ms = (whole(flags.get(each)) for each in "xvt")
    queue_ms = whole(inspection.meta.get("visibility_ms")) or _DEFAULT_VISIBILITY_MS
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

    They wait in state `held`, also past their time to live, until they are enqueued or deleted. O(n) each.
    """
    return (yield from _pick(queue, message_ids, ("ready", "delayed"), waiting.hold))


@everywhere(chained)
def enqueue(queue: QueueRef, *message_ids: str) -> Plan[list[str]]:
    """Put delayed and held messages to the tail of ready now; returns the ids of those that were. O(n) each."""
    return (yield from _pick(queue, message_ids, ("delayed", "held"), waiting.enqueue))


@everywhere(nothing)
def cancel(queue: QueueRef, message_id: str) -> Plan[None]:
    """Drop a message wherever it waits, when it is next met; one that runs already is not stopped.

    A server without memory refuses it (`OutOfMemoryError`); `delete` takes out what waits even then.
    """
    yield removing.cancel(queue.keys, message_id, _CANCEL_MS)


@until_found
def delete(queue: QueueRef, message_id: str) -> Plan[Stored | None]:
    """Delete a message wherever it is; returns it as it was found, None if it was not seen. O(n).

    What is unacked is not taken from who has it: an ack ends it as ever, and it is dropped if it comes back. It is
    returned as `marked` then, and so is what was moved while it was being deleted; anything else is gone.
    """
    found = yield from show(queue, message_id)
    if found is None:
        return None
    if found.state == "dead":
        letter = yield from letter_of(queue, message_id)
        if letter is not None:
            yield redriving.drop(queue.keys, [in_stream(letter.entry_id)])
        return found
    deleted = False
    if found.state != "unacked":
        [deleted] = yield waiting.delete(queue.keys, [found.item])
    if not deleted:
        yield from cancel(queue, message_id)
    return replace(found, marked=not deleted)


def _pick(
    queue: QueueRef,
    message_ids: Sequence[str],
    states: Sequence[str],
    command: Callable[..., Command[list[bool]]],
) -> Plan[list[str]]:
    wanted = []
    for message_id in dict.fromkeys(message_ids):
        found = yield from show(queue, message_id)
        if found is not None and found.state in states:
            wanted.append(found)
    done: list[str] = []
    for page in _pages(wanted):
        first = 0
        while first < len(page):
            # A call ends when it has looked at much: what it does not answer is asked again.
            moved: list[bool] = yield command(queue.keys, [each.item for each in page[first:]])
            done += [each.id for each, hit in zip(page[first:], moved, strict=False) if hit]
            first += len(moved)
    return done


def _pages(messages: Sequence[Stored]) -> Iterator[list[Stored]]:
    page: list[Stored] = []
    size = 0
    for each in messages:
        if page and (len(page) == waiting.MAX_PICKED or size + len(each.item) > _BYTES_PER_CALL):
            yield page
            page, size = [], 0
        page.append(each)
        size += len(each.item)
    if page:
        yield page
