"""Runs and groups of calls in incremental audits: what is carried, and that each finding is named once.

Each scenario has queues of its own in one archive, which gets a part of all of them before each of four audits. An
audit remembers the last hour of the whole archive, so the parts end at the same times in all scenarios. The last two
parts, hours later, are audited at night.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from qworker.pipeline.jobs.audit_result import SAMPLES, AuditResult
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.run_audit import audit_increment
from tests.pipeline.forging import EPOCH, Journal, at, store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

T = TypeVar("T")
HOUR = 3_600_000
#: The times of the last events of the parts that the audits read.
ENDS = (HOUR, HOUR + 1000, 3 * HOUR, 4 * HOUR)
FOUND = ("step_twice", "group_decided_twice", "group_undecided", "group_unsure")


class Shop:
    """A queue of callbacks and runs, and a queue of calls. Each part of their journals is archived with the others'."""

    def __init__(self, name: str) -> None:
        #: Its group: an id in two queues would be ambiguous.
        self.group = f"g-{name}"
        self.backs, self.calls = Journal(f"{name}-backs"), Journal(f"{name}-calls")
        self.parts: list[list[Journal]] = []
        self._stored = {self.backs.queue: 0, self.calls.queue: 0}

    def begin(self, group: str, ms: int, size: int = 1) -> None:
        self._add("group_begun", ms, f"{group}:{EPOCH + ms}:{size}:all:{group}")

    def decide(self, group: str, made: int, ms: int) -> None:
        self._add("group_decided", ms, f"{group}:{EPOCH + made}:ok:{group}")

    def step(self, run: str, name: str, value: int, ms: int) -> None:
        sent = at(self.backs.sent[run])
        reason = f"{name}={value:016x}"
        self.backs.add(event="step", message_id=run, ts=at(ms), sent_ts=sent, reason=reason)

    def _add(self, event: str, ms: int, reason: str) -> None:
        self.backs.add(event=event, message_id=None, ts=at(ms), sent_ts=at(ms), reason=reason)

    def archive(self, *only: Journal) -> None:
        """End a part: what came since, perhaps of one queue alone."""
        part = []
        for journal in only or (self.backs, self.calls):
            part.append(Journal(journal.queue, rows=journal.rows[self._stored[journal.queue] :]))
            self._stored[journal.queue] = len(journal.rows)
        self.parts.append([journal for journal in part if journal.rows])


@dataclass
class Audits:
    """The results of the audits, in their order."""

    shops: dict[str, Shop] = field(default_factory=dict)
    results: list[AuditResult] = field(default_factory=list)

    def made(self, each: list[T]) -> list[T]:
        """Of a list with an item for each part, those whose audit was made."""
        return each[: len(self.results)]

    def found(self, name: str) -> list[dict[str, int]]:
        """What each audit has found in the queues of a scenario."""
        of_shop = {shop.queue for shop in (self.shops[name].backs, self.shops[name].calls)}
        return [
            dict(
                Counter(
                    kind for kind in FOUND for row in rows(result, kind) if row["queue"] in of_shop
                )
            )
            for result in self.results
        ]


def rows(result: AuditResult, kind: str) -> list[dict[str, Any]]:
    """All findings of a kind."""
    assert getattr(result, kind) <= SAMPLES
    return result.samples.get(kind, [])


def steps_again(shop: Shop) -> None:
    shop.backs.write("r", "sent@0 delivered@10")
    for name, value, ms in (("a", 1, 20), ("b", 2, 30), ("a", 3, 40)):
        shop.step("r", name, value, ms)
    shop.archive()
    shop.step("r", "b", 2, 50)
    shop.step("r", "c", 4, 60)
    shop.archive()
    shop.backs.write("r", "acked@70 acked@80")
    shop.archive()


def lives(shop: Shop) -> None:
    call = f"{shop.group}.0"
    for ms in (0, 1000):
        shop.backs.sent.pop(call, None)
        shop.backs.write(call, f"sent@{ms} delivered@{ms + 10}")
        shop.step(call, "a", ms, ms + 20)
        shop.backs.write(call, f"acked@{ms + 30}")
    shop.archive()


def late_decision(shop: Shop) -> None:
    call = f"{shop.group}.0"
    shop.begin(shop.group, 0)
    shop.calls.write(call, "sent@1 delivered@2 acked@3")
    shop.backs.write("x", f"sent@{HOUR}")
    shop.archive()
    shop.backs.write("y", f"sent@{HOUR + 1}")
    shop.archive()
    shop.decide(shop.group, 0, 2 * HOUR)
    shop.archive()


def second_decision(shop: Shop) -> None:
    call = f"{shop.group}.0"
    begun = HOUR // 2
    shop.begin(shop.group, begun)
    shop.calls.write(call, f"sent@{begun + 1} delivered@{begun + 2} acked@{begun + 3}")
    shop.decide(shop.group, begun, begun + 10)
    shop.archive()
    shop.decide(shop.group, begun, HOUR + 10)
    shop.archive()
    shop.backs.write("x", f"sent@{HOUR + 2000}")
    shop.archive()


def no_beginning(shop: Shop) -> None:
    shop.backs.write("x", "sent@0")
    shop.backs.write("y", f"sent@{HOUR}")
    shop.archive()
    shop.decide(shop.group, 1000, HOUR + 1)
    shop.archive()
    shop.archive()
    # What the third audit has kept is made that of an earlier version.
    shop.decide(f"{shop.group}-2", 1000, 3 * HOUR + 2)
    shop.archive()


