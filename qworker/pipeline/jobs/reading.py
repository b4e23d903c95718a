"""Reads the events of an archive and of the live journal as one, and a snapshot of the messages in Redis."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase, translate
from typing import TYPE_CHECKING, Final

from qworker.pipeline.jobs.archive import continued, ends_of_rows, read_archive
from qworker.pipeline.jobs.audit import AuditResult, Snapshot, Window, audit, lost_ids
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.source import offsets
from qworker.pipeline.source.offsets import Offsets, Range
from qworker.pipeline.source.options import ReadOptions
from qworker.store.url import ServerURL
from qworker.wire.names import split_shard_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = [
    "audit_all",
    "earlier_queues",
    "ends_of",
    "read_events",
    "server_options",
    "take_snapshot",
]

#: The variable that passes a URL with a password to Spark's processes.
_URL_VARIABLE: Final = "QWORKER_SPARK_URL"
_PATTERN: Final = re.compile(r"[*?\[]")


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
) -> DataFrame:
    """Read events, each once: columns of `journal`.

    `source`: the options of the data source, None to leave the live journal out. Of the live journal, only what comes
    after the archive is read, once, at its first use, and kept. Where entries are missing there is a row `gap`.
    `queues`: names or patterns, separated by commas. `since`: of the archive, read only the days that have events of
    messages sent from then on, and for each queue the last day before (`Lake.since`).
    """
    stored = None if lake is None else read_archive(spark, lake)
    if stored is not None and lake is not None and since is not None:
        stored = stored.where(_recent(lake, since))
    stored = None if stored is None else stored.drop("day", "batch")
    if stored is not None and queues:
        stored = stored.where(_named(queues))
    if source is None:
        assert stored is not None, "give an archive, or the options of the data source"
        return stored
    given = {**source, "failOnDataLoss": "false", **({"queues": queues} if queues else {})}
    back: list[Range] = []
    if lake is not None:
        begun = offsets.read(lake.offsets()) if lake.offsets() else ends_of_rows(spark, lake)
        options = ReadOptions.of(given)
        begun, back = continued(spark, lake, options, begun)
        if begun:
            given["startingOffsets"] = json.dumps(offsets.dump(begun))
    live = spark.read.format("qworker").options(**given).option("table", "journal").load().persist()
    if stored is None:
        return live
    return stored.unionByName(live).unionByName(_gaps(spark, back, live))


def earlier_queues(lake: Lake | None, since: datetime | None) -> frozenset[str]:
    """Name the queues of an archive that have events before those that a read with `since` sees."""
    if lake is None or since is None:
        return frozenset()
    return frozenset(queue for queue, (_, last) in lake.since(since).items() if last is not None)


def _recent(lake: Lake, since: datetime) -> Column:
    """Whether a row is of a day that a read with `since` needs; Spark reads no other partitions."""
    from pyspark.sql import functions as F

    by_day: dict[date, list[str]] = {}
    wanted = lake.since(since)
    for queue, (_, last) in wanted.items():
        if last is not None:
            by_day.setdefault(last, []).append(queue)
    test = F.lit(False)
    for first in {first for first, _ in wanted.values()}:
        test = test | (F.col("day") >= F.lit(first))
    for day, queues in by_day.items():
        test = test | ((F.col("day") == F.lit(day)) & F.col("queue").isin(*queues))
    return test


def ends_of(lake: Lake | None, queues: str | None = None) -> Offsets | None:
    """Read how far the rows of an archive must reach; None: it does not say."""
    noted = None if lake is None else lake.offsets()
    if noted is None:
        return None
    patterns = [part.strip() for part in (queues or "*").split(",")]
    return {
        name: position
        for name, position in offsets.read(noted).items()
        if any(fnmatchcase(split_shard_name(name)[0], pattern) for pattern in patterns)
    }


def _gaps(spark: SparkSession, back: Sequence[Range], like: DataFrame) -> DataFrame:
    """Make the rows `gap` of journals that were rolled back since they were archived."""
    import pyarrow as pa

    from qworker.pipeline.source.scanning import forgotten_batch

    batches = [forgotten_batch(part) for part in back if part.forgotten is not None]
    if not batches:
        return like.limit(0)
    return spark.createDataFrame(pa.Table.from_batches(batches)).select(*like.columns)


def take_snapshot(spark: SparkSession, source: Mapping[str, str]) -> Snapshot:
    """Read the server's time and then the messages in Redis; they are kept."""
    from pyspark.sql import functions as F

    def table(name: str) -> DataFrame:
        return spark.read.format("qworker").options(**source).option("table", name).load()

    taken = table("queues").agg(F.min("snapshot_ts")).collect()[0][0]
    messages = table("messages").select("queue", "shard", "message_id", "state").persist()
    messages.count()
    return Snapshot(datetime.now(UTC) if taken is None else taken.astimezone(UTC), messages)


def audit_all(
    spark: SparkSession,
    *,
    window: Window,
    lake: Lake | None = None,
    source: Mapping[str, str] | None = None,
    queues: str | None = None,
) -> AuditResult:
    """Audit an archive, the live journal, or both; with the live one Redis is read as well, twice if need be."""

    def events() -> DataFrame:
        return read_events(spark, lake=lake, source=source, queues=queues, since=window.since)

    ends, earlier = ends_of(lake, queues), earlier_queues(lake, window.since)
    if source is None:
        return audit(events(), window=window, ends=ends, earlier=earlier)
    # The journal is read after the snapshot: it has the ends of messages that ended since.
    snapshot = take_snapshot(spark, source)
    journal = events()
    result = audit(journal, window=window, snapshot=snapshot, ends=ends, earlier=earlier)
    if not result.lost:
        return result
    suspects = lost_ids(journal, window=window, snapshot=snapshot).persist()
    suspects.count()
    snapshot = take_snapshot(spark, source)
    return audit(
        events(), window=window, snapshot=snapshot, suspects=suspects, ends=ends, earlier=earlier
    )


def _named(queues: str) -> Column:
    """Whether a row's queue is one of these names and patterns."""
    from pyspark.sql import functions as F

    parts = [part.strip() for part in queues.split(",") if part.strip()]
    test = F.col("queue").isin(*(part for part in parts if not _PATTERN.search(part)))
    for part in parts:
        if _PATTERN.search(part):
            test = test | F.col("queue").rlike(translate(part).replace(r"\Z", r"\z"))
    return test
