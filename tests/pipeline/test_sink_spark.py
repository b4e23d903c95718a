"""Writing from a real Spark: attempts that fail, jobs run again, replayed batches, and bodies made in the JVM."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from qworker import QWorker
from qworker.app.arguments.binding import Signature
from qworker.errors import BodyTooLargeError, InvalidBodyError, InvalidOptionError
from qworker.pipeline.sink.redrive import discard, redrive
from qworker.pipeline.sink.send import Rows, SendTotals, bodies_of, send_rows
from qworker.store.connections import ConnectionFactory
from qworker.wire.codec import decode_call
from tests.topologies.servers import client_of, until

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class Target:
    """A queue in a namespace of the test's own."""

    def __init__(self, url: str, namespace: str, queue: str) -> None:
        self.url, self.namespace, self.queue = url, namespace, queue
        self.base = f"{namespace}:{{{queue}}}:"
        self.options = {"url": url, "namespace": namespace}
        self.redis = client_of(url)
        #: The server and the key of its messages that are ready.
        self.ready = f"{url} {self.base}ready"

    def send(self, df: DataFrame, **more: Any) -> SendTotals:
        """Send a DataFrame."""
        options = {**self.options, **more.pop("options", {})}
        return send_rows(df, queue=self.queue, options=options, **more)

    def bodies(self) -> list[bytes]:
        """The bodies in ready."""
        items = self.redis.lrange(self.base + "ready", 0, -1)
        return [item.partition(b"\n")[2] for item in items]

    def numbers(self) -> list[int]:
        """The field `id` of all bodies, sorted."""
        return sorted(json.loads(body)["id"] for body in self.bodies())


@pytest.fixture
def target(store_url: str, namespace: str, queue_name: str) -> Iterator[Target]:
    """A queue on Valkey."""
    made = Target(store_url, namespace, queue_name)
    yield made
    made.redis.close()


#: Rows of two tasks, each in three batches of Arrow.
ROWS = 12_000


@contextmanager
def settings(spark: SparkSession, **given: str) -> Iterator[None]:
    """Change settings of `spark.sql` for a while. A session of their own would start Python workers of its own."""
    for name, value in given.items():
        spark.conf.set(f"spark.sql.{name}", value)
    try:
        yield
    finally:
        for name in given:
            spark.conf.unset(f"spark.sql.{name}")


