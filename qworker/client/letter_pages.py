"""Going through the dead letters of a queue, and changing many of them, at a rate.

Everything goes page by page, oldest first, up to the letter that was the newest at the begin. A page is changed by a
script, as many letters at a time as make 1 MiB, so whoever is interrupted has lost nothing, has done nothing twice, and
begins again with what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from qworker.client.commands import redriving
from qworker.client.commands.command import Command, Pause
from qworker.client.dead_filter import DeadFilter, DeadTally
from qworker.client.message import DeadLetter
from qworker.client.page_size import PageSize
from qworker.client.plan import Plan, server_ms
from qworker.client.queue_ref import QueueRef
from qworker.client.rate import Pace
from qworker.wire.keys import QueueKeys

__all__ = [
    "PAGE",
    "Act",
    "Changed",
    "Reading",
    "change",
    "change_these",
    "drop",
    "entries",
    "in_stream",
    "redrive",
]

#: Letters in a page: bodies are up to 256 KiB by default, and one reply should not block the server for long.
PAGE: Final = 100


@dataclass(slots=True)
class Changed:
    """What became of dead letters that were to be changed: done, left as they are foreign, or gone before.

    `entry_ids` are those that were redriven.
    """

    done: int = 0
    foreign: int = 0
    gone: int = 0
    entry_ids: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """All of them."""
        return self.done + self.foreign + self.gone

    def add(self, other: Changed) -> None:
        """Add what became of others."""
        self.done += other.done
        self.foreign += other.foreign
        self.gone += other.gone
        self.entry_ids += other.entry_ids


#: Changes the first of up to 100 dead letters of these entry ids in one script: as many as it says, at least one.
Act = Callable[[QueueKeys, Sequence[str]], Command[Changed]]


class Reading:
    """A pass over the dead letters of a queue in pages of up to `size`, oldest first or newest first.

    Letters that die after its begin are left out, and letters that were read may go before the next page is read.
    """

    def __init__(
        self,
        queue: QueueRef,
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
        self._queue = queue
        self._wanted = wanted
        self._now_ms = now_ms
        self._after = after
        self._newest = newest
        self._size = PageSize(size)

    @classmethod
    def begin(cls, queue: QueueRef, wanted: DeadFilter) -> Plan[Reading]:
        """Begin at the oldest one, with the server's time and the newest letter as they are now."""
        now_ms: int = yield server_ms()
        newest: list[DeadLetter] = yield entries(queue, "XREVRANGE", "+", "-", 1)
        until = in_stream(newest[0].entry_id) if newest else "-"
        return cls(queue, wanted, now_ms=now_ms, until=until)

    def again(self) -> Reading:
        """Begin again at the oldest one, with the same bounds."""
        return Reading(self._queue, self._wanted, now_ms=self._now_ms, until=self.until)

    def page(self, seen: DeadTally | None = None) -> Plan[list[DeadLetter]]:
        """Read the next page; returns the letters that fit, maybe none. `seen` counts all that are read."""
        begun = self._after != "-"
        if self._newest:
            span = ("XREVRANGE", f"({self._after}" if begun else "+", "-")
        else:
            span = ("XRANGE", f"({self._after}" if begun else "-", self.until)
        asked = self._size.number
        letters: list[DeadLetter] = yield entries(self._queue, *span, asked)
        self.ended = len(letters) < asked
        self._size.saw(len(letter.message.item) for letter in letters)
        if letters:
            self._after = in_stream(letters[-1].entry_id)
        if seen is not None:
            for letter in letters:
                seen.add(letter)
        return [letter for letter in letters if self._wanted.fits(letter, self._now_ms)]


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
        whole.add((yield from change_these(keys, act, entries, pace, told)))
    return whole


def change_these(
    keys: QueueKeys,
    act: Act,
    entries: Sequence[str],
    pace: Pace,
    told: Callable[[Changed], None] | None = None,
) -> Plan[Changed]:
    """Change dead letters of these entry ids; `told` as of `change`."""
    whole, first = Changed(), 0
    while first < len(entries):
        go = entries[first : first + pace.go(PAGE)]
        changed: Changed = yield act(keys, go)
        first += changed.total
        whole.add(changed)
        if told is not None:
            told(changed)
        if wait_s := pace.done(changed.total):
            yield Pause(wait_s)
    return whole


def redrive(keys: QueueKeys, entry_ids: Sequence[str]) -> Command[Changed]:
    """Put up to 100 dead letters back to ready."""
    return _counting(redriving.redrive(keys, [*map(in_stream, entry_ids)]), entry_ids)


def drop(keys: QueueKeys, entry_ids: Sequence[str]) -> Command[Changed]:
    """Delete up to 100 dead letters."""
    command = redriving.drop(keys, [*map(in_stream, entry_ids)])

    def decoded(reply: Any) -> Changed:
        dropped, seen = command.decode(reply)
        return Changed(dropped, gone=seen - dropped)

    return Command(command.script, command.keys, command.args, decoded)


def in_stream(entry_id: str) -> str:
    """The entry id as the stream of its shard has it."""
    return entry_id.partition("/")[0]


def entries(
    queue: QueueRef, verb: str, start: str, end: str, count: int = PAGE
) -> Command[list[DeadLetter]]:
    """Read up to `count` dead letters between two entry ids."""

    def decoded(reply: Any) -> list[DeadLetter]:
        return [_letter(queue, entry[0], entry[1]) for entry in reply or []]

    return Command(None, (), (verb, queue.keys.dead, start, end, "COUNT", count), decoded)


def _letter(queue: QueueRef, entry_id: bytes, fields: list[bytes]) -> DeadLetter:
    letter = DeadLetter.of(queue.keys, entry_id, fields)
    message = queue.look(letter.message)
    return letter if message is letter.message else replace(letter, message=message)


def _counting(command: Command[tuple[int, ...]], entry_ids: Sequence[str]) -> Command[Changed]:
    def decoded(reply: Any) -> Changed:
        results = command.decode(reply)
        done = [each for each, result in zip(entry_ids, results, strict=False) if result == 1]
        return Changed(len(done), results.count(-1), results.count(0), done)

    return Command(command.script, command.keys, command.args, decoded)
