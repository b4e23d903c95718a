"""Runs and groups of calls in a report: what Spark counts of them, and their part of the document.

A run is a message that has recorded a step, slept or waited. A group of calls is counted by its beginning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from qworker.pipeline.jobs.compositions import GROUP_KEYS, WATCHED, KeptGroup, groups, is_composed
from qworker.pipeline.jobs.holes import utc
from qworker.pipeline.jobs.lifecycle import LIVES, PARKED, POSITION, life
from qworker.pipeline.jobs.local import kept
from qworker.pipeline.jobs.queries import query
from qworker.pipeline.report.columns import bin_of, rows_of
from qworker.pipeline.report.message_counts import IS_RUN
from qworker.pipeline.report.scope import in_ms
from qworker.pipeline.report.sums import Sums, percentiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Waiting", "count_groups", "count_runs", "groups_of", "runs_of"]

#: Rows of a list of what waits longest.
_SHOWN: Final = 20
_MOST: Final = 500
#: The states of runs and groups, in the order of the page.
_RUN_STATES: Final = ("completed", "dead", "cancelled", "otherwise", "open")
_GROUP_STATES: Final = ("ok", "failed", "cancelled", "otherwise", "open")

#: By workflow and state; bin: of the time from the send to the end, of completed ones.
_RUNS: Final = f"""
    select part, task, kind as state, if(kind = 'completed', {bin_of("us")}, null) as bin,
        count(1) as runs, sum(steps) as steps, sum(us) as took_us
    from (
        select *, unix_micros(last_ts) - unix_micros(sent_ts) as us,
            case
                when state <> 'ended' then state
                when end_event = 'acked' then 'completed'
                when end_event = 'cancelled' then 'cancelled'
                else 'otherwise'
            end as kind
        from {{runs}}
    )
    group by part, task, kind, if(kind = 'completed', {bin_of("us")}, null)
"""
#: Promoted when it was due, or before by a signal; the journal of a held one has no due time, but when it was sent.
_WOKEN: Final = """
    case
        when next.event <> 'promoted' then greatest(next.ready_ts, ts)
        when next.ready_ts > ts then least(next.ready_ts, next.ts)
        else next.ts
    end
"""
#: By workflow and what it waited for: bins of the times from a park to the next activation that was due.
_WAITS: Final = f"""
    select part, workflow as task, reason, {bin_of("us")} as bin, count(1) as waits, sum(us) as us
    from (
        select part, workflow, reason, greatest(unix_micros({_WOKEN}) - unix_micros(ts), 0) as us
        from (
            select event, reason, ts, part, workflow, lead(struct(event, ts, ready_ts)) over (
                partition by {", ".join(LIVES)} order by {POSITION}
            ) as next
            from (select * from {{events}} where event <> 'step')
            join (select {", ".join(LIVES)}, part, task as workflow from {{runs}} where parks > 0)
            using ({", ".join(LIVES)})
        )
        where event = 'released' and reason in {PARKED} and next is not null
    )
    group by part, workflow, reason, {bin_of("us")}
"""
#: `moves`: it may change; `part`: the number of the sums that count it.
_MADE: Final = """
    select *, if(moves, :moving, 0) as part
    from (
        select *, outcome is null as waits, outcome is null or last_ts > :since as moves,
            coalesce(timestamp_millis(made_ms), begun_ts, decided_ts) as made_ts
        from {made}
    )
"""
#: By queue of the callback and outcome; bin: of the time from the beginning to the decision.
_GROUPS: Final = f"""
    select part, queue, state, if(us is not null, {bin_of("us")}, null) as bin,
        count(1) as groups, sum(size) as calls, max(size) as largest, sum(us) as took_us
    from (
        select *, unix_micros(decided_ts) - unix_micros(made_ts) as us,
            case
                when waits then 'open' when outcome in {_GROUP_STATES} then outcome else 'otherwise'
            end as state
        from {{made}}
    )
    group by part, queue, state, if(us is not null, {bin_of("us")}, null)
