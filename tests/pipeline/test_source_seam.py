"""What the scripts write, the source reads: every event with its times, numbered without a hole."""

from __future__ import annotations

from collections import Counter

import pytest

from qworker import QWorker
from qworker.engine.options import QueueAttributes
from qworker.pipeline.source.options import ReadOptions
from qworker.pipeline.source.reading import Reader
from qworker.pipeline.source.snapshots import SnapshotReader, messages
from qworker.pipeline.source.stream import JournalReader
from qworker.store.connections import ConnectionFactory
from qworker.store.url import ServerURL
from tests.topologies.servers import client_of


@pytest.fixture
def app(engine_url, namespace):
    app = QWorker(namespace)
    app.connect_with(ConnectionFactory(engine_url))
    yield app
    app.close()


def read(reader):
    return [
        row
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]


def test_the_life_of_messages_as_rows(app, engine_url, namespace):
    queue = app.queue("emails")
    queue.configure(QueueAttributes(journal="all"))
    acked = queue.send({"task": "mail"})
    retried = queue.send({"task": "mail"})
    later = queue.send({"task": "mail"}, delay="1h")
    first, second = queue.receive(2)
    queue.ack(first)
    queue.nack(second, error="no answer")
    (again,) = queue.receive(1)
    queue.bury(again, error="no such address")
    queue.redrive(*(dead.entry_id for dead in queue.dead()))
    with client_of(engine_url) as client:
        client.rpush(queue.keys.ready[0], "no message", b'{"task": "plain"}')
    options = ReadOptions.of({"url": engine_url, "namespace": namespace})
    for message in queue.receive(10):
        queue.ack(message)

    rows = read(JournalReader(options))
    assert [row["number"] for row in rows] == list(range(len(rows)))
    assert "unreadable" not in {row["event"] for row in rows}
    events = {
        message: [(row["event"], row["attempt"]) for row in rows if row["message_id"] == message]
        for message in (acked, retried, later)
    }
    assert events == {
        acked: [("sent", 0), ("delivered", 1), ("acked", 1)],
        retried: [
            ("sent", 0), ("delivered", 1), ("nacked", 1), ("delivered", 2), ("dead", 2),
            ("redriven", 0), ("delivered", 1), ("acked", 1),
        ],
        later: [("sent", 0)],
    }  # fmt: skip
    (foreign,) = (row for row in rows if row["reason"] == "foreign")
    assert (foreign["event"], foreign["message_id"], foreign["attempt"]) == ("dead", None, 0)
    plain = [row for row in rows if row["message_id"] and "." in row["message_id"]]
    assert Counter(row["event"] for row in plain)["acked"] == 1

    for row in rows:
        assert row["ts"] is not None
        assert row["sent_ts"] <= row["ts"]
        if row["event"] == "delivered":
            assert row["sent_ts"] <= row["ready_ts"] <= row["delivered_ts"] == row["ts"]
            assert row["wait_ms"] == (row["delivered_ts"] - row["ready_ts"]).total_seconds() * 1000
    (redelivered,) = (
        row for row in rows if row["event"] == "dead" and row["message_id"] == retried
    )
    assert redelivered["ready_ts"] >= redelivered["sent_ts"]
    (sent,) = (row for row in rows if row["message_id"] == later)
    assert (sent["ready_ts"] - sent["sent_ts"]).total_seconds() == 3600

    (state,) = read(
        SnapshotReader(
            ReadOptions.of({"url": engine_url, "namespace": namespace, "table": "queues"})
        )
    )
    assert (state["journal"], state["delayed"], state["dead"]) == ("all", 1, 1)
    assert state["journal_entries"] == rows[-1]["entry"] + 1


@pytest.mark.slow
def test_a_long_queue_and_its_dead_letters_are_read_whole_in_pages(app, engine_url, namespace):
    queue = app.queue("emails")
    sent = {queue.send(b"x" * 3000, priority=number % 3) for number in range(700)}
    for message in queue.receive(300):
        queue.bury(message, error="no such address")
    taken = {message.id for message in queue.receive(100)}
    given = {"url": engine_url, "namespace": namespace}
    dead = read(SnapshotReader(ReadOptions.of({**given, "table": "dead"})))
    rows = read(SnapshotReader(ReadOptions.of({**given, "table": "messages"})))
    assert Counter(row["state"] for row in rows) == {"ready": 300, "unacked": 100}
    assert {row["message_id"] for row in rows if row["state"] == "unacked"} == taken
    assert len(dead) == len({row["entry_id"] for row in dead}) == 300
    assert {row["message_id"] for row in [*rows, *dead]} == sent


@pytest.mark.slow
def test_messages_that_are_due_together_are_read_once_while_some_of_them_go(
    app, engine_url, namespace
):
    queue = app.queue("emails")
    sent = queue.send_many([b"x"] * 2000, delay="1h")
    later = queue.send(b"x", delay="2h")
    with Reader(ServerURL.parse(engine_url)) as reader, client_of(engine_url) as client:
        seen = []
        for number, page in enumerate(messages(reader, queue.keys)):
            seen += [message.id for message in page]
            if number == 2:
                # Both before and after the messages that were read.
                client.zrem(queue.keys.delayed, *client.zrange(queue.keys.delayed, 100, 119))
                client.zrem(queue.keys.delayed, *client.zrange(queue.keys.delayed, -21, -2))
    assert number > 3
    left = {message.id for message in queue.scan("delayed")}
    assert len(seen) == len({*seen}) == 2000 + 1 - 20
    assert len(left) == 2000 + 1 - 40
    assert left <= {*seen} <= {*sent, later}
