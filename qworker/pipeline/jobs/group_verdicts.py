"""The verdict on groups of calls: those whose calls have ended are decided, and were begun.

The ends of calls travel through outboxes: a group may take `IN_TRANSIT` from the end that decides it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from qworker.pipeline.jobs.compositions import GROUP_KEYS, beginnings, calls, groups_frame
from qworker.pipeline.jobs.holes import IN_RECORD, Shard
from qworker.pipeline.jobs.lifecycle import KEYS, lives
from qworker.pipeline.jobs.local import local_frame, together
from qworker.pipeline.jobs.queries import at, query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from qworker.pipeline.jobs.record import Record, Seen
    from qworker.pipeline.jobs.verdicts import Window

__all__ = ["IN_TRANSIT", "judged_groups", "known_since", "made_groups"]

#: How long the end of a call may take until it decides its group.
IN_TRANSIT: Final = timedelta(minutes=10)
_KEYS: Final = ", ".join(GROUP_KEYS)
#: The groups of one id that wait, summed up, in SQL.
_OF_AN_ID: Final = (
    "max(made_ts) as made_ts",
    "max(size) as size",
    "max(policy) as policy",
    # Two groups of an id in different queues: whose call a message is cannot be told.
    "count(1) > 1 as ambiguous",
)
_OK: Final = "state = 'ended' and ok"
_BAD: Final = "state = 'ended' and not coalesce(ok, false)"
_OVER: Final = "state in ('ended', 'dead')"
#: The rows of one call, summed up. One by one: Spark makes a copy of each row for each `count(distinct …)` of a query.
_OF_A_CALL: Final = (
    f"max({_OVER}) as is_over",
    "max(state = 'ended') as has_ended",
    f"max({_OK}) as went_well",
    f"min(if({_OK}, last_ts, null)) as ok_ts",
    f"min(if({_BAD}, last_ts, null)) as bad_ts",
    f"max(if({_OVER}, last_ts, null)) as over_ts",
    # A dead letter may be redriven in a hole; other ends stay.
    "max(state = 'dead' and hidden) as taken_back",
)
#: The calls of a group, summed up.
_OF_CALLS: Final = (
    "count(1) as heard",
    "count(if(is_over, 1, null)) as ended_or_dead",
    "count(if(has_ended, 1, null)) as ended",
    "count(if(went_well, 1, null)) as succeeded",
    "min(ok_ts) as ok_ts",
    "min(bad_ts) as bad_ts",
    "max(over_ts) as over_ts",
    "max(taken_back) as taken_back",
)
#: When the calls of a group, summed up, ended as its policy asks; null if they have not.
_MUST: Final = """
    case
        when policy = 'all' and ended_or_dead = size then over_ts
        when policy = 'successes' and bad_ts is not null then bad_ts
        when policy = 'successes' and succeeded = size then over_ts
        when policy = 'first' and ok_ts is not null then ok_ts
        when policy = 'first' and ended = size then over_ts
    end
"""
_FOREVER: Final = datetime(9999, 1, 1, tzinfo=UTC)

_MADE: Final = f"""
    select *, coalesce(timestamp_millis(made_ms), begun_ts, decided_ts) as made_ts
    from ({beginnings("{composed}")})
"""
#: Groups that wait, by their id.
_WAITING: Final = f"""
    select group_id, {", ".join(_OF_AN_ID)} from {{made}} where begun and decisions = 0 group by group_id
"""
#: The calls of waiting groups: group_id, member, state, ok BOOLEAN, last_ts, hidden BOOLEAN: one of the `gaps` of its
#: shard lies after its last event, and another event may be in it.
_ENDED_CALLS: Final = f"""
    with of_calls as (
        select * from ({calls("{events}")}) join ({_WAITING}) using (group_id)
        where member < size and sent_ts >= made_ts
    )
    select /*+ broadcast(shards) */ group_id, member, state, end_event = 'acked' as ok, last_ts,
        coalesce(exists(gaps, gap -> gap.until > last_ts), false) as hidden
    from ({calls("(" + lives("of_calls") + ")")})
    left join {{shards}} as shards using (queue, shard)