def ends_read_before(shop: Shop, begun: int) -> None:
    call = f"{shop.group}.0"
    shop.calls.write(call, f"sent@{begun + 1} delivered@{begun + 2} acked@{begun + 3}")
    shop.calls.write("x", f"sent@{HOUR}")
    shop.archive(shop.calls)
    shop.begin(shop.group, begun)
    shop.backs.write("y", f"sent@{HOUR}")
    shop.archive()
    shop.backs.write("z", f"sent@{3 * HOUR}")
    shop.archive()
    # That it was named is forgotten before the last audit.
    shop.decide(shop.group, begun, 3 * HOUR + 1)
    shop.archive()


def earlier_version(shop: Shop) -> None:
    call = f"{shop.group}.0"
    shop.begin(shop.group, 0)
    shop.calls.write(call, "sent@1 delivered@2 acked@3")
    shop.backs.write(shop.group, "sent@10 delivered@20 acked@30")
    shop.archive()
    shop.archive()
    for hours in (3, 4):
        shop.backs.write(f"x{hours}", f"sent@{hours * HOUR}")
        shop.archive()


SCENARIOS = {
    "steps": steps_again,
    "lives": lives,
    "late": late_decision,
    "second": second_decision,
    "none": no_beginning,
    "carried": lambda shop: ends_read_before(shop, 1000),
    "dropped": lambda shop: ends_read_before(shop, -2 * HOUR),
    "earlier": earlier_version,
}


@pytest.fixture(
    scope="module",
    params=[
        2,
        pytest.param(
            len(ENDS),
            marks=pytest.mark.nightly("test_a_step_is_named_once_and_its_run_is_watched_on"),
        ),
    ],
)
def audits(spark, tmp_path_factory, request) -> Audits:
    lake, audits = Lake(tmp_path_factory.mktemp("compositions") / "lake"), Audits()
    for name, scenario in SCENARIOS.items():
        scenario(audits.shops.setdefault(name, Shop(name)))
    clock = Journal("clock")
    for part, end in enumerate(ENDS[: request.param]):
        clock.write(f"m{part}", f"sent@{end}")
        parts = [Journal("clock", rows=clock.rows[part:])]
        for shop in audits.shops.values():
            parts += shop.parts[part] if part < len(shop.parts) else []
        assert max(row["ts"] for journal in parts for row in journal.rows) == at(end)
        store(lake, *parts)
        audits.results.append(audit_increment(spark, lake=lake)[0])
        if part == 2:
            _forget_groups(lake)
    return audits


def _forget_groups(lake: Lake) -> None:
    """Make what was kept that of a version that carried no groups."""
    state = lake.root / "_audit" / "state.json"
    document = json.loads(state.read_text())
    del document["more"]["groups"]
    state.write_text(json.dumps(document))


def test_a_step_is_named_once_and_its_run_is_watched_on(audits):
    """Another step of the same run, recorded again later, is named as well; so is a second ack."""
    assert audits.found("steps") == audits.made([{"step_twice": 1}, {"step_twice": 1}, {}, {}])
    named = [
        [(row["step"], row["values"]) for row in rows(r, "step_twice")] for r in audits.results
    ]
    assert named == audits.made([[("a", 2)], [("b", 1)], [], []])
    assert [result.acked_twice for result in audits.results] == audits.made([0, 0, 1, 0])
    for result in audits.results[2:3]:
        assert result.samples["acked_twice"][0]["queue"] == "steps-backs"


def test_steps_of_a_run_that_is_a_call_belong_to_the_life_in_which_they_were_recorded(audits):
    """The group was started again under its id, so its calls have the same ids."""
    assert audits.found("lives") == audits.made([{}, {}, {}, {}])


def test_a_group_is_named_once_and_its_late_decision_explains_itself(audits):
    """Its calls ended, and it was decided two hours later."""
    assert audits.found("late") == audits.made([{"group_undecided": 1}, {}, {}, {}])
    # With those of "second" and "earlier"; then of "second" and "none", and "carried" and "dropped".
    assert audits.results[0].groups == {"ok": 2, "open": 1}
    assert audits.results[1].groups == {"ok": 2, "open": 3}


def test_a_second_decision_is_named_once_and_within_an_hour(audits):
    """In another part than the first one."""
    assert audits.found("second") == audits.made([{}, {"group_decided_twice": 1}, {}, {}])


def test_a_decision_without_a_beginning_is_unsure_whenever_it_is_read(audits):
    """It is not what an earlier audit has seen and dropped; unless that was of a version that carried no groups."""
    assert audits.found("none") == audits.made([{}, {"group_unsure": 1}, {}, {}])
    for result in audits.results[3:]:
        assert result.groups["ok"]


def test_ends_of_calls_that_were_read_long_before_the_beginning_of_their_group_are_a_doubt(audits):
    """The queue of the calls was archived for hours, and that of the group was not: the ends were not carried."""
    # Not carried, it is in doubt; carried, it is judged.
    assert audits.found("dropped") == audits.made([{}, {"group_unsure": 1}, {}, {}])
    assert audits.found("carried") == audits.made([{}, {"group_undecided": 1}, {}, {}])


def test_a_group_that_was_decided_by_an_earlier_version_is_not_accused_later(audits):
    """Its callback was sent, though no decision is told; that the callback ended long ago does not open it again."""
    assert audits.found("earlier") == audits.made([{}, {}, {}, {}])
