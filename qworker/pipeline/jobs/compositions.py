"""Runs and groups of calls as the journal has them: their steps, their beginnings and decisions, their calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from qworker.pipeline.jobs.holes import Shard
from qworker.pipeline.jobs.lifecycle import KEYS, POSITION, life
from qworker.pipeline.jobs.local import local_frame
from qworker.pipeline.jobs.queries import query

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = [
    *(
        "GROUP_KEYS",
        "NOTHING_CARRIED",
        "WATCHED",
        "CarriedGroups",
        "Group",
        "KeptGroup",
        "calls",
        "events_of",
    ),
    *("beginnings", "groups", "groups_frame", "is_composed", "steps"),
]

#: The events of compositions; see docs/protocol.md.
_COMPOSED: Final = ("step", "group_begun", "group_decided")
#: How long after its end a message or a group is carried, in case there is another end.
WATCHED: Final = timedelta(hours=1)
#: The columns that name one beginning of a group of calls.
GROUP_KEYS: Final = ("queue", "shard", "group_id", "made_ms")
_STEP: Final = r"^(.*)=([0-9a-f]{16})$"
#: The message of a call of a group.
_CALL: Final = r"^(.*)\.([0-9]{1,9})$"
# What the events of groups say, in SQL.
_WORD: Final = "split(reason, ':')"
#: The columns of GROUP_KEYS that are not those of an event.
_NAME: Final = (f"{_WORD}[0] as group_id", f"try_cast({_WORD}[1] as bigint) as made_ms")
_BEGINS: Final = "event = 'group_begun'"
_DECIDES: Final = "event = 'group_decided'"
#: The columns of a group that sum up its events.
_SUMS: Final = (
    f"max({_BEGINS}) as begun",
    f"max(if({_BEGINS}, try_cast({_WORD}[2] as int), null)) as size",
    f"max(if({_BEGINS}, {_WORD}[3], null)) as policy",
    f"max(if({_BEGINS}, {_WORD}[4], null)) as follows",
    f"min(if({_BEGINS}, ts, null)) as begun_ts",
    f"count(if({_DECIDES}, 1, null)) as decisions",
    f"min_by(if({_DECIDES}, {_WORD}[2], null), if({_DECIDES}, {POSITION}, null)) as outcome",
    f"min(if({_DECIDES}, ts, null)) as decided_ts",
    f"min({POSITION}) as first",
    "max(ts) as last_ts",
)

#: The values of GROUP_KEYS.
Group = tuple[str, int, str, int | None]


class KeptGroup(NamedTuple):
    """A group that the next run needs; `waits`: with the events of its calls."""

    queue: str
    shard: int
    group_id: str
    made_ms: int | None
    waits: bool


@dataclass(frozen=True, slots=True)
class CarriedGroups:
    """What an audit knows of groups beside the events that it carries.

    `begun`: shard → from when on it knows the groups that were begun; `named`: groups that wait and were named for it;
    `until`: what ended earlier, and was in the archive, is not carried.
    """

    begun: Mapping[Shard, datetime]
    named: frozenset[Group] = frozenset()
    until: datetime | None = None

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "begun": [[*shard, since.isoformat()] for shard, since in sorted(self.begun.items())],
            "named": sorted(map(list, self.named), key=str),
            "until": None if self.until is None else self.until.isoformat(),
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> CarriedGroups:
        """Read a `document`. Raises `KeyError`, `TypeError` or `ValueError` if it is none."""
        return cls(
            {
                (queue, shard): datetime.fromisoformat(since)
                for queue, shard, since in document["begun"]
            },
            frozenset(
                (queue, shard, group_id, made_ms)
                for queue, shard, group_id, made_ms in document["named"]
            ),
            None if document["until"] is None else datetime.fromisoformat(document["until"]),
        )


NOTHING_CARRIED: Final = CarriedGroups({})


def is_composed() -> Column:
    """Whether an event is one of a composition."""
    from pyspark.sql import functions as F

    return F.expr(f"event in {_COMPOSED}")


def steps(events: DataFrame) -> DataFrame:
    """Steps that were recorded: queue, shard, message_id, life, sent_ts, step, digest STRING, epoch, number, ts."""
    return events.where("event = 'step'").selectExpr(
        *KEYS,
        f"{life(apart=True)} as life",
        "sent_ts",
        f"regexp_extract(reason, r'{_STEP}', 1) as step",
        f"regexp_extract(reason, r'{_STEP}', 2) as digest",
        "epoch",
        "number",
        "ts",
    )


def groups(events: DataFrame) -> DataFrame:
    """The rows of `beginnings` of events."""
    return query(beginnings("{events}"), events=events)


def beginnings(events: str) -> str:
    """One row per beginning of a group of calls, as SQL. `events`: a name in SQL.

    queue, shard, group_id, made_ms BIGINT · begun BOOLEAN: its beginning is there · size INT, policy, follows (the id
    of its callback, or of the run that waits), begun_ts: null without · decisions BIGINT · outcome, decided_ts: of the
    first one · first STRUCT<epoch, number>: its first event · last_ts.
    """
    return f"""
        select {", ".join(GROUP_KEYS)}, {", ".join(_SUMS)}
        from (
            select *, {", ".join(_NAME)} from {events}
            where event in ('group_begun', 'group_decided')
        )
        group by {", ".join(GROUP_KEYS)}
    """


def calls(events: str) -> str:
    """The events of messages that may be calls of groups, with `group_id` and `member` BIGINT, as SQL."""
    return f"""
        select *, regexp_extract(message_id, r'{_CALL}', 1) as group_id,
            cast(regexp_extract(message_id, r'{_CALL}', 2) as bigint) as member
        from {events}
        where message_id rlike r'{_CALL}'
    """


def events_of(events: DataFrame, kept: Sequence[KeptGroup]) -> DataFrame:
    """The events of these groups, and those of the calls of groups that wait."""
    import pyarrow as pa

    spark, columns = events.sparkSession, events.columns
    named = groups_frame(spark, [group[:4] for group in kept])
    own = (
        events.where("event in ('group_begun', 'group_decided')")
        .selectExpr("*", *_NAME)
        .join(named, list(GROUP_KEYS), "left_semi")
        .select(*columns)
    )
    ids = sorted({(group.group_id,) for group in kept if group.waits})
    waiting = local_frame(spark, ids, pa.schema([("group_id", pa.string())]))
    of_calls = query(calls("{events}"), events=events)
    of_calls = of_calls.join(waiting, ["group_id"], "left_semi").select(*columns)
    return own.unionByName(of_calls)


def groups_frame(spark: SparkSession, some: Iterable[Group]) -> DataFrame:
    """A table of groups: GROUP_KEYS."""
    import pyarrow as pa

    types = (pa.string(), pa.int32(), pa.string(), pa.int64())
    return local_frame(spark, some, pa.schema([*zip(GROUP_KEYS, types, strict=True)]))
