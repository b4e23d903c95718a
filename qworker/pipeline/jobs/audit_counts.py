"""The numbers of an audit, and messages as examples of each finding, from lifecycles with their verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from qworker.pipeline.jobs.audit_result import SAMPLES, iso
from qworker.pipeline.jobs.holes import utc
from qworker.pipeline.jobs.lifecycle import LIVES
from qworker.pipeline.jobs.queries import samples_of
from qworker.pipeline.jobs.verdicts import started_late

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Counts", "take_samples"]

_END: Final = "if(state = 'ended', coalesce(end_event, last_event), null) as end"
_SAMPLED: Final = "queue, message_id, task, sent_ts, last_event, last_ts, acks, attempts, stored"


@dataclass(frozen=True, slots=True)
class Counts:
    """Lifecycles by finding, and those that ended by their end.

    `unheard`: the queues without any event `sent`. `newest`: the time of the last event of all; None: there is none.
    """

    found: Mapping[str, int]
    ended: Mapping[str, int]
    unheard: frozenset[str]
    newest: datetime | None

    @classmethod
    def of(cls, rows: DataFrame) -> Counts:
        """Count them in one pass."""
        from pyspark.sql import functions as F

        tests = {
            "messages": "true",
            "dead": "state = 'dead'",
            "redriven": "redrives > 0",
            "open": "state = 'open'",
            "in_redis": "state = 'open' and stored is not null",
            **{name: name for name in ("lost", "acked_twice", "unsure", "delivered_late", "again")},
        }
        sums = ["max(sent_seen) as heard", "max(last_ts) as newest"]
        sums += [f"count(if({test}, 1, null)) as {name}" for name, test in tests.items()]
        groups = rows.groupBy("queue", F.expr(_END)).agg(*map(F.expr, sums)).collect()
        found: Counter[str] = Counter()
        ended: Counter[str] = Counter()
        for row in groups:
            found.update({name: row[name] for name in tests})
            if row.end is not None:
                ended[row.end] += row.messages
        heard = {row.queue for row in groups if row.heard}
        times = [time for row in groups if (time := utc(row.newest)) is not None]
        unheard = frozenset(row.queue for row in groups) - heard
        return cls(found, dict(ended), unheard, max(times, default=None))

    def fields(self, *, in_redis: bool) -> dict[str, Any]:
        """The fields of a result that tell of messages. `in_redis`: it is known what Redis holds."""
        found = self.found
        return {
            "messages": found["messages"],
            "ended": self.ended,
            "dead": found["dead"],
            "redriven": found["redriven"],
            "open": found["open"] - found["lost"],
            "in_redis": found["in_redis"] if in_redis else None,
            "lost": found["lost"] if in_redis else None,
            "acked_twice": found["acked_twice"],
            "unsure": found["unsure"],
        }


def take_samples(
    events: DataFrame, rows: DataFrame, counts: Counts, *, in_redis: bool
) -> tuple[dict[str, list[dict[str, Any]]], int]:
    """Choose messages of each finding; and count those that were started after their ack."""
    found = counts.found
    tests = {name: name for name in ("lost", "acked_twice", "unsure") if found[name]}
    if found["open"] > found["lost"]:
        tests["open"] = "state = 'open' and not lost"
    samples, late_starts = _samples(rows, tests, in_redis), 0
    if found["delivered_late"]:
        late = started_late(events, rows)
        if late_starts := late.count():
            of_late = rows.join(late, list(LIVES), "left_semi")
            samples |= _samples(of_late, {"started_after_ack": "true"}, in_redis)
    return samples, late_starts


def _samples(
    rows: DataFrame, tests: Mapping[str, str], in_redis: bool
) -> dict[str, list[dict[str, Any]]]:
    """The oldest messages for which each test holds."""
    return {
        kind: [
            {
                "queue": row.queue,
                "message_id": row.message_id,
                "task": row.task,
                "sent": iso(utc(row.sent_ts)),
                "last_event": row.last_event,
                "last": iso(utc(row.last_ts)),
                "acks": row.acks,
                "attempts": row.attempts,
                **({"in_redis": row.stored} if in_redis else {}),
            }
            for row in some
        ]
        for kind, some in samples_of(
            rows, tests, _SAMPLED, ("sent_ts", "message_id"), SAMPLES
        ).items()
    }
