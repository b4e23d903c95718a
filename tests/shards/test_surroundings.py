"""What stands around a queue knows its shards: metrics, fsck, the tables of Spark, a reaper."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from qworker import QueueAttributes, QWorker
from qworker.client.queue import Queue
from qworker.daemon.gauges import QueueCollector
from qworker.daemon.reaper import Reaper
from qworker.fsck.check import check
from qworker.fsck.finding import Finding, Kind
from qworker.pipeline.source.options import ReadOptions
from qworker.pipeline.source.snapshots import SnapshotReader
from qworker.pipeline.source.stream import JournalReader
from qworker.pipeline.writing.letters import LetterChanger
from qworker.pipeline.writing.options import WriteOptions
from qworker.store.url import ServerURL
from qworker.wire.keys import QueueKeys


@pytest.fixture
def queue(app: QWorker) -> Queue:
    """A queue of three shards with a journal and four messages: one each, and one more somewhere."""
    queue = app.queue("orders")
    queue.configure(QueueAttributes(journal="all"))
    queue.divide(3, wait=0)
    for n in range(4):
        queue.send({"task": "work", "args": [n]})
    return queue


def rows_of(reader: Any) -> list[dict[str, Any]]:
    """All rows of all partitions of a reader of Spark's, without Spark."""
    return [
        row
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]


def options_of(app: QWorker, **more: str) -> ReadOptions:
    return ReadOptions.of({"url": app.url, "namespace": app.namespace, **more})


def test_metrics_are_those_of_the_queue(app: QWorker, queue: Queue) -> None:
    """One label, with sums: an alert on the queue does not care where its messages are."""
    keys = [QueueKeys(app.namespace, name) for name in ("orders", "orders/1", "orders/2")]
    ready = [
        (sample.labels, sample.value)
        for metric in QueueCollector(app.client, lambda: keys, max_queues=1).collect()
        for sample in metric.samples
        if metric.name == "qworker_messages_ready"
    ]
    assert ready == [({"queue": "orders"}, 4.0)]


def test_a_reaper_serves_every_shard(app: QWorker, queue: Queue) -> None:
    """What is due in any of them is moved by one pass."""
    for n in range(3):
        Queue(app.client, app.namespace, f"orders/{n}").send({"n": n}, delay="1ms")
    reaper = Reaper(app.client, app.namespace)
    tick = reaper.tick()
    assert tick.queues == 3
    while queue.inspect().delayed:
        reaper.tick()
    reaper.close()
    assert queue.inspect().ready == 7


def test_a_broken_shard_keeps_a_reaper_from_nothing(app: QWorker, queue: Queue) -> None:
    """It is counted, and what is due in the other shards is moved."""
    broken, whole = (Queue(app.client, app.namespace, f"orders/{n}") for n in (2, 1))
    whole.send({"n": 1}, delay="1ms")
    queue.divide(2, wait=0)
    app.client.run(_delete(broken.keys.delayed))
    app.client.run(_string(broken.keys.delayed))
    reaper = Reaper(app.client, app.namespace)
    for _ in range(3):
        assert reaper.tick().broken == ("orders/2",)
    while whole.inspect().delayed:
        reaper.tick()
    reaper.close()


def _string(key: str) -> Any:
    from qworker.client.commands.command import Command

    yield Command(None, (), ("SET", key, "x"), bytes)


def test_fsck_looks_into_every_shard(app: QWorker, queue: Queue) -> None:
    """A sound one is clean; damage is told with the shard, also where one queue is named."""
    assert list(check(app.client, app.namespace)) == []
    shard = Queue(app.client, app.namespace, "orders/2")
    shard.send({"n": 1})
    shard.receive(1)
    app.client.run(_delete(shard.keys.unacked))
    for queues in ((), ("orders",)):
        found = [
            each for each in check(app.client, app.namespace, queues) if isinstance(each, Finding)
        ]
        assert {each.queue for each in found} == {"orders/2"}
        assert Kind.NO_DEADLINE in {each.kind for each in found}, found
    assert list(check(app.client, app.namespace, ("order",))) == []


def _delete(key: str) -> Any:
    from qworker.client.commands.command import Command

    yield Command(None, (), ("DEL", key), int)


def test_spark_reads_the_journal_of_every_shard(app: QWorker, queue: Queue) -> None:
    """Under the queue's name, with the number of the shard, each numbered without a hole."""
    queue.ack(*queue.receive(10))
    for options in (
        options_of(app),
        options_of(app, queues="orders"),
        options_of(app, queues="ord*"),
    ):
        rows = rows_of(JournalReader(options))
        assert {row["queue"] for row in rows} == {"orders"}
        assert {row["shard"] for row in rows} == {0, 1, 2}
        assert sum(row["event"] == "acked" for row in rows) == 4
        for shard in range(3):
            numbers = sorted(row["number"] for row in rows if row["shard"] == shard)
            assert numbers == list(range(len(numbers)))
    assert rows_of(JournalReader(options_of(app, queues="order"))) == []


