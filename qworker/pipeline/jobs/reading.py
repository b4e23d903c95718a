"""Reads the events of an archive and of the live journal as one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from qworker.pipeline.jobs.archived import (
    Continued,
    continued,
    ends_of_rows,
    few_events,
    read_archive,
)
from qworker.pipeline.jobs.days import Day
from qworker.pipeline.jobs.deleted import Deleted, Earlier
from qworker.pipeline.jobs.holes import GONE
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.live import few_frame, read_live
from qworker.pipeline.jobs.local import few_rows
from qworker.pipeline.jobs.record import Seen
from qworker.pipeline.jobs.store import AnyPath
from qworker.pipeline.source import offsets
from qworker.pipeline.source.offsets import Offsets
from qworker.pipeline.source.options import ReadOptions
from qworker.store.url import ServerURL
from qworker.wire.names import split_shard_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "earlier_events",
    "ends_of",
    "reach",
    "read_events",
    "server_options",
    "sizes_of",
]

#: The variable that passes a URL with a password to Spark's processes.
_URL_VARIABLE: Final = "QWORKER_SPARK_URL"


def server_options(url: ServerURL | str, namespace: str) -> dict[str, str]:
    """The options of the data source for a server and a namespace.

    A URL with a password goes into the environment, so that no query plan shows it: call this before Spark starts.
    """
    server = ServerURL.parse(url)
    if server.password is None and server.sentinel_password is None:
        return {"url": str(server), "namespace": namespace}
    os.environ[_URL_VARIABLE] = server.revealed()
    return {"urlEnv": _URL_VARIABLE, "namespace": namespace}


def read_events(
    spark: SparkSession,
    *,
    lake: Lake | None = None,
    source: Mapping[str, str] | None = None,
    queues: str | None = None,
    since: datetime | None = None,
    files: Sequence[AnyPath] | None = None,
    beside: int | None = 0,
) -> DataFrame:
    """Read events, each once: columns of `journal`, and `live` BOOLEAN: it is not in the archive.

    `source`: the options of the data source, None to leave the live journal out. Of the live journal, only what comes
    after the archive is read, once, and kept. Where entries are missing there is a row `gap`.
    `queues`: names or patterns, separated by commas. `since`: of the archive, read only the days that have events of
    messages sent from then on, and for each queue the last day before (`Lake.since`). `files`: of the archive, read
    these. `beside`: the number of carried events, None: unknown; few ones in all are read here (`jobs.local`).
    """
    from pyspark.sql import functions as F

    most, table = (-1 if beside is None else few_rows(spark) - beside), None
    if lake is not None:
        # What it holds and how far it reaches are those of one version.
        lake = lake.pinned()
        files = [*sizes_of(lake, queues, since)] if files is None else files
        table = few_events(files, most)
        most = -1 if table is None else most - table.num_rows
    if source is None:
        assert lake is not None, "give an archive, or the options of the data source"
        return _archived(spark, lake, files) if table is None else few_frame(spark, table, ())
    given, gaps = _continuing(spark, lake, source, queues)
    fresh = read_live(given, "journal", most)
    if fresh is not None:
        return few_frame(spark, table, [*fresh.to_batches(), *gaps])
    live = spark.read.format("qworker").options(**given).option("table", "journal").load().persist()
    if gaps:
        live = live.unionByName(_frame(spark, gaps).select(*live.columns))
    live = live.withColumn("live", F.lit(True))
    return live if lake is None else _archived(spark, lake, files).unionByName(live)


def _archived(spark: SparkSession, lake: Lake, files: Sequence[AnyPath] | None) -> DataFrame:
    from pyspark.sql import functions as F

    events = read_archive(spark, lake, files, in_part=True).drop("day")
    return events.withColumn("live", F.lit(False))


def _continuing(
    spark: SparkSession, lake: Lake | None, source: Mapping[str, str], queues: str | None
) -> tuple[dict[str, str], list[pa.RecordBatch]]:
    """The options for a read of the journals after an archive, and the rows `gap` of those rolled back or gone."""
    given = {**source, "failOnDataLoss": "false", **({"queues": queues} if queues else {})}
    if lake is None:
        return given, []
    options = ReadOptions.of(given)
    lake.check_namespace(options.namespace)
    begun = offsets.read(lake.offsets()) if lake.offsets() else ends_of_rows(spark, lake)
    after = continued(spark, lake, options, begun)
    if after.positions:
        given["startingOffsets"] = json.dumps(offsets.dump(after.positions))
    return given, _gaps(after, begun, queues)


def earlier_events(lake: Lake | None, since: datetime | None) -> Earlier:
    """Find which events of an archive come before those that a read with `since` sees, or were deleted."""
    if lake is None:
        return Earlier()
    deleted = Deleted.of(lake.root)
    queues = lake.expired_queues() - deleted.queues
    if since is not None:
        queues |= {queue for queue, (_, last) in lake.since(since).items() if last is not None}
    return Earlier(queues, deleted)


def sizes_of(lake: Lake, queues: str | None, since: datetime | None) -> dict[AnyPath, int]:
    """List the files that a read needs, with their bytes."""
    chosen = _chosen(queues)
    wanted = {} if since is None else lake.since(since)

    def needed(day: Day) -> bool:
        if not chosen(day.queue):
            return False
        if since is None:
            return True
        first, last = wanted[day.queue]
        return day.day >= first or day.day == last

    return {file: size for day in lake.days() if needed(day) for file, size in day.sizes.items()}


def ends_of(lake: Lake | None, queues: str | None = None) -> Offsets | None:
    """Read how far the rows of an archive must reach; None: it does not say."""
    noted = None if lake is None else lake.offsets()
    if noted is None:
        return None
    chosen = _chosen(queues)
    return {name: at for name, at in offsets.read(noted).items() if chosen(name)}


def reach(spark: SparkSession, lake: Lake, seen: Seen | None) -> tuple[Offsets, Earlier]:
    """Read how far the rows of an archive reach, and which events there may be before `seen`."""
    ends = ends_of(lake)
    if ends is None:
        ends = ends_of_rows(spark, lake)
    if seen is None:
        return ends, earlier_events(lake, None)
    # Without the number of its next event it is unknown where a journal continues.
    unknown = (split_shard_name(name)[0] for name, end in ends.items() if end.event is None)
    return ends, Earlier(frozenset(unknown), Deleted.of(lake.root))


def _gaps(after: Continued, begun: Offsets, queues: str | None) -> list[pa.RecordBatch]:
    """Make the rows `gap` of journals that were rolled back since they were archived, or that are gone."""
    from qworker.pipeline.source.decoding import gap_batch
    from qworker.pipeline.source.scanning import forgotten_batch

    rows = [forgotten_batch(part) for part in after.back if part.forgotten is not None]
    for name in filter(_chosen(queues), after.gone):
        at = begun[name]
        reason = f"{GONE}: its journal is not in Redis any more"
        rows.append(gap_batch(name, at.epoch, at.entry, at.event or 0, reason, None))
    return rows


def _frame(spark: SparkSession, rows: Sequence[pa.RecordBatch]) -> DataFrame:
    import pyarrow as pa

    return spark.createDataFrame(pa.Table.from_batches(rows))


def _chosen(queues: str | None) -> Callable[[str], bool]:
    """A test whether the name of a queue or shard matches these names or patterns, separated by commas."""
    patterns = [part.strip() for part in (queues or "*").split(",")]
    return lambda name: any(fnmatchcase(split_shard_name(name)[0], pattern) for pattern in patterns)
