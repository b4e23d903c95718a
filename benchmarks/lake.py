"""What audits and reports of an archive cost as it grows: a synthetic archive, read day by day, then as a whole.

    python -m benchmarks.lake --days 3 --events 1000000

writes an archive of that many events per day, three for each message, without Redis; one message in a thousand ends on
the next day. After each day it audits and reports incrementally. Then it audits the whole, reports on it, audits the
last day alone, and compacts one day. With `--files N` it only commits names of that many files, and measures what
listing them costs. Prints JSON: each step as seconds, and as CPU seconds of all its processes, which other work on the
machine changes less, with the jobs and tasks that Spark launched; `rss_mb` are the peaks of the JVM and of all Python
processes. The archive is deleted.
"""

from __future__ import annotations

import json
import secrets
import tempfile
import threading
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import psutil

from benchmarks.rounds import environment
from qworker.pipeline.jobs.audit import Window
from qworker.pipeline.jobs.compact import compact
from qworker.pipeline.jobs.files import EventFile, write_events
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.reading import ends_of, read_events, sizes_of
from qworker.pipeline.jobs.run_audit import audit_all, audit_increment
from qworker.pipeline.report import Scope, make_document, report_increment
from qworker.pipeline.session import open_session
from qworker.pipeline.source.schemas import arrow_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_BEGIN = date(2031, 5, 4)
_EPOCH = 1_935_655_200_000
_DAY_US = 86_400_000_000
_EVENTS = ("sent", "delivered", "acked")
#: One message in so many is acked on the next day.
_LATE = 1000
_SCOPE = Scope("benchmark", "a synthetic archive")


