"""Audit: did every accepted message end exactly once? Over an archive, the live journal, or both.

A message belongs to the window in which it was sent: every event carries sent_ts, and later events are read to the end
of the data, so the window's end cuts no lifecycle. Messages sent before the window are left out. Without a window, a
message is judged by the events that are there.

    lost               no end, no event since the snapshot of Redis began, and Redis does not have it
    acked_twice        two acks, or a second end without a redrive between
    started_after_ack  a delivery after the ack
    open               no end yet; `in_redis` of them were in the snapshot
    unsure             absent like a lost one, but its end may be in a hole of the journal, or in an event `unsure`: a
                       call whose acks counted only in part
    duplicate_rows     rows that are there again: a copied file, two archivers; no message is accused because of them
    step_twice, group_decided_twice, group_undecided, group_unsure: `qworker.pipeline.jobs.composition_verdicts`
    gaps               holes in the numbers of the journal, and why: `qworker.pipeline.jobs.holes`. A queue that is gone
                       is one if a message of it is unsure: most queues that are removed have nothing left to tell
    untold             the gaps in which anything may have happened: the journal was off, or new, or is gone

**The snapshot of Redis.** Messages move while they are read, so absence alone proves nothing. In order: `taken` = the
server's time; then the messages; then the journal, to its end *after* that. A message counts as lost only if it is not
in the snapshot, has no end in that journal, and no event at or after `taken`: a message that moved during the read has
one (or, if deliveries are not journalled, moved only downstream, in the direction of the read). If any are lost, all is
done again, and only messages that were missing both times are lost. Without a snapshot `lost` is None: unknown.

**Mode `outcomes`** has no `sent`: a message that vanishes before its first event leaves no trace. `unheard` names such
queues, also if the mode was another for a part of the time; there, `lost` covers messages that were received at least
once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from qworker.pipeline.jobs import composition_verdicts
from qworker.pipeline.jobs.audit_counts import Counts, take_samples
from qworker.pipeline.jobs.audit_result import HOLES, AuditResult, iso
from qworker.pipeline.jobs.composition_verdicts import Compositions
from qworker.pipeline.jobs.compositions import is_composed
from qworker.pipeline.jobs.deleted import NOTHING_EARLIER, Earlier
from qworker.pipeline.jobs.holes import GONE, IN_RECORD, UNKNOWN, Hole, Shard, utc
from qworker.pipeline.jobs.lifecycle import KEYS
from qworker.pipeline.jobs.local import kept, together
from qworker.pipeline.jobs.record import Record, Seen, examine
from qworker.pipeline.jobs.verdicts import Snapshot, Window, judged, judged_apart
from qworker.pipeline.source.offsets import Offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["AuditResult", "Judged", "Snapshot", "Window", "audit"]


@dataclass(frozen=True, slots=True)
class Judged:
    """What an audit has read: lifecycles with their verdicts, the record, and what is composed.

    `newest`: the time of the last event of all lifecycles; None: there are none.
    """

    rows: DataFrame
    record: Record
    composed: Compositions
    newest: datetime | None


def audit(
    events: DataFrame,
    *,
    window: Window | None = None,
    snapshot: Snapshot | None = None,
    suspects: DataFrame | None = None,
    ends: Offsets | None = None,
    earlier: Earlier = NOTHING_EARLIER,
    seen: Seen | None = None,
    on_judged: Callable[[Judged], None] = lambda found: None,
    again: Callable[[DataFrame], AuditResult] | None = None,
) -> AuditResult:
    """Audit events (columns of `journal`). They are read several times: persist expensive ones.

    `ends`: the offsets of the archive among the events; `earlier`: events of it that were left out; `seen`: what an
    earlier audit has seen of them. `on_judged` gets what was read before it is dropped. `again`: makes the result if
    messages are lost; it gets those that count as lost or unsure (queue, shard, message_id). `suspects`: these, of an
    earlier snapshot: only they can be lost or unsure.
    """
    window = window or Window()
    record = examine(events, ends, earlier, seen)
    beside = (record, window, snapshot, suspects, seen)
    drop: list[DataFrame] = []
    try:
        rows, counts = _judge(beside, drop)
        if again is not None and counts.found["lost"]:
            gone = kept(rows.where("lost or unsure").select(*KEYS).distinct())
            gone.count()
            for each in drop:
                each.unpersist()
            return again(gone)
        in_redis = snapshot is not None
        samples, late_starts = take_samples(record.events, rows, counts, in_redis=in_redis)
        read = _read(record.events)
        composed = Compositions()
        if read["composed"]:
            taken = None if snapshot is None else snapshot.taken
            composed = composition_verdicts.judge(record, window, taken=taken, seen=seen)
        holes = _holes(record, window, rows, composed)
        on_judged(Judged(rows, record, composed, counts.newest))
        unheard = counts.unheard | {hole.queue for hole in record.unheard if window.reaches(hole)}
        return AuditResult(
            since=window.since,
            until=window.until,
            first_event=utc(read["first"]),
            last_event=utc(read["last"]),
            events=read["events"],
            started_after_ack=late_starts,
            samples={**samples, **composed.samples},
            unheard=tuple(sorted(unheard)),
            **counts.fields(in_redis=in_redis),
            **_record_fields(record, holes),
            **_composed_fields(composed),
        )
    finally:
        for each in drop:
            each.unpersist()


def _judge(
    beside: tuple[Record, Window, Snapshot | None, DataFrame | None, Seen | None],
    drop: list[DataFrame],
) -> tuple[DataFrame, Counts]:
    """Judge lifecycles, and count them; `drop` gets the frames that are kept until the audit ends."""
    # On the disk: a small heap holds neither 10^8 messages nor the part of them that Spark would leave there.
    rows = kept(judged(*beside))
    drop.append(rows)
    counts = Counts.of(rows)
    if not counts.found["again"]:
        return rows, counts
    lives = kept(judged_apart(rows, *beside))
    drop.append(lives)
    rows = together(rows.where("not again"), lives)
    return rows, Counts.of(rows)


def _read(events: DataFrame) -> Any:
    """Count the events of messages: events, first and last time, and whether any is of a run or a group of calls."""
    from pyspark.sql import functions as F

    span = events.where("event not in ('gap', 'mode')").agg(
        F.count(F.lit(1)).alias("events"),
        F.min("ts").alias("first"),
        F.max("ts").alias("last"),
        F.max(is_composed()).alias("composed"),
    )
    return span.collect()[0]


def _holes(record: Record, window: Window, rows: DataFrame, composed: Compositions) -> list[Hole]:
    """The holes that reach the window; a queue that is gone is one only if something of it is in doubt."""
    holes = [hole for hole in record.holes if window.reaches(hole)]
    if not any(hole.why == GONE for hole in holes):
        return holes
    in_doubt = _shards(rows.where("unsure")) | composed.in_doubt
    return [hole for hole in holes if hole.why != GONE or (hole.queue, hole.shard) in in_doubt]


def _record_fields(record: Record, holes: Sequence[Hole]) -> dict[str, Any]:
    """The fields of a result that tell of the record."""
    return {
        "duplicate_rows": sum(record.doubled.values()),
        "gaps": len(holes),
        "untold": sum(hole.why in UNKNOWN for hole in holes),
        "missing": sum(hole.missing or 0 for hole in holes if hole.why not in IN_RECORD),
        "holes": tuple(map(_shown, holes[:HOLES])),
        "doubled": tuple(
            {"queue": queue, "shard": shard, "rows": number}
            for (queue, shard), number in sorted(record.doubled.items())
        ),
    }


def _composed_fields(composed: Compositions) -> dict[str, Any]:
    """The fields of a result that tell of runs and groups of calls."""
    return {
        "steps": composed.steps,
        "step_twice": composed.step_twice,
        "groups": composed.outcomes,
        "groups_begun": composed.begun,
        "group_decided_twice": composed.group_decided_twice,
        "group_undecided": composed.group_undecided,
        "group_unsure": composed.group_unsure,
    }


def _shards(rows: DataFrame) -> set[Shard]:
    return {(row.queue, row.shard) for row in rows.select("queue", "shard").distinct().collect()}


def _shown(hole: Hole) -> dict[str, Any]:
    """A hole as JSON has it."""
    return {
        "queue": hole.queue,
        "shard": hole.shard,
        "epoch": hole.epoch,
        "after": hole.after,
        "missing": hole.missing,
        "from": iso(hole.since),
        "until": iso(hole.until),
        "why": hole.why,
    }