def test_spark_sees_what_every_shard_holds(app: QWorker, queue: Queue) -> None:
    """`queues`, `messages` and `dead`; and a letter is redriven where its row says it is."""
    for table, count in (("queues", 3), ("messages", 4), ("dead", 4)):
        if table == "dead":
            for message in queue.receive(10):
                queue.bury(message)
        rows = rows_of(SnapshotReader(options_of(app, table=table)))
        assert len(rows) == count
        assert {row["queue"] for row in rows} == {"orders"}
        assert {row["shard"] for row in rows} == {0, 1, 2}
    letters = rows_of(SnapshotReader(options_of(app, table="dead")))
    by_entry = [{"queue": "orders", "entry_id": each["entry_id"]} for each in letters[:2]]
    by_message = [
        {"queue": "orders", "entry_id": None, "message_id": each["message_id"]}
        for each in letters[2:]
    ]
    given = {"namespace": app.namespace, "action": "redrive"}
    for rows in (by_entry, by_message):
        changer = LetterChanger(ServerURL.parse(app.url), WriteOptions.of(given))
        changed = changer.change(0, [pa.RecordBatch.from_pylist(rows)])
        assert changed.queues == {"orders": {"done": 2, "gone": 0, "foreign": 0}}
    assert queue.inspect().ready == 4


@pytest.mark.parametrize("written", ["rubbish", "1 1 1", "3 3 999999999999999", ""])
def test_fsck_heals_a_queue_that_has_forgotten_its_shards(
    app: QWorker, queue: Queue, written: str
) -> None:
    """Messages that nobody would receive; by the marks of the shards it is divided as before."""
    key = queue.keys.meta
    before = queue.division()
    app.client.run(_set(key, "shards", written) if written else _unset(key, "shards"))
    found = [each for each in check(app.client, app.namespace) if isinstance(each, Finding)]
    assert {each.kind for each in found} == {Kind.BAD_SHARDS}
    assert "orders" in {each.queue for each in found}
    assert list(check(app.client, app.namespace, repair=True))
    assert list(check(app.client, app.namespace)) == []
    healed = Queue(app.client, app.namespace, "orders")
    assert (healed.division().active, len(healed.division().shards)) == (3, 3)
    assert before.active == 3
    assert len(healed.receive(10)) == 4


def test_fsck_finds_messages_in_shards_that_no_division_knows(app: QWorker, queue: Queue) -> None:
    """Without marks as well: they are received again, and their shards run empty."""
    for number in range(3):
        keys = queue.ref.shard_of(number).keys
        app.client.run(_unset(keys.meta, "shards"))
        app.client.run(_unset(keys.meta, "shard"))
    found = [each for each in check(app.client, app.namespace) if isinstance(each, Finding)]
    assert {each.queue for each in found} == {"orders/1", "orders/2"}
    assert list(check(app.client, app.namespace, repair=True))
    assert list(check(app.client, app.namespace)) == []
    assert len(Queue(app.client, app.namespace, "orders").receive(10)) == 4


def test_fsck_removes_what_is_left_of_a_queue_that_is_gone(app: QWorker, queue: Queue) -> None:
    """A shard whose node was away when its queue was removed, but none while there is any message, nor a journal."""
    one, two = (Queue(app.client, app.namespace, f"orders/{n}") for n in (1, 2))
    for key in queue.keys.all():
        app.client.run(_delete(key))
    found = [each for each in check(app.client, app.namespace) if isinstance(each, Finding)]
    assert Kind.LEFTOVER not in {each.kind for each in found}
    one.purge()
    two.purge()
    assert Kind.LEFTOVER not in {each.kind for each in found}
    for key in (one.keys.journal, two.keys.journal):
        app.client.run(_delete(key))
    found = [each for each in check(app.client, app.namespace) if isinstance(each, Finding)]
    leftovers = {each.queue for each in found if each.kind is Kind.LEFTOVER}
    assert leftovers == {"orders/1", "orders/2"}
    assert list(check(app.client, app.namespace, repair=True))
    assert not one.inspect().exists
    assert not two.inspect().exists


def test_fsck_takes_a_shard_that_was_given_up_for_what_it_is(app: QWorker, queue: Queue) -> None:
    """Its mark stays and is no finding."""
    queue.ack(*queue.receive(10))
    queue.divide(1, wait=0)
    assert len(queue.division().shards) == 1
    assert list(check(app.client, app.namespace)) == []


def test_the_queue_goes_on_counting_with_the_totals_of_shards_that_are_given_up(
    app: QWorker, queue: Queue
) -> None:
    """So no total ever falls, and nobody sees a rate that never was; divided again, none counts twice."""
    queue.ack(*queue.receive(10))
    before = queue.inspect().stats
    assert (before["sent"], before["acked"]) == (4, 4)
    for shards in (1, 3, 2, 1):
        queue.divide(shards, wait=0)
        assert len(queue.division().shards) == shards
        seen = queue.inspect().stats
        assert {name: seen[name] for name in ("sent", "received", "acked")} == {
            name: before[name] for name in ("sent", "received", "acked")
        }


def _unset(key: str, field: str) -> Any:
    from qworker.client.commands.command import Command

    yield Command(None, (), ("HDEL", key, field), int)


def _set(key: str, field: str, value: str) -> Any:
    from qworker.client.commands.command import Command

    yield Command(None, (), ("HSET", key, field, value), int)
