"""Dead letters as a tool: listing, counting, editing, and changing many of them at a rate.

Everything goes page by page, oldest first, up to the letter that was the newest at the begin. A page is changed by one
script, whole or not at all, so whoever is interrupted has lost nothing, has done nothing twice, and begins again with
what is left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from qworker.client.commands import upkeep
from qworker.client.commands.command import Command, Pause
from qworker.client.dead_filter import DeadFilter, DeadTally
from qworker.client.message import DeadLetter
from qworker.client.rate import Pace, Rate, rate_per_s
from qworker.errors import InvalidOptionError
from qworker.wire.codec import check_size, decode, decode_call, encode

if TYPE_CHECKING:
    from qworker.client.operations import Plan
    from qworker.wire.keys import QueueKeys

__all__ = [
    "PAGE",
    "Act",
    "Changed",
    "Reading",
    "change",
    "chosen",
    "drop",
    "edit",
    "find",
    "redrive",
    "tally",
]

#: Letters in a page: bodies are up to 256 KiB by default, and one reply should not block the server for long.
PAGE: Final = 100
_ENTRY_ID: Final = re.compile(r"[0-9]{1,19}-[0-9]{1,19}", re.ASCII)


@dataclass(slots=True)
class Changed:
    """What became of dead letters that were to be changed: done, left as they are foreign, or gone before.

    `entry_ids` are those that were redriven.
    """

    done: int = 0
    foreign: int = 0
    gone: int = 0
    entry_ids: list[str] = field(default_factory=list)

    def add(self, other: Changed) -> None:
        """Add what became of others."""
        self.done += other.done
        self.foreign += other.foreign
        self.gone += other.gone
        self.entry_ids += other.entry_ids


#: Changes up to 100 dead letters of these entry ids in one script.
Act = Callable[["QueueKeys", Sequence[str]], Command[Changed]]


class Reading:
    """A pass over the dead letters of a queue in pages of up to `size`, oldest first or newest first.

    Letters that die after its begin are left out, and letters that were read may go before the next page is read.
    """

    def __init__(
        self,
        keys: QueueKeys,
        wanted: DeadFilter,
        *,
        now_ms: int,
        until: str = "+",
        after: str = "-",
        newest: bool = False,
        size: int = PAGE,
    ) -> None:
        self.ended = until == "-"
        #: Entry id of the newest letter that is read; '-' where there is none.
        self.until = until
        self._keys = keys
        self._wanted = wanted
        self._now_ms = now_ms
        self._after = after
        self._newest = newest
        self._size = size

    @classmethod
    def begin(cls, keys: QueueKeys, wanted: DeadFilter) -> Plan[Reading]:
        """Begin at the oldest one, with the server's time and the newest letter as they are now."""
        now_ms = yield from _now_ms()
        newest: list[DeadLetter] = yield _entries(keys, "XREVRANGE", "+", "-", 1)
        return cls(keys, wanted, now_ms=now_ms, until=newest[0].entry_id if newest else "-")

    def again(self) -> Reading:
        """Begin again at the oldest one, with the same bounds."""
        return Reading(self._keys, self._wanted, now_ms=self._now_ms, until=self.until)

    def page(self, seen: DeadTally | None = None) -> Plan[list[DeadLetter]]:
        """Read the next page; returns the letters that fit, maybe none. `seen` counts all that are read."""
        begun = self._after != "-"
        if self._newest:
            span = ("XREVRANGE", f"({self._after}" if begun else "+", "-")
        else:
            span = ("XRANGE", f"({self._after}" if begun else "-", self.until)
        letters: list[DeadLetter] = yield _entries(self._keys, *span, self._size)
        self.ended = len(letters) < self._size
        if letters:
            self._after = letters[-1].entry_id
        if seen is not None:
            for letter in letters:
                seen.add(letter)
        return [letter for letter in letters if self._wanted.fits(letter, self._now_ms)]


def find(
    keys: QueueKeys,
    count: int,
    wanted: DeadFilter,
    *,
    after: str = "-",
    newest: bool = False,
) -> Plan[list[DeadLetter]]:
    """List up to `count` dead letters that fit, oldest first; `after`: the entry id to go on behind."""
    by_age = wanted.older_than_ms is not None or wanted.newer_than_ms is not None
    now_ms = (yield from _now_ms()) if by_age else 0
    size = count if wanted.is_empty else PAGE
    reading = Reading(keys, wanted, now_ms=now_ms, after=after, newest=newest, size=size)
    found: list[DeadLetter] = []
    while not reading.ended and len(found) < count:
        found += yield from reading.page()
    return found[:count]


def tally(keys: QueueKeys, wanted: DeadFilter) -> Plan[DeadTally]:
    """Count the dead letters that fit, by what they died of. O(n) of the queue's dead letters."""
    reading, counted = (yield from Reading.begin(keys, wanted)), DeadTally()
    while not reading.ended:
        for letter in (yield from reading.page()):
            counted.add(letter)
    return counted


