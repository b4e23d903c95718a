"""Operations on single messages by their id, wherever they are. Each looks for them first, which takes O(n)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from qworker.client.commands import upkeep, waiting
from qworker.client.commands.command import Command
from qworker.client.message import Stored

if TYPE_CHECKING:
    from qworker.client.operations import Operations, Plan

__all__ = ["Details", "delete", "describe", "details", "enqueue", "hold"]

_DEFAULT_VISIBILITY_MS: Final = 30_000
_BYTES_PER_CALL: Final = 2**20
_PAGE: Final = 500


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


def details(operations: Operations, message_id: str) -> Plan[Details | None]:
    """Find a message and say what its times mean now; None if it is not seen."""
    message = yield from operations.show(message_id)
    return None if message is None else (yield from describe(operations, message))


def describe(operations: Operations, message: Stored) -> Plan[Details]:
    """Say what the times of a message mean now."""
    inspection: upkeep.Inspection = yield upkeep.inspect(operations.keys)
    now_ms, flags = inspection.now_ms, message.flags
    expiry_ms, own_ms, ready_ms = (_number(flags.get(each)) for each in "xvt")
    queue_ms = _number(inspection.meta.get("visibility_ms")) or _DEFAULT_VISIBILITY_MS
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


def hold(operations: Operations, message_ids: Sequence[str]) -> Plan[list[str]]:
    """Take ready and delayed messages out of the queue, until they are enqueued; returns the ids of those held."""
    return (yield from _pick(operations, message_ids, ("ready", "delayed"), waiting.hold))


def enqueue(operations: Operations, message_ids: Sequence[str]) -> Plan[list[str]]:
    """Put delayed and held messages to the tail of ready now; returns the ids of those that were."""
    return (yield from _pick(operations, message_ids, ("delayed", "held"), waiting.enqueue))


def delete(operations: Operations, message_id: str) -> Plan[Stored | None]:
    """Delete a message wherever it is; returns it as it was found, None if it was not seen.

    What is unacked is not taken from who has it: it is dropped if it comes back.
    """
    found = yield from operations.show(message_id)
    if found is None:
        return None
    if found.state == "dead":
        yield from _drop_letter(operations, message_id)
        return found
    deleted = False
    if found.state != "unacked":
        [deleted] = yield waiting.delete(operations.keys, [found.item])
    if not deleted:
        yield from operations.cancel(message_id)
    return found


def _pick(
    operations: Operations,
    message_ids: Sequence[str],
    states: Sequence[str],
    command: Callable[..., Command[list[bool]]],
) -> Plan[list[str]]:
    wanted = []
    for message_id in dict.fromkeys(message_ids):
        found = yield from operations.show(message_id)
        if found is not None and found.state in states:
            wanted.append(found)
    done: list[str] = []
    for page in _pages(wanted):
        moved: list[bool] = yield command(operations.keys, [each.item for each in page])
        done += [each.id for each, hit in zip(page, moved, strict=True) if hit]
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


def _drop_letter(operations: Operations, message_id: str) -> Plan[None]:
    after = "-"
    while True:
        letters = yield from operations.dead(_PAGE, after=after)
        entries = [each.entry_id for each in letters if each.message.id == message_id]
        if entries:
            yield upkeep.drop(operations.keys, entries[:100])
            return
        if len(letters) < _PAGE:
            return
        after = letters[-1].entry_id


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None