"""
#: The groups that are calls of other groups and ended without their callback: the columns of `_ENDED_CALLS`.
_FAILED_GROUPS: Final = f"""
    with failed as (
        select group_id as message_id, decided_ts
        from ({beginnings("{composed}")})
        where outcome = 'failed'
    )
    select group_id, member, 'ended' as state, false as ok, decided_ts as last_ts, false as hidden
    from ({calls("failed")})
"""
#: One row for each call, and one for all calls of an id.
_EACH_CALL: Final = f"""
    select group_id, member, {", ".join(_OF_A_CALL)} from {{ended}} group by group_id, member
"""
_CALLS_OF_AN_ID: Final = (
    f"select group_id, {', '.join(_OF_CALLS)} from ({_EACH_CALL}) group by group_id"
)
#: When the calls of groups ended as their policy asks: group_id, must_ts, `doubtful`: an end may be taken back.
#: `heard`: how many of its calls have an event.
_DUE: Final = f"""
    select group_id, heard, {_MUST} as must_ts, ambiguous or (policy = 'all' and taken_back) as doubtful
    from ({_WAITING}) join ({_CALLS_OF_AN_ID}) using (group_id)
"""
#: When what follows a group that is not decided had its last event: GROUP_KEYS, follows_ts.
_FOLLOWS: Final = f"""
    select {_KEYS}, max(ts) as follows_ts
    from (select {_KEYS}, made_ts, follows as message_id from {{made}} where decisions = 0)
    join (select {", ".join(KEYS)}, ts, sent_ts from {{events}}) using ({", ".join(KEYS)})
    where message_id <> group_id or sent_ts >= made_ts
    group by {_KEYS}
"""
#: What no earlier run has seen: GROUP_KEYS and `_NEWS`.
_NEWS: Final = ("news_begun", "news_decided")
_FRESH: Final = f"""
    select {_KEYS}, begun as news_begun, decisions > 0 as news_decided
    from ({beginnings("{fresh}")})
"""
#: The columns of a group that a verdict is made of.
_OF_A_GROUP: Final = """
    made.*, heard, must_ts, known_ts, follows_ts, coalesce(reused, false) as reused,
    -- An earlier version decides without telling: then its callback is there, or its run went on.
    decisions = 0 and follows = group_id and follows_ts is not null as sent,
    -- What is missing may be in one of the gaps of its shard, after its time or its position.
    coalesce(exists(gaps, gap -> gap.until > made_ts or gap.at >= first), false)
        or coalesce(doubtful, false) as hidden,
    -- Its beginning is missing: it was before the data, in one of the gaps, or not told.
    coalesce(made_ts <= begun_ts_of_record, false)
        or coalesce(exists(gaps, gap -> gap.until > made_ts and gap.at < first), false) as explained
