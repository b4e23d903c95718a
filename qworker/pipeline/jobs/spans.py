"""The numbers of events, as Spark counts them: which epochs are whole, and what is missing or twice in others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from qworker.errors import ArchiveDamagedError
from qworker.formats import count
from qworker.pipeline.jobs.holes import Hole, Shard, Span, utc
from qworker.pipeline.jobs.local import local_frame, together

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Stretch", "each_once", "inside", "read_spans", "split"]

#: Numbers are also added up by their last 16 bits, squared, so that no missing ones hide behind doubled ones.
_BITS: Final = 65_536
_EPOCH: Final = ("queue", "shard", "epoch")
#: The columns of a span that sum up its events, in SQL.
_SUMS: Final = (
    "count(1) as rows",
    "min(number) as least",
    "max(number) as most",
    "min(ts) as since",
    "max(ts) as until",
    "sum(cast(number as decimal(20, 0))) as total",
    f"sum((number % {_BITS}) * (number % {_BITS})) as squares",
    "max(if(event = 'unsure', struct(number, ts), null)) as unsure",
    "max(if(not live, number, null)) as stored",
    "max(if(not live, ts, null)) as stored_until",
    "count(if(number is null or shard is null or epoch is null, 1, null)) as unnumbered",
)
#: Of a number: the rows that are there again, and the different events that have it.
_OF_NUMBER: Final = (
    "sum(rows - 1) as again",
    "count(1) as versions",
    "min(ts) as since",
    "max(ts) as until",
)
#: Of an epoch: the same, and where its numbers have several events.
_OF_EPOCH: Final = (
    "sum(again) as again",
    "sum(versions - 1) as reused",
    "min(if(versions > 1, number, null)) as first",
    "min(if(versions > 1, since, null)) as since",
    "max(if(versions > 1, until, null)) as until",
)
#: Whether an event is of a stretch.
_WITHIN: Final = """
    queue = of_queue and shard = of_shard and epoch = of_epoch
    and number >= from_number and (to_number is null or number < to_number)
    and (until is null or ts < until) and event <> 'gap'
"""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Events of one epoch of one shard: from number `first`, below `stop`, before `until`; None: no bound."""

    queue: str
    shard: int
    epoch: int
    first: int = 0
    stop: int | None = None
    until: datetime | None = None

    def holds(self, row: Any) -> bool:
        """Whether an event is of it."""
        written = utc(row.ts)
        return (
            (row.queue, row.shard, row.epoch) == (self.queue, self.shard, self.epoch)
            and row.number >= self.first
            and (self.stop is None or row.number < self.stop)
            and (self.until is None or (written is not None and written < self.until))
        )

    @classmethod
    def of(cls, span: Span) -> Stretch:
        """All events of its epoch."""
        return cls(span.queue, span.shard, span.epoch)


def read_spans(events: DataFrame) -> dict[Shard, list[Span]]:
    """Read the spans of the epochs of each shard, in the order of time (`qworker.pipeline.jobs.epochs` knows better).

    Raises `ArchiveDamagedError` for rows without a number, which another program wrote.
    """
    from pyspark.sql import functions as F

    rows = events.where("event <> 'gap'").groupBy(*_EPOCH).agg(*map(F.expr, _SUMS)).collect()
    for row in rows:
        if row.unnumbered or row.queue is None:
            raise ArchiveDamagedError(
                f"queue {row.queue}",
                f"{count(row.unnumbered or row.rows, 'row')} without queue or number: qworker did not write them",
            )
    spans: dict[Shard, list[Span]] = defaultdict(list)
    for row in rows:
        spans[row.queue, row.shard].append(_span(row))
    for of_shard in spans.values():
        of_shard.sort(key=lambda span: (span.since or datetime.min.replace(tzinfo=UTC), span.epoch))
    return spans


