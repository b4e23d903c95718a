"""Random worlds of runs and groups of calls with wrongs in them: the audit names each, and accuses nothing else.

A world is two queues: one of callbacks and runs, one of the calls. Its account is kept while it is made.

    QWORKER_WORLDS=1000 pytest tests/pipeline/test_random_compositions.py -rP    the long form
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from qworker.pipeline.jobs import composition_verdicts as judging
from qworker.pipeline.jobs.audit import audit
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.reading import read_events
from qworker.pipeline.jobs.run_audit import audit_increment
from tests.pipeline.forging import EPOCH, Journal, at, frame, store
from tests.pipeline.object_store import object_store

pytestmark = [pytest.mark.slow, pytest.mark.wrongs, pytest.mark.timeout(1800)]

WORLDS = int(os.environ.get("QWORKER_WORLDS", "40"))
AT_ONCE = 200
HOUR_MS = 3_600_000
#: How a call may have gone: its steps, and how it counts.
CALLS = {
    "ok": "sent@0 delivered@10 acked@20",
    "retried": "sent@0 delivered@10 nacked@20 delivered@30 acked@40",
    "dead": "sent@0 delivered@10 dead@20:rejected",
    "redriven": "sent@0 delivered@10 dead@20:rejected redriven@30 delivered@40 acked@50",
    "discarded": "sent@0 delivered@10 discarded@20",
    "expired": "sent@0 expired@20",
    "dropped": "sent@0 delivered@10 dead@20:rejected purged@30:dead",
    "waits": "sent@0",
    "runs": "sent@0 delivered@10",
    "dead again": "sent@0 delivered@10 dead@20:rejected redriven@30",
}
GOOD, OVER_BAD, DEAD = {"ok", "retried", "redriven"}, {"discarded", "expired", "dropped"}, {"dead"}
KINDS = ("step_twice", "group_decided_twice", "group_undecided", "group_unsure", "group_open")


def decides(policy: str, ends: list[str]) -> str | None:
    """What these ends of calls must have come to: written from the guide, not from the audit."""
    good = sum(end in GOOD for end in ends)
    final = sum(end in GOOD | OVER_BAD for end in ends)
    dead = sum(end in DEAD for end in ends)
    if policy == "all":
        return "ok" if final + dead == len(ends) else None
    if policy == "successes":
        return "ok" if good == len(ends) else "failed" if final > good else None
    return "ok" if good else "failed" if final == len(ends) else None


@dataclass
class World:
    """`found`: kind of finding → what it must name."""

    name: str
    rng: random.Random
    now: int = 0
    made: int = 0
    planted: list[str] = field(default_factory=list)
    found: dict[str, set[str]] = field(default_factory=lambda: {kind: set() for kind in KINDS})
    policies: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.backs = Journal(f"{self.name}-backs")
        self.calls = Journal(f"{self.name}-calls")

    def group(self) -> None:
        """A group with its calls; perhaps it is decided never, twice, or without a beginning."""
        rng, group, begun = self.rng, f"{self.name}-g{self.made}", self.now
        self.made += 1
        policy = self.policies[group] = rng.choice(("all", "all", "successes", "first"))
        size = rng.randint(1, 4)
        if rng.random() < 0.5:
            ends = [rng.choice(sorted(GOOD | DEAD | OVER_BAD)) for _ in range(size)]
        else:
            ends = [rng.choice(sorted(CALLS)) for _ in range(size)]
        outcome = decides(policy, ends)
        plant = rng.choice(("", "", "never", "never", "twice", "unbegun", "earlier version"))
        word = f"{group}:{EPOCH + begun}"
        told, nested = plant != "unbegun", rng.random() < 0.3
        if told:
            reason = f"{word}:{size}:{policy}:{group}"
            self.backs.add(event="group_begun", ts=at(begun), sent_ts=at(begun), reason=reason)
        for number, end in enumerate(ends):
            shifted = " ".join(
                f"{event}@{begun + 5 + int(ms.partition(':')[0])}{''.join(ms.partition(':')[1:])}"
                for event, _, ms in (step.partition("@") for step in CALLS[end].split())
            )
            if nested and end in OVER_BAD:
                # This call was a group, and ended without its callback: it has no message.
                inner = f"{group}.{number}:{EPOCH + begun + 1}"
                for event, rest in (
                    ("group_begun", "1:all:" + f"{group}.{number}"),
                    ("group_decided", "failed:-"),
                ):
                    ts = at(begun + 1 + (event == "group_decided"))
                    self.calls.add(event=event, ts=ts, sent_ts=ts, reason=f"{inner}:{rest}")
            else:
                self.calls.write(f"{group}.{number}", shifted)
        decision = {
            "event": "group_decided",
            "ts": at(begun + 100),
            "sent_ts": at(begun + 100),
            "reason": f"{word}:{outcome}:{group if outcome == 'ok' else '-'}",
        }
        if outcome is None:
            if told:
                self.found["group_open"].add(group)
        elif plant == "never":
            self.found["group_undecided"].add(group)
        elif plant == "earlier version" and outcome == "ok":
            self.backs.write(
                group, f"sent@{begun + 100} delivered@{begun + 110} acked@{begun + 120}"
            )
        else:
            self.backs.add(**decision)
            if plant == "twice":
                self.backs.add(**{**decision, "ts": at(begun + 130)})
                self.found["group_decided_twice"].add(group)
            if not told:
                self.found["group_unsure"].add(group)
        if plant and outcome is not None:
            self.planted.append(plant)
        self.now += 1000

    def run(self) -> None:
        """A run of some steps; perhaps one is recorded twice, or the run is another one of its id."""
        rng, run, begun = self.rng, f"{self.name}-r{self.made}", self.now
        self.made += 1
        self.backs.write(run, f"sent@{begun} delivered@{begun + 10}")
        sent = at(begun)

        def step(name: str, value: int, ms: int, sent_ts: Any = sent) -> None:
            self.backs.add(
                event="step", message_id=run, attempt=1, ts=at(ms), sent_ts=sent_ts, ready_ts=sent_ts,
                reason=f"{name}={value:016x}",
            )  # fmt: skip

        for number in range(rng.randint(1, 4)):
            step(f"s{number}", rng.getrandbits(64), begun + 20 + number)
        plant = rng.choice(("", "", "other value", "same value", "lived again"))
        if plant == "other value":
            step("s0", 7, begun + 40)
        elif plant == "same value":
            step("x%3D", 7, begun + 30)
            step("x%3D", 7, begun + 40)
        if plant.endswith("value"):
            self.found["step_twice"].add(f"{run} {'x=' if plant == 'same value' else 's0'}")
        self.backs.write(run, f"acked@{begun + 60}")
        if plant == "lived again":
            # Its id was free again: the same steps have other values.
            sent2 = at(begun + 500)
            self.backs.sent.pop(run)
            self.backs.write(run, f"sent@{begun + 500} delivered@{begun + 510}")
            step("s0", 9, begun + 520, sent2)
            self.backs.write(run, f"acked@{begun + 560}")
        if plant:
            self.planted.append(plant)
        self.now += 1000

    def hole(self, journal: Journal, kind: str) -> None:
        """A stretch of a journal that nobody read, now."""
        if kind == "off":
            for reason in ("off", "all"):
                journal.add(event="mode", message_id=None, ts=at(self.now), reason=reason)
        else:
            journal.number += 3  # events without a row
        self.planted.append(f"hole: {kind}")
        self.now += 1000
        journal.write(
            f"{self.name}-after", f"sent@{self.now} delivered@{self.now} acked@{self.now}"
        )


def make(seed: int) -> World:
    rng = random.Random(seed)
    world = World(f"w{seed}", rng)
    # So that each journal has an event before its first hole.
    for journal in (world.backs, world.calls):
        journal.write(f"{world.name}-first", "sent@0 delivered@1 acked@2")
    world.now = 100
    hole = rng.choice(("", "", "backs", "calls"))
    for _ in range(rng.randint(1, 3)):
        rng.choice((world.group, world.group, world.run))()
    if hole:
        before = {kind: set(names) for kind, names in world.found.items()}
        kind = rng.choice(("off", "trimmed"))
        if hole == "backs":
            world.hole(world.backs, kind)
            # What may have happened in it is not accused.
            for name in before["group_undecided"]:
                world.found["group_undecided"].discard(name)
                world.found["group_unsure"].add(name)
        else:
            dead = {
                row["message_id"].rpartition(".")[0]
                for row in last_rows(world.calls)
                if row["event"] == "dead"
            }
            # A dead letter may have been redriven in it, so that its group waits again.
            dead &= {name for name, policy in world.policies.items() if policy == "all"}
            world.hole(world.calls, kind)
            for name in before["group_undecided"] & dead:
                world.found["group_undecided"].discard(name)
                world.found["group_unsure"].add(name)
        for _ in range(rng.randint(1, 2)):
            rng.choice((world.group, world.run))()
    # The journal goes on, or ends before anything can be late.
    if rng.random() < 0.8:
        late = world.now + HOUR_MS
        for journal in (world.backs, world.calls):
            journal.write(
                f"{world.name}-last", f"sent@{late} delivered@{late + 1} acked@{late + 2}"
            )
    else:
        world.planted.append("ends early")
        # It is not known whether it is only late.
        late = set(world.found["group_undecided"])
        late |= {name for name in world.found["group_unsure"] if not decided(world, name)}
        world.found["group_undecided"] -= late
        world.found["group_unsure"] -= late
        world.found["group_open"] |= late
    return world


def decided(world: World, group: str) -> bool:
    return any(
        row["event"] == "group_decided" and row["reason"].startswith(f"{group}:")
        for row in world.backs.rows
    )


def last_rows(journal: Journal) -> list[dict[str, Any]]:
    last: dict[str, dict[str, Any]] = {}
    for row in journal.rows:
        if row["message_id"]:
            last[row["message_id"]] = row
    return [*last.values()]


def named(result: Any) -> dict[str, set[str]]:
    """What an audit names, by kind."""
    found: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for kind in KINDS:
        for row in result.samples.get(kind, ()):
            name = row.get("group_id") or f"{row['message_id']} {row['step']}"
            found[kind].add(name)
    return found


def expected(worlds: list[World]) -> dict[str, set[str]]:
    return {kind: set().union(*(world.found[kind] for world in worlds)) for kind in KINDS}


def test_the_audit_agrees_with_the_account_of_random_worlds(spark, monkeypatch, lakes, request):
    """No wrong in silence, and no alarm without one: of rows in memory, and of an archive in each kind of place."""
    monkeypatch.setattr(judging, "SAMPLES", 100_000)
    worlds = [make(seed) for seed in range(WORLDS)]
    for first in range(0, WORLDS, AT_ONCE):
        some = worlds[first : first + AT_ONCE]
        journals = [journal for world in some for journal in (world.backs, world.calls)]
        lake = lakes(first)
        if lake is None:
            events = frame(spark, *journals, many=True).coalesce(2).persist()
        else:
            store(lake, *journals)
            events = read_events(spark, lake=lake).persist()
        result = audit(events)
        events.unpersist()
        assert named(result) == expected(some)
        assert (result.acked_twice, result.started_after_ack, result.duplicate_rows) == (0, 0, 0)
        assert result.group_undecided == len(expected(some)["group_undecided"])
        assert result.group_unsure == len(expected(some)["group_unsure"])
        assert result.step_twice == len(expected(some)["step_twice"])
    planted = Counter(name for world in worlds for name in world.planted)
    print(f"{WORLDS} worlds ({request.node.callspec.id}), planted: {dict(planted)}")
    assert len(planted) >= 9


#: A store costs a minute and a half more, which the long form has.
@pytest.mark.nightly(
    "pipeline/test_audit_compositions.py::test_a_step_is_named_once_and_its_run_is_watched_on"
)
@pytest.mark.parametrize("place", ["directory", "object store"] if WORLDS > 40 else ["directory"])
def test_increments_name_the_same_once(spark, tmp_path, monkeypatch, place):
    """Whenever archives and audits are made: groups that wait, and steps of runs that have not ended, are carried."""
    monkeypatch.setattr(judging, "SAMPLES", 100_000)
    worlds = [make(seed) for seed in range(1000, 1000 + min(WORLDS, AT_ONCE))]
    rng = random.Random(7)
    # A third part, in the long form, carries what was carried.
    parts: list[list[Journal]] = [[] for _ in range(3 if WORLDS > 40 else 2)]
    for world in worlds:
        cuts = sorted(at(rng.uniform(0, world.now)) for _ in parts[1:])
        for journal in (world.backs, world.calls):
            # An archive reads in the order of numbers.
            reached = [
                next((place for place, row in enumerate(journal.rows) if row["ts"] >= cut), None)
                for cut in cuts
            ]
            bounds = [0, *(len(journal.rows) if place is None else place for place in reached)]
            for part, first, end in zip(parts, bounds, [*bounds[1:], None], strict=True):
                part.append(Journal(journal.queue, rows=journal.rows[first:end]))

    def audited(lake: Lake) -> tuple[Counter[str], set[str]]:
        told: Counter[str] = Counter()
        for part in parts:
            store(lake, *[journal for journal in part if journal.rows])
            result, _ = audit_increment(spark, lake=lake)
            found = named(result)
            waiting = found.pop("group_open")
            told.update(f"{kind} {name}" for kind, names in found.items() for name in names)
        return told, waiting

    if place == "directory":
        told, waiting = audited(Lake(tmp_path / "lake"))
    else:
        with object_store() as objects:
            for name, value in objects.environment().items():
                monkeypatch.setenv(name, value)
            told, waiting = audited(Lake(objects.url("lake")))
    wanted = expected(worlds)
    assert waiting == wanted.pop("group_open")
    assert told == Counter(f"{kind} {name}" for kind, names in wanted.items() for name in names)
