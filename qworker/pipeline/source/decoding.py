"""Decodes journal entries, as Redis returns them, into Arrow batches of the table `journal`.

Python touches no header: Arrow's CSV reader splits and converts the headers of a page in C++, and the first lines of
groups as well; numpy spreads the values of entries and groups over their events. Headers end with flags, which vary in
number, and lines of CSV may not: the space before each flag becomes another byte first, so that flags are one column,
which is split if it holds any. The format is in docs/protocol.md.
"""

from __future__ import annotations

import re
from binascii import Error, a2b_base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from qworker.errors import PipelineError
from qworker.pipeline.source.schemas import LAST_MS, arrow_of
from qworker.wire.names import split_shard_name

__all__ = ["Entries", "decode", "gap_batch"]

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
_OF_A_DELIVERY: Final = pa.array(
    ["delivered", "acked", "nacked", "released", "timed_out", "discarded", "dead", "unsure"]
)
#: Replace an unreadable line, so that its number is not lost.
_NO_HEADER: Final = b"q1 - - 0 0 0 0"
_NO_FIRST: Final = b"unreadable - - - - -"
_HEADER_SHAPE: Final = re.compile(rb"q1 [^ ]+ [0-9]{1,16}( [0-9]{1,9}){4}( [^ ]*)*")
_FIRST_SHAPE: Final = re.compile(rb"[^ ]+ (-|[0-9]{1,16})( [^ ]+){4}")
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_FIELDS: Final = [b"n", b"k", b"b", b"t", b"w", b"e1"]


@dataclass(frozen=True, slots=True)
class Entries:
    """A page of entries of one epoch: their numbers, and per entry its `n`, `k`, `t`, `w` and groups."""

    entries: Any
    numbers: Any
    counts: Any
    times_ms: Any
    workers: Sequence[bytes]
    groups: Sequence[bytes]

    @classmethod
    def of(cls, queue: str, reply: Sequence[tuple[bytes, list[bytes]]]) -> Entries:
        """Split a reply of XRANGE. Raises `PipelineError` for an entry in another format."""
        ids, fields = zip(*reply, strict=True)
        for entry_id, named in reply:
            if named[::2] != _FIELDS:
                raise PipelineError(
                    f"journal of queue {queue!r}: this version cannot read the format of entry {entry_id.decode()}; "
                    "upgrade qworker where the pipeline runs, or XDEL the entry if qworker did not write it"
                )
        _, n, _, k, _, _, _, t, _, workers, _, groups = zip(*fields, strict=True)
        try:
            return cls(
                np.array([entry_id.partition(b"-")[2] for entry_id in ids]).astype(np.int64),
                np.array(n).astype(np.int64),
                np.array(k).astype(np.int64),
                np.array(t).astype(np.int64),
                workers,
                groups,
            )
        except (ValueError, OverflowError) as error:
            raise PipelineError(
                f"journal of queue {queue!r}: an entry between {ids[0].decode()} and {ids[-1].decode()} has text in "
                "place of numbers; inspect them with XRANGE, and XDEL those that qworker did not write"
            ) from error

    @property
    def following(self) -> Any:
        """Per entry, the number that the first event of the next entry must have."""
        return self.numbers + self.counts

    def cut(self, start: int, stop: int) -> Entries:
        """Return the entries from `start` up to but not including `stop`."""
        return Entries(
            self.entries[start:stop],
            self.numbers[start:stop],
            self.counts[start:stop],
            self.times_ms[start:stop],
            self.workers[start:stop],
            self.groups[start:stop],
        )


def decode(queue: str, epoch: int, page: Entries) -> pa.RecordBatch:
    """Make the batch of a page: one row per event, in their order."""
    groups = [of_entry.split(b"\n\n") for of_entry in page.groups]
    parts = [group.partition(b"\n") for of_entry in groups for group in of_entry]
    firsts, headers = [first for first, _, _ in parts], [rest for _, _, rest in parts]
    sizes = np.array([of_group.count(b"\n") for of_group in headers]) + 1
    total = int(sizes.sum())
    events = _headers(headers)
    common = _firsts(firsts)
    starts, runs = _times(common.pop("times"), sizes)
    group = pa.array(np.repeat(np.arange(len(sizes)), sizes))
    events |= {name: _spread(column, group) for name, column in common.items()}
    if (unreadable := events.pop("unreadable", None)) is not None:
        events["event"] = pc.if_else(unreadable, "unreadable", events["event"])
    per_entry = np.add.reduceat(sizes, np.cumsum([0] + [len(of_entry) for of_entry in groups])[:-1])
    position = np.arange(total) - np.repeat(np.cumsum(per_entry) - per_entry, per_entry)
    events |= {
        "start_s": starts,
        "run_s": runs,
        "entry": pa.array(np.repeat(page.entries, per_entry)),
        "number": pa.array(np.repeat(page.numbers, per_entry) + position),
        "ms": pa.array(np.repeat(page.times_ms, per_entry)),
        "worker": pa.array([_text(worker) or None for worker in page.workers], pa.string()).take(
            pa.array(np.repeat(np.arange(len(per_entry)), per_entry))
        ),
    }
    return _assemble(queue, epoch, events)


