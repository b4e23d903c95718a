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

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    *("DELIVERED", "ENDS", "KEYS", "LIVES", "PARKED"),
    *("final_end", "life", "lifecycles", "of_life", "order"),
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


def order() -> Column:
    """The position of an event in its queue: (epoch, number)."""
    from pyspark.sql import functions as F

    return F.struct("epoch", "number")


def final_end() -> Column:
    """Whether an event is a final end of a message."""
    from pyspark.sql import functions as F

    return F.col("event").isin(*ENDS) | (
        (F.col("event") == "purged") & (F.coalesce("reason", F.lit("")) != "dead")
    )


def life(apart: bool) -> Column:
    """Which life of a message an event belongs to: when it was sent; the same for all events of drawn and plain ids."""
    from pyspark.sql import functions as F

    has_one = F.lit(False) if apart else F.col("message_id").rlike(f"{_DRAWN_ID}|{_PLAIN_ID}")
    begun = F.when(~has_one, F.col("sent_ts"))
    return F.coalesce(begun, _only_life())


def _only_life() -> Column:
    from pyspark.sql import functions as F

    return F.lit(0).cast("timestamp")


def of_life(sent_ts: Column, life: Column) -> Column:
    """Whether what was sent at `sent_ts` under the id of a life is of this life."""
    return (life == _only_life()) | life.eqNullSafe(sent_ts)


def lifecycles(events: DataFrame, *, apart: bool = False) -> DataFrame:
    """One row per message with an event, and per life of one that was sent again under its id.

    `apart`: the events are of messages that were sent `again`, which have lives of their own.

    queue, shard, message_id, life TIMESTAMP · sent_ts (of the header), due_ts (the last redrive, else when it first
    was ready) · sent_seen BOOLEAN · events BIGINT · acks, ends (final ones), deaths, redrives BIGINT (a redrive whose
    death came before the data is left out) · first, last, first_ack, first_delivery, last_delivery, first_over,
    last_over (of ends and deaths) STRUCT<epoch, number>, null without · again BOOLEAN: it was sent at different times,
    and the row is of several lives · last_event, end_event, first_ts, last_ts, last_reason, last_error, task, attempts
    INT · run_ms DOUBLE: the sum of its runs · steps BIGINT: recorded by a run, waits that are over left out · parks
    BIGINT: how often it slept or waited · state STRING: `ended`, `dead` or `open`.
    """
    from pyspark.sql import functions as F

    seen = (
        events.where(
            "event not in ('gap', 'mode', 'unreadable', 'unsure') and message_id is not null and message_id <> '-'"
        )
        .groupBy(*KEYS, life(apart).alias("life"))
        .agg(
            *_sums(),
        )
    )
    # A final end stays final, regardless of later events. `purged` of a dead letter is none, but nothing is left.
    ended = (F.col("ends") > 0) | (F.col("last_event") == "purged")
    return seen.select(
        "*",
        F.coalesce("redriven_ts", "ready_ts", "sent_ts").alias("due_ts"),
        F.when(ended, "ended")
        .when(F.col("last_event") == "dead", "dead")
        .otherwise("open")
        .alias("state"),
    ).withColumn("redrives", F.col("redrives") - (F.col("first_event") == "redriven").cast("int"))


def _sums() -> list[Column]:
    """Make the columns of a lifecycle that sum up its events."""
    from pyspark.sql import functions as F

    event, position = F.col("event"), order()
    delivery = event.isin(*DELIVERED)
    over = final_end() | (event == "dead")
    # Without a header a message has the time of each event, and no event `sent`.
    in_header = (event == "sent") | (F.col("sent_ts") != F.col("ts"))
    chosen = ~F.col("message_id").rlike(_DRAWN_ID)
    sending = F.when(in_header & chosen, F.col("sent_ts"))
    return [
        F.min("sent_ts").alias("sent_ts"),
        F.min("ready_ts").alias("ready_ts"),
        F.max(F.when(event == "redriven", F.col("ts"))).alias("redriven_ts"),
        F.max(event == "sent").alias("sent_seen"),
        F.count(F.lit(1)).alias("events"),
        F.count(F.when(event == "acked", 1)).alias("acks"),
        F.count(F.when(final_end(), 1)).alias("ends"),
        F.count(F.when(event == "dead", 1)).alias("deaths"),
        F.count(F.when(event == "redriven", 1)).alias("redrives"),
        F.min(F.when(event == "acked", position)).alias("first_ack"),
        F.min(F.when(delivery, position)).alias("first_delivery"),
        F.max(F.when(delivery, position)).alias("last_delivery"),
        F.min(position).alias("first"),
        F.min("ts").alias("first_ts"),
        F.max(position).alias("last"),
        F.min_by("event", position).alias("first_event"),
        F.max_by("event", position).alias("last_event"),
        F.max_by(F.when(final_end(), event), F.when(final_end(), position)).alias("end_event"),
        F.min(F.when(over, position)).alias("first_over"),
        F.max(F.when(over, position)).alias("last_over"),
        F.coalesce(F.min(sending) < F.max(sending), F.lit(False)).alias("again"),
        F.max_by("reason", position).alias("last_reason"),
        F.max_by("error_class", position).alias("last_error"),
        F.max("ts").alias("last_ts"),
        F.max("task").alias("task"),
        F.max("attempt").alias("attempts"),
        F.sum("run_ms").alias("run_ms"),
        F.count(F.when((event == "step") & ~F.col("reason").startswith("!"), 1)).alias("steps"),
        F.count(F.when((event == "released") & F.col("reason").isin(*PARKED), 1)).alias("parks"),
    ]
