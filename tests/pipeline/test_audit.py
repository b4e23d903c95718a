"""The audit, on journals made by hand: it is silent where nothing is wrong, and names what is.

Each case is a queue of its own, and all are audited together, once.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from qworker.pipeline.jobs.audit import Audit, Look, Window, audit, lost_ids
from tests.pipeline.forging import T0, Book, at, frame

pytestmark = pytest.mark.slow

STORED = "queue STRING, shard INT, message_id STRING, state STRING"


def clean() -> Book:
    """What a run with killed workers writes: retries, lone timeouts, dead letters, a redrive, and every plain end."""
    book = Book("clean")
    book.write("a", "sent@0 delivered@10 acked@30")
    book.write("b", "sent@1 delivered@10 nacked@40 delivered@90 acked@95")
    book.write("c", "sent@2 delivered@11 timed_out@500 delivered@501 dead@600:max_receives")
    book.write("d", "sent@3 delivered@11 dead@20:rejected redriven@700 delivered@710 acked@720")
    book.write("e", "sent@4 expired@800")
    book.write("f", "sent@5 cancelled@801")
    book.write("g", "sent@6 purged@802:ready")
    book.write("h", "sent@7 delivered@30 dead@40:rejected purged@803:dead")
    book.write("i", "sent@8 promoted@100 delivered@110 released@120 delivered@130 discarded@140")
    # Seen from the middle of its life: dead before the data began.
    book.write("j", "redriven@300 delivered@310 acked@320")
    return book.sort()


def one(queue: str, steps: str, **event) -> Book:
    """A queue with one message, `m`, and perhaps one more event of it."""
    book = Book(queue)
    book.write("m", steps)
    if event:
        book.add(message_id="m", sent_ts=at(0), **event)
    return book


def with_hole() -> Book:
    book = Book("hole")
    book.write("before", "sent@0")
    book.number += 5
    book.write("behind", "sent@50")
    return book


def begun_anew() -> Book:
    book = one("anew", "sent@0")
    book.epoch, book.number = book.epoch + 1, 0
    book.write("m", "acked@50")
    return book


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
    begun_anew(),
    one("unsure", "sent@0 delivered@10 unsure@20"),
    one("unsure-there", "sent@0 delivered@10 unsure@20"),
    one("quiet", "nacked@10 acked@20"),
]
IN_REDIS = [
    ("clean", "c", "dead"),
    ("there", "m", "ready"),
    ("unsure-there", "m", "unacked"),
]


def look(spark, *stored):
    rows = [(queue, 0, message, state) for queue, message, state in stored]
    return Look(at(10_000), spark.createDataFrame(rows, STORED))


@pytest.fixture(scope="module")
def found(spark) -> Audit:
    return audit(frame(spark, *CASES), look=look(spark, *IN_REDIS))


def queues(found: Audit, kind: str) -> set[str]:
    return {row["queue"] for row in found.samples.get(kind, [])}


def test_each_finding_names_the_queues_that_it_is_about_and_no_others(found):
    """So a clean run with retries, kills and a redrive is silent, and so is all else that is as it should be."""
    assert queues(found, "lost") == {"gone", "hole"}
    assert queues(found, "acked_twice") == {
        "ack-ack", "ack-expired", "dead-dead", "dead-acked", "cancelled-expired",
    }  # fmt: skip
    assert queues(found, "started_after_ack") == {"delivered-late", "timed-out-late"}
    assert queues(found, "unsure") == {"hole", "unsure"}
    assert {hole["queue"] for hole in found.holes} == {"hole", "anew"}
    assert found.wrong == {
        "lost": 2, "acked_twice": 5, "started_after_ack": 2, "unsure": 2, "gaps": 2,
    }  # fmt: skip


def test_what_moved_while_redis_was_looked_at_is_open_not_lost(found):
    assert queues(found, "open") == {"there", "moving", "young", "unsure-there"} | {
        "hole",
        "unsure",
    }
    assert found.in_redis == 2


def test_a_message_that_redis_has_not_and_that_never_ended_is_told_with_what_is_known(found):
    sample = next(row for row in found.samples["lost"] if row["queue"] == "gone")
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


def test_a_message_whose_end_may_be_in_a_hole_is_unsure_and_one_behind_it_lost(found):
    ids = {
        kind: [row["message_id"] for row in found.samples[kind] if row["queue"] == "hole"]
        for kind in ("lost", "unsure")
    }
    assert ids == {"lost": ["behind"], "unsure": ["before"]}
    hole = next(hole for hole in found.holes if hole["queue"] == "hole")
    assert (hole["after"], hole["missing"], found.missing) == (0, 5, 5)


def test_a_journal_begun_anew_is_a_gap_of_unknown_size(found):
    hole = next(hole for hole in found.holes if hole["queue"] == "anew")
    assert (hole["missing"], hole["from"]) == (None, "2031-05-04T10:00:00.000+00:00")


def test_a_queue_whose_sends_are_not_journalled_is_named(found):
    assert found.unheard == ("quiet",)


def test_only_what_an_earlier_look_missed_as_well_is_lost(spark):
    book = Book()
    book.write("gone", "sent@0")
    book.write("missed", "sent@1")
    events = book.frame(spark)
    suspects = lost_ids(events, window=Window(), look=look(spark, (book.queue, "missed", "ready")))
    found = audit(events, look=look(spark), suspects=suspects)
    assert [row["message_id"] for row in found.samples["lost"]] == ["gone"]
    assert (found.lost, found.open) == (1, 1)


def test_messages_are_counted_by_their_end_in_the_window_in_which_they_were_sent(spark):
    """And a journal that lacks its beginning has a gap only for who asks for that time."""
    book = Book("window", number=7)
    book.write("before", f"{ACKED} acked@1501")
    book.write("within", "sent@1000 delivered@1010 acked@5000")
    book.write("after", "sent@3000 delivered@3001 acked@3002 acked@3003")
    events = frame(spark, book.sort(7), clean())
    window = Window(T0 + timedelta(seconds=1), T0 + timedelta(seconds=2))
    found = audit(events, window=window)
    assert (found.messages, found.wrong, found.ended) == (1, {}, {"acked": 1})
    found = audit(events)
    assert found.wrong == {"acked_twice": 2, "gaps": 1}
    assert (found.holes[0]["missing"], found.holes[0]["from"]) == (7, None)
    assert (found.messages, found.events, found.dead, found.redriven) == (13, 49, 1, 1)
    assert found.ended == {
        "acked": 7, "expired": 1, "cancelled": 1, "purged": 2, "discarded": 1,
    }  # fmt: skip
    # Nobody looked into Redis.
    assert (found.lost, found.in_redis) == (None, None)


def test_an_empty_journal_is_no_finding(spark):
    found = audit(Book().frame(spark))
    assert (found.events, found.messages, found.wrong, found.first_event) == (0, 0, {}, None)
    assert found.document()["ok"] is True
