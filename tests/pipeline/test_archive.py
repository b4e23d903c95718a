"""The archive under kill -9, with a real journal: each event once, for every reader."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import ANY

import psutil
import pytest
from click.testing import CliRunner

from qworker.cli.main import cli
from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.engine.attributes import configure
from qworker.engine.raw import raw
from qworker.pipeline.jobs.archive import Archived, archive, read_archive
from qworker.pipeline.jobs.compact import compact, plan
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.reading import read_events, server_options
from qworker.wire.keys import QueueKeys
from tests.pipeline.conftest import UNVERIFIED, jars_first
from tests.pipeline.forging import T0, Journal, forget_offsets, store

pytestmark = pytest.mark.slow

JARS = ("--conf", f"spark.driver.extraClassPath={jars_first()}")
QWORKER = Path(sys.executable).with_name("qworker")
#: The full form: QWORKER_ARCHIVE_EVENTS=400000 QWORKER_ARCHIVE_KILLS=3.
EVENTS = int(os.environ.get("QWORKER_ARCHIVE_EVENTS", "20000"))
KILLS = int(os.environ.get("QWORKER_ARCHIVE_KILLS", "1"))


def test_events_are_filed_by_queue_and_day(spark, tmp_path):
    emails, orders = Journal("emails"), Journal("orders")
    emails.write("a", f"sent@0 delivered@10 acked@{15 * 3_600_000}")
    orders.write("b", "sent@5")
    orders.add(event="gap", reason="12 events in 3 entries")
    lake = Lake(tmp_path)
    store(lake, emails, orders)
    today = datetime.now(UTC).date().isoformat()
    assert [(day.queue, str(day.day)) for day in lake.days()] == [
        ("emails", "2031-05-04"), ("emails", "2031-05-05"), ("orders", today), ("orders", "2031-05-04"),
    ]  # fmt: skip
    rows = read_archive(spark, lake).orderBy("queue", "number").collect()
    assert [(row.queue, row.number, row.event) for row in rows] == [
        ("emails", 0, "sent"), ("emails", 1, "delivered"), ("emails", 2, "acked"),
        ("orders", 0, "sent"), ("orders", 1, "gap"),
    ]  # fmt: skip
    assert rows[0].ts.astimezone(UTC) == T0
    assert lake.offsets() is None


def test_an_archive_without_its_offsets_resumes_after_its_last_event(
    spark, client, store_url, namespace, tmp_path
):
    queue = journalled(client, namespace, "emails")
    queue.send_many([b"{}"] * 5)
    source, lake = server_options(store_url, namespace), Lake(tmp_path)
    assert archive(spark, lake, source, once=True).events == 5
    forget_offsets(lake)
    queue.send_many([b"{}"] * 3)
    assert archive(spark, lake, source, once=True).events == 3
    assert archive(spark, lake, source, once=True) == Archived(seconds=ANY)


def test_what_was_trimmed_unread_is_a_gap_with_its_number(
    spark, client, store_url, namespace, tmp_path
):
    queue, keys = journalled(client, namespace, "emails"), QueueKeys(namespace, "emails")
    source, lake = (
        {**server_options(store_url, namespace), "failOnDataLoss": "false"},
        Lake(tmp_path),
    )
    queue.send_many([b"{}"] * 5)
    archive(spark, lake, source, once=True)
    for _ in range(2):
        queue.send_many([b"{}"] * 7)
    last = ask(client, "XREVRANGE", keys.journal, "+", "-", "COUNT", 1)[0][0]
    ask(client, "XTRIM", keys.journal, "MINID", last)
    done = archive(spark, lake, source, once=True)
    assert (done.events, done.gaps, done.missing) == (7, 1, 7)


def test_an_archiver_runs_until_it_is_stopped(spark, client, store_url, namespace, tmp_path):
    """A full batch is followed by the next at once; else it waits, and what came meanwhile is in the next one."""
    queue = journalled(client, namespace, "emails")
    for _ in range(3):
        queue.send_many([b"{}"])
    waits, sums = [], []

    def stopped(wait_s: float) -> bool:
        if wait_s:
            waits.append(wait_s)
            queue.send_many([b"{}"])
        return len(waits) > 1

    source = {**server_options(store_url, namespace), "maxEntriesPerTrigger": "2"}
    done = archive(spark, Lake(tmp_path), source, once=False, on_batch=sums.append, stopped=stopped)
    assert [total.events for total in sums] == [2, 3, 4]
    assert done.entries == 4
    assert len(waits) == 2


def journalled(client: Client, namespace: str, queue: str) -> Queue:
    client.execute(configure(QueueKeys(namespace, queue), {"journal": "all"}))
    return Queue(client, namespace, queue)


def run_archive(lake: Path, url: str, namespace: str, *options: str) -> subprocess.Popen:
    command = [QWORKER, "--url", url, "--namespace", namespace, "spark", "archive"]
    return subprocess.Popen(
        [*command, "--out", str(lake), "--master", "local[2]", *options, *JARS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Compile quickly rather than well, as the session of the other tests does.
        env={
            **os.environ,
            "QWORKER_DEBUG": "1",
            "JAVA_TOOL_OPTIONS": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {UNVERIFIED}",
        },
    )


def kill_after_a_batch(process: subprocess.Popen, lake: Path) -> None:
    """Kill driver and JVM as soon as two more batches are there."""
    before = set(lake.glob("_delta_log/*.json"))
    until = time.monotonic() + 300
    try:
        while len(set(lake.glob("_delta_log/*.json")) - before) < 3:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until, "no batch was written"
            time.sleep(0.01)
    finally:
        driver = psutil.Process(process.pid)
        family = [driver, *driver.children(recursive=True)]
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.send_signal(signal.SIGKILL)
        process.communicate()
    assert len(family) > 1, "the JVM is a child of the driver"


@pytest.mark.timeout(1800)
def test_driver_and_jvm_killed_midway_every_event_is_in_the_archive_once(
    spark, client, store_url, namespace, tmp_path
):
    import duckdb

    lake = tmp_path / "lake"
    queue = journalled(client, namespace, "emails")
    for at_once in range(0, EVENTS, 1000):
        queue.send_many([b'{"number": %d}' % number for number in range(at_once, at_once + 1000)])
    per_batch = ("--max-entries", str(max(2, EVENTS // 230 // (16 * KILLS))))
    for _ in range(KILLS):
        killed = run_archive(lake, store_url, namespace, "--every", "100ms", *per_batch)
        kill_after_a_batch(killed, lake)
    words = ["--url", store_url, "--namespace", namespace, "spark", "archive", "--out", str(lake)]
    last = CliRunner().invoke(cli, [*words, "--once", "--json"])
    assert last.exit_code == 0, last.stderr
    assert 0 < json.loads(last.stdout)["events"] < EVENTS
    query = (
        "select count(*), count(distinct (queue, shard, epoch, number)), count(distinct message_id) "
        "from events"
    )
    events = Lake(lake).table().to_pyarrow_dataset()
    assert duckdb.sql(query).fetchall() == [(EVENTS, EVENTS, EVENTS)]
    assert compact(Lake(lake), plan(Lake(lake))).files_after == 1
    # Who began before continues with the files of then.
    assert duckdb.sql(query).fetchall() == [(EVENTS, EVENTS, EVENTS)]
    events = Lake(lake).table().to_pyarrow_dataset()
    assert duckdb.sql(query).fetchall() == [(EVENTS, EVENTS, EVENTS)]
    assert len(events.files) == 1
    keys = QueueKeys(namespace, "emails")
    noted = ask(client, "HGET", keys.readers, "archive").split()[0]
    assert noted == ask(client, "XREVRANGE", keys.journal, "+", "-", "COUNT", 1)[0][0]


def ask(client: Client, *words: str | int):
    return client.execute(raw(*words))


def test_archive_and_live_journal_together_hold_each_event_once(
    spark, client, store_url, namespace, tmp_path
):
    queue = journalled(client, namespace, "emails")
    queue.send_many([b"{}"] * 30)
    source, lake = server_options(store_url, namespace), Lake(tmp_path)
    archive(spark, lake, source, once=True)
    for message in queue.receive(10):
        queue.ack(message)
    seen = read_events(spark, lake=lake, source=source)
    counted = {row.event: row["count"] for row in seen.groupBy("event").count().collect()}
    assert counted == {"sent": 30, "delivered": 10, "acked": 10}
    only = read_events(spark, lake=lake, source=source, queues="ord*,orders")
    assert only.count() == 0
