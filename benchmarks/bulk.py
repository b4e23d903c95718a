"""bulk: how fast Spark sends the rows of a Parquet file exactly once, beside one redis-py process pipelining RPUSH.

The session's start and two warm-ups are printed apart and not counted. At the end one more send has two of its task
attempts fail midway: the queue has to hold every row once.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.rounds import Contender, environment, run_rounds, table
from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.engine.raw import raw
from qworker.pipeline.session import open_session
from qworker.pipeline.sink.send import send_rows
from qworker.store.connections import ConnectionFactory
from qworker.store.embedded.private import PrivateStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["bulk"]

_FLOOR = "redis-py, RPUSH of 1,000"
_FLOOR_SINGLE = "redis-py, RPUSH of 1"
_OURS = "qworker from Spark"
#: The JVM compiles while it runs: only from the third run on its figures are stable.
_WARM_UPS = 2


def bulk(messages: int, rounds: int, *, say: Callable[[str], None]) -> dict[str, object]:
    """Measure; returns one JSON object with a row per contender and the ratio to the floor."""
    begun = time.perf_counter()
    # Three tries per task, as on a cluster; plain local[*] never tries again.
    spark = open_session(app="qworker-benchmark", master="local[*,3]")
    started_s = time.perf_counter() - begun
    say(f"session started in {started_s:.1f} s")
    with tempfile.TemporaryDirectory(prefix="qworker-bulk-") as place, PrivateStore() as store:
        file = str(Path(place, "rows"))
        _rows(spark, messages).write.parquet(file)
        df = spark.read.parquet(file)
        queue = Queue(Client(ConnectionFactory(store.url)), "bulk", "bulk")
        for _ in range(_WARM_UPS):
            say(f"warm-up: {_spark(df, queue, store.url, messages):,.0f}/s")
        contenders = [
            Contender(_OURS, "exactly once", lambda: _spark(df, queue, store.url, messages)),
            Contender(_FLOOR, "none", lambda: _floor(store.url, file, messages, 1000)),
            Contender(_FLOOR_SINGLE, "none", lambda: _floor(store.url, file, messages, 1)),
        ]
        run_rounds(contenders, rounds, say)
        failing = _failing(spark, file, queue, store.url, messages)
        say(f"with {failing['attempts_failed']} failed attempts: {failing}")
        spark.stop()
        return {
            "benchmark": "bulk",
            "messages": messages,
            "rounds": rounds,
            "server": f"{store.engine.name} {store.engine.version}",
            "environment": environment(),
            "session_started_s": round(started_s, 1),
            "rows": table(contenders, _FLOOR),
            "ratio": round(contenders[0].median / contenders[1].median, 3),
            "with_failures": failing,
        }


def _rows(spark: SparkSession, messages: int) -> DataFrame:
    """Rows of about 90 bytes as JSON."""
    return spark.range(messages, numPartitions=2).selectExpr(
        "id", "concat('user', id, '@example.com') as to", "'welcome' as template", "id % 7 as tries"
    )


def _spark(df: DataFrame, queue: Queue, url: str, messages: int) -> float:
    queue.remove()
    begun = time.perf_counter()
    send_rows(df, queue="bulk", options={"url": url, "namespace": "bulk"})
    seconds = time.perf_counter() - begun
    if (stored := queue.inspect().stored) != messages:
        raise RuntimeError(f"{stored} messages of {messages} rows")
    return messages / seconds


def _floor(url: str, file: str, messages: int, values: int) -> float:
    with Client(ConnectionFactory(url)) as client:
        client.execute(raw("UNLINK", "floor", decode=int))
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.bulk_floor", url, "floor", file, str(values)],
            capture_output=True,
            text=True,
            check=True,
        )
        stored = client.execute(raw("LLEN", "floor", decode=int))
        client.execute(raw("UNLINK", "floor", decode=int))
    if stored != messages:
        raise RuntimeError(f"{stored} values of {messages} rows")
    return messages / float(done.stdout)


def _failing(
    spark: SparkSession, file: str, queue: Queue, url: str, messages: int
) -> dict[str, Any]:
    """Send once more while the first attempt of each of two partitions fails after some chunks."""
    queue.remove()
    df = spark.read.parquet(file)
    failing = df.mapInArrow(_fail_twice, df.schema)
    totals = send_rows(failing, queue="bulk", options={"url": url, "namespace": "bulk"})
    seen = queue.inspect()
    return {
        "attempts_failed": 2,
        "rows": totals.rows,
        "sent": totals.sent,
        "messages": seen.stored,
        "exact": seen.stored == totals.rows == totals.sent == messages,
    }


def _fail_twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    for number, batch in enumerate(batches):
        if context.attemptNumber() == 0 and context.partitionId() < 2 and number == 5:
            raise RuntimeError("this attempt fails, as the benchmark wants it")
        yield batch
