"""Runs and groups of calls in incremental audits: what is carried, and that each finding is named once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qworker.pipeline.jobs.audit_result import AuditResult
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.reading import audit_increment
from tests.pipeline.forging import EPOCH, Journal, at, store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HOUR = 3_600_000
FOUND = ("step_twice", "group_decided_twice", "group_undecided", "group_unsure")


class Shop:
    """A queue `backs` of callbacks and runs, and a queue `calls`, whose journals are archived and audited in parts."""

    def __init__(self, spark: Any, lake: Lake) -> None:
        self.spark, self.lake = spark, lake
        self.backs, self.calls = Journal("backs"), Journal("calls")
        self.stored = [0, 0]

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

    def audit(self, *only: Journal) -> AuditResult:
        """Archive what came since, perhaps of one queue alone, and audit that."""
        parts = []
        for number, journal in enumerate((self.backs, self.calls)):
            if only and journal not in only:
                continue
            parts.append(Journal(journal.queue, rows=journal.rows[self.stored[number] :]))
            self.stored[number] = len(journal.rows)
        store(self.lake, *(part for part in parts if part.rows))
        return audit_increment(self.spark, lake=self.lake)[0]


@pytest.fixture
def shop(spark, tmp_path) -> Shop:
    return Shop(spark, Lake(tmp_path / "lake"))


def found(result: AuditResult) -> dict[str, int]:
    return {kind: number for kind in FOUND if (number := getattr(result, kind))}


def test_a_step_is_named_once_and_its_run_is_watched_on(shop):
    """Another step of the same run, recorded again later, is named as well; so is a second ack."""
    shop.backs.write("r", "sent@0 delivered@10")
    for name, value, ms in (("a", 1, 20), ("b", 2, 30), ("a", 3, 40)):
        shop.step("r", name, value, ms)
    first = shop.audit()
    assert found(first) == {"step_twice": 1}
    assert [(row["step"], row["values"]) for row in first.samples["step_twice"]] == [("a", 2)]
    shop.step("r", "b", 2, 50)
    shop.step("r", "c", 4, 60)
    second = shop.audit()
    assert found(second) == {"step_twice": 1}
    assert [(row["step"], row["values"]) for row in second.samples["step_twice"]] == [("b", 1)]
    shop.backs.write("r", "acked@70 acked@80")
    third = shop.audit()
    assert (found(third), third.acked_twice) == ({}, 1)


def test_steps_of_a_run_that_is_a_call_belong_to_the_life_in_which_they_were_recorded(shop):
    """The group was started again under its id, so its calls have the same ids."""
    for ms in (0, 1000):
        shop.backs.sent.pop("g.0", None)
        shop.backs.write("g.0", f"sent@{ms} delivered@{ms + 10}")
        shop.step("g.0", "a", ms, ms + 20)
        shop.backs.write("g.0", f"acked@{ms + 30}")
    assert found(shop.audit()) == {}


def test_a_group_is_named_once_and_its_late_decision_explains_itself(shop):
    """Its calls ended, and it was decided two hours later."""
    shop.begin("g", 0)
    shop.calls.write("g.0", "sent@1 delivered@2 acked@3")
    shop.backs.write("x", f"sent@{HOUR}")
    first = shop.audit()
    assert found(first) == {"group_undecided": 1}
    assert first.groups == {"open": 1}
    shop.backs.write("y", f"sent@{HOUR + 1}")
    assert found(shop.audit()) == {}
    shop.decide("g", 0, 2 * HOUR)
    last = shop.audit()
    assert (found(last), last.groups) == ({}, {"ok": 1})


def test_a_second_decision_is_named_once_and_within_an_hour(shop):
    """In another part than the first one."""
    shop.begin("g", 0)
    shop.calls.write("g.0", "sent@1 delivered@2 acked@3")
    shop.decide("g", 0, 10)
    assert found(shop.audit()) == {}
    shop.decide("g", 0, 1000)
    assert found(shop.audit()) == {"group_decided_twice": 1}
    shop.backs.write("x", "sent@1010")
    assert found(shop.audit()) == {}


def test_a_decision_without_a_beginning_is_unsure_whenever_it_is_read(shop):
    """It is not what an earlier audit has seen and dropped; unless that was of a version that carried no groups."""
    shop.backs.write("x", "sent@0")
    shop.backs.write("y", f"sent@{HOUR}")
    shop.audit()
    shop.decide("g", 1000, HOUR + 1)
    assert found(shop.audit()) == {"group_unsure": 1}
    state = shop.lake.root / "_audit" / "state.json"
    document = json.loads(state.read_text())
    del document["more"]["groups"]
    state.write_text(json.dumps(document))
    shop.decide("h", 1000, HOUR + 2)
    assert found(shop.audit()) == {}


@pytest.mark.parametrize("late", [False, True])
def test_ends_of_calls_that_were_read_long_before_the_beginning_of_their_group_are_a_doubt(
    shop, late
):
    """The queue of the calls was archived for hours, and that of the group was not: the ends were not carried."""
    shop.calls.write("g.0", "sent@1 delivered@2 acked@3")
    shop.calls.write("x", f"sent@{2 * HOUR if late else HOUR // 2}")
    assert found(shop.audit(shop.calls)) == {}
    shop.begin("g", 0)
    shop.backs.write("y", f"sent@{HOUR}")
    # Not carried, it is in doubt; carried, it is judged.
    assert found(shop.audit()) == ({"group_unsure": 1} if late else {"group_undecided": 1})
    shop.backs.write("z", f"sent@{3 * HOUR}")
    assert found(shop.audit()) == {}


def test_a_group_that_was_decided_by_an_earlier_version_is_not_accused_later(shop):
    """Its callback was sent, though no decision is told; that the callback ended long ago does not open it again."""
    shop.begin("g", 0)
    shop.calls.write("g.0", "sent@1 delivered@2 acked@3")
    shop.backs.write("g", "sent@10 delivered@20 acked@30")
    assert found(shop.audit()) == {}
    for hours in (2, 4):
        shop.backs.write(f"x{hours}", f"sent@{hours * HOUR}")
        assert found(shop.audit()) == {}