"""
_OVERDUE: Final = f"must_ts + interval {IN_TRANSIT.total_seconds():.0f} seconds < known_ts"
_ENDS_UNHEARD: Final = (
    "waits and must_ts is null and coalesce(heard, 0) < size and news_begun and not named"
)


def made_groups(composed: DataFrame, window: Window) -> DataFrame:
    """Groups of the window: the columns of `beginnings`, and `made_ts`."""
    return window.cut(query(_MADE, composed=composed), "made_ts")


def judged_groups(
    made: DataFrame,
    composed: DataFrame,
    record: Record,
    taken: datetime | None,
    seen: Seen | None,
) -> DataFrame:
    """The groups of `made_groups` with `must_ts`, `twice`, `undecided`, `unsure`.

    Those that an earlier run has named are not named again.
    """
    shards = _shards(record, taken, seen)
    frames = {"made": made, "events": record.events, "shards": shards}
    # Of two frames: of a union in one query Spark does not know that it is in one partition.
    ended = together(query(_ENDED_CALLS, **frames), query(_FAILED_GROUPS, composed=composed))
    frames["ended"] = ended
    news, joins, ends_read = "true as news_begun, true as news_decided, false as named", "", "false"
    if seen is not None:
        frames["fresh"] = record.fresh
        news = ", ".join(f"coalesce(fresh.{each}, false) as {each}" for each in _NEWS)
        joins += f" left join ({_FRESH}) as fresh using ({_KEYS})"
        if seen.groups.named:
            news += ", named.queue is not null as named"
            joins += f" left join {{named}} as named using ({_KEYS})"
            named = sorted(seen.groups.named, key=str)
            frames["named"] = groups_frame(made.sparkSession, named)
        else:
            news += ", false as named"
        if seen.groups.until is not None:
            # Its calls may have ended in a part of their queues that was read before it began, and was not carried.
            ends_read = f"{_ENDS_UNHEARD} and made_ts < {at(seen.groups.until)}"
    # Not a `with`: Spark takes a third longer to analyse that, and makes the same plan of it.
    known = f"""
        select /*+ broadcast(shards, named) */ {_OF_A_GROUP}, {news}
        from {{made}} as made
        left join ({_DUE}) using (group_id)
        left join ({_FOLLOWS}) using ({_KEYS})
        left join {{shards}} as shards using (queue, shard)
        {joins}
    """
    waiting = f"select *, outcome is null and not sent as waits from ({known})"
    # What follows it was at work after its calls had ended: it was decided, and did not tell.
    gone_on = (
        f"select *, waits and coalesce(follows_ts > must_ts, false) as went_on from ({waiting})"
    )
    late = f"""
        select *, coalesce(waits and not went_on and not named and {_OVERDUE}, false) as late
        from ({gone_on})
    """
    verdict = f"""
        select {_KEYS}, begun, size, policy, decisions, made_ts, must_ts, last_ts,
            case when sent then 'ok' when went_on then 'untold' else outcome end as outcome,
            decisions > 1 and news_decided and not reused as twice, late and not hidden as undecided,
            late and hidden or not begun and news_decided and not explained
                or coalesce({ends_read}, false) as unsure
        from ({late})
    """
    return query(verdict, **frames)


def known_since(record: Record, seen: Seen | None) -> dict[Shard, datetime]:
    """Shard → from when on the beginnings of its groups are known: carried, or among these events."""
    return dict(record.firsts) | ({} if seen is None else dict(seen.groups.begun))


def _shards(record: Record, taken: datetime | None, seen: Seen | None) -> DataFrame:
    """What the record has of each shard.

    queue, shard · known_ts: until when its events are known · begun_ts_of_record: from when on · reused BOOLEAN: two
    histories have the same numbers, and it is not known which counts · gaps: its holes.
    """
    import pyarrow as pa

    holes = [*record.holes, *(() if seen is None else seen.holes)]
    begun = known_since(record, seen)
    lasts = ({} if seen is None else dict(seen.lasts)) | dict(record.lasts)
    time, position = pa.timestamp("us", tz="UTC"), [("epoch", pa.int64()), ("number", pa.int64())]
    schema = pa.schema(
        [
            *(("queue", pa.string()), ("shard", pa.int32())),
            *(("known_ts", time), ("begun_ts_of_record", time), ("reused", pa.bool_())),
            ("gaps", pa.list_(pa.struct([("at", pa.struct(position)), ("until", time)]))),
        ]
    )
    rows = []
    for shard in {*begun, *lasts, *((hole.queue, hole.shard) for hole in holes)}:
        own = [hole for hole in holes if (hole.queue, hole.shard) == shard]
        gaps = [
            {"at": {"epoch": hole.epoch, "number": hole.after}, "until": hole.until or _FOREVER}
            for hole in own
            if hole.why not in IN_RECORD
        ]
        known = lasts.get(shard) if taken is None else taken
        reused = any(hole.why == "used twice" for hole in own)
        rows.append((*shard, known, begun.get(shard), reused, gaps))
    return local_frame(record.events.sparkSession, rows, schema)
