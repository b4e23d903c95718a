"""Random worlds of journal, archive and Redis with wrongs in them: the audit names each, and accuses nothing else.

A world is one queue: the lives of some messages, and what was done to their record. Its account is kept while it is
made, and so knows what is missing and why, and which messages are really lost. Many worlds are audited at once; those
of an archive at once, or in two increments.

    QWORKER_WORLDS=1000 pytest tests/pipeline/test_random_wrongs.py -rP         the long form
"""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from qworker.pipeline.jobs import audit as auditing
from qworker.pipeline.jobs import audit_counts
from qworker.pipeline.jobs.audit import Snapshot, audit
from qworker.pipeline.jobs.increment import Increment
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.local import local_frame
from qworker.pipeline.jobs.reading import ends_of, reach, read_events
from qworker.pipeline.jobs.run_audit import audit_increment
from qworker.pipeline.source.offsets import Position, dump
from tests.pipeline.forging import EPOCH, Journal, at, frame, store
from tests.pipeline.test_audit import STORED

pytestmark = [pytest.mark.slow, pytest.mark.wrongs, pytest.mark.timeout(1800)]

WORLDS = int(os.environ.get("QWORKER_WORLDS", "40"))
#: Worlds of one audit.
AT_ONCE = 500
ENDED = (
    "sent@0 delivered@10 acked@20",
    "sent@0 delivered@10 nacked@20 delivered@40 acked@50",
    "sent@0 delivered@10 timed_out@20 delivered@30 acked@44",
    "sent@0 delivered@10 dead@20:rejected",
    "sent@0 delivered@10 dead@20:rejected redriven@30 delivered@40 acked@50",
    "sent@0 delivered@10 dead@20:rejected redriven@30 delivered@40 dead@50:rejected",
    "sent@0 promoted@10 delivered@12 released@20 delivered@24 discarded@30",
    "sent@0 expired@30",
    "sent@0 cancelled@30",
    "sent@0 purged@30:ready",
)
OPEN = ("sent@0", "sent@0 delivered@10", "sent@0 delivered@10 nacked@20")
FINAL = ("acked", "discarded", "expired", "cancelled", "purged")
SPAN_MS = 1000


