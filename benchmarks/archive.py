"""archive: how fast a journal becomes Parquet, beside a redis-py loop that only makes dicts of the same events."""

from __future__ import annotations

import os
import statistics
import struct
import tempfile
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

from benchmarks.cpu_times import CpuTimes
from benchmarks.rounds import Contender, environment, run_rounds, table
from qworker.pipeline.jobs.archive import archive as archive_journal
from qworker.pipeline.jobs.files import write_events
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.session import open_session
from qworker.store.embedded.private import PrivateStore
from qworker.wire.keys import QueueKeys, queues_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["archive"]

_NAMESPACE = "benchmark"
_PER_ENTRY = 100
_EPOCH = 1_935_655_200_000
_LOOP = "redis-py loop, same columns"
_BARE_LOOP = "redis-py loop, times as ms"
_ARCHIVE = "qworker spark archive"
_SOURCE = "Spark, data source to noop"


def archive(
    sizes: list[int], rounds: int, *, profile: bool, say: Callable[[str], None]
) -> dict[str, object]:
    """Measure; returns one JSON object with the rates and the cost per event of each size."""
    with PrivateStore() as store:
        begun = time.perf_counter()
        spark = open_session(app="qworker-benchmark")
        start_s = time.perf_counter() - begun
        say(f"session started in {start_s:.1f} s, which no figure includes")
        try:
            results = [_measure(spark, store.url, size, rounds, say) for size in sizes]
            if profile:
                _profile(store.url, sizes[-1], say)
        finally:
            spark.stop()
        return {
            "benchmark": "archive",
            "events_per_entry": _PER_ENTRY,
            "rounds": rounds,
            "session_start_s": round(start_s, 2),
            "server": f"{store.engine.name} {store.engine.version}",
            "environment": environment(),
            "sizes": results,
        }


def _measure(
    spark: SparkSession, url: str, events: int, rounds: int, say: Callable[[str], None]
) -> dict[str, object]:
    queue = f"q{events}"
    _fill(url, queue, events)
    for _ in range(2):  # Java compiles what it has run often.
        _read_with_spark(spark, url, queue, min(events, 1_000_000))
        _archive(spark, url, queue, events)
    begun = time.perf_counter()
    _archive(spark, url, "empty", 0)
    empty_s = time.perf_counter() - begun
    cpu = CpuTimes()
    contenders = [
        Contender(_ARCHIVE, "", cpu.of(_ARCHIVE, _archive, spark, url, queue, events)),
        Contender(_SOURCE, "", cpu.of(_SOURCE, _read_with_spark, spark, url, queue, events)),
        Contender(_LOOP, "", cpu.of(_LOOP, _read_with_loop, url, queue, events, _rows)),
        Contender(
            _BARE_LOOP, "", cpu.of(_BARE_LOOP, _read_with_loop, url, queue, events, _bare_rows)
        ),
    ]
    say(f"{events:,} events; an archive of none takes {empty_s:.2f} s")
    run_rounds(contenders, rounds, say)
    archived, _, loop, bare = contenders
    return {
        "events": events,
        "archive_of_none_s": round(empty_s, 3),
        "rows": table(contenders, _LOOP),
        "ratio": round(archived.median / loop.median, 2),
        "ratio_to_times_as_ms": round(archived.median / bare.median, 2),
        "us_per_event": round(1e6 / archived.median, 3),
        "cpu_us_per_event": {
            name: round(1e6 * statistics.median(each) / events, 3)
            for name, each in cpu.seconds.items()
        },
    }


def _groups(first: int) -> bytes:
    """The events of one entry: a few failures, some acks of messages that come again, and many of new ones."""
    groups, headers, runs = [], [], []
    for number in range(first, first + _PER_ENTRY):
        sent, run_s = _EPOCH + number, (1500 + number % 500) / 1e6
        header = f"\nq1 Ab3dEf7hIj{number:010d} {sent} 0 0 0 0"
        if number % 20 == 7:
            times = _times([run_s])
            groups.append(f"nacked {sent + 20} {times} send_email - SMTPServerDisconnected{header}")
            continue
        headers.append(f"{header} f={sent + 3} t={sent + 15}" if number % 20 == 8 else header)
        runs.append(run_s)
    times = _times(runs)
    groups.append(f"acked {_EPOCH + first + 120} {times} send_email - -{''.join(headers)}")
    return "\n\n".join(groups).encode()


def _times(runs: list[float]) -> str:
    seconds = [each for run_s in runs for each in (0.003, run_s)]
    return b64encode(struct.pack(f"<{len(seconds)}f", *seconds)).decode()


def _fill(url: str, queue: str, events: int) -> None:
    keys = QueueKeys(_NAMESPACE, queue)
    with redis.Redis.from_url(url) as client:
        client.hset(queues_key(_NAMESPACE), queue, 1)
        pipeline = client.pipeline(transaction=False)
        for entry, first in enumerate(range(0, events, _PER_ENTRY)):
            words: list[Any] = ["XADD", keys.journal, f"{_EPOCH}-{entry}", "n", first]
            words += ["k", _PER_ENTRY, "b", 0, "t", _EPOCH + first + 150, "w", "web-1:7"]
            pipeline.execute_command(*words, "e1", _groups(first))
            if entry % 200 == 199:
                pipeline.execute()
        pipeline.execute()


