"""Lifecycles: the journal's events as one row per message.

A run, or a group of calls, may be started again under its id once the earlier one is forgotten; then there is a row for
each of the lives of the run or of a call. Ids of calls look like those of plain messages (`<id>.<index>`), so they are
found first, by being sent at different times, and counted apart then.
Order within a queue is (epoch, number), never the clock. A message has *ended* after one of ENDS, or it is dead;
`redriven` opens a dead one again. So a message with R redrives dies or ends at most R + 1 times, and only the last of
these may be an end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from qworker.pipeline.jobs.queries import query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    *("DELIVERED", "ENDS", "FINAL_END", "KEYS", "LIVES", "PARKED", "POSITION"),
    *("life", "lifecycles", "lives", "of_life"),
]

#: The columns that name a message.
KEYS: Final = ("queue", "shard", "message_id")
#: The columns that name one life of a message.
LIVES: Final = (*KEYS, "life")
#: Ids that qworker draws, and what is made of them: they are never used again.
_DRAWN_ID: Final = r"^[0-9a-z]{10}[0-9]{10}([-.]|$)"
#: The ids of plain messages, `<lease>.<index>`: each event of one has the time of its own, as long as it has no header.
_PLAIN_ID: Final = r"\.[0-9]+$"

#: Events that end a message. `purged` of a dead letter is not one: the message was dead before.
ENDS: Final = ("acked", "discarded", "expired", "cancelled")
#: Events of a delivery.
DELIVERED: Final = ("delivered", "acked", "nacked", "released", "timed_out", "discarded", "dead")
#: The reasons of releases of runs: what they wait for.
PARKED: Final = ("sleep", "signal", "gather")

# In SQL: Spark reads a text in a fraction of the time in which it gets the calls of a Column one by one.
#: The position of an event in its queue.
POSITION: Final = "struct(epoch, number)"
_ONLY_LIFE: Final = "cast(0 as timestamp)"
#: Whether an event is a final end of a message.
FINAL_END: Final = f"(event in {ENDS} or event = 'purged' and coalesce(reason, '') <> 'dead')"
_OVER: Final = f"({FINAL_END} or event = 'dead')"
_DELIVERY: Final = f"event in {DELIVERED}"
#: When a message was sent, by an event that knows it: without a header a message has the time of each event, and no
#: event `sent`.
_SENDING: Final = (
    f"if((event = 'sent' or sent_ts <> ts) and not message_id rlike r'{_DRAWN_ID}', sent_ts, null)"
)
#: The columns of a lifecycle that sum up its events.
_SUMS: Final = (
    "min(sent_ts) as sent_ts",
    "min(ready_ts) as ready_ts",
    "max(if(event = 'redriven', ts, null)) as redriven_ts",
    "max(event = 'sent') as sent_seen",
    "count(1) as events",
    "count(if(event = 'acked', 1, null)) as acks",
    f"count(if({FINAL_END}, 1, null)) as ends",
    "count(if(event = 'dead', 1, null)) as deaths",
    "count(if(event = 'redriven', 1, null)) as redriven",
    f"min(if(event = 'acked', {POSITION}, null)) as first_ack",
    f"min(if({_DELIVERY}, {POSITION}, null)) as first_delivery",
    f"max(if({_DELIVERY}, {POSITION}, null)) as last_delivery",
    f"min({POSITION}) as first",
    "min(ts) as first_ts",
    f"max({POSITION}) as last",
    f"min_by(event, {POSITION}) as first_event",
    f"max_by(event, {POSITION}) as last_event",
    f"max_by(if({FINAL_END}, event, null), if({FINAL_END}, {POSITION}, null)) as end_event",
    f"min(if({_OVER}, {POSITION}, null)) as first_over",
    f"max(if({_OVER}, {POSITION}, null)) as last_over",
    f"coalesce(min({_SENDING}) < max({_SENDING}), false) as again",
    f"max_by(reason, {POSITION}) as last_reason",
    f"max_by(error_class, {POSITION}) as last_error",
    "max(ts) as last_ts",
    "max(task) as task",
    "max(attempt) as attempts",
    "sum(run_ms) as run_ms",
    "count(if(event = 'step' and not startswith(reason, '!'), 1, null)) as steps",
    f"count(if(event = 'released' and reason in {PARKED}, 1, null)) as parks",
)
#: A final end stays final, regardless of later events. `purged` of a dead letter is none, but nothing is left.
_STATE: Final = """
    case
        when ends > 0 or last_event = 'purged' then 'ended'
        when last_event = 'dead' then 'dead'
        else 'open'
    end as state
"""


def life(*, apart: bool) -> str:
    """Which life of a message an event belongs to: when it was sent; the same for all events of drawn and plain ids."""
    has_one = "false" if apart else f"message_id rlike r'{_DRAWN_ID}|{_PLAIN_ID}'"
    return f"coalesce(if(not {has_one}, sent_ts, null), {_ONLY_LIFE})"


def of_life(sent_ts: str = "sent_ts", life: str = "life") -> str:
    """Whether what was sent at `sent_ts` under the id of a life is of this life."""
    return f"({life} = {_ONLY_LIFE} or {life} <=> {sent_ts})"


def lifecycles(events: DataFrame, *, apart: bool = False) -> DataFrame:
    """The rows of `lives` of events."""
    return query(lives("{events}", apart=apart), events=events)


def lives(events: str, *, apart: bool = False) -> str:
    """One row per message with an event, and per life of one that was sent again under its id, as SQL.

    `events`: a name in SQL. `apart`: they are of messages that were sent `again`, which have lives of their own.

    queue, shard, message_id, life TIMESTAMP · sent_ts (of the header), due_ts (the last redrive, else when it first
    was ready) · sent_seen BOOLEAN · events BIGINT · acks, ends (final ones), deaths, redrives BIGINT (a redrive whose
    death came before the data is left out) · first, last, first_ack, first_delivery, last_delivery, first_over,
    last_over (of ends and deaths) STRUCT<epoch, number>, null without · again BOOLEAN: it was sent at different times,
    and the row is of several lives · last_event, end_event, first_ts, last_ts, last_reason, last_error, task, attempts
    INT · run_ms DOUBLE: the sum of its runs · steps BIGINT: recorded by a run, waits that are over left out · parks
    BIGINT: how often it slept or waited · state STRING: `ended`, `dead` or `open`.
    """
    of_life = life(apart=apart)
    return f"""
        select * except (redriven), redriven - cast(first_event = 'redriven' as int) as redrives,
            coalesce(redriven_ts, ready_ts, sent_ts) as due_ts, {_STATE}
        from (
            select {", ".join(KEYS)}, {of_life} as life, {", ".join(_SUMS)}
            from {events}
            where event not in ('gap', 'mode', 'unreadable', 'unsure')
                and message_id is not null and message_id <> '-'
            group by {", ".join(KEYS)}, {of_life}
        )
    """
