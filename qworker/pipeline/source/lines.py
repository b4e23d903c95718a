"""Splits the lines of journal entries into Arrow columns: the headers of messages, and the first lines of groups.

Python touches no header: Arrow's CSV reader splits and converts the lines of a page in C++. Headers end with flags,
which vary in number, and lines of CSV may not: the space before each flag becomes another byte first, so that flags are
one column, which is split if it holds any. The format is in docs/protocol.md.
"""

from __future__ import annotations

import re
from binascii import Error, a2b_base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

__all__ = ["firsts_of", "headers_of", "spread", "text", "times_of"]

#: Index → the columns of a header that are read; the last one holds `shared` and the flags after it.
_HEADER: Final = {
    1: ("message_id", pa.string()),
    2: ("sent", pa.int64()),
    3: ("receives", pa.int64()),
    6: ("tail", pa.string()),
}
_HEADER_COLUMNS: Final = 7
#: The columns of a group's first line.
_FIRST: Final = {
    0: ("event", pa.string()),
    1: ("delivered", pa.int64()),
    2: ("times", pa.string()),
    3: ("task", pa.string()),
    4: ("reason", pa.string()),
    5: ("error_class", pa.string()),
}
_FIRST_COLUMNS: Final = 6
#: Replaces the space before a flag.
_FLAG: Final = "\x1f"
#: Replace an unreadable line, so that its number is not lost.
_NO_HEADER: Final = b"q1 - - 0 0 0 0"
_NO_FIRST: Final = b"unreadable - - - - -"
_HEADER_SHAPE: Final = re.compile(rb"q1 [^ ]+ [0-9]{1,16}( [0-9]{1,9}){4}( [^ ]*)*")
_FIRST_SHAPE: Final = re.compile(rb"[^ ]+ (-|[0-9]{1,16})( [^ ]+){4}")


def headers_of(headers: Sequence[bytes]) -> dict[str, pa.Array]:
    """Split the headers into their parts; `ready` and `trace` come from the flags.

    If some lines are not headers, a column `unreadable` marks them.
    """
    lines = _ascii(headers)
    if b"=" in lines:
        bytes_of = np.frombuffer(lines, np.uint8)
        before = np.flatnonzero(bytes_of[2:] == ord("="))
        bytes_of[before[bytes_of[before] == ord(" ")]] = ord(_FLAG)
    try:
        parts = _split(lines, _HEADER, _HEADER_COLUMNS)
    except pa.ArrowInvalid:
        originals = bytes(lines).replace(_FLAG.encode(), b" ").split(b"\n")
        readable = [_HEADER_SHAPE.fullmatch(line) is not None for line in originals]
        repaired = [
            _marked(line) if fits else _NO_HEADER
            for line, fits in zip(originals, readable, strict=True)
        ]
        parts = _split(bytearray(b"\n").join(repaired), _HEADER, _HEADER_COLUMNS)
        parts["unreadable"] = pc.invert(pa.array(readable))
    return parts | _flags_of(parts.pop("tail"))


def _marked(line: bytes) -> bytes:
    """Join the flags of a header into one column."""
    *parts, tail = line.split(b" ", _HEADER_COLUMNS - 1)
    return b" ".join([*parts, tail.replace(b" ", _FLAG.encode())])


def firsts_of(firsts: Sequence[bytes]) -> dict[str, pa.Array]:
    """Split the first lines of groups into their parts."""
    try:
        return _split(_ascii(firsts), _FIRST, _FIRST_COLUMNS)
    except pa.ArrowInvalid:
        repaired = [line if _FIRST_SHAPE.fullmatch(line) else _NO_FIRST for line in firsts]
        return _split(_ascii(repaired), _FIRST, _FIRST_COLUMNS)


def _ascii(lines: Sequence[bytes]) -> bytearray:
    """Join lines, without bytes that the CSV reader cannot take."""
    joined = bytearray(b"\n").join(lines)
    if not joined.isascii():
        joined = bytearray(text(joined).encode())
    if b"\r" in joined:
        joined = joined.replace(b"\r", b"_")  # The reader would end a line there.
    return joined


