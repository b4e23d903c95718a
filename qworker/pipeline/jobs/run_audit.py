"""Audits an archive, the live journal, or both: all of it, or what came since the last audit.

With the live journal, a snapshot of the messages in Redis is read as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from qworker.pipeline.jobs.audit import AuditResult, Judged, Snapshot, Window, audit
from qworker.pipeline.jobs.carrying import unfinished
from qworker.pipeline.jobs.composition_verdicts import carried
from qworker.pipeline.jobs.increment import Increment
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.live import read_live
from qworker.pipeline.jobs.local import few_rows, table_frame
from qworker.pipeline.jobs.reading import earlier_events, ends_of, reach, read_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["audit_all", "audit_increment", "take_snapshot"]


def take_snapshot(spark: SparkSession, source: Mapping[str, str]) -> Snapshot:
    """Read the server's time and then the messages in Redis; they are kept."""
    import pyarrow.compute as pc
    from pyspark.sql import functions as F

    def table(name: str) -> DataFrame:
        return spark.read.format("qworker").options(**source).option("table", name).load()

    most, columns = few_rows(spark), ["queue", "shard", "message_id", "state", "sent_ts"]
    queues = read_live(source, "queues", most)
    if queues is None:
        taken = table("queues").agg(F.min("snapshot_ts")).collect()[0][0]
    else:
        taken = pc.min(queues.column("snapshot_ts")).as_py()
    few = read_live(source, "messages", most)
    if few is None:
        messages = table("messages").select(*columns).persist()
        messages.count()
    else:
        messages = table_frame(spark, few.select(columns)).coalesce(1)
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
    lake = None if lake is None else lake.pinned()

    def events() -> DataFrame:
        return read_events(spark, lake=lake, source=source, queues=queues, since=window.since)

    ends, earlier = ends_of(lake, queues), earlier_events(lake, window.since)
    judge = partial(audit, window=window, ends=ends, earlier=earlier)
    return _audit(spark, events, judge, source)


def audit_increment(
    spark: SparkSession, *, lake: Lake, source: Mapping[str, str] | None = None
) -> tuple[AuditResult, Increment]:
    """Audit what an archive has got since the last audit of this kind, and messages that had not ended then.

    Returns the last one too (`at` None: all was read). Raises `PipelineError` if it was too long ago, and nothing is
    kept unless the audit ends.
    """
    lake = lake.pinned()
    assert lake.version is not None
    version, last = lake.version, Increment.of(lake)
    last.check_writable()
    seen = last.seen(spark)
    files = [*last.sizes(lake)]

    def events() -> DataFrame:
        beside = 0 if seen is None else seen.rows
        return read_events(spark, lake=lake, source=source, files=files, beside=beside)

    ends, earlier = reach(spark, lake, seen)

    def judge(journal: DataFrame, **given: Any) -> AuditResult:
        def keep(found: Judged) -> None:
            # A vacuum may have deleted files meanwhile: what they had would be missing.
            last.sizes(lake)
            known = carried(found.record, seen, found.composed.named)
            last.keep(
                unfinished(found.rows, found.newest),
                found.record,
                version=version,
                groups=found.composed.kept,
                more={"groups": known.document()},
            )

        return audit(journal, ends=ends, earlier=earlier, seen=seen, on_judged=keep, **given)

    return _audit(spark, events, judge, source), last


def _audit(
    spark: SparkSession,
    events: Callable[[], DataFrame],
    judge: Callable[..., AuditResult],
    source: Mapping[str, str] | None,
) -> AuditResult:
    """Judge events; with the live journal among them beside Redis, and again what it lacks."""
    if source is None:
        return judge(events())

    def again(suspects: DataFrame) -> AuditResult:
        snapshot = take_snapshot(spark, source)
        return judge(events(), snapshot=snapshot, suspects=suspects)

    # The journal is read after the snapshot: it has the ends of messages that ended since.
    snapshot = take_snapshot(spark, source)
    return judge(events(), snapshot=snapshot, again=again)