def _span(row: Any) -> Span:
    """Make a span of the sums of an epoch; it is whole if each number from the least to the most is there once."""
    expected = row.most - row.least + 1
    whole = (
        row.rows == expected
        and int(row.total) == (row.least + row.most) * expected // 2
        and row.squares == _squares(row.most + 1) - _squares(row.least)
    )
    return Span(
        row.queue,
        row.shard,
        row.epoch,
        row.rows,
        row.least,
        row.most,
        utc(row.since),
        utc(row.until),
        whole,
        row.unsure and (row.unsure.number, utc(row.unsure.ts)),
        row.stored,
        utc(row.stored_until),
    )


def each_once(
    events: DataFrame, broken: Sequence[Span]
) -> tuple[DataFrame, dict[Shard, int], list[Hole]]:
    """Leave out rows that are there again; count them, and find numbers that different events have."""
    from pyspark.sql import functions as F

    same = [*_EPOCH, "number", "event", "message_id", "ts"]
    within, others = split(events, [Stretch.of(span) for span in broken])
    numbers = (
        within.groupBy(*same)
        .agg(F.expr("count(1) as rows"))
        .groupBy(*_EPOCH, "number")
        .agg(*map(F.expr, _OF_NUMBER))
        .where("again > 0 or versions > 1")
        .groupBy(*_EPOCH)
        .agg(*map(F.expr, _OF_EPOCH))
        .collect()
    )
    if not numbers:
        return events, {}, []
    doubled: dict[Shard, int] = defaultdict(int)
    reused = []
    for row in numbers:
        if row.again:
            doubled[row.queue, row.shard] += row.again
        if row.reused:
            where = (row.queue, row.shard, row.epoch, row["first"] - 1)
            times = (utc(row.since), utc(row.until))
            reused.append(Hole(*where, row.reused, *times, "used twice"))
    return together(others, within.dropDuplicates(same)), dict(doubled), reused


def inside(events: DataFrame, broken: Sequence[Span]) -> dict[tuple[str, int, int], list[Any]]:
    """Find the numbers that are missing between others: (queue, shard, epoch) → rows before, number and their times."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    if not broken:
        return {}
    before = F.lag(F.struct("number", "ts")).over(Window.partitionBy(*_EPOCH).orderBy("number"))
    rows = (
        split(events, [Stretch.of(span) for span in broken])[0]
        .select(*_EPOCH, "number", "ts")
        .withColumn("before", before)
        .where("number - before.number > 1")
        .select(
            *_EPOCH,
            "number",
            F.col("ts").alias("until"),
            F.col("before.number").alias("after"),
            F.col("before.ts").alias("since"),
        )
        .orderBy(*_EPOCH, "number")
        .collect()
    )
    found: dict[tuple[str, int, int], list[Any]] = defaultdict(list)
    for row in rows:
        found[row.queue, row.shard, row.epoch].append(row)
    return found


def split(events: DataFrame, stretches: Sequence[Stretch]) -> tuple[DataFrame, DataFrame]:
    """Divide events into those of the stretches, and all others; rows `gap` are among these.

    By joins: conditions for hundreds of epochs, one beside the other, are evaluated for each row.
    """
    import pyarrow as pa
    from pyspark.sql import functions as F

    rows = [
        (each.queue, each.shard, each.epoch, each.first, each.stop, each.until)
        for each in stretches
    ]
    schema = pa.schema(
        [
            *(("of_queue", pa.string()), ("of_shard", pa.int32()), ("of_epoch", pa.int64())),
            *(("from_number", pa.int64()), ("to_number", pa.int64())),
            ("until", pa.timestamp("us", tz="UTC")),
        ]
    )
    known = F.broadcast(local_frame(events.sparkSession, rows, schema))
    within = F.expr(_WITHIN)
    return events.join(known, within, "left_semi"), events.join(known, within, "left_anti")


def _squares(stop: int) -> int:
    """Add up the squares of the last 16 bits of 0 … stop - 1."""
    rounds, rest = divmod(stop, _BITS)

    def up_to(number: int) -> int:
        return (number - 1) * number * (2 * number - 1) // 6

    return rounds * up_to(_BITS) + up_to(rest)
