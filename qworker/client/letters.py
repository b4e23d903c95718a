"""Dead letters as a tool: listing, counting, editing, redriving and dropping them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from qworker.client.commands import redriving
from qworker.client.dead_filter import DeadFilter, DeadTally
from qworker.client.letter_pages import (
    PAGE,
    Act,
    Changed,
    Reading,
    change,
    change_these,
    drop,
    entries,
    in_stream,
)
from qworker.client.letter_pages import redrive as redrive_page
from qworker.client.message import DeadLetter
from qworker.client.options import DEFAULT_MAXSIZE
from qworker.client.plan import Plan, server_ms
from qworker.client.queue_ref import QueueRef
from qworker.client.rate import Pace, Rate, rate_per_s
from qworker.client.spreading import everywhere
from qworker.config.kinds import IntegerKind
from qworker.errors import InvalidOptionError
from qworker.wire.codec import check_size, decode, decode_call, encode

__all__ = ["dead", "dead_of", "drop_dead", "edit_dead", "letter_of", "redrive", "tally_dead"]

_ENTRY_ID: Final = re.compile(r"([0-9]{1,19})-([0-9]{1,19})(?:/([0-9]{1,2}))?", re.ASCII)
_COUNT: Final = IntegerKind("most letters", minimum=1)
_LIMIT: Final = IntegerKind("most letters")
#: The greatest number in an entry id.
_LAST: Final = 2**64 - 1
_ALL: Final = DeadFilter()
#: Letters that a look reads at once.
_PAGE: Final = 500


def dead(
    queue: QueueRef,
    /,
    count: int = 10,
    wanted: DeadFilter | None = None,
    *,
    after: str = "-",
    newest: bool = False,
    **given: object,
) -> Plan[list[DeadLetter]]:
    """List dead letters that fit, oldest first; `after`: the entry id to go on behind.

    Filters as in `DeadFilter`, by value or by keyword: task, reason, error_class, error (a part of its text),
    older_than, newer_than, ids.
    """
    chosen, count = DeadFilter.of(wanted, given), _COUNT.check(count, "count")
    if after != "-":
        _check_entry(after)
    shards = yield from queue.every_shard()
    found: list[DeadLetter] = []
    for shard in shards:
        behind = after if after == "-" else _behind(after, shard.keys.shard, newest=newest)
        found += yield from dead_of(shard, count, chosen, after=behind, newest=newest)
    if len(shards) > 1:
        found.sort(key=lambda letter: _place(letter.entry_id), reverse=newest)
    return found[:count]


def letter_of(queue: QueueRef, message_id: str) -> Plan[DeadLetter | None]:
    """Find the dead letter of a message; None if it is not seen. O(n)."""
    reading = Reading(queue, DeadFilter(), now_ms=0, size=_PAGE)
    while not reading.ended:
        for letter in (yield from reading.page()):
            if letter.message.id == message_id:
                return letter
    return None


@everywhere(DeadTally.sum)
def tally_dead(
    queue: QueueRef, /, wanted: DeadFilter | None = None, **given: object
) -> Plan[DeadTally]:
    """Count dead letters that fit by reason, error class and task; filters as in `dead`. O(n)."""
    reading = yield from Reading.begin(queue, DeadFilter.of(wanted, given))
    counted = DeadTally()
    while not reading.ended:
        for letter in (yield from reading.page()):
            counted.add(letter)
    return counted


def redrive(
    queue: QueueRef,
    /,
    *entry_ids: str,
    wanted: DeadFilter | None = None,
    rate: Rate | None = None,
    limit: int | None = None,
    **given: object,
) -> Plan[list[str]]:
    """Put dead letters back to ready with fresh counts; returns the entry ids that were.

    Which: by entry id, or by filters as in `dead` (`everything=True` for all); letters that die meanwhile are left
    alone. `rate` is "100/s", "50/m" or a number per second; None: at once. Whoever is interrupted calls it again.
    """
    pace = Pace(None if rate is None else rate_per_s(rate, "rate"))
    changed = yield from _change(queue, redrive_page, entry_ids, wanted, given, pace, limit)
    return changed.entry_ids


def drop_dead(
    queue: QueueRef,
    /,
    *entry_ids: str,
    wanted: DeadFilter | None = None,
    limit: int | None = None,
    **given: object,
) -> Plan[int]:
    """Delete dead letters, chosen as in `redrive`; returns how many there were."""
    return (yield from _change(queue, drop, entry_ids, wanted, given, Pace(None), limit)).done


def edit_dead(queue: QueueRef, entry_id: str, body: object) -> Plan[str]:
    """Give a dead letter another body, JSON as in `send`; returns its new entry id, to redrive it by.

    The letter keeps id, counts, reason and error, and moves to the end of the dead letters; the new entry is written
    before the old one goes, in one script. What called a task must call one afterwards. Raises `InvalidError`s, among
    them one for an entry that is not there or foreign.
    """
    _check_entry(entry_id)
    queue, entry = queue.shard(_place(entry_id)[2]), in_stream(entry_id)
    letters: list[DeadLetter] = yield entries(queue, "XRANGE", entry, entry, 1)
    data = body if isinstance(body, bytes) else encode(body)
    if letters and letters[0].message.task:
        decode_call(data)
    else:
        decode(data)
    if len(data) > DEFAULT_MAXSIZE:  # up to there the script sees to it
        check_size(data, (yield from queue.maxsize()))
    flags: dict[str, str] | None = None
    if letters and queue.protected:
        flags = {}
        data = queue.protect(letters[0].message.id, data, flags)
    elif letters and letters[0].message.flags.keys() & {"e", "s"}:
        raise InvalidOptionError(
            "entry id",
            f"{ascii(entry_id)[:80]} is signed or encrypted",
            "only who holds the keys can edit it (QWORKER_KEYS_FILE)",
        )
    made: str = yield redriving.edit(queue.keys, entry, data, flags)
    if made == "foreign":
        raise InvalidOptionError(
            "entry id", f"{ascii(entry_id)[:80]} is foreign", "only messages of ours can be edited"
        )
    if not made:
        raise InvalidOptionError(
            "entry id",
            f"queue {queue.keys.queue!r} has no dead letter {ascii(entry_id)[:80]}",
            "it may have been redriven, edited or dropped meanwhile",
        )
    return f"{made}/{queue.keys.shard}" if queue.keys.shard else made


def dead_of(
    queue: QueueRef,
    count: int,
    wanted: DeadFilter = _ALL,
    *,
    after: str = "-",
    newest: bool = False,
) -> Plan[list[DeadLetter]]:
    """List dead letters of one shard that fit."""
    by_age = wanted.older_than_ms is not None or wanted.newer_than_ms is not None
    now_ms: int = (yield server_ms()) if by_age else 0
    size = min(count, _PAGE) if wanted.is_empty else PAGE
    reading = Reading(queue, wanted, now_ms=now_ms, after=after, newest=newest, size=size)
    found: list[DeadLetter] = []
    while not reading.ended and len(found) < count:
        found += yield from reading.page()
    return found[:count]


def _place(entry_id: str) -> tuple[int, int, int]:
    """Where a letter stands among those of all shards."""
    match = _ENTRY_ID.fullmatch(entry_id)
    assert match is not None
    return int(match[1]), int(match[2]), int(match[3] or 0)


def _behind(entry_id: str, shard: int, *, newest: bool) -> str:
    """The entry id behind which a shard goes on, where all of them go on behind a letter of one of them."""
    milliseconds, number, of = _place(entry_id)
    if newest and shard < of:
        return f"{milliseconds}-{number + 1}"
    if not newest and shard > of:
        return f"{milliseconds}-{number - 1}" if number else f"{milliseconds - 1}-{_LAST}"
    return in_stream(entry_id)


def _check_entry(entry_id: object) -> None:
    if not isinstance(entry_id, str) or not _ENTRY_ID.fullmatch(entry_id):
        raise InvalidOptionError(
            "entry id",
            f"{ascii(entry_id)[:80]} is none",
            "it is written <ms>-<number>, or <ms>-<number>/<shard>",
        )


def _change(
    queue: QueueRef,
    act: Act,
    entry_ids: Sequence[str],
    wanted: DeadFilter | None,
    given: Mapping[str, object],
    pace: Pace,
    limit: int | None,
) -> Plan[Changed]:
    """Change these entries, or else those that fit a filter. Raises `InvalidOptionError` where both are given."""
    named = dict(given)
    everything = named.pop("everything", False) is True
    filtered = wanted is not None or everything or bool(named)
    if filtered and entry_ids:
        raise InvalidOptionError("entry ids", "are given beside a filter", "give one of the two")
    if limit is not None:
        limit = _LIMIT.check(limit, "limit")
    for entry_id in entry_ids:
        _check_entry(entry_id)
    whole = Changed()
    if not filtered:
        shards: dict[int, list[str]] = {}
        for entry_id in entry_ids[:limit]:
            shards.setdefault(_place(entry_id)[2], []).append(entry_id)
        for number, some in shards.items():
            whole.add((yield from change_these(queue.shard(number).keys, act, some, pace)))
        return whole
    which = DeadFilter.of(wanted, named)
    if which.is_empty and not everything:
        raise InvalidOptionError("filter", "fits every dead letter", "say everything=True for all")
    for shard in (yield from queue.every_shard()):
        reading = yield from Reading.begin(shard, which)
        left = None if limit is None else limit - whole.total
        whole.add((yield from change(shard.keys, reading, act, pace=pace, limit=left)))
    return whole
