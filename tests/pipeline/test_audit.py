"""The audit, on forged journals: it is silent on a clean one, and names what is wrong.

Each case has its own queue, and all are audited together, once, in several tasks as many events are.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from qworker.pipeline.jobs.audit import AuditResult, Snapshot, Window, audit
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.local import local_frame
from qworker.pipeline.jobs.run_audit import audit_all
from qworker.pipeline.source.schemas import arrow_of
from tests.pipeline.forging import T0, Journal, at, frame, store

pytestmark = pytest.mark.slow

#: The columns of a snapshot.
STORED = pa.schema(
    [
        arrow_of("messages").field(name)
        for name in ("queue", "shard", "message_id", "state", "sent_ts")
    ]
)


def clean() -> Journal:
    """What a run with killed workers writes: retries, lone timeouts, dead letters, a redrive, and every plain end."""
    journal = Journal("clean")
    journal.write("a", "sent@0 delivered@10 acked@30")
    journal.write("b", "sent@1 delivered@10 nacked@40 delivered@90 acked@95")
    journal.write("c", "sent@2 delivered@11 timed_out@500 delivered@501 dead@600:max_receives")
    journal.write("d", "sent@3 delivered@11 dead@20:rejected redriven@700 delivered@710 acked@720")
    journal.write("e", "sent@4 expired@800")
    journal.write("f", "sent@5 cancelled@801")
    journal.write("g", "sent@6 purged@802:ready")
    journal.write("h", "sent@7 delivered@30 dead@40:rejected purged@803:dead")
    journal.write("i", "sent@8 promoted@100 delivered@110 released@120 delivered@130 discarded@140")
    # Seen from the middle of its life: dead before the data began.
    journal.write("j", "redriven@300 delivered@310 acked@320")
    return journal.sort()


def one(queue: str, steps: str, **event) -> Journal:
    """A queue with one message, `m`, and perhaps one more event of it."""
    journal = Journal(queue)
    journal.write("m", steps)
    if event:
        journal.add(message_id="m", sent_ts=at(0), **event)
    return journal


def with_hole() -> Journal:
    journal = Journal("hole")
    journal.write("before", "sent@0")
    journal.number += 5
    journal.write("after", "sent@50")
    return journal


def new_epoch() -> Journal:
    journal = one("anew", "sent@0")
    journal.epoch, journal.number = journal.epoch + 1, 0
    journal.write("m", "acked@50")
    return journal


ACKED = "sent@0 delivered@10 acked@30"
CASES = [
    clean(),
    one("gone", "sent@10 delivered@20 nacked@30"),
    one("there", "sent@10 delivered@20 nacked@30"),
    one("moving", "sent@0 delivered@10 released@10000"),
    one("young", "sent@10001"),
    one("ack-ack", f"{ACKED} acked@40"),
    one("ack-expired", f"{ACKED} expired@40"),
    one("dead-dead", "sent@0 delivered@10 dead@30 dead@40"),
    one("dead-acked", "sent@0 delivered@10 dead@30 acked@40"),
    one("cancelled-expired", "sent@0 cancelled@30 expired@40"),
    one("delivered-late", f"{ACKED} delivered@40 released@50"),
    one("timed-out-late", ACKED, event="timed_out", ts=at(60), delivered_ts=at(35)),
    one("told-late", ACKED, event="released", ts=at(40), delivered_ts=at(10)),
    with_hole(),
    new_epoch(),
    one("unsure", "sent@0 delivered@10 unsure@20"),
    one("unsure-there", "sent@0 delivered@10 unsure@20"),
    one("quiet", "nacked@10 acked@20"),
]
IN_REDIS = [
    ("clean", "c", "dead"),
    ("there", "m", "ready"),
    ("unsure-there", "m", "unacked"),
]


def snapshot(spark, *stored):
    rows = [(queue, 0, message, state, None) for queue, message, state in stored]
    return Snapshot(at(10_000), local_frame(spark, rows, STORED))


@pytest.fixture(scope="module")
def result(spark) -> AuditResult:
    return audit(frame(spark, *CASES, many=True), snapshot=snapshot(spark, *IN_REDIS))


def queues(result: AuditResult, kind: str) -> set[str]:
    return {row["queue"] for row in result.samples.get(kind, [])}


def test_each_finding_names_the_queues_that_it_is_about_and_no_others(result):
    """So a clean run with retries, kills and a redrive is silent, and so is all else that is as it should be."""
    assert queues(result, "lost") == {"gone", "hole"}
    assert queues(result, "acked_twice") == {
        "ack-ack", "ack-expired", "dead-dead", "dead-acked", "cancelled-expired",
    }  # fmt: skip
    assert queues(result, "started_after_ack") == {"delivered-late", "timed-out-late"}
    assert queues(result, "unsure") == {"hole", "unsure"}
    assert {hole["queue"] for hole in result.holes} == {"hole", "anew"}
    assert result.wrong == {
        "lost": 2, "acked_twice": 5, "started_after_ack": 2, "gaps": 1,
    }  # fmt: skip
    assert result.doubts == {"unsure": 2, "untold": 1}


def test_a_message_that_moved_while_redis_was_read_is_open_not_lost(result):
    assert queues(result, "open") == {"there", "moving", "young", "unsure-there"} | {
        "hole",
        "unsure",
    }
    assert result.in_redis == 2


def test_a_message_without_an_end_that_redis_lacks_is_listed_with_its_last_event(result):
    sample = next(row for row in result.samples["lost"] if row["queue"] == "gone")
    assert sample == {
        "queue": "gone",
        "message_id": "m",
        "task": "send_email",
        "sent": "2031-05-04T10:00:00.010+00:00",
        "last_event": "nacked",
        "last": "2031-05-04T10:00:00.030+00:00",
        "acks": 0,
        "attempts": 1,
        "in_redis": None,
    }


def test_a_message_whose_end_may_be_in_a_hole_is_unsure_and_one_after_it_lost(result):
    ids = {
        kind: [row["message_id"] for row in result.samples[kind] if row["queue"] == "hole"]
        for kind in ("lost", "unsure")
    }
    assert ids == {"lost": ["after"], "unsure": ["before"]}
    hole = next(hole for hole in result.holes if hole["queue"] == "hole")
    assert (hole["after"], hole["missing"], result.missing) == (0, 5, 5)


def test_a_new_epoch_is_a_gap_of_unknown_size(result):
    hole = next(hole for hole in result.holes if hole["queue"] == "anew")
    assert (hole["missing"], hole["from"]) == (None, "2031-05-04T10:00:00.000+00:00")


def test_a_queue_whose_sends_are_not_journalled_is_named(result):
    assert result.unheard == ("quiet",)


def test_only_messages_that_two_snapshots_miss_are_lost(spark):
    journal = Journal()
    journal.write("gone", "sent@0")
    journal.write("missed", "sent@1")
    events = journal.frame(spark)
    result = audit(
        events,
        snapshot=snapshot(spark, (journal.queue, "missed", "ready")),
        again=lambda suspects: audit(events, snapshot=snapshot(spark), suspects=suspects),
    )
    assert [row["message_id"] for row in result.samples["lost"]] == ["gone"]
    assert (result.lost, result.open) == (1, 1)


def test_messages_are_counted_by_their_end_in_the_window_in_which_they_were_sent(spark):
    """And a journal that lacks its beginning has a gap only for who asks for that time."""
    journal = Journal("window", number=7)
    journal.write("before", f"{ACKED} acked@1501")
    journal.write("within", "sent@1000 delivered@1010 acked@5000")
    journal.write("after", "sent@3000 delivered@3001 acked@3002 acked@3003")
    events = frame(spark, journal.sort(7), clean())
    window = Window(T0 + timedelta(seconds=1), T0 + timedelta(seconds=2))
    result = audit(events, window=window)
    assert (result.messages, result.wrong, result.ended) == (1, {}, {"acked": 1})
    result = audit(events)
    assert result.wrong == {"acked_twice": 2, "gaps": 1}
    assert (result.holes[0]["missing"], result.holes[0]["from"]) == (7, None)
    assert (result.messages, result.events, result.dead, result.redriven) == (13, 49, 1, 1)
    assert result.ended == {
        "acked": 7, "expired": 1, "cancelled": 1, "purged": 2, "discarded": 1,
    }  # fmt: skip
    # Redis was not read.
    assert (result.lost, result.in_redis) == (None, None)


def test_an_empty_journal_is_not_a_finding(spark):
    result = audit(Journal().frame(spark))
    assert (result.events, result.messages, result.wrong, result.first_event) == (0, 0, {}, None)
    assert result.document()["ok"] is True


def test_days_deleted_for_their_age_are_no_gap_and_files_that_are_gone_still_are(spark, tmp_path):
    """Neither a day between others, nor the first file of a queue that never had a day deleted."""
    lake, day_ms = Lake(tmp_path), 86_400_000
    kept, torn, orders = Journal("kept"), Journal("torn"), Journal("orders")
    for day in range(4):
        for journal in (kept, torn, orders) if day else (kept, torn):
            journal.rows.clear()
            at_ms = day * day_ms
            journal.write(f"m{day}", f"sent@{at_ms} delivered@{at_ms + 1} acked@{at_ms + 2}")
            store(lake, journal)
    back = Journal("back")
    for number, ms in enumerate((-9, 5, -4, -3, 6)):
        back.write(f"m{number}", f"sent@{14 * 3_600_000 + ms}")  # T0 is at ten
    store(lake, back)
    first = Journal("first")
    for number in range(3):
        first.write(f"m{number}", f"sent@{number * day_ms}")
    gone = store(lake, first)[1]
    lake.expire(at(day_ms).date())
    Path(gone.path).unlink()
    for part in ("queue=torn/day=2031-05-06", "queue=orders/day=2031-05-05"):
        for file in (lake.root / part).glob("*.parquet"):
            file.unlink()
    result = audit_all(spark, window=Window(), lake=lake)
    found = [(hole["queue"], hole["missing"]) for hole in result.holes]
    # Of `back` only what was deleted is missing, between events of the day that is kept.
    assert (found, result.messages) == ([("first", 1), ("orders", 3), ("torn", 3)], 10)