def _archive(spark: SparkSession, url: str, queue: str, events: int) -> float:
    source = {"url": url, "namespace": _NAMESPACE, "queues": queue}
    with tempfile.TemporaryDirectory(prefix="qworker-archive-") as place:
        lake = Lake(place)
        begun = time.perf_counter()
        done = archive_journal(spark, lake, source, once=True)
        seconds = time.perf_counter() - begun
    assert done.events == events, done
    return events / seconds


def _read_with_spark(spark: SparkSession, url: str, queue: str, events: int) -> float:
    begun = time.perf_counter()
    reader = spark.read.format("qworker").option("url", url).option("namespace", _NAMESPACE)
    frame = reader.option("queues", queue).load("journal")
    frame.write.format("noop").mode("overwrite").save()
    return events / (time.perf_counter() - begun)


def _read_with_loop(
    url: str, queue: str, events: int, rows: Callable[[dict[bytes, bytes]], list[dict[str, object]]]
) -> float:
    key, seen, after = QueueKeys(_NAMESPACE, queue).journal, 0, "-"
    with redis.Redis.from_url(url) as client:
        begun = time.perf_counter()
        while page := client.xrange(key, after, "+", count=1000):
            for _, fields in page:
                for row in rows(fields):
                    assert row["event"]
                    seen += 1
            after = f"({page[-1][0].decode()}"
        seconds = time.perf_counter() - begun
    assert seen == events
    return events / seconds


def _rows(fields: dict[bytes, bytes]) -> list[dict[str, object]]:
    """What a plain script makes of an entry: the columns of the table, with times as datetimes."""
    rows = _bare_rows(fields)
    for row in rows:
        for name in ("ts", "sent_ms", "ready_ms", "delivered_ms", "started_ms"):
            ms = row[name]
            if ms is not None:
                row[name] = datetime.fromtimestamp(ms / 1000, UTC)  # type: ignore[operator]
    return rows


def _bare_rows(fields: dict[bytes, bytes]) -> list[dict[str, object]]:
    """The least that a plain script makes of an entry: the columns of an event, times as ms."""
    rows: list[dict[str, object]] = []
    for group in fields[b"e1"].decode().split("\n\n"):
        rows += _rows_of(
            group, int(fields[b"n"]) + len(rows), int(fields[b"t"]), fields[b"w"].decode()
        )
    return rows


def _rows_of(group: str, number: int, ts: int, worker: str) -> list[dict[str, object]]:
    first, *headers = group.split("\n")
    event, delivered, times, task, reason, error_class = first.split(" ")
    delivered_ms = None if delivered == "-" else int(delivered)
    seconds: tuple[float, ...] = ()
    if times != "-":
        seconds = struct.unpack(f"<{2 * len(headers)}f", b64decode(times))
    rows: list[dict[str, object]] = []
    for position, header in enumerate(headers):
        started_ms = run_ms = None
        if seconds and delivered_ms is not None:
            started_ms = delivered_ms + round(seconds[2 * position] * 1000)
            run_ms = round(seconds[2 * position + 1] * 1000, 3)
        _, message_id, sent, receives, _, _, _, *flags = header.split(" ")
        sent_ms = ready_ms = int(sent)
        trace_id = None
        for flag in flags:
            if flag[:2] == "t=":
                ready_ms = int(flag[2:])
            elif flag[:2] == "w=":
                trace_id = flag.split("-")[1]
        begun = started_ms or delivered_ms
        rows.append(
            {
                "number": number + position,
                "event": event,
                "message_id": message_id,
                "attempt": int(receives) + 1,
                "ts": ts,
                "sent_ms": sent_ms,
                "ready_ms": ready_ms,
                "delivered_ms": delivered_ms,
                "started_ms": started_ms,
                "wait_ms": None if begun is None else max(0, begun - ready_ms),
                "run_ms": run_ms,
                "age_ms": ts - sent_ms,
                "task": None if task == "-" else task,
                "reason": None if reason == "-" else reason,
                "error_class": None if error_class == "-" else error_class,
                "worker": worker,
                "trace_id": trace_id,
            }
        )
    return rows


def _profile(url: str, events: int, say: Callable[[str], None]) -> None:
    """Say where the time of one task goes, without Spark: replies, decoding, Parquet."""
    from qworker.pipeline.source.options import ReadOptions
    from qworker.pipeline.source.stream import JournalReader

    given = {"url": url, "namespace": _NAMESPACE, "queues": f"q{events}", "minPartitions": "1"}
    reader = JournalReader(ReadOptions.of(given))
    (part,) = reader.partitions()
    keys = QueueKeys(_NAMESPACE, f"q{events}")

    def raw() -> int:
        with redis.Redis.from_url(url) as client:
            client.response_callbacks.clear()
            for first in range(0, events // _PER_ENTRY, 500):
                last = f"{_EPOCH}-{first + 499}"
                client.execute_command("XRANGE", keys.journal, f"{_EPOCH}-{first}", last)
        return 0

    def decoded() -> int:
        return sum(batch.nbytes for batch in reader.read(part))

    def written() -> int:
        with tempfile.TemporaryDirectory() as place:
            files = write_events(reader.read(part), Path(place), name="part")
            return sum(os.path.getsize(file.path) for file in files)

    steps = (("raw replies", raw), ("and decoding", decoded), ("and Parquet", written))
    for name, run in steps:
        begun, cpu = time.perf_counter(), time.process_time()
        size = run()
        took, cpu = time.perf_counter() - begun, time.process_time() - cpu
        say(
            f"profile, one process: {name:<13} {1e6 * took / events:.3f} us/event, of these {1e6 * cpu / events:.3f} "
            f"on the CPU; {size / events:.1f} bytes/event"
        )