def rows(queue: str, day: int, events: int) -> pa.RecordBatch:
    """Make the events of one queue and day; numbers continue from day to day."""
    import numpy as np
    import pyarrow as pa

    messages = events // 3
    message = np.repeat(np.arange(messages, dtype="int64"), 3)
    kind = np.tile(np.arange(3, dtype="int64"), messages)
    late = (message % _LATE == 0) & (kind == 2)
    if day:
        # In place of the acks that come tomorrow are those of yesterday's messages.
        message = np.where(late, message - messages, message)
    else:
        kind = np.where(late, 1, kind)
    number = np.arange(day * 3 * messages, (day + 1) * 3 * messages, dtype="int64")
    identity = message + day * messages
    begin = (_BEGIN - date(1970, 1, 1)).days * _DAY_US
    sent = begin + identity * _DAY_US // messages
    ts = begin + day * _DAY_US + np.arange(3 * messages, dtype="int64") * _DAY_US // (3 * messages)
    stamp = pa.timestamp("us", tz="UTC")
    names = np.array(_EVENTS, dtype=object)[kind]
    given: dict[str, Any] = {
        "queue": pa.array([queue] * len(number)),
        "shard": pa.array(np.zeros(len(number), "int32")),
        "epoch": pa.array(np.full(len(number), _EPOCH)),
        "entry": pa.array(number // 100),
        "number": pa.array(number),
        "event": pa.array(names),
        "message_id": pa.array([f"m{each:012d}" for each in identity.tolist()]),
        "attempt": pa.array(np.where(kind > 0, 1, 0).astype("int32")),
        "ts": pa.array(ts).cast(stamp),
        "sent_ts": pa.array(sent).cast(stamp),
        "ready_ts": pa.array(sent).cast(stamp),
        "wait_ms": pa.array(np.full(len(number), 3.0)),
        "run_ms": pa.array(np.full(len(number), 5.0), mask=kind != 2),
        "task": pa.array(["send_email"] * len(number)),
        "worker": pa.array(["web-1:7"] * len(number)),
    }
    schema = arrow_of("journal")
    arrays = [
        given[field.name].cast(field.type)
        if field.name in given
        else pa.nulls(len(number), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def write_day(lake: Lake, day: int, events: int, queues: int) -> int:
    """Commit one day; returns its bytes."""
    files = []
    for queue in range(queues):
        batch = rows(f"q{queue}", day, events // queues)
        files += write_events([batch], lake.root, name=f"part-{secrets.token_hex(16)}")
    end = (day + 1) * (events // queues // 3 * 3)
    offsets = {
        f"q{queue}": {"epoch": _EPOCH, "entry": end // 100 + 1, "event": end}
        for queue in range(queues)
    }
    lake.commit(files, after=lake.last(), offsets=offsets)
    return sum(file.bytes for file in files)


class Launched:
    """Jobs and tasks that Spark has launched since the last call; of the newest thousand jobs."""

    def __init__(self, spark: SparkSession) -> None:
        self._context, self._last = spark.sparkContext._jsc.sc(), -1
        self()

    def __call__(self) -> dict[str, int]:
        """Count them."""
        self._context.listenerBus().waitUntilEmpty()
        # Spark's public status is of jobs that run.
        listed = self._context.statusStore().jobsList(None)
        jobs = [listed.apply(number) for number in range(listed.size())]
        new = {job.jobId(): job.numCompletedTasks() for job in jobs if job.jobId() > self._last}
        self._last = max(new, default=self._last)
        return {"jobs": len(new), "tasks": sum(new.values())}


class Cost:
    """Seconds, CPU seconds of this process and its children, and jobs and tasks of Spark, since the last call."""

    def __init__(self, spark: SparkSession | None = None) -> None:
        self._launched = dict[str, int] if spark is None else Launched(spark)
        self._time, self._cpu = time.perf_counter(), self._used()

    def __call__(self) -> dict[str, float]:
        """Return them."""
        now, cpu = time.perf_counter(), self._used()
        cost = {"s": round(now - self._time, 2), "cpu_s": round(cpu - self._cpu, 2)}
        self._time, self._cpu = now, cpu
        return {**cost, **self._launched()}

    @staticmethod
    def _used() -> float:
        own, total = psutil.Process(), 0.0
        for process in (own, *own.children(recursive=True)):
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            total += times.user + times.system
        return total


def list_files(files: int) -> dict[str, Any]:
    """Commit names of files, 100 in each commit as of 100 queues, and list them."""
    stats = json.dumps({"numRecords": 1000, "minValues": {"number": 0}, "maxValues": {"number": 9}})
    with tempfile.TemporaryDirectory(prefix="qworker-lake-") as place:
        lake = Lake(Path(place) / "lake")
        lake.create("benchmark")
        cost = Cost()
        for first in range(0, files, 100):
            day = f"{_BEGIN + timedelta(days=first // 20_000)}"
            named = [
                EventFile(
                    f"{lake.root}/queue=q{number}/day={day}/part-{secrets.token_hex(16)}.parquet",
                    f"q{number}",
                    day,
                    10_000,
                    stats,
                )
                for number in range(100)
            ]
            for file in named:
                Path(file.path).parent.mkdir(parents=True, exist_ok=True)
            lake.commit(named, after=first // 100, offsets={})
        commits = cost()
        before = psutil.Process().memory_info().rss
        found = sum(len(day.sizes) for day in lake.days())
        listing = cost()
        used = psutil.Process().memory_info().rss - before
    return {
        "files": found,
        "commits": {"number": files // 100, **commits},
        "list": listing,
        "list_mb": used // 2**20,
    }


class Peak:
    """The peaks of the memory of this process's JVM and of its Python processes, while it is open."""

    def __init__(self) -> None:
        self.jvm = self.python = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        own = psutil.Process()
        while not self._ended.wait(0.5):
            jvm = python = 0
            for process in (own, *own.children(recursive=True)):
                try:
                    used = process.memory_info().rss
                    jvm += used * (process.name() == "java")
                    python += used * (process.name() != "java")
                except psutil.Error:
                    continue
            self.jvm, self.python = max(self.jvm, jvm), max(self.python, python)


@click.command()
@click.option("--days", default=10, show_default=True)
@click.option("--events", default=1_000_000, show_default=True, help="Per day.")
@click.option("--queues", default=10, show_default=True)
@click.option("--memory", default="1g", show_default=True, help="Of the driver's JVM.")
@click.option("--files", default=0, help="Only list this many files.")
@click.option("--increments/--no-increments", default=True, help="Audit and report after each day.")
@click.option(
    "--reports/--no-reports", default=True, help="Report, after each day and on the whole."
)
def main(
    days: int, events: int, queues: int, memory: str, files: int, increments: bool, reports: bool
) -> None:
    """Measure what audits and reports of a growing archive cost."""
    if files:
        click.echo(json.dumps({**list_files(files), "environment": environment()}))
        return
    spark = open_session(app="qworker-benchmark-lake", settings={"spark.driver.memory": memory})
    figures: dict[str, Any] = {"days": days, "events_per_day": events, "queues": queues}
    with tempfile.TemporaryDirectory(prefix="qworker-lake-") as place, Peak() as peak:
        lake = Lake(Path(place) / "lake")
        lake.create("benchmark")
        written, cost = 0, Cost(spark)
        steps: list[dict[str, Any]] = []
        for day in range(days):
            written += write_day(lake, day, events, queues)
            if not increments:
                continue
            write = cost()
            result, _ = audit_increment(spark, lake=lake)
            audited = cost()
            assert not result.wrong, result
            steps.append({"events": result.events, "write": write, "audit": audited})
            if reports:
                report = report_increment(spark, lake, _SCOPE)
                assert report.rebuilt is None, report.rebuilt
                steps[-1]["report"] = cost()
            click.echo(f"day {day}: {steps[-1]}, {result.open:,} open", err=True)
        figures |= {"bytes_per_event": round(written / (days * events), 2), "increments": steps}
        cost()
        result = audit_all(spark, window=Window(), lake=lake)
        figures["full"] = {"events": result.events, **cost()}
        assert not result.wrong, result
        click.echo(f"full audit: {figures['full']}", err=True)
        if reports:
            document = make_document(read_events(spark, lake=lake), _SCOPE, ends=ends_of(lake))
            figures["report"] = {"events": document["data"]["rows"], **cost()}
            click.echo(f"full report: {figures['report']}", err=True)
        last = datetime.combine(_BEGIN + timedelta(days=days - 1), datetime.min.time(), UTC)
        result = audit_all(spark, window=Window(since=last), lake=lake)
        read = len(sizes_of(lake, None, last))
        figures["since"] = {"events": result.events, "files": read, **cost()}
        for _ in range(2):  # two files of each queue and day, so that there is something to compact
            write_day(lake, days, events, queues)
        cost()
        compact(lake, [each for each in lake.days() if len(each.sizes) > 1])
        figures["compact"] = {"events": 2 * events, **cost()}
    figures["rss_mb"] = {"jvm": peak.jvm // 2**20, "python": peak.python // 2**20}
    spark.stop()
    click.echo(json.dumps({**figures, "environment": environment()}))


if __name__ == "__main__":
    main()
