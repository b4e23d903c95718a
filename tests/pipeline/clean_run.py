"""A run whose workers are killed now and then, audited at its end over archive and live journal: nothing is found.

    python -m tests.pipeline.clean_run --messages 1000000 --kills 20

takes some minutes, prints its figures as JSON, and exits with 1 where one is not as it should be. The tests run the
same way at a smaller scale with `qworker demo --spark`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click
import psutil

from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.engine.attributes import configure
from qworker.pipeline.jobs.archive import archive
from qworker.pipeline.jobs.audit import Window
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.reading import read_events, server_options
from qworker.pipeline.jobs.run_audit import audit_all
from qworker.pipeline.session import open_session
from qworker.store.connections import ConnectionFactory
from qworker.wire.codec import encode_call
from tests import servers

APP = """
import time

from qworker import QWorker

app = QWorker("shop")

@app.task(queue="numbers")
def count(number: int) -> None:
    time.sleep({pause_s})
"""
"""`pause_s`: a small run lasts long enough for its kills, a large one hardly notices."""


@contextmanager
def working(url: str, directory: Path, pause_s: float) -> Iterator[psutil.Process]:
    """Run two workers; afterwards they are stopped."""
    (directory / "shop.py").write_text(APP.format(pause_s=pause_s))
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
        if process.wait(60) != 0:
            raise RuntimeError(f"the worker's exit code was {process.returncode}")
    finally:
        process.kill()
        process.wait()


def kill_one(supervisor: psutil.Process) -> int:
    """Kill a worker process with SIGKILL; returns how many were killed."""
    for child in supervisor.children(recursive=True):
        with suppress(psutil.Error):  # one that was killed before
            if "qworker.consumer.child" in child.cmdline():
                child.send_signal(signal.SIGKILL)
                return 1
    return 0


def run(directory: Path, messages: int, kills: int) -> tuple[dict[str, object], list[str]]:
    """Run once; returns the figures and what is wrong with them."""
    spark = open_session(app="qworker-clean-run", master="local[2]")
    with servers.start("valkey") as server, Client(ConnectionFactory(server.url)) as client:
        queue = Queue(client, "shop", "numbers")
        client.execute(configure(queue.keys, {"journal": "all", "journal_cap": str(2**34)}))
        begun = time.monotonic()
        for first in range(0, messages, 1000):
            numbers = range(first, min(first + 1000, messages))
            queue.send_many([encode_call("count", [number], {}) for number in numbers])
        sent_s = time.monotonic() - begun
        lake, source = Lake(directory / "lake"), server_options(server.url, "shop")
        archived = archive(spark, lake, source, once=True).events
        killed = 0
        begun = time.monotonic()
        with working(server.url, directory, 5 / messages) as supervisor:
            while left := queue.inspect().stored:
                if killed < kills and messages - left > messages * (killed + 1) // (kills + 2):
                    killed += kill_one(supervisor)
                time.sleep(0.02)
        worked_s = time.monotonic() - begun
        begun = time.monotonic()
        result = audit_all(spark, window=Window(), lake=lake, source=source)
        audited_s = time.monotonic() - begun
        events = read_events(spark, lake=lake, source=source)
        by_event = {row.event: row["count"] for row in events.groupBy("event").count().collect()}
        written = queue.inspect().stats["journal_events"]
    figures = {
        "messages": result.messages,
        "ended": result.ended,
        "dead": result.dead,
        "open": result.open,
        "events": by_event,
        "archived": archived,
        "workers_killed": killed,
        "wrong": result.wrong,
        "send_s": round(sent_s, 1),
        "work_s": round(worked_s, 1),
        "audit_s": round(audited_s, 1),
    }
    holds = {
        "nothing is found wrong": result.wrong == {},
        "every message is seen": (result.messages, result.open) == (messages, 0),
        "every message has ended": sum(result.ended.values()) + result.dead == messages,
        "every event is read": sum(by_event.values()) == written,
        "so many workers were killed": killed == kills,
        "a killed worker had something in hand": by_event["delivered"] > messages,
        "every send is archived": archived == messages,
    }
    return figures, [name for name, held in holds.items() if not held]


@click.command()
@click.option("--messages", default=1_000_000, show_default=True)
@click.option("--kills", default=20, show_default=True)
def main(messages: int, kills: int) -> None:
    """Audit a run with killed workers."""
    with tempfile.TemporaryDirectory(prefix="qworker-clean-run-") as directory:
        figures, missed = run(Path(directory), messages, kills)
    click.echo(json.dumps(figures))
    for name in missed:
        click.echo(f"does not hold: {name}", err=True)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
