"""The data source in a real Spark: what the readers alone do not show."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from qworker import QWorker
from qworker.cli.framework.context import Session
from qworker.cli.spark.doctor import send_and_read
from qworker.cli.spark.reading import source_options
from qworker.pipeline.source.schemas import TABLES, struct_of
from qworker.store.connections import ConnectionFactory
from tests.pipeline.redis_journals import T0_MS, ForgedJournal, line
from tests.topologies.servers import client_of

TWO = (line("acked", "a"), line("nacked", "b"))


@pytest.fixture
def client(store_url):
    with client_of(store_url) as client:
        yield client


@pytest.fixture
def journal(client, namespace):
    return ForgedJournal(client, namespace, "emails")


@pytest.fixture
def load(spark, store_url, namespace):
    def load(table, **options):
        given = {"url": store_url, "namespace": namespace, **options}
        return spark.read.format("qworker").options(**given).load(table)

    return load


@pytest.fixture
def run(spark, store_url, namespace, tmp_path):
    """Run a stream with AvailableNow into batches of numbers; a second call continues from the checkpoint."""
    batches = []

    def run(**options):
        given = {"url": store_url, "namespace": namespace, **options}
        stream = spark.readStream.format("qworker").options(**given).load()
        query = (
            stream.writeStream.foreachBatch(
                lambda frame, _: batches.append(
                    [(row.event, row.number) for row in frame.collect()]
                )
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)
        done, batches[:] = list(batches), []
        return done, query

    return run


@pytest.mark.parametrize("table", TABLES)
def test_a_table_of_an_empty_namespace_has_its_columns_and_no_rows(load, table):
    frame = load(table)
    assert frame.schema == struct_of(table)
    assert frame.count() == 0


def test_the_journal_as_a_table(load, journal):
    journal.fill(3, TWO)
    frame = load("journal")
    assert {(row.event, row.number) for row in frame.collect()} == {
        ("acked", 0), ("nacked", 1), ("acked", 2), ("nacked", 3), ("acked", 4), ("nacked", 5),
    }  # fmt: skip
    # A source that took filters over would give what was asked for before.
    assert frame.where("event = 'acked'").count() == 3
    assert frame.count() == 6


def test_queues_messages_and_dead_letters_as_tables(load, store_url, namespace, request):
    app = QWorker(namespace)
    app.connect_with(ConnectionFactory(store_url))
    request.addfinalizer(app.close)
    queue = app.queue("emails")
    queue.send({"task": "mail", "args": [1]})
    queue.send(b"\xff\xfe")
    queue.send({"task": "mail", "args": [2]}, delay="1h")
    for _ in range(2):
        queue.send({"task": "late", "args": []})
    first, second = queue.receive(2)
    queue.bury(first, error="no such address")
    assert second.body == b"\xff\xfe"

    (row,) = load("queues").collect()
    assert (row.queue, row.ready, row.delayed, row.unacked, row.dead) == ("emails", 2, 1, 1, 1)
    assert (row.journal, row.paused, row.counters["sent"]) == ("off", None, 5)
    assert row.oldest_ready_age_ms >= 0

    rows = load("messages", includeBody="true").collect()
    assert Counter((row.state, row.task, row.attempt) for row in rows) == {
        ("ready", "late", 0): 2,
        ("delayed", "mail", 0): 1,
        ("unacked", None, 1): 1,
    }
    bodies = {row.state: row.body for row in rows}
    assert json.loads(bodies["delayed"]) == {"task": "mail", "args": [2]}
    assert bodies["unacked"] is None
    (delayed,) = (row for row in rows if row.state == "delayed")
    assert (delayed.ready_ts - delayed.sent_ts).total_seconds() == 3600

    (dead,) = load("dead").collect()
    assert (dead.message_id, dead.task, dead.reason) == (first.id, "mail", "rejected")
    assert dead.error == "no such address"
    assert "body" not in dead.asDict()
    app.close()


def test_a_stream_continues_from_its_checkpoint_and_lost_entries_end_it_or_are_a_row(run, journal):
    journal.fill(3, TWO)
    batches, query = run(maxEntriesPerTrigger="2", readerName="archive")
    assert [len(batch) for batch in batches] == [4, 2]
    end = json.loads(query.lastProgress["sources"][0]["endOffset"])
    assert end["emails"].pop("mark") > 0
    assert end == {"emails": {"epoch": T0_MS, "entry": 3, "event": 6}}
    assert journal._redis.hkeys(journal.keys.readers) == [b"archive"]

    journal.fill(4, TWO)
    journal.trim(6)
    with pytest.raises(Exception, match="entries 3 to 5 of epoch"):
        run()
    batches, _ = run(failOnDataLoss="false")
    assert batches == [[("gap", 6), ("acked", 12), ("nacked", 13)]]


def test_a_wrong_option_is_named_and_no_password_shows(spark, load):
    with pytest.raises(Exception, match="option fetchsiz: is unknown; did you mean fetchSize"):
        load("journal", fetchSiz="5").count()
    frame = spark.read.format("qworker").option("url", "unix://u:s3cret@/nowhere").load("queues")
    plans = frame._jdf.queryExecution()
    for plan in (plans.logical(), plans.analyzed(), plans.optimizedPlan(), plans.executedPlan()):
        # With all columns: Spark itself leaves out those behind the first 25.
        text = plan.treeString(True, True, 1000, False, False)
        assert "qworker" in text
        assert "s3cret" not in text
    assert "snapshot_ts" in text


def test_spark_finds_the_source_without_registration(spark, store_url, namespace):
    """In a session without `register`, as under spark-submit."""
    other = spark.newSession()
    reader = other.read.format("qworker").option("url", store_url).option("namespace", namespace)
    assert reader.load("queues").count() == 0


def test_the_doctor_sends_ten_rows_and_leaves_nothing_behind(spark, store_url, namespace, client):
    session = Session()
    session.settings.give("url", store_url)
    session.settings.give("namespace", namespace)
    assert send_and_read(session, spark, source_options(session)) > 0
    assert set(client.scan_iter(f"{namespace}:*")) == set()
    session.close()