"""

#: What waits longest, as the document has it.
Waiting = Sequence[dict[str, Any]]


def count_runs(messages: DataFrame, events: DataFrame, *sums: Sums) -> Waiting:
    """Add runs to the tables of `sums` that the column `part` of their messages counts; returns the longest open ones.

    `messages`: lifecycles, as `message_counts.reported` keeps them; `events`: those that they are made of.
    """
    from pyspark.sql import functions as F

    runs = messages.where(IS_RUN).withColumn("task", F.expr("coalesce(task, 'unknown')"))
    lives = events.withColumn("life", F.expr(life(apart=False)))
    queries = {"runs": _RUNS, "waits": _WAITS}
    for name, (part, *key), values in rows_of(queries, "part", runs=runs, events=lives):
        sums[part].add(name, [(tuple(key), values)])
    is_open = runs.where("state = 'open'")
    return [
        {
            "queue": row.queue,
            "id": row.message_id,
            "task": row.task,
            "steps": row.steps,
            "waits_for": row.last_reason if row.last_event == "released" else None,
            "since_ms": in_ms(utc(row.sent_ts)),
        }
        for row in is_open.orderBy("sent_ts", "message_id").limit(_SHOWN).collect()
    ]


def count_groups(events: DataFrame, *sums: Sums) -> tuple[Waiting, tuple[KeptGroup, ...]]:
    """Add groups to the first sums, those that may change to the last; returns the longest open ones and the latter."""
    from pyspark.sql import functions as F

    made = kept(groups(events.where(is_composed())))
    try:
        newest = utc(made.agg(F.expr("max(last_ts)")).collect()[0][0])
        if newest is None:
            return [], ()
        args = {"since": newest - WATCHED, "moving": len(sums) - 1}
        rows = query(_MADE, args, made=made)
        for name, (part, *key), values in rows_of({"groups": _GROUPS}, "part", made=rows):
            sums[part].add(name, [(tuple(key), values)])
        columns = (*GROUP_KEYS, "waits", "made_ts", "size", "policy", "follows")
        moved = rows.where("moves").select(*columns).orderBy("made_ts", "group_id").collect()
        moving = tuple(
            # Their calls are messages, and counted as such.
            KeptGroup(row.queue, row.shard, row.group_id, row.made_ms, waits=False)
            for row in moved
        )
        return [
            {
                "queue": row.queue,
                "id": row.group_id,
                "calls": row["size"],
                "policy": row.policy,
                "run": None if row.follows == row.group_id else row.follows,
                "since_ms": in_ms(utc(row.made_ts)),
            }
            for row in [row for row in moved if row.waits][:_SHOWN]
        ], moving
    finally:
        made.unpersist()


def runs_of(sums: Sums, waiting: Waiting, until_ms: int | None) -> dict[str, Any]:
    """The part of the document about runs: by workflow, what they waited for, and the longest open ones.

    `late`: open for longer than 99 % of the completed runs of their workflow took.
    """
    tasks = []
    for (task,), rows in sums.by("runs", "task"):
        states = _states(rows, _RUN_STATES)
        number, steps = (sum(row[place] for row in rows.values()) for place in (0, 1))
        took = {
            place: (row[0], row[2]) for (state, place), row in rows.items() if state == "completed"
        }
        tasks.append({"task": task, "runs": number, **states, "steps": steps, **percentiles(took)})
    tasks.sort(key=lambda row: (-row["runs"], row["task"]))
    waits = [
        {
            "task": task,
            "reason": reason,
            "waits": sum(row[0] for row in bins.values()),
            **percentiles({place: (row[0], row[1]) for place, row in bins.items()}),
        }
        for (task, reason), bins in sums.by("waits", "task", "reason")
    ]
    waits.sort(key=lambda row: (-row["waits"], row["task"], row["reason"]))
    return {
        "workflows": tasks[:_MOST],
        "waits": waits[:_MOST],
        "open": _aged(waiting, until_ms, {row["task"]: row["p99_ms"] for row in tasks}, "task"),
    }


def groups_of(sums: Sums, waiting: Waiting, until_ms: int | None) -> dict[str, Any]:
    """The part of the document about groups of calls: by queue of the callback, and the longest open ones."""
    queues = []
    for (queue,), rows in sums.by("groups", "queue"):
        number, calls = (sum(row[place] for row in rows.values()) for place in (0, 1))
        took: dict[int, tuple[int, int]] = {}
        for (_, place), row in rows.items():
            if place is not None:
                known = took.get(place, (0, 0))
                took[place] = known[0] + row[0], known[1] + row[3]
        queues.append(
            {
                "queue": queue,
                "groups": number,
                **_states(rows, _GROUP_STATES),
                "calls": calls,
                "largest": max(row[2] for row in rows.values()),
                **percentiles(took),
            }
        )
    queues.sort(key=lambda row: (-row["groups"], row["queue"]))
    return {
        "queues": queues[:_MOST],
        "open": _aged(waiting, until_ms, {row["queue"]: row["p99_ms"] for row in queues}, "queue"),
    }


def _states(rows: Mapping[Any, Sequence[int]], states: Iterable[str]) -> dict[str, int]:
    """Count by state."""
    found: dict[str, int] = defaultdict(int)
    for (state, _), row in rows.items():
        found[state] += row[0]
    return {state: found[state] for state in states}


def _aged(
    waiting: Waiting, until_ms: int | None, usual: Mapping[str, float | None], name: str
) -> Waiting:
    """Add their ages in ms, and whether they are late."""
    aged = []
    for row in waiting:
        age_ms = None if until_ms is None or row["since_ms"] is None else until_ms - row["since_ms"]
        most = usual.get(row[name])
        late = None if age_ms is None or most is None else age_ms > most
        aged.append({**row, "age_ms": age_ms, "late": late})
    return aged
