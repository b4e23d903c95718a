"""Decodes journal entries, as Redis returns them, into Arrow batches of the table `journal`.

`qworker.pipeline.source.lines` splits the lines of a page; numpy spreads the values of entries and groups over their
events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from qworker.errors import PipelineError
from qworker.pipeline.source.lines import firsts_of, headers_of, spread, text, times_of
from qworker.pipeline.source.schemas import LAST_MS, arrow_of
from qworker.wire.names import split_shard_name

__all__ = ["EntryPage", "decode", "gap_batch"]

_OF_A_DELIVERY: Final = pa.array(
    [
        *("delivered", "acked", "nacked", "released", "timed_out", "discarded", "dead", "unsure"),
        "step",
    ]
)
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_FIELDS: Final = [b"n", b"k", b"b", b"t", b"w", b"e1"]


@dataclass(frozen=True, slots=True)
class EntryPage:
    """A page of entries of one epoch: their numbers, and per entry its `n`, `k`, `t`, `w` and groups."""

    entries: Any
    numbers: Any
    counts: Any
    times_ms: Any
    workers: Sequence[bytes]
    groups: Sequence[bytes]

    @classmethod
    def of(cls, queue: str, reply: Sequence[tuple[bytes, list[bytes]]]) -> EntryPage:
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

    def cut(self, start: int, stop: int) -> EntryPage:
        """Return the entries from `start` up to but not including `stop`."""
        return EntryPage(
            self.entries[start:stop],
            self.numbers[start:stop],
            self.counts[start:stop],
            self.times_ms[start:stop],
            self.workers[start:stop],
            self.groups[start:stop],
        )


def decode(queue: str, epoch: int, page: EntryPage) -> pa.RecordBatch:
    """Make the batch of a page: one row per event, in their order."""
    groups = [of_entry.split(b"\n\n") for of_entry in page.groups]
    parts = [group.partition(b"\n") for of_entry in groups for group in of_entry]
    firsts, headers = [first for first, _, _ in parts], [rest for _, _, rest in parts]
    sizes = np.array([of_group.count(b"\n") for of_group in headers]) + 1
    total = int(sizes.sum())
    events = headers_of(headers)
    common = firsts_of(firsts)
    starts, runs = times_of(common.pop("times"), sizes)
    group = pa.array(np.repeat(np.arange(len(sizes)), sizes))
    events |= {name: spread(column, group) for name, column in common.items()}
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
        "worker": pa.array([text(worker) or None for worker in page.workers], pa.string()).take(
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
