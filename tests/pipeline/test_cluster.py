"""The pipeline on a Cluster: every queue and shard is read and written where it is, while its slot moves as well."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession, functions

from qworker import QWorker
from qworker.bulk.options import BulkOptions
from qworker.bulk.rows import RowReader
from qworker.bulk.sender import BulkSender, Identity
from qworker.cli.main import cli
from qworker.engine.options import QueueAttributes
from qworker.pipeline.jobs.archive import archive
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.reading import server_options
from qworker.pipeline.sink.dead_letters import DeadLetterChanger
from qworker.pipeline.sink.options import WriteOptions
from qworker.pipeline.sink.send import Rows, send_rows
from qworker.pipeline.source.options import ReadOptions
from qworker.pipeline.source.snapshots import SnapshotReader
from qworker.pipeline.source.stream import JournalReader
from qworker.store.connections import ConnectionFactory
from qworker.store.url import ServerURL
from qworker.wire.keys import QueueKeys
from tests.bulk.test_sender import ROWS, Bulk
from tests.pipeline.forging import forget_offsets
from tests.pipeline.redis_journals import ForgedJournal
from tests.pipeline.test_source_journal import TWO, Stream, batch, numbers
from tests.topologies.servers import Cluster, Node, client_of, until
from tests.topologies.test_cluster import another, one_queue_per_master, slot_of

Given = Callable[..., ReadOptions]


@pytest.fixture
def app(nodes: Cluster, namespace: str) -> Iterator[QWorker]:
    """An app whose queues are on the Cluster."""
    app = QWorker(namespace, url=nodes.url)
    yield app
    app.close()


@pytest.fixture
def names(nodes: Cluster, namespace: str) -> list[str]:
    """Three queues, each on another master."""
    return sorted(one_queue_per_master(nodes, namespace).values())


@pytest.fixture
def given(nodes: Cluster, namespace: str) -> Given:
    """Make the options of a read."""
    return lambda **options: ReadOptions.of({"url": nodes.url, "namespace": namespace, **options})


@pytest.fixture
def bulk(nodes: Cluster, namespace: str) -> Iterator[Bulk]:
    """Bulk writes to queue `q`, or to those of the rows."""
    made = Bulk(nodes.url, namespace, "q")
    yield made
    made.redis.close()


def whereabouts(nodes: Cluster, namespace: str, queue: str) -> tuple[int, Node, Node]:
    """The slot of a queue, its master, and another one."""
    keys = QueueKeys(namespace, queue)
    home = nodes.master_of(keys.meta)
    return slot_of(keys), home, another(nodes, home)


def read_table(options: ReadOptions) -> list[dict[str, Any]]:
    """Read a snapshot as tasks do."""
    reader = SnapshotReader(options)
    batches = (batch for part in reader.partitions() for batch in reader.read(part))
    return [row for batch in batches for row in batch.to_pylist()]


# -- reads -----------------------------------------------------------------------------------------


def test_journals_on_every_master_are_read_exactly(
    nodes: Cluster, app: QWorker, names: list[str], given: Given
) -> None:
    """As a batch, and as a stream in small steps that notes its progress in every queue."""
    with client_of(nodes.url) as client:
        for at, name in enumerate(names):
            ForgedJournal(client, app.namespace, name).fill(10 * (at + 1), TWO)
    wanted = [
        (name, number // 2, number)
        for at, name in enumerate(names)
        for number in range(20 * (at + 1))
    ]
    assert sorted(numbers(batch(given(fetchSize="7")))) == wanted
    stream, rows = Stream(given(readerName="lake"), limit=13), list[dict[str, Any]]()
    while step := stream.step():
        rows += step
    assert sorted(numbers(rows)) == wanted
    stream.reader.commit(stream.offset)
    known = [app.queue(name).readers() for name in names]
    assert [[(reader.name, reader.entry) for reader in readers] for readers in known] == [
        [("lake", 9)], [("lake", 19)], [("lake", 29)],
    ]  # fmt: skip


def test_a_journal_is_read_while_its_slot_moves(nodes: Cluster, app: QWorker, given: Given) -> None:
    """Before, amid and after the move each entry is read once, by reads in flight and by new ones."""
    with client_of(nodes.url) as client:
        ForgedJournal(client, app.namespace, "q").fill(300, TWO)
    slot, home, to = whereabouts(nodes, app.namespace, "q")
    wanted = [("q", number // 2, number) for number in range(600)]
    reader = JournalReader(given(fetchSize="20", minPartitions="1"))
    (part,) = reader.partitions()
    pages = reader.read(part)
    rows = next(pages).to_pylist()
    with nodes.moving(slot, to) as move_keys:
        rows += next(pages).to_pylist()
        assert numbers(batch(given())) == wanted
        move_keys()
        for _ in range(4):
            rows += next(pages).to_pylist()
        assert numbers(batch(given())) == wanted
    rows += [row for page in pages for row in page.to_pylist()]
    assert numbers(rows) == numbers(batch(given())) == wanted
    nodes.move(slot, home)


def test_snapshots_have_the_messages_of_every_master_and_shard(
    app: QWorker, names: list[str], given: Given
) -> None:
    """Ready, delayed, unacked and dead, each with its queue and shard; figures of every state."""
    app.queue(names[0]).divide(3, wait=0)
    sent = Counter[str]()
    for name in names:
        queue = app.queue(name)
        for number in range(30):
            queue.send({"n": number}, delay="1h" if number % 3 == 0 else None)
        for message in queue.receive(6):
            queue.bury(message)
        assert queue.receive(4)
        sent[name] = 30
    rows, dead = read_table(given(table="messages")), read_table(given(table="dead"))
    assert Counter(row["queue"] for row in [*rows, *dead]) == sent
    assert len({row["message_id"] for row in [*rows, *dead]}) == 90
    assert Counter(row["state"] for row in rows)["delayed"] == 30
    assert {row["shard"] for row in rows if row["queue"] == names[0]} == {0, 1, 2}
    figures = read_table(given(table="queues"))
    assert len(figures) == 5
    assert sum(row["delayed"] for row in figures) == 30
    assert sum(row["dead"] for row in figures) == len(dead) == 18


def test_delayed_messages_are_read_while_their_slot_moves(
    nodes: Cluster, app: QWorker, given: Given
) -> None:
    """A snapshot continues at the other node, without missing or repeating a message."""
    sent = {app.queue("q").send(b"x", delay=f"{number % 7 + 1}h") for number in range(400)}
    slot, home, to = whereabouts(nodes, app.namespace, "q")
    reader = SnapshotReader(given(table="messages"))
    (part,) = reader.partitions()
    pages = reader.read(part)
    rows = next(pages).to_pylist()
    assert len(rows) < 100
    nodes.move(slot, to)
    rows += [row for page in pages for row in page.to_pylist()]
    assert Counter(row["message_id"] for row in rows) == Counter(sent)
    nodes.move(slot, home)


# -- writes ----------------------------------------------------------------------------------------


def test_rows_to_queues_on_every_master_are_stored_once_and_in_order(
    bulk: Bulk, names: list[str]
) -> None:
    """By an attempt that fails, one that continues, and a run of the same write id after them."""
    columns = {"queue": [names[number % 3] for number in range(len(ROWS))]}
    bulk.send(ROWS, columns=columns, fail_after=3500)
    assert any(bulk.bodies(queue=name) for name in names)
    sent = bulk.send(ROWS, columns=columns)
    assert sent is not None
    again = bulk.send(ROWS, columns=columns, run_id="second")
    for at, name in enumerate(names):
        assert bulk.bodies(queue=name) == ROWS[at::3]
    assert bulk.totals(sent)["sent"] == 5300
    assert again is not None
    totals = bulk.totals(again, "second")
    assert totals == {"rows": 5300, "sent": 0, "already_there": 5300, "stored": 5300}


@pytest.mark.parametrize("ordered", [True, False], ids=["ledger", "none"])
def test_a_write_continues_while_slots_move(
    nodes: Cluster, bulk: Bulk, names: list[str], ordered: bool
) -> None:
    """Calls that are on their way when a slot is elsewhere, or halfway, are made there; also without a ledger."""
    options = BulkOptions(namespace=bulk.namespace)
    reader = RowReader(options, 0)
    identity = Identity("w", "r", 0, 60_000, ordered)
    slot, home, to = whereabouts(nodes, bulk.namespace, names[0])
    with BulkSender(ConnectionFactory(nodes.url), options, identity) as sender:

        def send(first: int, *, settled: bool = False) -> None:
            queues = [names[number % 3] for number in range(first, first + 6000)]
            rows = [f"{number}" for number in range(first, first + 6000)]
            for group in reader.read(pa.record_batch({"body": rows, "queue": queues})):
                sender.add(group)
            if settled:
                sender._transport.flush()

        send(0)
        nodes.move(slot, to)
        send(6000)
        with nodes.moving(slot, home) as move_keys:
            writing = threading.Thread(target=send, args=(12000,), kwargs={"settled": True})
            writing.start()
            writing.join(0.3)
            assert writing.is_alive(), "it waits for the slot"
            move_keys()
        writing.join(60)
        send(18000)
        sent = sender.finish()
    assert sum(sent.rows.values()) == 24_000
    for at, name in enumerate(names):
        stored, wanted = bulk.bodies(queue=name), [str(number) for number in range(at, 24_000, 3)]
        assert (stored if ordered else sorted(stored)) == (wanted if ordered else sorted(wanted))


def test_a_write_begins_amid_a_move(nodes: Cluster, bulk: Bulk) -> None:
    """Its ledger is made where the slot goes (ASK); the rows follow when all keys are there."""
    slot, home, to = whereabouts(nodes, bulk.namespace, bulk.queue)
    bulk.send(ROWS[:10], write_id="before")
    writing = threading.Thread(target=bulk.send, args=(ROWS[:10],), kwargs={"partitions": 1})
    with nodes.moving(slot, to):
        writing.start()
        until(lambda: to.ask("CLUSTER", "COUNTKEYSINSLOT", slot) == 1)
        assert writing.is_alive()
    writing.join(60)
    assert bulk.bodies() == ROWS[:10] * 2
    nodes.move(slot, home)


def test_connections_that_break_lose_and_double_nothing(
    nodes: Cluster, bulk: Bulk, names: list[str]
) -> None:
    """A connection to one master breaks alone; what was on its way there is sent again, in its order."""
    rows = [f"{number} {'x' * 200}" for number in range(40_000)]
    done, killed = threading.Event(), Counter[Node]()

    def kill() -> None:
        while not done.wait(0.03):
            for node in nodes.masters():
                for client in node.redis().client_list():
                    if client["name"] == "qworker-bulk":
                        killed[node] += node.redis().client_kill_filter(_id=client["id"])

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        bulk.send(rows, columns={"queue": [names[number % 3] for number in range(len(rows))]})
    finally:
        done.set()
        killer.join()
    assert killed.total()
    for at, name in enumerate(names):
        assert bulk.bodies(queue=name) == rows[at::3]


def test_dead_letters_go_back_to_the_shard_that_has_them(
    app: QWorker, names: list[str], given: Given, nodes: Cluster
) -> None:
    """Redriven by rows of the table `dead`; a row without an entry id is searched in every shard."""
    app.queue(names[0]).divide(3, wait=0)
    for name in names:
        queue = app.queue(name)
        for number in range(12):
            queue.send({"n": number})
        while taken := queue.receive(12):
            for message in taken:
                queue.bury(message)
    dead = [
        {name: row[name] for name in ("queue", "message_id", "entry_id", "shard")}
        for row in read_table(given(table="dead"))
    ]
    assert len(dead) == 36
    half = [{**row, "entry_id": None} if at % 2 else row for at, row in enumerate(dead)]
    options = WriteOptions.of({"namespace": app.namespace, "action": "redrive"})
    changer = DeadLetterChanger(ServerURL.parse(nodes.url), options)
    changed = changer.change(0, [pa.RecordBatch.from_pylist(half)])
    assert changed.queues == {name: {"done": 12, "gone": 0, "foreign": 0} for name in names}
    ready = read_table(given(table="messages"))
    assert Counter((row["message_id"], row["shard"]) for row in ready) == Counter(
        (row["message_id"], row["shard"]) for row in dead
    )


# -- Spark -----------------------------------------------------------------------------------------


@pytest.mark.nightly("test_rows_to_queues_on_every_master_are_stored_once_and_in_order")
def test_a_cluster_is_sent_to_archived_audited_and_redriven(
    spark: SparkSession, nodes: Cluster, app: QWorker, names: list[str], tmp_path: Any
) -> None:
    """Spark's tasks and the command line take its URL; an archive resumes in every shard, also without offsets."""
    app.queue(names[0]).divide(2, wait=0)
    for name in names:
        app.queue(name).configure(QueueAttributes(journal="all"))
    source, lake = server_options(nodes.url, app.namespace), Lake(tmp_path / "lake")

    def run(*words: str) -> dict[str, Any]:
        line = ["--url", nodes.url, "--namespace", app.namespace, "spark", *words, "--json"]
        document: dict[str, Any] = json.loads(CliRunner().invoke(cli, line).stdout)
        return document

    queues = functions.array(*map(functions.lit, names))
    queue = functions.element_at(queues, functions.expr("cast(id % 3 + 1 as int)"))
    rows = spark.range(300, numPartitions=2)
    totals = send_rows(rows, rows=Rows(queue=queue), options=source)
    assert (totals.sent, {name: counts["sent"] for name, counts in totals.queues.items()}) == (
        300,
        dict.fromkeys(names, 100),
    )
    for number in range(4):
        app.queue(names[0]).send({"n": number})
    assert archive(spark, lake, source, once=True).events == 304
    forget_offsets(lake)
    for name in names:
        for message in app.queue(name).receive(10):
            app.queue(name).bury(message)
    assert archive(spark, lake, source, once=True).events == 60
    redriven = run("redrive", "--where", "true", "--yes")
    assert (redriven["matched"], redriven["redriven"]) == (30, 30)
    audited = run("audit", "--archive", str(lake.root), "--live")
    assert audited["ok"], audited
    assert (audited["messages"], audited["redriven"], audited["in_redis"]) == (304, 30, 304)