@dataclass
class World:
    """One queue. `rows`: its record; `stored`: ids in Redis; the rest is the account."""

    name: str
    rng: random.Random
    rows: list[dict[str, Any]] = field(default_factory=list)
    stored: set[str] = field(default_factory=set)
    planted: list[str] = field(default_factory=list)
    holes: list[tuple[str, int, int, int | None]] = field(default_factory=list)
    doubled: int = 0
    lost: set[str] = field(default_factory=set)
    #: Messages that were acked by calls which do not say so.
    unknown: set[str] = field(default_factory=set)
    end: Position | None = None
    #: Whether the archive says how far it reaches.
    has_end: bool = True
    #: In the order in which they came.
    epochs: list[int] = field(default_factory=lambda: [EPOCH])
    number: int = 0
    begun: int = 0
    made: int = 0
    #: The rows as they were written, and those that are there again.
    written: list[dict[str, Any]] = field(default_factory=list)
    copies: list[dict[str, Any]] = field(default_factory=list)

    @property
    def epoch(self) -> int:
        return self.epochs[-1]

    def live(self, most: int = 8) -> dict[str, list[dict[str, Any]]]:
        """Write the lives of some more messages, side by side; returns the rows of each."""
        journal = Journal(self.name, epoch=self.epoch)
        first_of = len(self.rows)
        for _ in range(self.rng.randint(1, most)):
            # Ids of messages or runs, and of the calls of a group.
            message = f"m{self.made}" if self.rng.random() < 0.7 else f"g{self.made}.0"
            begin = self.begun + self.rng.randrange(SPAN_MS // 2)
            self.made += 1
            is_open = self.rng.random() < 0.3
            life = self.rng.choice(OPEN if is_open else ENDED)
            steps = [step.partition("@") for step in life.split()]
            moved = [
                f"{event}@{begin + int(rest.split(':')[0])}{''.join(rest.partition(':')[1:])}"
                for event, _, rest in steps
            ]
            journal.write(message, " ".join(moved))
            if is_open:
                self.stored.add(message)
        journal.sort(self.number)
        # The clock of a server that took over: order is that of the numbers.
        for row in journal.rows:
            if self.rng.random() < 0.2:
                row["ts"] += at(self.rng.choice((-3, 3))) - at(0)
        self.rows += journal.rows
        self.number += len(journal.rows)
        self.begun += SPAN_MS
        lives: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in self.rows[first_of:]:
            lives[row["message_id"]].append(row)
        return lives

    def add(self, like: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
        """Write one more event with the next number."""
        journal = Journal(self.name, epoch=self.epoch, number=self.number)
        given = {
            name: value
            for name, value in (like or {}).items()
            if name not in ("queue", "shard", "epoch", "number", "entry")
        }
        journal.add(
            **{**given, "message_id": "-", **fields} if like is None else {**given, **fields}
        )
        self.rows += journal.rows
        self.number += 1
        self.begun += 10
        return journal.rows[0]

    # -- what happens to messages ---------------------------------------------------------------------------------

    def lose(self) -> None:
        lives = self.live()
        for message in [*lives]:
            if message in self.stored and self.rng.random() < 0.6:
                self.stored.discard(message)
                self.lost.add(message)

    def ack_again(self) -> None:
        acked = [rows[-1] for rows in self.live().values() if rows[-1]["event"] == "acked"]
        for row in acked[:2]:
            self.add(row, ts=at(self.begun))

    def die_again(self) -> None:
        dead = [rows[-1] for rows in self.live().values() if rows[-1]["event"] == "dead"]
        for row in dead[:2]:
            self.add(row, ts=at(self.begun))

    def deliver_late(self) -> None:
        acked = [rows[-1] for rows in self.live().values() if rows[-1]["event"] == "acked"]
        for row in acked[:2]:
            ts = at(self.begun)
            self.add(row, event="delivered", ts=ts, delivered_ts=ts, started_ts=None, run_ms=None)

    def ack_unknown(self) -> None:
        """A call acks some messages, others of it were stale: it only says how many."""
        for message, rows in self.live().items():
            if message in self.stored and "delivered" in [row["event"] for row in rows]:
                self.stored.discard(message)
                self.unknown.add(message)
        self.add(event="unsure", reason="1_of_2", ts=at(self.begun))

    def start_again(self) -> None:
        """A run that has ended is started once more under its id: it ends, waits or is lost."""
        ended = [rows for rows in self.live().values() if rows[-1]["event"] in FINAL]
        for rows in ended[:2]:
            message, sent = rows[0]["message_id"], at(self.begun)
            begun = {"sent_ts": sent, "ready_ts": sent, "attempt": 0}
            self.add(rows[0], event="sent", ts=sent, **begun)
            ts = at(self.begun)
            self.add(rows[0], event="delivered", ts=ts, delivered_ts=ts, **begun)
            what = self.rng.choice(("acked", "stored", "lost"))
            if what == "acked":
                self.add(rows[0], event="acked", ts=at(self.begun), delivered_ts=ts, **begun)
            else:
                (self.stored if what == "stored" else self.lost).add(message)

    # -- what happens to the journal ------------------------------------------------------------------------------

    def set_back(self) -> None:
        """The clock is set back: order is that of the numbers."""
        self.live()
        # Without an end of the archive the order of two epochs is that of their times.
        if self.has_end or len(self.epochs) == 1:
            self.begun -= self.rng.randrange(10_000)
        self.live()

    def switch_off(self) -> None:
        self.live()
        off = self.add(event="mode", reason="off", ts=at(self.begun))
        self.holes.append(("journal off", self.epoch, off["number"], None))
        # What ended meanwhile, or was lost: nothing tells.
        for message in self.rng.sample(sorted(self.stored), len(self.stored) // 2):
            self.stored.discard(message)
        self.add(event="mode", reason="all", ts=at(self.begun))
        self.live()

    def make_anew(self) -> None:
        """The queue is removed and made again, perhaps with the clock set back."""
        self.live()
        self.stored.clear()
        sign = self.rng.choice((-1, 1))
        self.epochs.append(self.epoch + sign * 10_000_000)
        if sign < 0 and self.has_end:
            self.begun -= self.rng.randrange(20_000)
        self.number = 0
        self.holes.append(("new epoch", self.epoch, -1, None))
        self.live()

    def roll_back(self) -> None:
        """Redis comes back as it was some events ago: they count no more, and their numbers are used again."""
        self.live()
        of_epoch = [
            row for row in self.rows if row["epoch"] == self.epoch and row["event"] != "mode"
        ]
        modes = [row["number"] for row in self.rows if row["event"] == "mode"]
        back = self.rng.randint(1, min(6, len(of_epoch), self.number - max(modes, default=-1) - 1))
        first = self.number - back
        forgotten = [row for row in of_epoch if row["number"] >= first]
        known = {(row["message_id"], row["sent_ts"]) for row in self.rows if row not in forgotten}
        for row in forgotten:
            if row["event"] == "mode":
                continue
            if row["event"] == "unsure":
                self.stored |= self.unknown
                continue
            message = row["message_id"]
            if (message, row["sent_ts"]) in known:
                self.stored.add(message)  # as it was before: it had not ended
            else:
                self.stored.discard(message)
        self.number = first
        ts = at(self.begun)
        self.add(event="gap", reason=f"{back} events rolled back: …", ts=ts)
        self.number = first
        self.holes.append(("rolled back", self.epoch, first - 1, back))
        self.live()

    def use_twice(self) -> None:
        """As after a roll back that was not noticed: another event has the number of one that is there."""
        self.live()
        taken = self.rng.choice([row for row in self.rows if row["epoch"] == self.epoch])
        number, self.number = self.number, taken["number"]
        self.add(
            event="sent", message_id=f"m{self.made}", ts=at(self.begun), sent_ts=at(self.begun)
        )
        self.stored.add(f"m{self.made}")
        self.made += 1
        self.number = number
        self.holes.append(("used twice", self.epoch, taken["number"] - 1, 1))

    # -- what happens to the archive ------------------------------------------------------------------------------

    def cut(self, kind: str) -> None:
        """Take a stretch out of the record of the last epoch."""
        rows = [
            row
            for row in self.rows
            if row["epoch"] == self.epoch and row["event"] not in ("gap", "mode")
        ]
        there = Counter(row["number"] for row in rows)
        numbers = {row["number"] for row in rows}
        length = self.rng.randint(1, 6)
        starts = [
            first
            for first in range(self.number)
            if all(there[n] == 1 for n in range(first, first + length))
            # Neighbours stay, so that each hole is one of its own.
            and (first == 0 or first - 1 in numbers)
            and first + length in numbers
        ]
        if kind == "tail":
            starts = (
                [self.number - length]
                if all(there[n] == 1 for n in range(self.number - length, self.number))
                and self.number - length - 1 in numbers
                else []
            )
        if not starts:
            return
        first = self.rng.choice(starts)
        gone = range(first, first + length)
        self.rows = [row for row in self.rows if not (row in rows and row["number"] in gone)]
        why = "file gone" if self.end is not None else "trimmed"
        if kind in ("trimmed", "shed"):
            why = kind
            text = (
                f"{length} events shed"
                if kind == "shed"
                else f"{length} events in {length} entries"
            )
            after = self.number
            self.number = first
            self.add(event="gap", reason=text, ts=at(self.begun))
            self.number = after
        self.planted.append(kind)
        self.holes.append((why, self.epoch, first - 1, length))

    def double(self) -> None:
        """Some rows are there again: a file was copied, or old offsets put back."""
        rows = [row for row in self.rows if row["event"] != "gap" and not forgotten(self, row)]
        if rows:
            first = self.rng.randrange(len(rows))
            again = rows[first : first + self.rng.randint(1, 12)]
            self.copies = [dict(row) for row in again]
            self.doubled += len(again)


def make(seed: int) -> World:
    rng = random.Random(seed)
    world = World(f"w{seed}", rng, has_end=rng.random() < 0.8)
    world.live()
    happens = ["lose", "ack_again", "die_again", "deliver_late", "switch_off", "make_anew"]
    happens += ["ack_unknown", "start_again", "set_back"]
    for name in rng.sample(happens, rng.randint(0, 3)):
        world.planted.append(name)
        getattr(world, name)()
    # At most one of these, last: a later one would change the account of an earlier one.
    last = rng.choice(["", "", "roll_back", "use_twice"])
    # Which events were rolled back is told by the clock.
    told = not {"set_back", "make_anew"} & {*world.planted} and world.rows[-1]["event"] != "mode"
    if last and (last != "roll_back" or told):
        world.planted.append(last)
        getattr(world, last)()
    if world.has_end:
        world.end = Position(world.epoch, world.number, world.number)
    kinds = ["trimmed", "shed", "file"] + (["tail"] if world.end is not None else [])
    for kind in rng.sample(kinds, rng.randint(0, 2)):
        if "roll_back" not in world.planted:
            world.cut(kind)
    if rng.random() < 0.3:
        world.planted.append("double")
        world.double()
    world.written = list(world.rows)
    world.rows += world.copies
    rng.shuffle(world.rows)
    return world


def halves(world: World) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Position]:
    """Divide the rows of a world into two batches, and say where the first one ends.

    No hole reaches over that, and what has the same number is in the same batch, unless it was rolled back between.
    """
    rng, rows = world.rng, world.written
    gaps = [row for row in rows if "rolled back" in (row["reason"] or "")]
    if gaps:
        first, second = rows[: (at_gap := rows.index(gaps[0]))], rows[at_gap:]
        end = Position(world.epoch, row_after(first, world.epoch), row_after(first, world.epoch))
        return first, second + world.copies, end
    order = {epoch: place for place, epoch in enumerate(world.epochs)}
    there = {(row["epoch"], row["number"]) for row in rows if row["event"] != "gap"}
    starts = [
        (epoch, number)
        for epoch, number in sorted(there)
        if number and (epoch, number - 1) in there
    ]
    epoch, number = rng.choice(starts or [(EPOCH, 0)])

    def early(row: dict[str, Any]) -> bool:
        return (order[row["epoch"]], row["number"]) < (order[epoch], number)

    first, second = [row for row in rows if early(row)], [row for row in rows if not early(row)]
    return first, second + world.copies, Position(epoch, number, number)


def row_after(rows: list[dict[str, Any]], epoch: int) -> int:
    return max(row["number"] for row in rows if row["epoch"] == epoch) + 1


def forgotten(world: World, row: dict[str, Any]) -> bool:
    """Whether an event was rolled back; only events of the last epoch are."""
    return any(
        row["epoch"] == gap["epoch"] and row["number"] >= gap["number"] and row["ts"] < gap["ts"]
        for gap in world.rows
        if "rolled back" in (gap["reason"] or "")
    )


def visible(world: World) -> dict[tuple[str, Any], list[dict[str, Any]]]:
    """The events of each life of a message that the record has and that count, each once, in their order."""
    seen, lives = set(), defaultdict(list)
    order = {epoch: place for place, epoch in enumerate(world.epochs)}
    for row in sorted(world.rows, key=lambda row: (order[row["epoch"]], row["number"], row["ts"])):
        key = (row["epoch"], row["number"], row["event"], row["message_id"])
        if row["event"] in ("gap", "mode", "unsure") or forgotten(world, row):
            continue
        if key not in seen:
            seen.add(key)
            lives[row["message_id"], row["sent_ts"]].append(row)
    return lives


def held(world: World, lives: Iterable[tuple[str, Any]], message: str, sent: Any) -> bool:
    """Whether Redis has this life of a message: it is the last one."""
    later = [other for each, other in lives if each == message and other > sent]
    return message in world.stored and not later


def between(world: World, ends: list[dict[str, Any]]) -> bool:
    """Whether a hole lies between the first and the last end of a message: a redrive may be in it."""
    first, last = ends[0], ends[-1]
    return any(
        first["epoch"] == last["epoch"] == epoch and first["number"] <= after < last["number"]
        for why, epoch, after, _ in world.holes
        if why not in ("rolled back", "used twice")
    )


def accounted(world: World) -> dict[str, set[str]]:
    """The messages that the audit must name, by what it says of them, and `hidden` ones: nobody can tell."""
    names = ("acked_twice", "started_after_ack", "lost", "hidden", "undelivered")
    twice, late, lost, hidden, undelivered = account = [set[str]() for _ in names]
    lives = visible(world)
    for (message, sent), rows in lives.items():
        events = [row["event"] for row in rows]
        ends = [row for row in rows if row["event"] in (*FINAL, "dead")]
        redrives = events.count("redriven") - (events[0] == "redriven")
        if events.count("acked") > 1 or (len(ends) > redrives + 1 and not between(world, ends)):
            twice.add(message)
        if "acked" in events and "delivered" in events[events.index("acked") :]:
            late.add(message)
        over = any(event in FINAL for event in events) or events[-1] == "dead"
        if not over and not held(world, lives, message, sent):
            (lost if message in world.lost else hidden).add(message)
            if "delivered" not in events:
                undelivered.add(message)
    return dict(zip(names, account, strict=True))


def check(world: World, found: dict[str, Any]) -> list[str]:
    """Compare the account of a world with what the audit found; returns what does not agree."""
    wrong = []
    if sorted(world.holes, key=str) != sorted(found["holes"], key=str):
        wrong.append(f"holes: {found['holes']} for {world.holes}")
    if world.doubled != found["doubled"]:
        wrong.append(f"doubled: {found['doubled']} for {world.doubled}")
    account = accounted(world)
    lost, hidden, undelivered = account["lost"], account["hidden"], account["undelivered"]
    for kind in ("acked_twice", "started_after_ack"):
        if found[kind] != account[kind]:
            wrong.append(f"{kind}: {found[kind]} for {account[kind]}")
    # Lost for certain if nothing can hide its end; with a hole it may be unsure.
    if not lost <= found["lost"] | found["unsure"]:
        wrong.append(f"silent about {lost - found['lost'] - found['unsure']}")
    # As it may be if it was delivered and a call does not say what it acked.
    doubted = any(row["event"] == "unsure" for row in world.rows)
    sure = lost & undelivered if doubted else lost
    if not any(why not in ("rolled back", "used twice") for why, *_ in world.holes) and not (
        sure <= found["lost"] <= lost
    ):
        wrong.append(f"lost: {found['lost']} for {sure} of {lost}")
    if found["lost"] - lost:
        wrong.append(f"falsely lost: {found['lost'] - lost}")
    if not hidden <= found["unsure"] or found["unsure"] - hidden - lost:
        wrong.append(f"unsure: {found['unsure']} for {hidden} and perhaps {lost}")
    return [f"{world.name} ({', '.join(world.planted)}): {text}" for text in wrong]


def judged(spark, worlds: list[World], lake: Lake | None) -> dict[str, dict[str, Any]]:
    """Audit all worlds at once, in a new archive or in memory; what was found in each."""
    journals = [Journal(world.name, rows=world.rows) for world in worlds]
    ends = {world.name: world.end for world in worlds if world.end is not None}
    if lake is None:
        events = frame(spark, *journals, many=True).coalesce(2).persist()
    else:
        store(lake, *journals, offsets=dump(ends))
        ends = ends_of(lake)
        events = read_events(spark, lake=lake).persist()
    result = audit(events, snapshot=snapshot_of(spark, worlds), ends=ends)
    events.unpersist()
    return found_in(result, worlds)


def snapshot_of(spark, worlds: list[World]) -> Snapshot:
    """What Redis holds: of an id that was taken again the last life."""
    stored = []
    for world in worlds:
        lives: dict[str, Any] = {}
        for message, sent in visible(world):
            lives[message] = max(sent, lives.get(message, sent))
        stored += [(world.name, 0, each, "ready", lives.get(each)) for each in world.stored]
    return Snapshot(at(10_000_000), local_frame(spark, stored, STORED))


def found_in(result, worlds: list[World]) -> dict[str, dict[str, Any]]:
    """Sort findings by their world."""
    found: dict[str, dict[str, Any]] = {
        world.name: {
            "holes": [], "doubled": 0,
            **{kind: set() for kind in ("lost", "unsure", "acked_twice", "started_after_ack", "open")},
        }
        for world in worlds
    }  # fmt: skip
    for hole in result.holes:
        found[hole["queue"]]["holes"].append(
            (hole["why"], hole["epoch"], hole["after"], hole["missing"])
        )
    for row in result.doubled:
        found[row["queue"]]["doubled"] += row["rows"]
    for kind, rows in result.samples.items():
        for row in rows:
            found[row["queue"]][kind].add(row["message_id"])
    return found


def incremented(
    spark, worlds: list[World], lake: Lake
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Audit all worlds in two increments, the second one beside Redis; what was found in each."""
    parts = {world.name: halves(world) for world in worlds}
    ends = {name: end for name, (_, _, end) in parts.items()}
    store(
        lake,
        *(Journal(name, rows=first) for name, (first, _, _) in parts.items() if first),
        offsets=dump(ends),
    )
    begun, _ = audit_increment(spark, lake=lake)
    ends = {world.name: world.end for world in worlds}
    store(
        lake,
        *(Journal(name, rows=second) for name, (_, second, _) in parts.items()),
        offsets=dump(ends),
    )
    lake, last = lake.pinned(), Increment.of(lake)
    seen, files = last.seen(spark), [*last.sizes(lake)]
    events = read_events(spark, lake=lake, files=files).persist()
    ends, earlier = reach(spark, lake, seen)
    then = audit(events, snapshot=snapshot_of(spark, worlds), ends=ends, earlier=earlier, seen=seen)
    events.unpersist()
    return found_in(begun, worlds), found_in(then, worlds)


def check_increments(world: World, begun: dict[str, Any], then: dict[str, Any]) -> list[str]:
    """As `check`: what the first increment named need not be named again, and may have been rolled back since."""
    told = begun["acked_twice"] | begun["started_after_ack"]
    both = {**then, "holes": list({*begun["holes"], *then["holes"]})}
    for kind in ("acked_twice", "started_after_ack"):
        both[kind] = then[kind] | (begun[kind] & accounted(world)[kind])
        both[kind] |= accounted(world)[kind] & told
    wrong = check(replace(world, holes=list({*world.holes})), both)
    if begun["doubled"]:
        wrong.append(f"{world.name}: {begun['doubled']} doubled before any was")
    for kind in ("acked_twice", "started_after_ack"):
        if (false := begun[kind] - accounted(world)[kind]) and "roll_back" not in world.planted:
            wrong.append(f"{world.name} ({', '.join(world.planted)}): falsely {kind}: {false}")
    return wrong


def test_the_audit_agrees_with_the_account_of_random_worlds(spark, monkeypatch, lakes, request):
    """No wrong in silence, and no alarm without one: of rows in memory, and of an archive in each kind of place."""
    monkeypatch.setattr(audit_counts, "SAMPLES", 100_000)
    monkeypatch.setattr(auditing, "HOLES", 100_000)
    worlds = [make(seed) for seed in range(WORLDS)]
    disagreements = []
    for first in range(0, WORLDS, AT_ONCE):
        some = worlds[first : first + AT_ONCE]
        found = judged(spark, some, lakes(first))
        disagreements += [text for world in some for text in check(world, found[world.name])]
    planted = Counter(name for world in worlds for name in world.planted)
    print(
        f"{WORLDS} worlds ({request.node.callspec.id}), {sum(len(world.rows) for world in worlds):,} rows, "
        f"planted: {dict(planted)}"
    )
    assert not disagreements, "\n".join(disagreements)
    assert len(planted) >= 10


@pytest.mark.nightly("pipeline/test_wrongs.py::test_an_increment_tells_what_is_wrong_once")
def test_two_increments_agree_with_the_account_of_random_worlds(spark, monkeypatch, tmp_path):
    """What is new is read, and what is carried; epochs in the order in which they were read."""
    monkeypatch.setattr(audit_counts, "SAMPLES", 100_000)
    monkeypatch.setattr(auditing, "HOLES", 100_000)
    worlds = [world for seed in range(WORLDS) if (world := make(seed)).has_end]
    disagreements = []
    for first in range(0, len(worlds), AT_ONCE):
        some = worlds[first : first + AT_ONCE]
        begun, then = incremented(spark, some, Lake(tmp_path / f"lake{first}"))
        disagreements += [
            text
            for world in some
            for text in check_increments(world, begun[world.name], then[world.name])
        ]
    print(f"{len(worlds)} worlds in two increments")
    assert not disagreements, "\n".join(disagreements)
