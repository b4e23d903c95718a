"""Reads the events of an archive and of the live journal as one, and a snapshot of the messages in Redis."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from fnmatch import translate
from typing import TYPE_CHECKING, Final

from qworker.pipeline.jobs.archive import read_archive
from qworker.pipeline.jobs.audit import AuditResult, Snapshot, Window, audit, lost_ids
from qworker.pipeline.jobs.lake import Lake
from qworker.store.url import ServerURL

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["audit_all", "read_events", "server_options", "take_snapshot"]

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
) -> DataFrame:
    """Read events, each once: columns of `journal`.

    `source`: the options of the data source, None to leave the live journal out. Of the live journal, only events after
    the end of the archive count; it is read once, at its first use, and kept. `queues`: names or patterns, separated
    by commas.
    """
    stored = None if lake is None else read_archive(spark, lake).drop("day", "batch")
    if stored is not None and queues:
        stored = stored.where(_named(queues))
    if source is None:
        assert stored is not None, "give an archive, or the options of the data source"
        return stored
    reader = spark.read.format("qworker").options(**source).option("table", "journal")
    live = (reader.option("queues", queues) if queues else reader).load().persist()
    if stored is None:
        return live
    return stored.unionByName(_newer(live, stored))


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
        return read_events(spark, lake=lake, source=source, queues=queues)

    if source is None:
        return audit(events(), window=window)
    # The journal is read after the snapshot: it has the ends of messages that ended since.
    snapshot = take_snapshot(spark, source)
    journal = events()
    result = audit(journal, window=window, snapshot=snapshot)
    if not result.lost:
        return result
    suspects = lost_ids(journal, window=window, snapshot=snapshot).persist()
    suspects.count()
    snapshot = take_snapshot(spark, source)
    return audit(events(), window=window, snapshot=snapshot, suspects=suspects)


def _named(queues: str) -> Column:
    """Whether a row's queue is one of these names and patterns."""
    from pyspark.sql import functions as F

    parts = [part.strip() for part in queues.split(",") if part.strip()]
    test = F.col("queue").isin(*(part for part in parts if not _PATTERN.search(part)))
    for part in parts:
        if _PATTERN.search(part):
            test = test | F.col("queue").rlike(translate(part).replace(r"\Z", r"\z"))
    return test


def _newer(live: DataFrame, stored: DataFrame) -> DataFrame:
    """Leave out events that are in the archive."""
    from pyspark.sql import functions as F

    ends = stored.groupBy("queue", "shard").agg(F.max(F.struct("epoch", "entry")).alias("stored"))
    return (
        live.join(F.broadcast(ends), ["queue", "shard"], "left")
        .where(F.col("stored").isNull() | (F.struct("epoch", "entry") > F.col("stored")))
        .select(*live.columns)
    )
