"""Reading journals without Spark: positions, partitions, gaps, queues that come and go."""

from __future__ import annotations

import json
import pickle

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from qworker.pipeline.failures import SparkTaskError
from qworker.pipeline.source.journal import Journals
from qworker.pipeline.source.options import ReadOptions
from qworker.pipeline.source.stream import JournalReader, JournalStreamReader
from tests.pipeline.redis_journals import T0_MS, ForgedJournal, line
from tests.servers import start
from tests.topologies.servers import client_of

TWO = (line("acked", "a"), line("nacked", "b"))


@pytest.fixture
def client(store_url):
    with client_of(store_url) as client:
        yield client


@pytest.fixture
def make(client, namespace):
    """Make the journal of a queue."""
    return lambda queue="emails", **about: ForgedJournal(client, namespace, queue, **about)


@pytest.fixture
def given(store_url, namespace):
    return lambda **options: ReadOptions.of({"url": store_url, "namespace": namespace, **options})


def read_part(reader, part):
    """Read a partition as a task does: with a copy that has been pickled."""
    reader, part = pickle.loads(pickle.dumps((reader, part)))
    return [row for batch in reader.read(part) for row in batch.to_pylist()]


def batch(options):
    reader = JournalReader(options)
    return [row for part in reader.partitions() for row in read_part(reader, part)]


def numbers(rows):
    return [(row["queue"], row["entry"], row["number"]) for row in rows]


class Stream:
    """A query as Spark runs it: offsets go through JSON, and each batch is planned and read."""

    def __init__(self, options, *, start=None, limit=None):
        self.reader = JournalStreamReader(options)
        self.limit = ReadMaxRows(limit) if limit else ReadAllAvailable()
        self.offset = start or json.loads(json.dumps(self.reader.initialOffset()))

    def plan(self):
        begun = self.offset
        self.offset = json.loads(json.dumps(self.reader.latestOffset(begun, self.limit)))
        return begun, self.offset

    def read(self, begun, reached):
        if begun == reached:
            return []
        parts = self.reader.partitions(begun, reached)
        return [row for part in parts for row in read_part(self.reader, part)]

    def step(self):
        return self.read(*self.plan())


# -- batch reads -----------------------------------------------------------------------------------


def test_a_batch_read_gives_every_event_of_every_queue_once(make, given):
    make("emails").fill(3, TWO)
    make("orders").fill(1, TWO)
    rows = batch(given())
    assert numbers(rows) == [
        ("emails", 0, 0),
        ("emails", 0, 1),
        ("emails", 1, 2),
        ("emails", 1, 3),
        ("emails", 2, 4),
        ("emails", 2, 5),
        ("orders", 0, 0),
        ("orders", 0, 1),
    ]
    assert [row["event"] for row in rows] == ["acked", "nacked"] * 4


def test_queues_are_chosen_by_names_and_patterns(make, given):
    for queue in ("emails", "orders-1", "orders-2", "other"):
        make(queue).fill(1, TWO)
    rows = batch(given(queues="emails,orders-*,not-yet"))
    assert {row["queue"] for row in rows} == {"emails", "orders-1", "orders-2"}


def test_nothing_is_there(given):
    assert batch(given()) == []


def test_a_long_journal_is_cut_into_even_partitions_and_read_in_small_pages(make, given):
    make().fill(1000, (line("acked", "a"),))
    reader = JournalReader(given(minPartitions="4", fetchSize="70"))
    parts = reader.partitions()
    read = [[row["number"] for row in read_part(reader, part)] for part in parts]
    assert [len(part) for part in read] == [250, 250, 250, 250]
    assert [number for part in read for number in part] == list(range(1000))


def test_a_short_journal_is_not_cut(make, given):
    make().fill(100, TWO)
    assert len(JournalReader(given(minPartitions="8")).partitions()) == 1


