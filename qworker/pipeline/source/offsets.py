"""Positions in journals, and the arithmetic on them. No Redis and no Spark here.

Entries of a journal are numbered densely within an epoch, so the distance of two positions is a subtraction. A position
is the entry to read next. Checkpoints, the progress of a query and `startingOffsets` have this form:

    {"emails": {"epoch": 1930644000000, "entry": 41, "event": 4100}}

`event` is the number that the entry's first event must have, which makes every gap exact; `mark` is a checksum of the
entry before, by which a reader sees that the journal was rolled back and its numbers were used again. Both may be left
out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from qworker.errors import InvalidNameError, InvalidOptionError
from qworker.wire.names import check_queue_or_shard

__all__ = [
    "MAX_NUMBER",
    "Forgotten",
    "Offsets",
    "Position",
    "Range",
    "dump",
    "parse",
    "read",
    "shares",
]

#: The largest part of an id that JSON and Lua still count exactly.
MAX_NUMBER: Final = 2**53 - 1

_FORM: Final = (
    'write "earliest", "latest" or {"queue": {"epoch": …, "entry": …}} as the progress shows it'
)


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The entry of a journal to read next. `event`: the number of its first event; None: not known.

    `mark`: a checksum of the entry before; None: not known.
    """

    epoch: int
    entry: int
    event: int | None = None
    mark: int | None = field(default=None, compare=False)

    @property
    def key(self) -> tuple[int, int]:
        """The part that positions are compared by."""
        return self.epoch, self.entry


#: Queue → the position to continue at. A missing queue is read from its beginning.
Offsets = Mapping[str, Position]


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Events and entries that were read and are gone (None: not known), and when the journal continued, in ms."""

    events: int | None
    entries: int | None
    ms: int


@dataclass(frozen=True, slots=True)
class Range:
    """Entries of one epoch of one queue: from `first` up to but not including `stop`.

    `event` and `stop_event` are the numbers that the first event, and the first event after the range, must have (None:
    not known). `begin` is the first entry that was still stored when the read was planned. With `forgotten` there is
    nothing to read: the range represents entries that were read and are no longer in Redis.
    """

    queue: str
    epoch: int
    first: int
    stop: int
    event: int | None = None
    stop_event: int | None = None
    begin: int = 0
    forgotten: Forgotten | None = None


def dump(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Write offsets as JSON has them; equal positions always give the same text."""
    return {
        queue: {
            name: value
            for name, value in (
                ("epoch", position.epoch),
                ("entry", position.entry),
                ("event", position.event),
                ("mark", position.mark),
            )
            if value is not None
        }
        for queue, position in sorted(offsets.items())
    }


def read(document: Any, field: str = "offsets") -> dict[str, Position]:
    """Read what `dump` wrote. Raises `InvalidOptionError` naming `field` and the queue."""
    if not isinstance(document, dict):
        raise InvalidOptionError(field, "are not an object", _FORM)
    positions = {}
    for queue, position in document.items():
        where = f"{field}.{ascii(queue[:80])[1:-1]}"
        try:
            check_queue_or_shard(queue, where)
        except InvalidNameError as error:
            raise InvalidOptionError(where, error.problem, error.limit) from None
        positions[queue] = _position(position, where)
    return positions


def parse(text: str, field: str) -> str | dict[str, Position]:
    """Read an option: 'earliest', 'latest' or JSON. Raises `InvalidOptionError`."""
    if text in ("earliest", "latest"):
        return text
    try:
        document = json.loads(text)
    except ValueError:
        raise InvalidOptionError(field, f"{ascii(text)[:80]} is not an offset", _FORM) from None
    return read(document, field)


def shares(backlogs: Sequence[int], limit: int) -> list[int]:
    """Divide `limit` in proportion to the backlogs: whole numbers, at most the backlog, at least 1 if there is one.

    They add up to the smaller of limit and backlogs, or a little more: every queue is read, however small its share.
    """
    total = sum(backlogs)
    if total <= limit:
        return list(backlogs)
    parts = [
        min(backlog, max(1, backlog * limit // total)) if backlog else 0 for backlog in backlogs
    ]
    left = limit - sum(parts)
    for index in sorted(range(len(parts)), key=lambda index: parts[index] - backlogs[index]):
        if left <= 0:
            break
        more = min(left, backlogs[index] - parts[index])
        parts[index] += more
        left -= more
    return parts


def _position(document: Any, where: str) -> Position:
    if not isinstance(document, dict) or not {"epoch", "entry"} <= document.keys():
        raise InvalidOptionError(where, "has no epoch and entry", _FORM)
    if unknown := document.keys() - {"epoch", "entry", "event", "mark"}:
        raise InvalidOptionError(f"{where}.{min(unknown)}", "is unknown", _FORM)
    for name, value in document.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_NUMBER:
            raise InvalidOptionError(
                f"{where}.{name}", f"{ascii(value)[:80]} is not accepted", f"0 to {MAX_NUMBER}"
            )
    return Position(
        document["epoch"], document["entry"], document.get("event"), document.get("mark")
    )