def chosen(
    keys: QueueKeys,
    act: Act,
    entry_ids: Sequence[str],
    wanted: DeadFilter | None,
    given: Mapping[str, object],
    *,
    rate: Rate | None = None,
    limit: int | None = None,
) -> Plan[Changed]:
    """Change these entries, or else those that fit a filter. Raises `InvalidOptionError` where both are given."""
    named = dict(given)
    everything = named.pop("everything", False) is True
    filtered = wanted is not None or everything or bool(named)
    if filtered and entry_ids:
        raise InvalidOptionError("entry ids", "are given beside a filter", "give one of the two")
    pace = Pace(None if rate is None else rate_per_s(rate, "rate"))
    if not filtered:
        return (yield from _apply(keys, act, list(entry_ids)[:limit], pace))
    which = DeadFilter.of(wanted, named)
    if which.is_empty and not everything:
        raise InvalidOptionError("filter", "fits every dead letter", "say everything=True for all")
    reading = yield from Reading.begin(keys, which)
    return (yield from change(keys, reading, act, pace=pace, limit=limit))


def change(
    keys: QueueKeys,
    reading: Reading,
    act: Act,
    *,
    pace: Pace,
    limit: int | None = None,
    told: Callable[[Changed], None] | None = None,
) -> Plan[Changed]:
    """Change the letters that are read, at most `limit`; `told` hears what became of each go as it is done."""
    whole, left = Changed(), limit
    while not reading.ended and left != 0:
        letters = yield from reading.page()
        entries = [letter.entry_id for letter in letters[:left]]
        left = None if left is None else left - len(entries)
        whole.add((yield from _apply(keys, act, entries, pace, told)))
    return whole


def redrive(keys: QueueKeys, entry_ids: Sequence[str]) -> Command[Changed]:
    """Put up to 100 dead letters back to ready."""
    return _counting(upkeep.redrive(keys, entry_ids), entry_ids)


def drop(keys: QueueKeys, entry_ids: Sequence[str]) -> Command[Changed]:
    """Delete up to 100 dead letters."""
    command = upkeep.drop(keys, entry_ids)

    def decoded(reply: Any) -> Changed:
        dropped = command.decode(reply)
        return Changed(dropped, gone=len(entry_ids) - dropped)

    return Command(command.script, command.keys, command.args, decoded)


def edit(keys: QueueKeys, entry_id: str, body: object, maxsize: int) -> Plan[str]:
    """Give a dead letter another body: bytes of JSON as they are, any other value as JSON. Returns its new entry id.

    The letter keeps id, counts, reason and error, and moves to the end of the dead letters. What called a task must
    call one afterwards. Raises `InvalidError`s, among them one for an entry that is not there or foreign.
    """
    if not isinstance(entry_id, str) or not _ENTRY_ID.fullmatch(entry_id):
        raise InvalidOptionError(
            "entry id", f"{ascii(entry_id)[:80]} is none", "it is written <ms>-<number>"
        )
    letters: list[DeadLetter] = yield _entries(keys, "XRANGE", entry_id, entry_id, 1)
    data = body if isinstance(body, bytes) else encode(body)
    if letters and letters[0].message.task:
        decode_call(data)
    else:
        decode(data)
    check_size(data, maxsize)
    made: str = yield upkeep.edit(keys, entry_id, data)
    if made == "foreign":
        raise InvalidOptionError(
            "entry id", f"{ascii(entry_id)[:80]} is foreign", "only messages of ours can be edited"
        )
    if not made:
        raise InvalidOptionError(
            "entry id",
            f"queue {keys.queue!r} has no dead letter {ascii(entry_id)[:80]}",
            "it may have been redriven, edited or dropped meanwhile",
        )
    return made


def _apply(
    keys: QueueKeys,
    act: Act,
    entries: Sequence[str],
    pace: Pace,
    told: Callable[[Changed], None] | None = None,
) -> Plan[Changed]:
    whole, first = Changed(), 0
    while first < len(entries):
        go = entries[first : first + pace.go(PAGE)]
        changed: Changed = yield act(keys, go)
        first += len(go)
        whole.add(changed)
        if told is not None:
            told(changed)
        if wait_s := pace.done(len(go)):
            yield Pause(wait_s)
    return whole


def _counting(command: Command[tuple[int, ...]], entry_ids: Sequence[str]) -> Command[Changed]:
    def decoded(reply: Any) -> Changed:
        results = command.decode(reply)
        done = [each for each, result in zip(entry_ids, results, strict=True) if result == 1]
        return Changed(len(done), results.count(-1), results.count(0), done)

    return Command(command.script, command.keys, command.args, decoded)


def _entries(
    keys: QueueKeys, verb: str, start: str, end: str, count: int = PAGE
) -> Command[list[DeadLetter]]:
    def decoded(reply: Any) -> list[DeadLetter]:
        return [DeadLetter.of(keys.queue, entry[0], entry[1]) for entry in reply or []]

    return Command(None, (), (verb, keys.dead, start, end, "COUNT", count), decoded)


def _now_ms() -> Plan[int]:
    seconds, microseconds = yield Command(None, (), ("TIME",), lambda reply: reply)
    return int(seconds) * 1000 + int(microseconds) // 1000
