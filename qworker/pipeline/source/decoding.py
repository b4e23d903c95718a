"""Journal entries as they come from Redis, made into Arrow batches of the table `journal`.

No line of an entry is touched by Python: the lines of a page go through Arrow's CSV reader, which splits and converts
them in C++, and the few values of each entry are spread over its lines by numpy. Only the flags at the end of a line
vary in number, and a CSV line may not: the space in front of each becomes another byte first, so that they stay one
column, which is split where it holds any. See the format in docs/protocol.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from qworker.errors import PipelineError
from qworker.pipeline.source.schemas import LAST_MS, arrow_of

__all__ = ["Entries", "decode", "gap_batch"]

_NUMBERS: Final = {1: "delivered", 2: "started", 3: "run_us", 8: "sent", 9: "receives"}
_WORDS: Final = {0: "event", 4: "task", 5: "reason", 6: "error_class", 7: "message_id", 12: "tail"}
#: The columns of a line; nacks and timeouts are not looked at, and shared only has the flags behind it.
_NAMES: Final = tuple({**_NUMBERS, **_WORDS}.get(index, f"unused{index}") for index in range(13))
_TYPES: Final = {name: pa.int64() for name in _NUMBERS.values()} | {
    name: pa.string() for name in _WORDS.values()
}
#: Stands in front of a flag instead of its space.
_FLAG: Final = "\x1f"
_OF_A_DELIVERY: Final = pa.array(
    ["delivered", "acked", "nacked", "released", "timed_out", "discarded", "dead", "unsure"]
)
#: Stands for a line that is none, so that its number is not lost.
_UNREADABLE: Final = b"unreadable - - - - - - - - 0 0 0 0"
_WHOLE: Final = re.compile(
    rb"[^ ]+( (-|[0-9]{1,18})){3}( [^ ]+){4} [0-9]{1,16}( [0-9]{1,9}){4}( [^ ]*)*"
)
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_FIELDS: Final = [b"n", b"k", b"b", b"t", b"w", b"e1"]


@dataclass(frozen=True, slots=True)
class Entries:
    """A page of entries of one epoch: their numbers, and per entry its `n`, `k`, `t`, `w` and lines."""

    entries: Any
    numbers: Any
    counts: Any
    times_ms: Any
    workers: Sequence[bytes]
    lines: Sequence[bytes]

    @classmethod
    def of(cls, queue: str, reply: Sequence[tuple[bytes, list[bytes]]]) -> Entries:
        """Take a reply of XRANGE apart. Raises `PipelineError` for an entry in another format."""
        ids, fields = zip(*reply, strict=True)
        for entry_id, each in reply:
            if each[::2] != _FIELDS:
                raise PipelineError(
                    f"journal of queue {queue!r}: entry {entry_id.decode()} is not in a format that this version "
                    "reads; upgrade qworker where the pipeline runs, or, where somebody else wrote it, XDEL it"
                )
        _, n, _, k, _, _, _, t, _, workers, _, lines = zip(*fields, strict=True)
        try:
            return cls(
                np.array([each.partition(b"-")[2] for each in ids]).astype(np.int64),
                np.array(n).astype(np.int64),
                np.array(k).astype(np.int64),
                np.array(t).astype(np.int64),
                workers,
                lines,
            )
        except ValueError as error:
            raise PipelineError(
                f"journal of queue {queue!r}: an entry between {ids[0].decode()} and {ids[-1].decode()} has something "
                "else where numbers belong; look at them with XRANGE, and XDEL what qworker did not write"
            ) from error

    @property
    def following(self) -> Any:
        """Per entry, the number that the first event of the next one has to have."""
        return self.numbers + self.counts

    def cut(self, start: int, stop: int) -> Entries:
        """Return the entries from `start` up to but not including `stop`."""
        return Entries(
            self.entries[start:stop],
            self.numbers[start:stop],
            self.counts[start:stop],
            self.times_ms[start:stop],
            self.workers[start:stop],
            self.lines[start:stop],
        )


def decode(queue: str, epoch: int, page: Entries) -> pa.RecordBatch:
    """Make the batch of a page, a row per line in their order."""
    lines = bytearray(b"\n").join(page.lines)
    if not lines.isascii():
        lines = bytearray(_text(lines).encode())
    if b"\r" in lines:
        lines = lines.replace(b"\r", b"_")  # It would end a line for the reader.
    per_entry = np.array([each.count(b"\n") for each in page.lines]) + 1
    total = int(per_entry.sum())
    try:
        parts = _parse(lines)
    except pa.ArrowInvalid:
        parts = _parse(_mended(lines))
    starts = np.cumsum(per_entry) - per_entry
    position = np.arange(total) - np.repeat(starts, per_entry)
    per_line = {
        "entry": pa.array(np.repeat(page.entries, per_entry)),
        "number": pa.array(np.repeat(page.numbers, per_entry) + position),
        "ms": pa.array(np.repeat(page.times_ms, per_entry)),
        "worker": pa.array([_text(each) or None for each in page.workers], pa.string()).take(
            pa.array(np.repeat(np.arange(len(per_entry)), per_entry))
        ),
    }
    return _assemble(queue, epoch, parts, per_line)


def gap_batch(
    queue: str, epoch: int, entry: int, number: int, reason: str, ms: int | None
) -> pa.RecordBatch:
    """Make the batch of one row that tells that events are missing."""
    row = {
        "queue": queue,
        "shard": 0,
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


def _parse(lines: bytearray) -> dict[str, pa.Array]:
    """Split lines into their parts; `ready` and `trace` are made of the flags. Raises `ArrowInvalid`."""
    if b"=" in lines:
        bytes_of = np.frombuffer(lines, np.uint8)
        before = np.flatnonzero(bytes_of[2:] == ord("="))
        bytes_of[before[bytes_of[before] == ord(" ")]] = ord(_FLAG)
    table = csv.read_csv(
        pa.BufferReader(lines),
        read_options=csv.ReadOptions(
            column_names=_NAMES, use_threads=False, block_size=len(lines) + 1
        ),
        parse_options=csv.ParseOptions(
            delimiter=" ", quote_char=False, double_quote=False, ignore_empty_lines=False
        ),
        convert_options=csv.ConvertOptions(
            column_types=_TYPES,
            include_columns=list(_TYPES),
            null_values=["-"],
            strings_can_be_null=True,
        ),
    )
    parts = {name: _whole(table.column(name)) for name in _TYPES}
    return parts | _flags_of(parts.pop("tail"))


def _flags_of(tails: pa.Array) -> dict[str, pa.Array]:
    """Find the flags that are wanted: `ready` is t in ms, `trace` the second part of w."""
    ready, trace = pa.nulls(len(tails), pa.int64()), pa.nulls(len(tails), pa.string())
    rows = pc.indices_nonzero(pc.greater(pc.binary_length(tails), 2))
    if len(rows):
        split = pc.split_pattern(tails.take(rows), _FLAG)
        flags, owners = split.flatten(), rows.take(pc.list_parent_indices(split))
        chosen = pc.match_substring_regex(flags, "^t=[0-9]{1,16}$")
        times = pc.utf8_slice_codeunits(flags.filter(chosen), 2).cast(pa.int64())
        ready = _placed(times, owners.filter(chosen), len(tails))
        chosen = pc.starts_with(flags, "w=")
        found = pc.extract_regex(flags.filter(chosen), "^w=[0-9a-f]{2}-(?P<id>[0-9a-f]{32})-")
        trace = _placed(pc.struct_field(found, "id"), owners.filter(chosen), len(tails))
    return {"ready": ready, "trace": trace}


def _placed(values: pa.Array, rows: pa.Array, total: int) -> pa.Array:
    """Spread values over `total` rows, null where there is none."""
    if not len(values):
        return pa.nulls(total, values.type)
    source = np.full(total, -1)
    source[rows.to_numpy()] = np.arange(len(values))
    return values.take(pa.array(source, mask=source < 0))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _mended(lines: bytearray) -> bytearray:
    """Replace the lines that are none, one by one; only for pages that the reader refused."""
    mended = []
    for each in bytes(lines).replace(_FLAG.encode(), b" ").split(b"\n"):
        *parts, tail = each.split(b" ", len(_NAMES) - 1)
        whole = _WHOLE.fullmatch(each) is not None
        tail = tail.replace(b" ", _FLAG.encode())
        mended.append(b" ".join([*parts, tail]) if whole else _UNREADABLE)
    return bytearray(b"\n").join(mended)


def _text(value: bytes | bytearray) -> str:
    return value.decode("utf-8", "replace")


# -- columns -----------------------------------------------------------------------------------


def _assemble(
    queue: str, epoch: int, parts: dict[str, pa.Array], per_line: dict[str, pa.Array]
) -> pa.RecordBatch:
    rows = len(per_line["ms"])
    ms, sent, event = per_line["ms"], parts["sent"], parts["event"]
    ready = pc.coalesce(parts["ready"], sent)
    delivered, started = parts["delivered"], parts["started"]
    has_delivery = pc.and_(
        pc.is_in(event, value_set=_OF_A_DELIVERY),
        # A dead letter that is no message of ours had no delivery that was counted.
        pc.is_valid(parts["message_id"]),
    )
    waited = pc.subtract(pc.coalesce(started, delivered), ready)
    columns = {
        "queue": _constant(queue, rows, pa.string()),
        "shard": _constant(0, rows, pa.int32()),
        "epoch": _constant(epoch, rows, pa.int64()),
        "entry": per_line["entry"],
        "number": per_line["number"],
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
        ).cast(pa.float64()),
        "run_ms": pc.divide(parts["run_us"].cast(pa.float64()), 1000.0),
        "age_ms": pc.subtract(ms, sent),
        "task": parts["task"],
        "reason": parts["reason"],
        "error_class": parts["error_class"],
        "worker": per_line["worker"],
        "trace_id": parts["trace"],
    }
    schema = arrow_of("journal")
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _constant(value: object, rows: int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), rows)


def _timestamp(ms: pa.Array) -> pa.Array:
    """ms since 1970 as timestamps; null where they lie beyond the year 9999."""
    ms = ms.cast(pa.int64())
    if (latest := pc.max(ms).as_py()) is not None and latest > LAST_MS:
        ms = pc.if_else(pc.less_equal(ms, LAST_MS), ms, None)
    return pc.multiply(ms, 1000).cast(_TIMESTAMP)
