"""Places in journals, and the arithmetic on them. No Redis and no Spark here.

Entries of a journal are numbered densely within an epoch, so what lies between two places is a subtraction. A place is
the entry to be read next:

    {"emails": {"epoch": 1930644000000, "entry": 41, "event": 4100}}

is the form in checkpoints, in the progress of a query and in `startingOffsets`; `event` (the number that the entry's
first event has to have, which makes every gap exact) may be left out there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from qworker.errors import InvalidNameError, InvalidOptionError
from qworker.wire.names import check_place

__all__ = ["MAX_NUMBER", "Offsets", "Place", "Range", "dump", "parse", "read", "shares"]

#: The largest part of an id, as far as JSON and Lua count exactly.
MAX_NUMBER: Final = 2**53 - 1

_FORM: Final = (
    'write "earliest", "latest" or {"queue": {"epoch": …, "entry": …}} as the progress shows it'
)


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """The entry of a journal to be read next. `event`: the number of its first event; None: not known."""

    epoch: int
    entry: int
    event: int | None = None

    @property
    def key(self) -> tuple[int, int]:
        """What places are compared by."""
        return self.epoch, self.entry


#: Queue → the place to go on at. A queue that is not there is read from its beginning.
Offsets = Mapping[str, Place]


@dataclass(frozen=True, slots=True)
class Range:
    """Entries of one epoch of one queue: from `first` up to but not including `stop`.

    `event` and `stop_event` are the numbers that the first event, and the first one behind, have to have (None: not
    known). `begin` is the first entry that was still stored when this was planned.
    """

    queue: str
    epoch: int
    first: int
    stop: int
    event: int | None = None
    stop_event: int | None = None
    begin: int = 0


def dump(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Write offsets as JSON has them; the same places always give the same text."""
    return {
        queue: {
            name: value
            for name, value in (
                ("epoch", place.epoch),
                ("entry", place.entry),
                ("event", place.event),
            )
            if value is not None
        }
        for queue, place in sorted(offsets.items())
    }


def read(document: Any, field: str = "offsets") -> dict[str, Place]:
    """Read what `dump` wrote. Raises `InvalidOptionError` naming `field` and the queue."""
    if not isinstance(document, dict):
        raise InvalidOptionError(field, "are not an object", _FORM)
    found = {}
    for queue, place in document.items():
        where = f"{field}.{ascii(queue[:80])[1:-1]}"
        try:
            check_place(queue, where)
        except InvalidNameError as error:
            raise InvalidOptionError(where, error.problem, error.limit) from None
        found[queue] = _place(place, where)
    return found


def parse(text: str, field: str) -> str | dict[str, Place]:
    """Read an option: 'earliest', 'latest' or JSON. Raises `InvalidOptionError`."""
    if text in ("earliest", "latest"):
        return text
    try:
        document = json.loads(text)
    except ValueError:
        raise InvalidOptionError(field, f"{ascii(text)[:80]} is no offset", _FORM) from None
    return read(document, field)


def shares(backlogs: Sequence[int], limit: int) -> list[int]:
    """Divide `limit` in proportion to the backlogs: whole, none over its backlog, none of nothing below 1.

    The sum is the smaller of limit and backlogs, but for the ones: every queue goes on, however small its part.
    """
    total = sum(backlogs)
    if total <= limit:
        return list(backlogs)
    parts = [min(each, max(1, each * limit // total)) if each else 0 for each in backlogs]
    left = limit - sum(parts)
    for index in sorted(range(len(parts)), key=lambda each: parts[each] - backlogs[each]):
        if left <= 0:
            break
        more = min(left, backlogs[index] - parts[index])
        parts[index] += more
        left -= more
    return parts


def _place(document: Any, where: str) -> Place:
    if not isinstance(document, dict) or not {"epoch", "entry"} <= document.keys():
        raise InvalidOptionError(where, "has no epoch and entry", _FORM)
    if unknown := document.keys() - {"epoch", "entry", "event"}:
        raise InvalidOptionError(f"{where}.{min(unknown)}", "is unknown", _FORM)
    for name, value in document.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_NUMBER:
            raise InvalidOptionError(
                f"{where}.{name}", f"{ascii(value)[:80]} is not accepted", f"0 to {MAX_NUMBER}"
            )
    return Place(document["epoch"], document["entry"], document.get("event"))
