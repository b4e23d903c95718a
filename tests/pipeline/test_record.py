"""What a record lacks and has twice, on forged journals; the numbers are those of an independent account."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from pyspark.sql import functions

from qworker.errors import ArchiveDamagedError
from qworker.pipeline.jobs import audit_counts
from qworker.pipeline.jobs.archive import read_archive
from qworker.pipeline.jobs.audit import Snapshot, Window, audit
from qworker.pipeline.jobs.audit_result import iso
from qworker.pipeline.jobs.carrying import needed_events
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.lifecycle import LIVES, lifecycles
from qworker.pipeline.jobs.local import local_frame
from qworker.pipeline.jobs.record import Seen, examine
from qworker.pipeline.jobs.run_audit import audit_all, audit_increment
from qworker.pipeline.source.offsets import Position
from tests.pipeline.forging import EPOCH, T0, Journal, at, frame, store
from tests.pipeline.test_audit import STORED

# The first test of the module pays for the jobs of all.
pytestmark = [pytest.mark.slow, pytest.mark.wrongs, pytest.mark.timeout(600)]


def written(queue: str, events: int = 10) -> Journal:
    journal = Journal(queue)
    for number in range(events):
        journal.write(f"m{number}", f"sent@{number * 10}")
    return journal


def set_back() -> Journal:
    """The journal was on again after the clock had been set back."""
    journal = written("set-back")
    for reason, ms in (("off", 100), ("all", 50)):
        journal.add(event="mode", reason=reason, ts=at(ms), message_id="-")
    return journal


def without(journal: Journal, *numbers: int) -> Journal:
    journal.rows = [row for row in journal.rows if row["number"] not in numbers]
    return journal


def again(journal: Journal, *numbers: int) -> Journal:
    journal.rows += [row for row in journal.rows if row["number"] in numbers]
    return journal


def hidden() -> Journal:
    """Missing rows and doubled ones whose number and sum are the same."""
    return again(without(written("hidden", 60), 0, 30), 10, 20)


def balanced() -> Journal:
    """As many are missing as are there twice, with the same sum: 1 + 7 = 3 + 5."""
    return again(without(written("balanced"), 1, 7), 3, 5)


def told() -> Journal:
    """The reader has said why numbers are missing: in the middle, and at the end."""
    journal = without(written("told", 12), 4, 5, 10, 11)
    journal.rows[-1]["ts"] = at(500)
    for number, reason in ((4, "2 events shed"), (10, "2 events in 1 entries")):
        journal.number = number
        journal.add(event="gap", reason=reason, ts=at(600))
    return journal


def reused() -> Journal:
    """Two events with one number, and no word about it."""
    journal = written("reused")
    journal.number = 9
    journal.write("other", "sent@95")
    return journal


def rolled_back() -> Journal:
    """From 6 on all is forgotten, and two others are written under these numbers."""
    journal = written("rolled-back")
    journal.number = 6
    journal.add(event="gap", reason="4 events rolled back: …", ts=at(200))
    journal.number = 6
    journal.write("new", "sent@200 acked@210")
    return journal


def unsaid() -> Journal:
    """The journal was turned off, and that was rolled back."""
    journal = written("unsaid", 8)
    journal.add(event="mode", reason="off", ts=at(100), message_id="-")
    journal.number = 6
    journal.add(event="gap", reason="3 events rolled back: …", ts=at(200))
    journal.number = 6
    journal.write("new", "sent@200")
    return journal


def off() -> Journal:
    journal = written("off")
    for reason, ms in (("off", 100), ("off", 120), ("all", 150), ("off", 300)):
        journal.add(event="mode", reason=reason, ts=at(ms), message_id="-")
    return journal


ENDS = {
    "cut": Position(EPOCH, 12, 12),
    "clean": Position(EPOCH, 10, 10),
    "gone/2": Position(EPOCH, 7, 70),
    "told": Position(EPOCH, 12, 12),
    "inside": Position(EPOCH, 10, 10),
}


@pytest.fixture(scope="module")
def record(spark):
    journals = [
        written("clean"),
        again(written("twice"), 0, 4, 9),
        balanced(),
        hidden(),
        told(),
        reused(),
        rolled_back(),
        unsaid(),
        off(),
        set_back(),
        written("cut"),
        without(written("inside"), 3, 4),
        without(written("late"), 0, 1),
    ]
    found = examine(frame(spark, *journals).coalesce(1).persist(), ENDS)
    found.events.persist()
    return found


def holes(record, queue):
    return [(hole.why, hole.after, hole.missing) for hole in record.holes if hole.queue == queue]


def test_holes_are_named_with_their_number_and_their_cause(record):
    found = {queue: holes(record, queue) for queue in sorted({hole.queue for hole in record.holes})}
    assert found == {
        "balanced": [("trimmed", 0, 1), ("trimmed", 6, 1)],
        "cut": [("file gone", 9, 2)],
        "gone": [("file gone", -1, 70)],
        "hidden": [("trimmed", -1, 1), ("trimmed", 29, 1)],
        "inside": [("file gone", 2, 2)],
        "late": [("trimmed", -1, 2)],
        "off": [("journal off", 10, None), ("journal off", 13, None)],
        "reused": [("used twice", 8, 1)],
        "rolled-back": [("rolled back", 5, 4)],
        "set-back": [("journal off", 10, None)],
        "told": [("shed", 3, 2), ("trimmed", 9, 2)],
        "unsaid": [("rolled back", 5, 3)],
    }


def test_a_hole_lies_between_the_times_of_its_neighbours(record):
    times = {
        (hole.queue, hole.after): (hole.since, hole.until)
        for hole in record.holes
        if hole.queue in ("inside", "cut", "off", "late")
    }
    assert times == {
        ("inside", 2): (at(20), at(50)),
        ("cut", 9): (at(90), None),
        ("late", -1): (None, at(20)),
        ("off", 10): (at(100), at(150)),
        ("off", 13): (at(300), None),
    }
    assert all(hole.shard == (2 if hole.queue == "gone" else 0) for hole in record.holes)


def test_rows_that_are_there_again_are_counted_and_left_out(record):
    assert record.doubled == {("twice", 0): 3, ("balanced", 0): 2, ("hidden", 0): 2}
    left = {row.queue: row["count"] for row in record.events.groupBy("queue").count().collect()}
    assert (left["twice"], left["balanced"], left["hidden"], left["reused"]) == (10, 8, 58, 11)


def test_what_was_rolled_back_counts_no_more(record):
    rows = record.events.where("queue = 'rolled-back' and event <> 'gap'").orderBy("number")
    assert [(row.number, row.message_id) for row in rows.collect()] == [
        *((number, f"m{number}") for number in range(6)), (6, "new"), (7, "new"),
    ]  # fmt: skip


def test_a_record_of_nothing_is_whole_but_for_what_the_archive_had(spark):
    assert examine(Journal().frame(spark)).holes == ()
    (hole,) = examine(Journal().frame(spark), {"q": Position(EPOCH, 1, 3)}).holes
    assert (hole.queue, hole.why, hole.missing) == ("q", "file gone", 3)


@pytest.mark.bad_input("archive: rows of another program")
def test_rows_without_a_number_are_refused(spark):
    """No count would tell whether any of them is missing or there twice."""
    journal = written("foreign", 3)
    journal.rows[1]["number"] = None
    with pytest.raises(
        ArchiveDamagedError, match="queue foreign: 1 row without queue or number: qworker did not"
    ):
        examine(frame(spark, journal))


def test_epochs_follow_each_other_by_time(spark):
    """A queue made again while the clock was set back has an earlier epoch, and later events."""
    later, earlier = written("q"), Journal("q", epoch=EPOCH - 5)
    earlier.write("m", "sent@1000")
    record = examine(frame(spark, later, earlier))
    (hole,) = record.holes
    assert (hole.why, hole.epoch, hole.missing) == ("new epoch", EPOCH - 5, None)
    assert hole.until - hole.since == timedelta(milliseconds=910)
    assert record.present == {("q", 0): None}


def renewed(queue: str) -> tuple[Journal, Journal]:
    """Ten events, and of the queue that was made again five, by number and by time before them."""
    first, again = written(queue), Journal(queue, epoch=EPOCH - 5)
    for number in range(5):
        again.write(f"n{number}", f"sent@{number - 500}")
    return first, again


def test_the_reader_says_which_epoch_is_the_last_one(spark, monkeypatch):
    """Also if the clock was set back so far that its events are earlier: messages of the other one are unsure."""
    monkeypatch.setattr(audit_counts, "SAMPLES", 1000)
    stored = frame(spark, *renewed("later"), *renewed("former"), *renewed("alone"), written("live"))
    stored = stored.withColumn("live", functions.lit(False))
    live = renewed("live")[1].frame(spark).withColumn("live", functions.lit(True))
    events = stored.unionByName(live).coalesce(1).persist()
    ends = {
        "later": Position(EPOCH - 5, 5, 5),
        "former": Position(EPOCH, 10, 10),
        "live": Position(EPOCH, 10, 10),
    }
    record = examine(events, ends)
    assert {(hole.queue, hole.epoch, hole.why) for hole in record.holes} == {
        ("later", EPOCH - 5, "new epoch"),
        ("former", EPOCH, "new epoch"),
        ("live", EPOCH - 5, "new epoch"),
        ("alone", EPOCH, "new epoch"),
    }
    last = {"later": EPOCH - 5, "former": EPOCH, "live": EPOCH - 5, "alone": EPOCH}
    assert record.present == {(queue, 0): epoch for queue, epoch in last.items()}
    # Where the next run goes on: behind what is archived.
    assert record.begins == {
        ("later", 0): ((EPOCH, 10), (EPOCH - 5, 5)),
        ("former", 0): ((EPOCH - 5, 5), (EPOCH, 10)),
        ("live", 0): ((EPOCH, 10),),
        ("alone", 0): (),
    }
    snapshot = Snapshot(at(10_000), local_frame(spark, [], STORED))
    result = audit(events, snapshot=snapshot, ends=ends)
    unsure = Counter(row["queue"] for row in result.samples["unsure"])
    assert unsure == {"later": 10, "former": 5, "live": 10, "alone": 5}
    assert (result.lost, result.untold, result.wrong) == (30, 4, {"lost": 30})


def test_events_of_the_live_journal_are_not_carried(spark):
    """They come again, with the archive; as does a change of the mode."""
    stored, live = written("q", 3), Journal("q", number=3)
    stored.add(event="mode", reason="outcomes", ts=at(100), message_id="-")
    live.number = 4
    live.write("m0", "delivered@200")
    live.add(event="mode", reason="off", ts=at(300), message_id="-")
    rows = stored.frame(spark).withColumn("live", functions.lit(False))
    both = rows.unionByName(live.frame(spark).withColumn("live", functions.lit(True)))
    record = examine(both, {"q": Position(EPOCH, 4, 4)})
    kept = lifecycles(record.events).select(*LIVES)
    needed = needed_events(record, kept).collect()
    assert sorted((row.number, row.event) for row in needed) == [(n, "sent") for n in range(3)]
    assert record.begins == {("q", 0): ((EPOCH, 4),)}


def test_a_queue_may_be_called_like_a_number_or_a_day(spark, tmp_path):
    """Its name is part of the path of its files, and stays a text."""
    lake = Lake(tmp_path)
    names = ("007", "1e5", "true", "2031-05-04", "null", "a.b_c-d")
    ends = {name: {"epoch": EPOCH, "entry": 3, "event": 3} for name in names}
    store(lake, *(written(name, 3) for name in names), offsets=ends)
    rows = read_archive(spark, lake).groupBy("queue").count().collect()
    assert {row.queue: row["count"] for row in rows} == dict.fromkeys(names, 3)
    result = audit_all(spark, window=Window(at(0)), lake=lake)
    assert (result.messages, result.open, result.holes) == (18, 18, ())


DAY_MS = 86_400_000


def days(queue: str, *of_days: int) -> Journal:
    """Three messages on each of these days."""
    journal = Journal(queue)
    for day in of_days:
        for number in range(3):
            journal.write(f"{day}-{number}", f"sent@{day * DAY_MS + number}")
            journal.write(f"{day}-{number}", f"acked@{day * DAY_MS + number + 5}")
    return journal


def test_a_window_reads_its_days_and_the_last_one_before_only(spark, tmp_path):
    """Of files that it need not read some are broken: nobody notices. The numbers continue, so there is no gap."""
    lake = Lake(tmp_path)
    busy, rare = days("busy", *range(6)), days("rare", 0, 1, 5)
    noted = {"busy": {"epoch": EPOCH, "entry": 36, "event": 36}}
    store(lake, busy, rare, offsets={**noted, "rare": {"epoch": EPOCH, "entry": 18, "event": 18}})
    needed = {("busy", 3), ("busy", 4), ("busy", 5), ("busy", 2), ("rare", 1), ("rare", 5)}
    for day in lake.days():
        if (day.queue, (day.day - T0.date()).days) not in needed:
            for file in day.files:
                file.write_bytes(b"broken")
    result = audit_all(spark, window=Window(at(4 * DAY_MS)), lake=lake)
    assert (result.messages, result.ended, result.holes) == (9, {"acked": 9}, ())
    # A file that it needs and that is gone is a gap, by the day before it.
    for file in next(day for day in lake.days() if day.day == at(5 * DAY_MS).date()).files:
        file.unlink()
    result = audit_all(spark, window=Window(at(4 * DAY_MS)), lake=lake)
    assert [(hole["queue"], hole["why"], hole["missing"]) for hole in result.holes] == [
        ("busy", "file gone", 6)
    ]


def test_a_record_goes_on_where_the_last_audit_ended(spark):
    """Numbers continue there. What lies between is a hole; what comes before it is there again, or was rolled back."""
    queues = {
        "goes-on": written("goes-on", 6),
        "lacks": without(written("lacks", 6), 0, 1, 2, 3),
        "again": written("again", 6),
        "back": without(rolled_back(), *range(6)),
        "anew": written("anew", 2),
        "third": written("third", 2),
    }
    without(queues["goes-on"], 0, 1)
    queues["anew"].rows = [row | {"epoch": EPOCH + 1} for row in queues["anew"].rows]
    # All epochs that were read come again, and then there is a third one.
    queues["third"].rows = [row | {"epoch": EPOCH + 7} for row in queues["third"].rows]
    queues["third"].rows += [row for each in renewed("third") for row in each.rows]
    # The later epoch counts no more, and the numbers from 8 on in the earlier one are free again.
    queues["fork"] = without(written("fork"), *range(8))
    queues["fork"].rows = [row | {"ts": at(700)} for row in queues["fork"].rows]
    queues["fork"].number = 8
    queues["fork"].add(event="gap", reason="7 events rolled back: …", ts=at(600))
    carried = without(written("back"), *range(6, 10))
    off = Journal("quiet")
    off.add(event="mode", reason="off", ts=at(5))
    kept = [journal.rows for journal in (carried, off, renewed("fork")[1])]
    forgotten = [row | {"queue": "rolled-back"} for row in written("x").rows]
    seen = Seen(
        at(1000),
        {
            ("goes-on", 0): ((EPOCH, 2),),
            ("lacks", 0): ((EPOCH, 2),),
            ("again", 0): ((EPOCH, 2),),
            ("rolled-back", 0): ((EPOCH, 10),),
            ("anew", 0): ((EPOCH, 5),),
            ("quiet", 0): ((EPOCH, 1),),
            ("third", 0): ((EPOCH, 10), (EPOCH - 5, 3)),
            ("fork", 0): ((EPOCH, 10), (EPOCH - 5, 5)),
        },
        frame(spark, Journal(rows=[row for rows in (*kept, forgotten) for row in rows])),
        (),
    )
    ends = {
        "quiet": Position(EPOCH, 1, 1),
        "goes-on": Position(EPOCH, 9, 9),
        "third": Position(EPOCH + 7, 2, 2),
        "fork": Position(EPOCH, 10, 10),
    }
    record = examine(frame(spark, *queues.values()), ends, seen=seen)
    found = {(hole.queue, hole.after, hole.missing, hole.why) for hole in record.holes}
    assert found == {
        ("goes-on", 5, 3, "file gone"),
        ("lacks", 1, 2, "trimmed"),
        ("rolled-back", 5, 4, "rolled back"),
        ("anew", -1, None, "new epoch"),
        ("third", -1, None, "new epoch"),
        ("fork", 7, 7, "rolled back"),
        ("quiet", 0, None, "journal off"),
    }
    assert record.doubled == {("again", 0): 2, ("third", 0): 13}
    assert record.begins["third", 0] == ((EPOCH, 10), (EPOCH - 5, 5), (EPOCH + 7, 2))
    assert record.begins["fork", 0] == ((EPOCH, 10),)
    assert record.present == {("anew", 0): None, ("third", 0): EPOCH + 7}
    numbers = record.events.where("event <> 'gap'").groupBy("queue").count().collect()
    assert {row.queue: row["count"] for row in numbers} == {
        "goes-on": 4,
        "lacks": 2,
        "again": 4,
        "rolled-back": 8,
        "anew": 2,
        "third": 4,
        "fork": 2,
        "back": 6,
    }


def test_a_journal_that_was_off_at_an_audit_is_off_until_the_next_one_reads_that_it_is_on(
    spark, tmp_path
):
    """The mode is carried: the events that follow do not tell it."""
    lake, journal = Lake(tmp_path / "lake"), Journal()
    journal.write("a", "sent@0 delivered@1 acked@2")
    journal.add(event="mode", reason="off", ts=at(10), message_id=None)
    store(lake, journal)
    further = Journal(number=journal.number)
    further.add(event="mode", reason="all", ts=at(500), message_id=None)
    further.write("b", "sent@510")
    holes = []
    for part in (None, further):
        if part is not None:
            store(lake, part)
        result, _ = audit_increment(spark, lake=lake)
        holes.append([(hole["why"], hole["from"], hole["until"]) for hole in result.holes])
    off, on = iso(at(10)), iso(at(500))
    assert holes == [[("journal off", off, None)], [("journal off", off, on)]]