@pytest.fixture
def rows(spark: SparkSession) -> Iterator[DataFrame]:
    """The numbers below `ROWS`."""
    with settings(spark, **{"execution.arrow.maxRecordsPerBatch": str(ROWS // 6)}):
        yield spark.range(0, ROWS, numPartitions=2)


def wait_for_key(url: str, key: str) -> None:
    """Wait until a server has a key."""
    with closing(client_of(url)) as redis:
        until(lambda: redis.exists(key), what=f"to store {key}")


def failing(df: DataFrame, attempts: int, *, after: int = 2, stored: str = "") -> DataFrame:
    """The same rows, but the first attempts at partition 0 fail after some batches.

    `stored`: the URL of a server, a space and a key that exists by then: rows of another partition are stored.
    """

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            is_doomed = context.partitionId() == 0 and context.attemptNumber() < attempts
            if is_doomed and number == after:
                if stored:
                    wait_for_key(*stored.split(" "))
                raise RuntimeError("this attempt fails, as the test wants it")
            yield batch

    return df.mapInArrow(pass_on, df.schema)


def test_failing_attempts_leave_every_row_once(rows: DataFrame, target: Target) -> None:
    """A task that fails twice after some chunks were stored ends with each row stored once, and says so."""
    totals = target.send(failing(rows, 2))
    assert (totals.rows, totals.sent, totals.already_there) == (ROWS, ROWS, 0)
    assert target.numbers() == list(range(ROWS))


def test_job_run_again_sends_the_rest(rows: DataFrame, target: Target) -> None:
    """A job that failed for good and is run again under its write id stores what is missing; a third run nothing."""
    with pytest.raises(Exception, match="this attempt fails"):
        target.send(failing(rows, 9, stored=target.ready), write_id="nightly")
    stored = len(target.bodies())
    assert 0 < stored < ROWS
    totals = target.send(rows, write_id="nightly")
    assert totals.sent + totals.already_there == ROWS
    # A task of the failed job may have gone on a little longer.
    assert stored <= totals.already_there < ROWS
    assert target.numbers() == list(range(ROWS))
    assert target.send(rows, write_id="nightly").sent == 0


@pytest.mark.nightly("test_job_run_again_sends_the_rest")
def test_a_job_is_run_again_on_a_cluster_of_another_size(
    spark: SparkSession, target: Target, tmp_path: Path
) -> None:
    """Files are cut there as before: only the rest is sent."""
    files = str(tmp_path / "rows")
    spark.range(0, 30_000, numPartitions=4).write.parquet(files)
    partitions = set()
    small = {"files.openCostInBytes": "1", "execution.arrow.maxRecordsPerBatch": "500"}

    def send(cores: int, attempts: int = 0) -> SendTotals:
        with settings(spark, leafNodeDefaultParallelism=str(cores), **small):
            df = failing(spark.read.parquet(files), attempts, stored=target.ready)
            partitions.add(df.rdd.getNumPartitions())
            return target.send(df, write_id="nightly")

    with pytest.raises(Exception, match="this attempt fails"):
        send(2, attempts=9)
    totals = send(4)
    assert totals.sent + totals.already_there == 30_000
    assert totals.already_there > 0
    assert target.numbers() == list(range(30_000))
    assert send(7).sent == 0
    assert len(partitions) == 3


def test_a_divided_queue_gets_rows_in_every_shard_once(rows: DataFrame, target: Target) -> None:
    """Attempts fail, the queue is divided otherwise in the meantime, and the job is run again under its write id."""
    app = QWorker(target.namespace, url=target.url)
    queue = app.queue(target.queue)
    queue.divide(3)
    with pytest.raises(Exception, match="this attempt fails"):
        target.send(failing(rows, 9), write_id="nightly")
    queue.divide(4)
    totals = target.send(failing(rows, 1), write_id="nightly")
    assert (totals.rows, totals.stored) == (ROWS, ROWS)
    assert totals.sent + totals.already_there == ROWS
    numbers = [json.loads(message.body)["id"] for message in queue.scan("ready")]
    assert sorted(numbers) == list(range(ROWS))
    shares = [shard.ready for shard in queue.division().shards]
    assert min(shares[:3]) >= ROWS // 3 * 0.95
    assert shares[3] == 0
    app.close()


def test_call_bodies_are_what_a_consumer_decodes(spark: SparkSession) -> None:
    """Columns become keyword arguments of every type that a handler may declare."""

    def handler(
        number: int,
        text: str,
        at: datetime,
        day: date,
        price: Decimal,
        raw: bytes,
        names: list[str],
        inner: dict[str, int],
        nothing: str | None,
    ) -> None: ...

    df = spark.sql(
        "select 9007199254740993 as number, 'é\"\\n' as text, timestamp '2031-05-04 10:22:33.123456' as at, "
        "date '2031-05-04' as day, cast(12.34 as decimal(9,2)) as price, cast('hey' as binary) as raw, "
        "array('a', 'b') as names, named_struct('x', 1) as inner, cast(null as string) as nothing"
    )
    body = bodies_of(df, Rows(task="load_row")).collect()[0]["body"]
    call = decode_call(body.encode())
    args, kwargs = Signature(handler, "load_row").decode(call.args, call.kwargs)
    assert (call.task, args) == ("load_row", ())
    assert kwargs == {
        "number": 9007199254740993,
        "text": 'é"\n',
        "at": datetime(2031, 5, 4, 10, 22, 33, 123456, UTC),
        "day": date(2031, 5, 4),
        "price": Decimal("12.34"),
        "raw": b"hey",
        "names": ["a", "b"],
        "inner": {"x": 1},
        "nothing": None,
    }


def test_tasks_get_the_rows(
    spark: SparkSession, target: Target, request: pytest.FixtureRequest
) -> None:
    """Rows sent with a task are calls that the app's consumers run."""
    app = QWorker(target.namespace)
    app.connect_with(ConnectionFactory(target.url))
    request.addfinalizer(app.close)
    seen: list[tuple[int, str]] = []

    @app.task(queue=target.queue, name="greet")
    def greet(id: int, to: str) -> None:  # noqa: A002
        seen.append((id, to))

    from qworker.testing import drain

    target.send(spark.range(3).selectExpr("id", "concat('user', id) as to"), task="greet")
    drain(app)
    assert sorted(seen) == [(0, "user0"), (1, "user1"), (2, "user2")]


def test_plain_writer_takes_columns(spark: SparkSession, target: Target) -> None:
    """The format itself takes body, queue, id, delay, ttl and priority as columns."""
    df = spark.range(4).selectExpr(
        "cast(id as string) as body",
        "id as id",
        f"if(id = 3, '{target.queue}-b', null) as queue",
        "cast(id % 2 * 9 as int) as priority",
        "if(id = 2, '1h', null) as delay",
    )
    for _ in range(2):
        writer = df.write.format("qworker").options(**target.options, queue=target.queue)
        writer.mode("append").save()
    assert target.bodies() == [b"0"]
    assert target.redis.lrange(target.base + "ready:9", 0, -1)[0].endswith(b" p=9\n1")
    assert target.redis.zcard(target.base + "delayed") == 1
    assert target.redis.llen(target.base.replace("}", "-b}") + "ready:9") == 1


def test_empty_input_sends_nothing(spark: SparkSession, target: Target) -> None:
    """Without rows nothing is sent, without an error."""
    totals = target.send(spark.range(0), write_id="nothing")
    assert (totals.rows, totals.sent) == (0, 0)


def test_bad_input_is_one_clear_error(spark: SparkSession, target: Target) -> None:
    """Wrong options, columns and rows raise a QworkerError that names them."""
    df = spark.range(0, 20, numPartitions=2).selectExpr("id", "if(id = 15, null, 'x') as text")
    with pytest.raises(InvalidBodyError, match="partition 1, row 6: the body is null"):
        target.send(df, rows=Rows(body="text"))
    large = df.selectExpr("if(id = 15, repeat('x', 262145), 'x') as text")
    with pytest.raises(BodyTooLargeError, match="partition 1, row 6, body: is 262145 bytes"):
        target.send(large, rows=Rows(body="text"))
    with pytest.raises(InvalidOptionError, match="column txet: is not there; did you mean 'text'"):
        target.send(df, rows=Rows(body="txet"))
    with pytest.raises(InvalidOptionError, match="did you mean maxQueueLength"):
        target.send(df, options={"maxQueueLenght": 5})
    with pytest.raises(Exception, match="save mode: overwrite would have to purge queues"):
        bodies_of(df, Rows()).write.format("qworker").options(**target.options, queue="q").mode(
            "overwrite"
        ).save()
    assert target.send(df).sent == 20


def test_replayed_batch_of_a_stream_is_stored_once(
    spark: SparkSession, target: Target, tmp_path: Path
) -> None:
    """When Spark loses the commit of a batch and does it again, each row is still there once; later ones follow."""
    rows, checkpoint = str(tmp_path / "rows"), tmp_path / "checkpoint"

    def run() -> None:
        df = spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1).parquet(rows)
        query = (
            bodies_of(df, Rows())
            .writeStream.format("qworker")
            .options(**target.options, queue=target.queue)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)

    for first in (0, 500):
        spark.range(first, first + 500, numPartitions=1).write.mode("append").parquet(rows)
    run()
    assert target.numbers() == list(range(1000))
    # The ledger of the last batch alone is kept.
    ledgers = target.base.replace("{", "?").replace("}", "?") + "bulk:*"
    (ledger,) = set(target.redis.scan_iter(ledgers))
    assert ledger.endswith(b":1")
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    spark.range(1000, 1200, numPartitions=1).write.mode("append").parquet(rows)
    run()
    assert target.numbers() == list(range(1200))
    shutil.rmtree(checkpoint)


def test_dead_letters_are_redriven_and_discarded_by_query(
    spark: SparkSession, target: Target
) -> None:
    """What a query of the table `dead` chooses goes back to ready, or away; what is dead no longer is counted."""
    for number in range(6):
        fields = {
            "envelope": f'q1 m{number} 1 5 5 0 0\n{{"task": "t{number % 2}"}}',
            "reason": "max_receives",
            "class": "",
            "error": "",
            "died_ms": "1",
        }
        target.redis.xadd(target.base + "dead", fields)
    target.redis.hset(f"{target.namespace}:queues", target.queue, 1)
    dead = spark.read.format("qworker").options(**target.options, table="dead").load()
    chosen = dead.where("task = 't0'").persist()
    totals = redrive(chosen, options=target.options)
    assert (totals.rows, totals.done, totals.gone) == (3, 3, 0)
    totals = redrive(chosen, rate=1000, options=target.options)
    assert (totals.done, totals.gone) == (0, 3)
    assert len(target.bodies()) == 3
    totals = discard(dead.where("message_id <> 'm1'"), options=target.options)
    assert totals.done == 2
    assert target.redis.xlen(target.base + "dead") == 1
    chosen.unpersist()