def test_a_read_between_offsets(make, given):
    make().fill(10, TWO)
    starting = json.dumps({"emails": {"epoch": T0_MS, "entry": 3}})
    ending = json.dumps({"emails": {"epoch": T0_MS, "entry": 5, "event": 10}})
    rows = batch(given(startingOffsets=starting, endingOffsets=ending))
    assert [row["number"] for row in rows] == [6, 7, 8, 9]


def test_offsets_behind_the_end_read_up_to_the_end(make, given):
    make().fill(2, TWO)
    ending = json.dumps({"emails": {"epoch": T0_MS, "entry": 500}})
    assert len(batch(given(endingOffsets=ending))) == 4


def test_a_read_between_times(make, given):
    journal = make()
    for number in range(100):
        journal.write(TWO[0], t=T0_MS + 10 * number)
    rows = batch(given(startingTimestamp=str(T0_MS + 205), endingTimestamp=str(T0_MS + 240)))
    assert [row["number"] for row in rows] == [21, 22, 23]
    assert batch(given(startingTimestamp=str(T0_MS + 10_000))) == []
    assert len(batch(given(startingTimestamp="0"))) == 100


def test_times_are_found_in_the_epoch_that_has_them(make, given):
    journal = make()
    journal.fill(5, TWO, t=T0_MS + 100)
    journal.begin(T0_MS + 1000)
    journal.fill(5, TWO, t=T0_MS + 1100)
    rows = batch(given(startingTimestamp=str(T0_MS + 500)))
    assert {row["epoch"] for row in rows} == {T0_MS + 1000}
    assert len(rows) == 10


def test_an_epoch_that_began_when_counters_were_lost_is_read_behind_the_old_one(make, given):
    journal = make()
    journal.fill(300, TWO)
    journal.begin(T0_MS + 5)
    journal.fill(2, TWO)
    rows = batch(given(minPartitions="2"))
    assert len({(row["epoch"], row["number"]) for row in rows}) == len(rows) == 604
    assert all(row["event"] != "gap" for row in rows)


def test_earliest_is_the_first_stored_entry(make, given):
    journal = make()
    journal.fill(10, TWO)
    journal.trim(4)
    rows = batch(given())
    assert (rows[0]["entry"], len(rows)) == (4, 12)


# -- what is missing -------------------------------------------------------------------------------


def lost(journal):
    """Entries 2 and 3 of ten are gone; the offsets begin in front of them."""
    journal.fill(10, TWO)
    journal._redis.xdel(journal.keys.journal, f"{T0_MS}-2", f"{T0_MS}-3")
    return json.dumps({"emails": {"epoch": T0_MS, "entry": 0, "event": 0}})


def test_lost_entries_fail_the_read_and_are_named(make, given):
    starting = lost(make())
    with pytest.raises(SparkTaskError, match=r"'emails': entries 2 to 3 of epoch 1935655200000"):
        batch(given(startingOffsets=starting))


def test_lost_entries_are_a_row_where_that_is_asked_for(make, given):
    starting = lost(make())
    rows = batch(given(startingOffsets=starting, failOnDataLoss="false"))
    assert [row["number"] for row in rows] == [0, 1, 2, 3, 4, *range(8, 20)]
    (gap,) = (row for row in rows if row["event"] == "gap")
    assert (gap["entry"], gap["number"], gap["reason"]) == (2, 4, "4 events in 2 entries")


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["0-399", "0-0", "250-260", "199-200", "390-399", "100-350"])
def test_a_gap_anywhere_is_one_row_with_its_exact_size(make, given, gone):
    """In whatever number of parts the journal is read."""
    journal = make()
    journal.fill(1000, TWO[:1])
    first, last = (int(part) for part in gone.split("-"))
    entries = [f"{T0_MS}-{number}" for number in range(first, last + 1)]
    journal._redis.xdel(journal.keys.journal, *entries)
    starting = json.dumps({"emails": {"epoch": T0_MS, "entry": 0, "event": 0}})
    number = last - first + 1
    for parts in ("1", "2", "5"):
        rows = batch(given(startingOffsets=starting, failOnDataLoss="false", minPartitions=parts))
        (gap,) = (row for row in rows if row["event"] == "gap")
        what = (gap["number"], gap["reason"])
        assert what == (first, f"{number} events in {number} entries"), parts
        left = [*range(first + 1), *range(last + 1, 1000)]
        assert [row["number"] for row in rows] == left, parts


