"""Does all that is composed come to one end? Each step of a run with one value, each group of calls decided once.

step_twice           a step of a run was recorded twice: its function ran again though it had a value, or it has two
group_decided_twice  a group of calls was decided twice: its callback was sent, or its run woken, twice
group_undecided      its calls have ended as its policy asks, and ten minutes later it is not decided
group_unsure         it may have been decided in a hole of the journal of its queue; the ends of its calls may have been
                     taken back in a hole of theirs; it is decided without a beginning, which no hole explains (an
                     earlier version does not tell); or an earlier run read the ends of its calls and dropped them

A group belongs to the window in which it was made. Its calls are the messages `<group id>.<number>`; a call that is a
chain has this id in its last step, so a group whose chain ended before stays open here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from qworker.pipeline.jobs.audit_result import SAMPLES, iso
from qworker.pipeline.jobs.compositions import (
    GROUP_KEYS,
    WATCHED,
    CarriedGroups,
    Group,
    KeptGroup,
    is_composed,
    steps,
)
from qworker.pipeline.jobs.group_verdicts import judged_groups, known_since, made_groups
from qworker.pipeline.jobs.holes import Shard, utc
from qworker.pipeline.jobs.lifecycle import KEYS
from qworker.pipeline.jobs.local import kept
from qworker.pipeline.jobs.queries import at, samples_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from qworker.pipeline.jobs.record import Record, Seen
    from qworker.pipeline.jobs.verdicts import Window

__all__ = ["Compositions", "carried", "judge"]

_STEP_KEYS: Final = (*KEYS, "life", "step")
#: A group that waits, and about which nothing is to be said.
_OPEN: Final = "outcome is null and not undecided and not unsure"
#: What is counted of groups, and how.
_KINDS: Final = ("begun", "twice", "undecided", "unsure", "open")
_SUMS: Final = (
    "count(1) as groups",
    *(f"count(if({kind}, 1, null)) as {kind}" for kind in _KINDS[:-1]),
    f"count(if({_OPEN}, 1, null)) as open",
)
#: The samples of groups: the name, the kind that is counted, and the test.
_SAMPLED: Final = (
    ("group_decided_twice", "twice", "twice"),
    ("group_undecided", "undecided", "undecided"),
    ("group_unsure", "unsure", "unsure"),
    ("group_open", "open", _OPEN),
)


@dataclass(frozen=True, slots=True)
class Compositions:
    """What an audit found of runs and groups of calls. `outcomes`: of groups, and how many are `open`.

    `in_doubt`: shards with groups that are unsure.
    """

    steps: int = 0
    step_twice: int = 0
    begun: int = 0
    outcomes: Mapping[str, int] = field(default_factory=dict)
    group_decided_twice: int = 0
    group_undecided: int = 0
    group_unsure: int = 0
    samples: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    in_doubt: frozenset[Shard] = frozenset()
    #: The groups that the next audit needs.
    kept: tuple[KeptGroup, ...] = ()
    #: Groups that wait and were named for it, now or before.
    named: frozenset[Group] = frozenset()


def judge(
    record: Record, window: Window, *, taken: datetime | None = None, seen: Seen | None = None
) -> Compositions:
    """Judge the steps and groups of a record. `taken`: when Redis was read; None: the record is of an archive alone."""
    from pyspark.sql import functions as F

    composed = kept(record.events.where(is_composed()))
    # The events of one of two histories with the same numbers do not count, and it is not known which.
    reused = _in({(hole.queue, hole.shard) for hole in record.holes if hole.why == "used twice"})
    recorded = steps(window.cut(composed))
    again = _recorded_again(recorded).withColumn("in_doubt", reused)
    if seen is not None:
        # What an earlier run has named is not named again.
        again = again.join(steps(record.fresh).select(*_STEP_KEYS), list(_STEP_KEYS), "left_semi")
    made = kept(made_groups(composed, window))
    rows, again = kept(judged_groups(made, composed, record, taken, seen)), kept(again)
    try:
        outcome = F.expr("coalesce(outcome, 'open') as outcome")
        sums = rows.groupBy(outcome).agg(*map(F.expr, _SUMS)).collect()
        total = {kind: sum(row[kind] for row in sums) for kind in _KINDS}
        by_doubt = again.groupBy("in_doubt").count().collect()
        steps_again = {row.in_doubt: row["count"] for row in by_doubt}
        step_twice = steps_again.get(False, 0)
        samples: dict[str, list[dict[str, Any]]] = {}
        if step_twice:
            samples["step_twice"] = _step_samples(again.where("not in_doubt"))
        samples |= _group_samples(
            rows, {name: test for name, kind, test in _SAMPLED if total[kind]}
        )
        doubts = rows.where("unsure").select("queue", "shard").distinct()
        known, named = _known(rows, record, seen) if sums else ((), frozenset())
        return Compositions(
            steps=recorded.count(),
            step_twice=step_twice,
            begun=total["begun"],
            outcomes={row.outcome: row.groups for row in sums},
            group_decided_twice=total["twice"],
            group_undecided=total["undecided"],
            group_unsure=total["unsure"] + steps_again.get(True, 0),
            samples=samples,
            in_doubt=frozenset(map(tuple, doubts.collect())) if total["unsure"] else frozenset(),
            kept=known,
            named=named,
        )
    finally:
        for frame in (composed, made, rows, again):
            frame.unpersist()


def _recorded_again(recorded: DataFrame) -> DataFrame:
    """Steps of one life of a run that were recorded more than once."""
    from pyspark.sql import functions as F

    return (
        recorded.groupBy(*_STEP_KEYS)
        .agg(
            F.count(F.lit(1)).alias("records"),
            F.count_distinct("digest").alias("values"),
            F.max("ts").alias("last_ts"),
        )
        .where("records > 1")
    )


def carried(record: Record, seen: Seen | None, named: frozenset[Group]) -> CarriedGroups:
    """What the next audit knows of groups beside their events."""
    before, until = None if seen is None else seen.groups.until, None
    if record.archived is not None:
        until = min(record.archived, max(_lasts(record, seen)) - WATCHED)
    times = [time for time in (before, until) if time is not None]
    return CarriedGroups(known_since(record, seen), named, max(times, default=None))


def _lasts(record: Record, seen: Seen | None) -> list[datetime]:
    return [*record.lasts.values(), *(() if seen is None else seen.lasts.values())]


def _known(
    rows: DataFrame, record: Record, seen: Seen | None
) -> tuple[tuple[KeptGroup, ...], frozenset[Group]]:
    """The groups that the next audit needs: those that wait, and those that were decided just now.

    And those that wait and were named for it, now or before.
    """
    before = frozenset[Group]() if seen is None else seen.groups.named
    lasts = _lasts(record, seen)
    watched = f"last_ts > {at(max(lasts) - WATCHED)}" if lasts else "false"
    needed = rows.where(f"outcome is null or begun and decisions > 0 and {watched}").selectExpr(
        *GROUP_KEYS, "outcome is null as waits", "undecided or unsure as told"
    )
    kept, named = list[KeptGroup](), set[Group]()
    for row in needed.collect():
        group = (row.queue, row.shard, row.group_id, row.made_ms)
        kept.append(KeptGroup(*group, row.waits))
        if row.waits and (row.told or group in before):
            named.add(group)
    return tuple(kept), frozenset(named)


def _in(shards: Iterable[Shard]) -> Column:
    """Whether a row is of one of these shards."""
    from pyspark.sql import functions as F

    found = F.lit(False)
    for queue, number in sorted(shards):
        found = found | ((F.col("queue") == queue) & (F.col("shard") == number))
    return found


def _step_samples(rows: DataFrame) -> list[dict[str, Any]]:
    return [
        {
            "queue": row.queue,
            "message_id": row.message_id,
            "step": unquote(row.step),
            "records": row.records,
            "values": row["values"],
            "last": iso(utc(row.last_ts)),
        }
        for row in rows.orderBy("last_ts", "message_id", "step").limit(SAMPLES).collect()
    ]


def _group_samples(rows: DataFrame, tests: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """The oldest groups for which each test holds."""
    columns = "queue, group_id, made_ts, size, policy, decisions, outcome, must_ts, last_ts"
    found = samples_of(rows, tests, columns, ("made_ts", "group_id"), SAMPLES)
    return {
        name: [
            {
                "queue": row.queue,
                "group_id": row.group_id,
                "made": iso(utc(row.made_ts)),
                "calls": row["size"],
                "policy": row.policy,
                "decisions": row.decisions,
                "outcome": row.outcome,
                "due": iso(utc(row.must_ts)),
                "last": iso(utc(row.last_ts)),
            }
            for row in some
        ]
        for name, some in found.items()
    }
