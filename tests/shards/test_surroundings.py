"""What stands around a queue knows its shards: metrics, fsck, the tables of Spark, a reaper."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from qworker import QueueAttributes, QWorker
from qworker.client.inspect.life import life
from qworker.client.manage.shard_upkeep import give_up_empty
from qworker.client.queue import Queue
from qworker.client.queue_ref import QueueRef
from qworker.daemon.queue_metrics import QueueCollector
from qworker.daemon.reaper import Reaper
from qworker.engine import shards as commands
from qworker.engine.raw import raw
from qworker.fsck.check import check
from qworker.fsck.damage import Damage, DamageKind
from qworker.pipeline.sink.dead_letters import DeadLetterChanger
from qworker.pipeline.sink.options import WriteOptions
from qworker.pipeline.source.options import ReadOptions
from qworker.pipeline.source.snapshots import SnapshotReader
from qworker.pipeline.source.stream import JournalReader
from qworker.store.url import ServerURL
from qworker.wire.keys import QueueKeys
from tests.timing import Clock


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


def test_counters_of_a_queue_do_not_fall_with_a_shard_that_breaks(
    app: QWorker, queue: Queue
) -> None:
    """A sum without it would be smaller: to Prometheus that is a counter that restarted, an increase by all of it."""
    keys = [QueueKeys(app.namespace, name) for name in ("orders", "orders/1", "orders/2")]
    clock = Clock()
    collector = QueueCollector(app.client, lambda: keys, clock=clock)

    def figures() -> tuple[float, float]:
        clock.now_s += 60
        damages = {metric.name: metric for metric in collector.collect()}
        (sent,) = damages["qworker_sent"].samples
        (ready,) = damages["qworker_messages_ready"].samples
        return sent.value, ready.value

    assert figures() == (4, 4)
    held = Queue(app.client, app.namespace, "orders/1").inspect().ready
    app.client.run(_string(keys[1].dead))
    queue.send({"task": "work", "args": [5]})
    sent, ready = figures()
    assert sent >= 4
    assert ready <= 5 - held
    app.client.run(_delete(keys[1].dead))
    assert figures() == (5, 5)


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
        assert reaper.tick().broken == {"orders/2"}
    while whole.inspect().delayed:
        reaper.tick()
    reaper.close()


def _string(key: str) -> Any:

    yield raw("SET", key, "x", decode=bytes)


@pytest.mark.slow
def test_fsck_checks_every_shard(app: QWorker, queue: Queue) -> None:
    """A sound one is clean; damage is reported with the shard, also where one queue is named."""
    assert list(check(app.client, app.namespace)) == []
    shard = Queue(app.client, app.namespace, "orders/2")
    shard.send({"n": 1})
    shard.receive(1)
    app.client.run(_delete(shard.keys.unacked))
    for queues in ((), ("orders",)):
        damages = [
            finding
            for finding in check(app.client, app.namespace, queues)
            if isinstance(finding, Damage)
        ]
        assert {damage.queue for damage in damages} == {"orders/2"}
        assert DamageKind.NO_DEADLINE in {damage.kind for damage in damages}, damages
    assert list(check(app.client, app.namespace, ("order",))) == []


def _delete(key: str) -> Any:

    yield raw("DEL", key, decode=int)


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


def test_the_journal_of_a_shard_that_was_given_up_is_not_forgotten(
    app: QWorker, queue: Queue
) -> None:
    """Its entries stay: readers that are behind are named, and the life of a message is found there."""
    queue.register_reader("archive")
    messages = queue.receive(10)
    queue.ack(*messages)
    queue.divide(1, wait=0)
    assert len(queue.division().shards) == 1
    assert {message.receipt.shard for message in messages if message.receipt} == {0, 1, 2}
    assert [lag.unread_bytes > 0 for lag in queue.reader_lags()] == [True] * 3
    for message in messages:
        told = app.client.run(life(queue.ref, message.id, most_bytes=2**20))
        assert [event.name for event in told.events] == ["sent", "delivered", "acked"]
    reaper = Reaper(app.client, app.namespace)
    reaper.tick()
    collector = QueueCollector(app.client, lambda: reaper.registry.queues)
    (entries,) = [one for one in collector.collect() if one.name == "qworker_journal_entries"]
    streams = [app.client.ask("XLEN", keys.journal) for keys in reaper.registry.queues]
    assert [len(streams), *(sample.value for sample in entries.samples)] == [3, sum(streams)]
    queue.register_reader("audit")
    assert [reader.name for reader in queue.readers()] == ["archive", "audit"] * 3
    assert queue.forget_reader("archive")
    assert [reader.name for reader in queue.readers()] == ["audit"] * 3


def test_spark_reads_every_shard(app: QWorker, queue: Queue) -> None:
    """`queues`, `messages` and `dead`; and a dead letter is redriven in the shard that its row names."""
    for table, count in (("queues", 3), ("messages", 4), ("dead", 4)):
        if table == "dead":
            for message in queue.receive(10):
                queue.bury(message)
        rows = rows_of(SnapshotReader(options_of(app, table=table)))
        assert len(rows) == count
        assert {row["queue"] for row in rows} == {"orders"}
        assert {row["shard"] for row in rows} == {0, 1, 2}
    dead_letters = rows_of(SnapshotReader(options_of(app, table="dead")))
    by_entry = [
        {"queue": "orders", "entry_id": dead_letter["entry_id"]} for dead_letter in dead_letters[:2]
    ]
    by_message = [
        {"queue": "orders", "entry_id": None, "message_id": dead_letter["message_id"]}
        for dead_letter in dead_letters[2:]
    ]
    given = {"namespace": app.namespace, "action": "redrive"}
    for rows in (by_entry, by_message):
        changer = DeadLetterChanger(ServerURL.parse(app.url), WriteOptions.of(given))
        changed = changer.change(0, [pa.RecordBatch.from_pylist(rows)])
        assert changed.queues == {"orders": {"done": 2, "gone": 0, "foreign": 0}}
    assert queue.inspect().ready == 4


@pytest.mark.parametrize("written", ["rubbish", "1 1 1", "3 3 999999999999999", ""])
@pytest.mark.slow
def test_fsck_heals_a_queue_that_has_forgotten_its_shards(
    app: QWorker, queue: Queue, written: str
) -> None:
    """Messages that no consumer would receive; by the marks of the shards it is divided as before."""
    key = queue.keys.meta
    before = queue.division()
    app.client.run(_set(key, "shards", written) if written else _unset(key, "shards"))
    damages = [
        finding for finding in check(app.client, app.namespace) if isinstance(finding, Damage)
    ]
    assert {damage.kind for damage in damages} == {DamageKind.BAD_SHARDS}
    assert "orders" in {damage.queue for damage in damages}
    assert list(check(app.client, app.namespace, repair=True))
    assert list(check(app.client, app.namespace)) == []
    healed = Queue(app.client, app.namespace, "orders")
    assert (healed.division().active, len(healed.division().shards)) == (3, 3)
    assert before.active == 3
    assert len(healed.receive(10)) == 4


@pytest.mark.slow
def test_fsck_finds_messages_in_shards_that_no_division_knows(app: QWorker, queue: Queue) -> None:
    """Without marks as well: they are received again, and their shards run empty."""
    for number in range(3):
        keys = queue.ref.shard_of(number).keys
        app.client.run(_unset(keys.meta, "shards"))
        app.client.run(_unset(keys.meta, "shard"))
    damages = [
        finding for finding in check(app.client, app.namespace) if isinstance(finding, Damage)
    ]
    assert {damage.queue for damage in damages} == {"orders/1", "orders/2"}
    assert list(check(app.client, app.namespace, repair=True))
    assert list(check(app.client, app.namespace)) == []
    assert len(Queue(app.client, app.namespace, "orders").receive(10)) == 4


def test_fsck_removes_leftovers_of_a_deleted_queue(app: QWorker, queue: Queue) -> None:
    """A shard whose node was away when its queue was removed, but none while there is any message, nor a journal."""
    one, two = (Queue(app.client, app.namespace, f"orders/{n}") for n in (1, 2))
    for key in queue.keys.all():
        app.client.run(_delete(key))
    damages = [
        finding for finding in check(app.client, app.namespace) if isinstance(finding, Damage)
    ]
    assert DamageKind.LEFTOVER not in {damage.kind for damage in damages}
    one.purge()
    two.purge()
    assert DamageKind.LEFTOVER not in {damage.kind for damage in damages}
    for key in (one.keys.journal, two.keys.journal):
        app.client.run(_delete(key))
    damages = [
        finding for finding in check(app.client, app.namespace) if isinstance(finding, Damage)
    ]
    leftovers = {damage.queue for damage in damages if damage.kind is DamageKind.LEFTOVER}
    assert leftovers == {"orders/1", "orders/2"}
    assert list(check(app.client, app.namespace, repair=True))
    assert not one.inspect().exists
    assert not two.inspect().exists


def test_fsck_recognises_a_removed_shard(app: QWorker, queue: Queue) -> None:
    """Its mark stays and is not a finding."""
    queue.ack(*queue.receive(10))
    queue.divide(1, wait=0)
    assert len(queue.division().shards) == 1
    assert list(check(app.client, app.namespace)) == []


def test_the_queue_keeps_the_totals_of_removed_shards(app: QWorker, queue: Queue) -> None:
    """So no total ever falls, and no rate shows that never was; divided again, none counts twice."""
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


@pytest.mark.slow
def test_totals_survive_a_crash_of_the_one_that_moves_them(app: QWorker, queue: Queue) -> None:
    """Killed after any of its calls: the next attempt neither loses a total nor adds one twice."""
    queue.ack(*queue.receive(10))
    counted = ("sent", "received", "acked")
    for calls in range(100):
        queue.divide(3, wait=0)
        for n in range(6):
            queue.send({"task": "work", "args": [n]})
        while messages := queue.receive(10):
            queue.ack(*messages)
        before = queue.inspect().stats
        known = app.client.execute(commands.read_shards(queue.keys))
        _, closed = app.client.execute(commands.divide(queue.keys, known, 1, 3))
        for number in (1, 2):
            app.client.execute(commands.mark(_ref(app).shard_of(number).keys, closed))
        has_crashed = _crashes(app, give_up_empty(_ref(app)), calls)
        app.client.run(give_up_empty(_ref(app)))
        # A client that does not know of the shards any more: it adds nothing that was left in them.
        fresh = Queue(app.client, app.namespace, "orders")
        assert len(fresh.division().shards) == 1
        seen = fresh.inspect().stats
        assert {name: seen[name] for name in counted} == {name: before[name] for name in counted}
        if not has_crashed:
            break
    assert calls > 10


def _ref(app: QWorker) -> QueueRef:
    return QueueRef(app.namespace, "orders", app.client.ids)


def _crashes(app: QWorker, plan: Any, calls: int) -> bool:
    """Whether the plan makes more calls than these, after which it ends."""
    step = plan.send(None)
    for _ in range(calls):
        try:
            step = plan.send(app.client.execute(step))
        except StopIteration:
            return False
    plan.close()
    return True


def _unset(key: str, field: str) -> Any:

    yield raw("HDEL", key, field, decode=int)


def _set(key: str, field: str, value: str) -> Any:

    yield raw("HSET", key, field, value, decode=int)