def test_a_journal_trimmed_between_plan_and_read_is_noticed(make, given):
    journal = make()
    journal.fill(300, TWO)
    for fails in ("true", "false"):
        reader = JournalReader(given(failOnDataLoss=fails, minPartitions="1"))
        (part,) = reader.partitions()
        journal.trim(journal.entries - 10 if fails == "false" else 5)
        if fails == "true":
            with pytest.raises(SparkTaskError, match="entries 0 to 4"):
                read_part(reader, part)
        else:
            rows = read_part(reader, part)
            assert (rows[0]["reason"], len(rows)) == ("570 events in 285 entries", 21)


def test_a_journal_trimmed_to_nothing_is_all_gap(make, given):
    journal = make()
    journal.fill(10, TWO)
    starting = json.dumps({"emails": {"epoch": T0_MS, "entry": 4, "event": 8}})
    journal.trim(10)
    (gap,) = batch(given(startingOffsets=starting, failOnDataLoss="false"))
    assert (gap["entry"], gap["number"], gap["reason"]) == (4, 8, "12 events in 6 entries")
    assert gap["ts"] is None


def test_shed_events_are_a_row_and_never_an_error(make, given):
    journal = make()
    journal.fill(2, TWO)
    journal.skip(events=7)
    journal.fill(2, TWO)
    rows = batch(given())
    assert [(row["event"], row["number"]) for row in rows][3:6] == [
        ("nacked", 3),
        ("gap", 4),
        ("acked", 11),
    ]
    assert rows[4]["reason"] == "7 events shed"


def test_events_shed_while_nothing_is_written_are_reported_with_the_next_entry(make, given):
    journal = make()
    journal.fill(2, TWO)
    stream = Stream(given())
    stream.step()
    journal.skip(events=7)
    assert stream.step() == []
    journal.fill(1, TWO)
    journal.skip(events=5)
    gap, *_, last = stream.step()
    assert (gap["number"], gap["reason"]) == (4, "7 events shed")
    assert (last["number"], last["reason"]) == (13, "5 events shed")
    journal.fill(1, TWO)
    assert [row["number"] for row in stream.step()] == [18, 19]


def test_a_deleted_end_of_the_journal_is_lost_too(make, given):
    journal = make()
    journal.fill(5, TWO)
    journal._redis.xdel(journal.keys.journal, f"{T0_MS}-4")
    with pytest.raises(SparkTaskError, match="entries 4 to 4 of epoch"):
        batch(given())
    assert batch(given(failOnDataLoss="false"))[-1]["reason"] == "2 events in 1 entries"


def test_a_gap_of_unknown_size_says_so(make, given):
    journal = make()
    journal.fill(10, TWO)
    journal.trim(4)
    starting = json.dumps({"emails": {"epoch": T0_MS, "entry": 1}})
    gap, *rows = batch(given(startingOffsets=starting, failOnDataLoss="false"))
    assert (gap["event"], gap["entry"], gap["reason"]) == (
        "gap",
        1,
        "3 events or more in 3 entries",
    )
    assert gap["number"] < rows[0]["number"] == 8


# -- streams ---------------------------------------------------------------------------------------


def test_a_stream_resumes_and_repeats_a_batch_exactly(make, given):
    journal = make()
    journal.fill(3, TWO)
    stream = Stream(given())
    begun, reached = stream.plan()
    journal.fill(2, TWO)
    first = stream.read(begun, reached)
    assert [row["number"] for row in first] == list(range(6))
    assert Stream(given(), start=begun).read(begun, reached) == first
    assert [row["number"] for row in stream.step()] == [6, 7, 8, 9]
    begun, reached = stream.plan()
    assert json.dumps(begun) == json.dumps(reached)


