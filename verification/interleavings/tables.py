"""A queue as a value: all of its keys in a normal form, so that equal queues are equal bytes.

The normal form leaves out what no script decides by: when a message was sent, became ready or was first received, the
counters of what has happened (each call begins them at zero, so what is found is what it counted), and the doorbell
(each call begins with none, so what is found is what it rang). Times are kept as they stand to `NOW`: where the clock
moves, they move. Times further back than any rule looks keep their order only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from verification.interleavings.fixed import KEYS, NOW

__all__ = [
    "BASE",
    "LANE",
    "NEVER_MS",
    "Written",
    "held",
    "normal",
    "numbers_of",
    "pairs",
    "renamed",
    "rows_of",
    "shifted",
]

BASE: Final = KEYS.meta.removesuffix("meta")

#: Rules look back three ticks (3 s), and the clock steps back at most 2 s: what is older only has its order.
_LONG_AGO_MS: Final = 6000
#: Times that mean "never" and not a time: they do not move.
NEVER_MS: Final = 2**53
#: Counters that say what is there, and times: part of the state.
_STANDING: Final = {
    *("stored", "unacked", "reaped_ms", "gap_from_ms", "gap_until_ms"),
    "dead_of_groups",  # a drop reads dead letters where there were such
}
#: Before a lane that stands among the counters.
LANE: Final = "lane:"
#: Attributes that no script reads.
_DATES: Final = {"created_ms", "modified_ms"}
#: Entry ids of dead letters count on from here, so that none is ever used again.
_FIRST_ENTRY_MS: Final = 9_000_000_000_000

_HEADER: Final = re.compile(r"(q1 \S+) \d+ (\d+ \d+ \d+ \d+)((?: \S+)*)\n")
_IDLE_FLAGS: Final = re.compile(r" [tf]=\d+")
_EXPIRY: Final = re.compile(r"(?<= x=)\d+")

#: part → (kind of key, content as flat list of strings; of a lease that is not loose ["batch", [items]]; of a stream
#: the last id, and then (id, fields) …)
Rows = dict[str, tuple[str, list[Any]]]


class Written(NamedTuple):
    """What a call left behind: the queue, the counts of what happened, tokens at the doorbell."""

    table: bytes
    counted: dict[str, int]
    rung: int


def normal(dumped: bytes, before: bytes) -> Written:
    """Bring what stands in Redis after a call into the normal form; `before` is the table that it began with."""
    rows: Rows = {}
    counted: dict[str, int] = {}
    rung = 0
    for key, kind, content in msgspec.msgpack.decode(dumped):
        part = key.removeprefix(BASE)
        if part == "wake":
            rung = len(content)
        elif part == "stats":
            fields = pairs(content)
            lanes = {name: value for name, value in fields.items() if name.startswith(LANE)}
            counted = {
                name: int(value)
                for name, value in fields.items()
                if name not in _STANDING and name not in lanes
            }
            kept = {name: fields[name] for name in fields if name in _STANDING}
            kept |= {name: _undated(known) for name, known in lanes.items()}
            # A counter that came to nothing is as good as none.
            kept = {name: value for name, value in kept.items() if value != "0"}
            rows[part] = (kind, _flat(kept))
        else:
            rows[part] = (kind, _normal_content(part, kind, content, before))
    return Written(_table(rows), counted, rung)


def _normal_content(part: str, kind: str, content: list[Any], before: bytes) -> list[Any]:
    if part == "suspect" or part.startswith("ready"):
        return [_normal_item(item) for item in content]
    if part == "delayed":
        return [_normal_item(word) if n % 2 == 0 else word for n, word in enumerate(content)]
    if part.startswith("lease:"):
        return _flat(_each(content, _normal_item))
    if part == "producers":
        return _flat({lane: _undated(known) for lane, known in pairs(content).items()})
    if part == "dead":
        return _normal_dead_letters(content, before)
    if part.startswith("out:"):
        # What is added has a greater number than all that ever were there: only those that are count.
        return [content[-1][0] if len(content) > 1 else "1-1", *content[1:]]
    if part.startswith("run:"):
        fields = pairs(content)
        if fields.get("@parked", "").startswith("q1 "):
            fields["@parked"] = _normal_item(fields["@parked"])
        return _flat(fields)
    if part == "meta":
        words = pairs(content)
        return _flat({name: words[name] for name in words if name not in _DATES})
    return _flat(pairs(content)) if kind == "hash" else content


def _undated(known: str) -> str:
    number, _, *rest = known.split(" ")
    return " ".join([number, str(NOW), *rest])


def _normal_dead_letters(content: list[Any], before: bytes) -> list[Any]:
    """Number the entries that were added, behind all that ever were."""
    old = rows_of(before).get("dead", ("", [f"{_FIRST_ENTRY_MS}-0"]))[1]
    last = int(old[0].partition("-")[2])
    known = {entry for entry, _ in old[1:]}
    dead_letters = []
    for entry, fields in content[1:]:
        words = pairs(fields)
        if entry not in known:
            last += 1
            entry = f"{_FIRST_ENTRY_MS}-{last}"
        item = _normal_item(words["envelope"])
        dead_letters.append([entry, ["envelope", item, "reason", words["reason"]]])
    return [f"{_FIRST_ENTRY_MS}-{last}", *dead_letters]


@lru_cache(maxsize=100_000)
def _normal_item(item: str) -> str:
    match = _HEADER.match(item)
    assert match, item
    start, counts, flags = match.groups()
    return f"{start} {NOW} {counts}{_IDLE_FLAGS.sub('', flags)}\n{item[match.end() :]}"


@lru_cache(maxsize=200_000)
def shifted(table: bytes, step_ms: int) -> bytes:
    """The queue after a step of the clock: all times are that much further back."""
    rows = rows_of(table)
    times = sorted({at - step_ms for at in _times(rows) if at - step_ms < NOW - _LONG_AGO_MS})
    long_ago = {at: NOW - _LONG_AGO_MS - rank for rank, at in enumerate(reversed(times), 1)}

    def moved(text: str) -> str:
        at = int(text)
        return text if at >= NEVER_MS else str(long_ago.get(at - step_ms, at - step_ms))

    return _table(_with_times(rows, moved))


@lru_cache(maxsize=200_000)
def renamed(table: bytes, names: tuple[tuple[str, str], ...]) -> bytes:
    """The queue with other names for leases: (old, new) …"""
    new = dict(names)
    rows: Rows = {}
    for part, (kind, content) in rows_of(table).items():
        if part.startswith("lease:"):
            rows["lease:" + new.get(part[6:], part[6:])] = (kind, content)
        elif part == "unacked":
            deadlines = [(at, new.get(name, name)) for name, at in numbers_of(content).items()]
            rows[part] = (kind, [w for at, name in sorted(deadlines) for w in (name, str(at))])
        else:
            rows[part] = (kind, content)
    return _table(rows)


def _times(rows: Rows) -> list[int]:
    numbers: list[int] = []

    def seen(text: str) -> str:
        numbers.append(int(text))
        return text

    _with_times(rows, seen)
    return numbers


def _with_times(rows: Rows, change: Callable[[str], str]) -> Rows:
    """The rows with each time changed."""

    def item(text: str) -> str:
        header, newline, body = text.partition("\n")
        return _EXPIRY.sub(lambda match: change(match[0]), header) + newline + body

    changed: Rows = {}
    for part, (kind, content) in rows.items():
        made = content
        if part in ("unacked", "cancelled"):
            made = [change(word) if n % 2 else word for n, word in enumerate(content)]
        elif part == "delayed":
            made = [change(word) if n % 2 else item(word) for n, word in enumerate(content)]
        elif kind == "list":
            made = [item(each) for each in content]
        elif part.startswith("lease:"):
            made = _flat(_each(content, item))
        elif part == "stats":
            stats = pairs(content)
            made = _flat({k: change(v) if k.endswith("_ms") else v for k, v in stats.items()})
        elif part == "unique":
            holders = {key: value.split(" ") for key, value in pairs(content).items()}
            made = _flat({key: f"{name} {change(at)}" for key, (name, at) in holders.items()})
        elif part == "dead":
            made = [content[0]]
            for entry, fields in content[1:]:
                words = pairs(fields)
                words["envelope"] = item(words["envelope"])
                made.append([entry, [word for pair in words.items() for word in pair]])
        changed[part] = (kind, made)
    return changed


def rows_of(table: bytes) -> Rows:
    return {part: (kind, content) for part, kind, content in msgspec.msgpack.decode(table)}


def _table(rows: Rows) -> bytes:
    ordered = [[part, *rows[part]] for part in sorted(rows) if rows[part][1]]
    return msgspec.msgpack.encode(ordered)


def pairs(flat: list[Any]) -> dict[str, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def held(lease: list[Any]) -> dict[str, str]:
    """Index → item of a lease of either shape."""
    if lease[0] == "batch":
        return {str(number): item for number, item in enumerate(lease[1], 1)}
    return pairs(lease)


def _each(lease: list[Any], change: Callable[[str], str]) -> dict[str, Any]:
    """The fields of a lease with each item changed."""
    fields = pairs(lease)
    if "batch" in fields:
        return {"batch": [change(item) for item in fields["batch"]]}
    return {index: change(item) for index, item in fields.items()}


def _flat(words: dict[str, Any]) -> list[Any]:
    return [word for name in sorted(words) for word in (name, words[name])]


def numbers_of(flat: list[Any]) -> dict[str, int]:
    return {name: int(float(value)) for name, value in pairs(flat).items()}