def _split(
    lines: bytearray, columns: Mapping[int, tuple[str, pa.DataType]], number: int
) -> dict[str, pa.Array]:
    """Split lines of `number` columns, and convert those in `columns`. Raises `ArrowInvalid`."""
    names = [columns[index][0] if index in columns else f"unused{index}" for index in range(number)]
    table = csv.read_csv(
        pa.BufferReader(lines),
        read_options=csv.ReadOptions(
            column_names=names, use_threads=False, block_size=len(lines) + 1
        ),
        parse_options=csv.ParseOptions(
            delimiter=" ", quote_char=False, double_quote=False, ignore_empty_lines=False
        ),
        convert_options=csv.ConvertOptions(
            column_types=dict(columns.values()),
            include_columns=[name for name, _ in columns.values()],
            null_values=["-"],
            strings_can_be_null=True,
        ),
    )
    if table.num_rows <= lines.count(b"\n"):
        raise pa.ArrowInvalid("the reader has left out an empty line at the end")
    return {name: _whole(table.column(name)) for name, _ in columns.values()}


def times_of(times: pa.Array, sizes: Any) -> tuple[pa.Array, pa.Array]:
    """Spread the times of groups over their events: seconds until the start, and of the run; null if unknown.

    Times that are not two floats per event are unknown.
    """
    unpacked = [
        _unpacked(text, 8 * size)
        for text, size in zip(times.to_pylist(), sizes.tolist(), strict=True)
    ]
    known = np.repeat([len(of_group) > 0 for of_group in unpacked], sizes)
    of_events = np.zeros((len(known), 2))
    of_events[known] = np.frombuffer(b"".join(unpacked), "<f4").reshape(-1, 2)
    return pa.array(of_events[:, 0], mask=~known), pa.array(of_events[:, 1], mask=~known)


def spread(column: pa.Array, group: pa.Array) -> pa.Array:
    """Give each event the value of its group."""
    if column.null_count == len(column):
        return pa.nulls(len(group), column.type)
    return column.take(group)


def _unpacked(text: str | None, size: int) -> bytes:
    if text is None:
        return b""
    try:
        unpacked = a2b_base64(text)
    except (Error, ValueError):
        return b""
    return unpacked if len(unpacked) == size else b""


def _flags_of(tails: pa.Array) -> dict[str, pa.Array]:
    """Extract two flags: `ready` is t in ms, `trace` the second part of w."""
    ready, trace = pa.nulls(len(tails), pa.int64()), pa.nulls(len(tails), pa.string())
    rows = pc.indices_nonzero(pc.greater(pc.binary_length(tails), 2))
    if len(rows):
        split = pc.split_pattern(tails.take(rows), _FLAG)
        flags, owners = split.flatten(), rows.take(pc.list_parent_indices(split))
        chosen = pc.match_substring_regex(flags, "^t=[0-9]{1,16}$")
        times = pc.utf8_slice_codeunits(flags.filter(chosen), 2).cast(pa.int64())
        ready = _scattered(times, owners.filter(chosen), len(tails))
        chosen = pc.starts_with(flags, "w=")
        traces = pc.extract_regex(flags.filter(chosen), "^w=[0-9a-f]{2}-(?P<id>[0-9a-f]{32})-")
        trace = _scattered(pc.struct_field(traces, "id"), owners.filter(chosen), len(tails))
    return {"ready": ready, "trace": trace}


def _scattered(values: pa.Array, rows: pa.Array, total: int) -> pa.Array:
    """Put values into their rows, of `total`; null elsewhere."""
    if not len(values):
        return pa.nulls(total, values.type)
    source = np.full(total, -1)
    source[rows.to_numpy()] = np.arange(len(values))
    return values.take(pa.array(source, mask=source < 0))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def text(value: bytes | bytearray) -> str:
    """Read bytes that may not be UTF-8."""
    return value.decode("utf-8", "replace")
