"""A run whose workers are killed now and then, audited at its end over archive and live journal: nothing is found.

The full form takes some minutes:

    QWORKER_CLEAN_RUN_MESSAGES=1000000 QWORKER_CLEAN_RUN_KILLS=20 python -m pytest tests/pipeline/test_clean_run.py -s
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from qworker.client.commands.configuring import configure
from qworker.client.queue import Queue
from qworker.client.sync import Client
from qworker.pipeline.jobs.archive import archive
from qworker.pipeline.jobs.audit import Window
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.reading import audit_all, read_events, server_options
from qworker.store.connection import ConnectionFactory
from qworker.wire.codec import encode_call
from tests import servers

MESSAGES = int(os.environ.get("QWORKER_CLEAN_RUN_MESSAGES", "5000"))
KILLS = int(os.environ.get("QWORKER_CLEAN_RUN_KILLS", "3"))
PAUSE = 5 / MESSAGES
"""Seconds a message: a small run lasts long enough for its kills, a large one hardly notices."""

APP = f"""
import time

from qworker import QWorker

app = QWorker("shop")

@app.task(queue="numbers")
def count(number: int) -> None:
    time.sleep({PAUSE})
"""


@contextmanager
def working(url: str, directory: Path) -> Iterator[psutil.Process]:
    """Run two workers; afterwards they are stopped."""
    (directory / "shop.py").write_text(APP)
    words = ["run", "shop", "--procs", "2", "--metrics-port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "qworker", "--url", url, *words],
        cwd=directory,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield psutil.Process(process.pid)
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def kill_one(supervisor: psutil.Process) -> int:
    """Kill a worker process with SIGKILL; returns how many were killed."""
    for each in supervisor.children(recursive=True):
        with suppress(psutil.Error):  # one that was killed before
            if "qworker.consumer.child" in each.cmdline():
                each.send_signal(signal.SIGKILL)
                return 1
    return 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_audit_of_a_clean_run_with_killed_workers_is_silent(spark, tmp_path):
    with servers.start("valkey") as server, Client(ConnectionFactory(server.url)) as client:
        queue = Queue(client, "shop", "numbers")
        client.execute(configure(queue.keys, {"journal": "all", "journal_cap": str(2**34)}))
        begun = time.monotonic()
        for first in range(0, MESSAGES, 1000):
            bodies = [encode_call("count", [n], {}) for n in range(first, first + 1000)]
            queue.send_all(bodies)
        sent_s = time.monotonic() - begun
        lake, source = Lake(tmp_path / "lake"), server_options(server.url, "shop")
        with lake.writing():
            archived = archive(spark, lake, source, once=True).events
        killed = 0
        begun = time.monotonic()
        with working(server.url, tmp_path) as supervisor:
            while left := queue.inspect().stored:
                if killed < KILLS and MESSAGES - left > MESSAGES * (killed + 1) // (KILLS + 2):
                    killed += kill_one(supervisor)
                time.sleep(0.02)
        worked_s = time.monotonic() - begun
        begun = time.monotonic()
        found = audit_all(spark, window=Window(), lake=lake, source=source)
        audited_s = time.monotonic() - begun
        events = read_events(spark, lake=lake, source=source)
        by_event = {row.event: row["count"] for row in events.groupBy("event").count().collect()}
        figures = {
            "messages": found.messages,
            "ended": dict(found.ended),
            "dead": found.dead,
            "events": by_event,
            "archived": archived,
            "workers_killed": killed,
            "wrong": found.wrong,
            "send_s": round(sent_s, 1),
            "work_s": round(worked_s, 1),
            "audit_s": round(audited_s, 1),
        }
        print(json.dumps(figures))
        assert found.wrong == {}, found.samples
        assert (found.messages, found.open) == (MESSAGES, 0)
        assert sum(found.ended.values()) + found.dead == MESSAGES
        assert sum(by_event.values()) == queue.inspect().stats["journal_events"]
        assert killed == KILLS
        assert by_event["delivered"] > MESSAGES, "no worker had anything in hand"
        assert archived == MESSAGES
