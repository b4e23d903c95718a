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

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from qworker.pipeline.jobs import composition_verdicts
from qworker.pipeline.jobs.audit_result import HOLES, SAMPLES, AuditResult, iso
from qworker.pipeline.jobs.composition_verdicts import Compositions
from qworker.pipeline.jobs.compositions import is_composed
from qworker.pipeline.jobs.deleted import NOTHING_EARLIER, Earlier
from qworker.pipeline.jobs.holes import GONE, IN_RECORD, UNKNOWN, Hole, Shard, utc
from qworker.pipeline.jobs.lifecycle import KEYS, LIVES
from qworker.pipeline.jobs.local import kept, together
from qworker.pipeline.jobs.record import Record, Seen, examine
from qworker.pipeline.jobs.verdicts import Snapshot, Window, judged, judged_apart, started_late
from qworker.pipeline.source.offsets import Offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["AuditResult", "Judged", "Snapshot", "Window", "audit"]

#: The columns of a judged lifecycle that are kept: the rest is not even computed.
_JUDGED: Final = (
    *(*LIVES, "again", "task", "sent_ts", "sent_seen", "last_event", "end_event"),
    *("last_ts", "acks", "redrives", "attempts", "state", "stored", "first_ack"),
    *("lost", "unsure", "acked_twice", "delivered_late"),
)


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
    from pyspark.sql import functions as F

    window = window or Window()
    record = examine(events, ends, earlier, seen)
    events = record.events
    beside = (record, window, snapshot, suspects, seen)
    # On the disk: a small heap holds neither 10^8 messages nor the part of them that Spark would leave there.
    rows = kept(judged(*beside).select(*_JUDGED))
    drop = [rows]
    try:
        sums, ended, unheard, newest = _sums(rows)
        if sums["again"]:
            lives = kept(judged_apart(rows, *beside).select(*_JUDGED))
            drop.append(lives)
            rows = together(rows.where("not again"), lives)
            sums, ended, unheard, newest = _sums(rows)
        if again is not None and sums["lost"]:
            gone = kept(rows.where("lost or unsure").select(*KEYS).distinct())
            gone.count()
            for each in drop:
                each.unpersist()
            return again(gone)
        unheard |= {hole.queue for hole in record.unheard if window.reaches(hole)}
        samples = {
            name: _samples(rows.where(name), snapshot is not None)
            for name in ("lost", "acked_twice", "unsure")
            if sums[name]
        }
        if sums["open"] > sums["lost"]:
            samples["open"] = _samples(
                rows.where("state = 'open' and not lost"), snapshot is not None
            )
        late_starts = 0
        if sums["delivered_late"]:
            late = started_late(events, rows)
            if late_starts := late.count():
                samples["started_after_ack"] = _samples(
                    rows.join(late, list(LIVES), "left_semi"), snapshot is not None
                )
        span = events.where("event not in ('gap', 'mode')").agg(
            F.count(F.lit(1)).alias("events"),
            F.min("ts").alias("first"),
            F.max("ts").alias("last"),
            F.max(is_composed()).alias("composed"),
        )
        read = span.collect()[0]
        taken = None if snapshot is None else snapshot.taken
        found = Compositions()
        if read["composed"]:
            found = composition_verdicts.judge(record, window, taken=taken, seen=seen)
            samples |= found.samples
        holes = [hole for hole in record.holes if window.reaches(hole)]
        if any(hole.why == GONE for hole in holes):
            in_doubt = _shards(rows.where("unsure")) | found.in_doubt
            holes = [h for h in holes if h.why != GONE or (h.queue, h.shard) in in_doubt]
        on_judged(Judged(rows, record, found, newest))
        return AuditResult(
            since=window.since,
            until=window.until,
            first_event=utc(read["first"]),
            last_event=utc(read["last"]),
            events=read["events"],
            messages=sums["messages"],
            ended=ended,
            dead=sums["dead"],
            redriven=sums["redriven"],
            open=sums["open"] - sums["lost"],
            in_redis=sums["in_redis"] if snapshot is not None else None,
            lost=sums["lost"] if snapshot is not None else None,
            acked_twice=sums["acked_twice"],
            started_after_ack=late_starts,
            unsure=sums["unsure"],
            duplicate_rows=sum(record.doubled.values()),
            gaps=len(holes),
            untold=sum(hole.why in UNKNOWN for hole in holes),
            missing=sum(hole.missing or 0 for hole in holes if hole.why not in IN_RECORD),
            steps=found.steps,
            step_twice=found.step_twice,
            groups=found.outcomes,
            groups_begun=found.begun,
            group_decided_twice=found.group_decided_twice,
            group_undecided=found.group_undecided,
            group_unsure=found.group_unsure,
            holes=tuple(map(_shown, holes[:HOLES])),
            doubled=tuple(
                {"queue": queue, "shard": shard, "rows": number}
                for (queue, shard), number in sorted(record.doubled.items())
            ),
            samples=samples,
            unheard=tuple(sorted(unheard)),
        )
    finally:
        for each in drop:
            each.unpersist()


def _shards(rows: DataFrame) -> set[Shard]:
    return {(row.queue, row.shard) for row in rows.select("queue", "shard").distinct().collect()}


def _sums(
    rows: DataFrame,
) -> tuple[Counter[str], dict[str, int], set[str], datetime | None]:
    """Count lifecycles by finding, ended ones by their end; list the queues without any event `sent`.

    And the time of the last event of all.
    """
    from pyspark.sql import functions as F

    tests = {
        "messages": "true",
        "dead": "state = 'dead'",
        "redriven": "redrives > 0",
        "open": "state = 'open'",
        "in_redis": "state = 'open' and stored is not null",
        **{name: name for name in ("lost", "acked_twice", "unsure", "delivered_late", "again")},
    }
    end = F.when(F.col("state") == "ended", F.coalesce("end_event", "last_event"))
    groups = (
        rows.groupBy("queue", end.alias("end"))
        .agg(
            F.max("sent_seen").alias("heard"),
            F.max("last_ts").alias("newest"),
            *(F.count(F.when(F.expr(test), 1)).alias(name) for name, test in tests.items()),
        )
        .collect()
    )
    sums: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    for row in groups:
        sums.update({name: row[name] for name in tests})
        if row.end is not None:
            ended[row.end] += row.messages
    heard = {row.queue for row in groups if row.heard}
    times = [time for row in groups if (time := utc(row.newest)) is not None]
    unheard = {row.queue for row in groups} - heard
    return sums, dict(ended), unheard, max(times, default=None)


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


def _samples(rows: DataFrame, with_redis: bool) -> list[dict[str, Any]]:
    names = ["queue", "message_id", "task", "sent_ts", "last_event", "last_ts", "acks", "attempts"]
    sampled = rows.select(*names, "stored").orderBy("sent_ts", "message_id").limit(SAMPLES)
    return [
        {
            "queue": row.queue,
            "message_id": row.message_id,
            "task": row.task,
            "sent": iso(utc(row.sent_ts)),
            "last_event": row.last_event,
            "last": iso(utc(row.last_ts)),
            "acks": row.acks,
            "attempts": row.attempts,
            **({"in_redis": row.stored} if with_redis else {}),
        }
        for row in sampled.collect()
    ]