def gap_batch(
    queue: str, epoch: int, entry: int, number: int, reason: str, ms: int | None
) -> pa.RecordBatch:
    """Make the one-row batch of a gap: events that are missing."""
    name, shard = split_shard_name(queue)
    row = {
        "queue": name,
        "shard": shard,
        "epoch": epoch,
        "entry": entry,
        "number": number,
        "event": "gap",
        "attempt": 0,
        "reason": reason,
    }
    schema = arrow_of("journal")
    columns = [pa.array([row.get(field.name)], field.type) for field in schema]
    if ms is not None:
        columns[schema.names.index("ts")] = _timestamp(pa.array([ms], pa.int64()))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# -- lines -------------------------------------------------------------------------------------


def _headers(headers: Sequence[bytes]) -> dict[str, pa.Array]:
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


def _firsts(firsts: Sequence[bytes]) -> dict[str, pa.Array]:
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
        joined = bytearray(_text(joined).encode())
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


def _times(times: pa.Array, sizes: Any) -> tuple[pa.Array, pa.Array]:
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


def _spread(column: pa.Array, group: pa.Array) -> pa.Array:
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


def _text(value: bytes | bytearray) -> str:
    return value.decode("utf-8", "replace")


# -- columns -----------------------------------------------------------------------------------


def _assemble(queue: str, epoch: int, parts: Mapping[str, pa.Array]) -> pa.RecordBatch:
    ms, sent, event = parts["ms"], parts["sent"], parts["event"]
    rows = len(ms)
    ready = pc.coalesce(parts["ready"], sent)
    delivered = parts["delivered"]
    to_start_ms = pc.round(pc.multiply(parts["start_s"], 1000.0))
    started = pc.add(delivered, to_start_ms.cast(pa.int64(), safe=False))
    has_delivery = pc.and_(
        pc.is_in(event, value_set=_OF_A_DELIVERY),
        # The delivery of a foreign dead letter was not counted.
        pc.is_valid(parts["message_id"]),
    )
    waited = pc.subtract(pc.coalesce(started, delivered), ready)
    name, shard = split_shard_name(queue)
    columns = {
        "queue": _constant(name, rows, pa.string()),
        "shard": _constant(shard, rows, pa.int32()),
        "epoch": _constant(epoch, rows, pa.int64()),
        "entry": parts["entry"],
        "number": parts["number"],
        "event": event,
        "message_id": parts["message_id"],
        "attempt": pc.if_else(has_delivery, pc.add(parts["receives"], 1), 0).cast(pa.int32()),
        "ts": _timestamp(ms),
        "sent_ts": _timestamp(sent),
        "ready_ts": _timestamp(ready),
        "delivered_ts": _timestamp(delivered),
        "started_ts": _timestamp(started),
        "wait_ms": pc.if_else(
            has_delivery, pc.max_element_wise(waited, 0, skip_nulls=False), None
        ).cast(pa.float64(), safe=False),
        "run_ms": pc.round(pc.multiply(parts["run_s"], 1000.0), ndigits=3),
        "age_ms": pc.subtract(ms, sent),
        "task": parts["task"],
        "reason": parts["reason"],
        "error_class": parts["error_class"],
        "worker": parts["worker"],
        "trace_id": parts["trace"],
    }
    schema = arrow_of("journal")
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _constant(value: object, rows: int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), rows)


def _timestamp(ms: pa.Array) -> pa.Array:
    """ms since 1970 as timestamps; null beyond the year 9999."""
    ms = ms.cast(pa.int64())
    if (latest := pc.max(ms).as_py()) is not None and latest > LAST_MS:
        ms = pc.if_else(pc.less_equal(ms, LAST_MS), ms, None)
    return pc.multiply(ms, 1000).cast(_TIMESTAMP)