def test_the_limit_counts_entries_and_is_divided_by_backlog(make, given):
    make("long").fill(90, TWO)
    make("short").fill(10, TWO)
    stream = Stream(given(), limit=20)
    rows = stream.step()
    read = {queue: sum(row["queue"] == queue for row in rows) // 2 for queue in ("long", "short")}
    assert read == {"long": 18, "short": 2}
    while more := stream.step():
        rows += more
    assert len(rows) == 200
    assert len({(row["queue"], row["number"]) for row in rows}) == 200


def test_a_limit_of_events_is_kept_by_whole_entries(make, given):
    """However many events a call has; an entry that is larger than the limit is its own batch."""
    journal = make()
    for size in (1, 1, 30, 2, 3, 5, 1):
        journal.write(*[line("acked", f"m{number}") for number in range(size)])
    options = given(maxEventsPerTrigger="5")
    assert JournalStreamReader(options).getDefaultReadLimit() == ReadMaxRows(5)
    stream = Stream(options, limit=5)
    sizes = []
    while rows := stream.step():
        sizes.append(len(rows))
    assert sizes == [2, 30, 5, 5, 1]


def test_a_limit_of_events_is_divided_by_backlog_and_reads_all_epochs(make, given):
    journal, other = make(), make("orders")
    journal.fill(30, TWO)
    other.fill(10, TWO)
    journal.begin(T0_MS + 5)
    journal.fill(10, TWO)
    stream = Stream(given(maxEventsPerTrigger="20"), limit=20)
    seen, sizes = [], []
    while rows := stream.step():
        sizes.append(len(rows))
        seen += [(row["queue"], row["epoch"], row["number"]) for row in rows]
    assert max(sizes) <= 22
    assert len(seen) == len(set(seen)) == 100


def test_the_default_limit_is_an_option(given):
    assert JournalStreamReader(given()).getDefaultReadLimit() == ReadMaxRows(20_000)
    options = given(maxEntriesPerTrigger="7")
    assert JournalStreamReader(options).getDefaultReadLimit() == ReadMaxRows(7)
    options = given(maxEntriesPerTrigger="0")
    assert JournalStreamReader(options).getDefaultReadLimit() == ReadAllAvailable()


def test_latest_is_a_number_at_once(make, given):
    journal = make()
    journal.fill(3, TWO)
    stream = Stream(given(startingOffsets="latest"))
    assert stream.offset == {"emails": {"epoch": T0_MS, "entry": 3, "event": 6}}
    journal.fill(1, TWO)
    assert stream.reader.initialOffset() == stream.offset
    assert [row["number"] for row in stream.step()] == [6, 7]


def test_latest_of_a_journal_that_was_trimmed_to_nothing_comes_from_its_counters(make, given):
    journal = make()
    journal.fill(3, TWO)
    journal.trim(3)
    stream = Stream(given(startingOffsets="latest"))
    journal.fill(1, TWO)
    assert [row["number"] for row in stream.step()] == [6, 7]


def test_a_queue_that_appears_is_read_from_its_beginning(make, given):
    make("emails").fill(1, TWO)
    stream = Stream(given(startingOffsets="latest"))
    make("orders").fill(2, TWO)
    assert numbers(stream.step()) == [("orders", number // 2, number) for number in range(4)]


def test_a_queue_that_appears_without_its_beginning_has_lost_it(make, given):
    stream = Stream(given(failOnDataLoss="false"))
    journal = make()
    journal.fill(5, TWO)
    journal.trim(2)
    gap, *_ = stream.step()
    assert (gap["event"], gap["number"], gap["reason"]) == ("gap", 0, "4 events in 2 entries")


def test_a_queue_that_goes_keeps_its_place(make, given, client):
    journal = make()
    journal.fill(3, TWO)
    make("orders").fill(1, TWO)
    stream = Stream(given())
    stream.step()
    position = stream.offset["emails"]
    client.delete(journal.keys.journal, journal.keys.meta, journal.keys.stats)
    client.hdel(f"{journal.keys.meta.split(':')[0]}:queues", "emails")
    assert stream.step() == []
    assert stream.offset["emails"] == position
    # It comes back with a later epoch, and is read from there.
    make(epoch=T0_MS + 9).fill(2, TWO)
    assert [(row["epoch"], row["number"]) for row in stream.step()] == [
        (T0_MS + 9, number) for number in range(4)
    ]


def test_a_journal_restarted_while_the_job_was_down_is_read_to_the_end_of_both(make, given):
    journal = make()
    journal.fill(3, TWO)
    stream = Stream(given(), limit=2)
    rows = stream.step()
    journal.begin(T0_MS + 5)
    journal.fill(3, TWO)
    journal.begin(T0_MS + 9)
    journal.fill(1, TWO)
    stream = Stream(given(), start=stream.offset, limit=2)
    while more := stream.step():
        rows += more
    assert [(row["epoch"] - T0_MS, row["number"]) for row in rows] == [
        *((0, number) for number in range(6)),
        *((5, number) for number in range(6)),
        *((9, number) for number in range(2)),
    ]


def test_available_now_ends_where_the_journal_ended_when_it_began(make, given):
    journal = make()
    journal.fill(5, TWO)
    stream = Stream(given(), limit=2)
    stream.reader.prepareForTriggerAvailableNow()
    journal.fill(5, TWO)
    make("orders").fill(1, TWO)
    rows = []
    while more := stream.step():
        rows += more
    assert numbers(rows) == [("emails", number // 2, number) for number in range(10)]


def test_available_now_ends_even_if_all_entries_were_trimmed(make, given):
    journal = make()
    journal.fill(5, TWO)
    stream = Stream(given(failOnDataLoss="false"), limit=2)
    stream.reader.prepareForTriggerAvailableNow()
    journal.trim(5)
    (gap,) = stream.step()
    assert gap["reason"] == "10 events in 5 entries"
    assert stream.step() == []


def test_a_server_that_came_back_with_older_data_is_noticed(make, given):
    journal = make()
    journal.fill(5, TWO)
    stream = Stream(given())
    stream.step()
    journal._redis.xdel(journal.keys.journal, f"{T0_MS}-4")
    journal.entries, journal.events = 4, 8
    journal.skip()
    with pytest.raises(SparkTaskError, match="entries 4 to 4 of epoch"):
        stream.step()


def roll_back(journal, entries):
    """Take the last entries away, as a failover to a replica that had not received them does."""
    kept = journal._redis.xrange(journal.keys.journal)[:-entries]
    journal._redis.delete(journal.keys.journal)
    for entry_id, fields in kept:
        journal._redis.xadd(journal.keys.journal, fields, id=entry_id)
    journal.entries -= entries
    journal.events -= entries * len(TWO)
    journal.skip()


@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize("written_since", [0, 2, 9])
def test_a_journal_rolled_back_is_named_also_if_its_numbers_were_used_again(
    make, given, available_now, written_since
):
    """With a target (availableNow) and without one, however far the journal has come since."""
    journal = make()
    journal.fill(5, TWO, t=T0_MS)
    stream = Stream(given())
    stream.step()
    roll_back(journal, 2)
    journal.fill(written_since, TWO, t=T0_MS + 99)
    again = Stream(given(), start=stream.offset)
    if available_now:
        again.reader.prepareForTriggerAvailableNow()
    with pytest.raises(SparkTaskError, match=r"emails.*the server came back with older data"):
        again.step()


@pytest.mark.parametrize("read_before", [0, 3, 6])
@pytest.mark.parametrize("written_since", [0, 1, 4, 9])
def test_a_roll_back_between_the_end_of_a_batch_and_its_mark_loses_nothing_in_silence(
    make, given, monkeypatch, read_before, written_since
):
    """The end of a batch and the checksum of its last entry are two reads; Spark notes both once they are there."""
    journal = make()
    journal.fill(read_before, TWO, t=T0_MS)
    stream = Stream(given())
    stream.step()
    begun = stream.offset
    journal.fill(8 - read_before, TWO, t=T0_MS + 1)
    marked = Journals.marked

    def late(journals, reached, known):
        roll_back(journal, 4)
        journal.fill(written_since, TWO, t=T0_MS + 99)
        monkeypatch.setattr(Journals, "marked", marked)
        return marked(journals, reached, known)

    monkeypatch.setattr(Journals, "marked", late)
    try:
        rows = [*stream.step(), *stream.step()]
    except SparkTaskError:
        # Nothing is skipped either if that is allowed: the checkpoint has not moved.
        stream = Stream(given(failOnDataLoss="false"), start=begun)
        rows = [*stream.step(), *stream.step()]
    # Rolled back to before what was read: all of it is read again.
    first = read_before if read_before <= 4 else 0
    stored = {
        (int(fields[b"n"]) + number, int(fields[b"t"]))
        for entry_id, fields in journal._redis.xrange(journal.keys.journal)
        for number in range(len(TWO))
        if int(entry_id.partition(b"-")[2]) >= first
    }
    seen = {(row["number"], round(row["ts"].timestamp() * 1000)) for row in rows}
    assert stored <= seen


def test_a_journal_rolled_back_is_read_again_behind_a_row_that_says_so(make, given):
    journal = make()
    journal.fill(5, TWO, t=T0_MS)
    stream = Stream(given(failOnDataLoss="false"))
    stream.step()
    roll_back(journal, 2)
    journal.fill(4, TWO, t=T0_MS + 99)
    gap, *rows = stream.step()
    assert (gap["event"], gap["reason"].split(":")[0]) == ("gap", "some events rolled back")
    assert [row["number"] for row in rows] == [*range(14)]
    assert stream.step() == []
    journal.fill(1, TWO)
    assert [row["number"] for row in stream.step()] == [14, 15]


def test_offsets_of_earlier_versions_have_no_mark_and_are_read(make, given):
    journal = make()
    journal.fill(3, TWO)
    start = {"emails": {"epoch": T0_MS, "entry": 1, "event": 2}}
    stream = Stream(given(), start=start)
    assert len(stream.step()) == 4
    assert stream.offset["emails"].keys() == {"epoch", "entry", "event", "mark"}


def test_progress_is_recorded_for_the_warning_before_the_cap(make, given, client, namespace):
    journal = make()
    journal.fill(3, TWO)
    make("orders")
    stream = Stream(given(readerName="archive"))
    stream.step()
    stream.reader.commit({**stream.offset, "gone": {"epoch": 5, "entry": 5}})
    name, value = client.hgetall(journal.keys.readers).popitem()
    entry, ms = value.decode().split()
    assert (name, entry) == (b"archive", f"{T0_MS}-2")
    assert ms.isdecimal()
    assert set(client.scan_iter(f"{namespace}:*:readers")) == {journal.keys.readers.encode()}


def test_a_stream_without_a_name_writes_nothing(make, given, client, namespace):
    make().fill(3, TWO)
    stream = Stream(given())
    stream.step()
    stream.reader.commit(stream.offset)
    assert set(client.scan_iter(f"{namespace}:*:readers")) == set()


def test_progress_that_cannot_be_recorded_ends_no_query(given):
    with start("valkey") as server, server.redis() as client:
        ForgedJournal(client, given().namespace, "emails").fill(3, TWO)
        stream = Stream(given(url=server.url, readerName="archive"))
        stream.step()
        client.execute_command("ACL", "SETUSER", "default", "-hset")
        stream.reader.commit(stream.offset)


def test_the_end_of_all_is_reported_for_the_progress(make, given):
    make().fill(3, TWO)
    reader = JournalStreamReader(given())
    assert reader.reportLatestOffset() == {"emails": {"epoch": T0_MS, "entry": 3, "event": 6}}
