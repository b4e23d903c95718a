"""What audit, report and SQL tell while Spark works, and about what they have read."""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from pathlib import Path

from click.testing import CliRunner

from qworker.cli.main import cli
from qworker.cli.spark.progress_bar import tasks_of, watched
from qworker.pipeline.jobs.lake import Lake
from tests.pipeline.forging import Journal, store


class Terminal(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self) -> bool:
        return True


def waiting(spark, release: Path) -> threading.Thread:
    """Start a job of two tasks that wait until there is a file."""

    def wait(rows):
        while not release.exists():
            time.sleep(0.05)
        yield from rows

    job = spark.range(0, 2, numPartitions=2).mapInArrow(wait, "id BIGINT")
    thread = threading.Thread(target=job.collect)
    thread.start()
    return thread


def test_a_bar_shows_the_tasks_of_the_stages_that_run(spark, tmp_path, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    assert tasks_of(spark) == (0, 0)
    with watched(spark, "auditing") as report:
        report("emails")
        job = waiting(spark, tmp_path / "go")
        deadline = time.monotonic() + 60
        while "0 of 2 tasks" not in terminal.getvalue() and time.monotonic() < deadline:
            time.sleep(0.05)
        (tmp_path / "go").touch()
        job.join()
    assert "0 of 2 tasks" in terminal.getvalue()
    assert "auditing: emails …" in terminal.getvalue()
    assert not [thread for thread in threading.enumerate() if thread.name == "qworker-spark-bar"]


def test_audit_and_report_tell_what_they_read_and_how_long_it_took(spark, tmp_path):
    lake = Lake(tmp_path / "lake")
    for day in range(4):
        journal = Journal()
        journal.number = 2 * day
        journal.write(f"m{day}", f"sent@{day * 86_400_000} acked@{day * 86_400_000 + 10}")
        store(lake, journal)
    sizes = [size for day in lake.days() for size in day.sizes.values()]
    line = ["--namespace", "shop", "spark"]
    where = ["--archive", str(lake.root)]
    ran = CliRunner().invoke(cli, [*line, "audit", *where, "--since", "2031-05-07"])
    # The day itself, one before, and the last one before these, of four.
    assert "read 6 events from 3 files of the archive (" in ran.stdout + ran.stderr
    for files, size in ((4, sum(sizes)), (0, 0)):
        ran = CliRunner().invoke(cli, [*line, "audit", *where, "--incremental", "--json"])
        read = json.loads(ran.stdout)["read"]
        assert (read["files"], read["bytes"], read["seconds"] > 0) == (files, size, True)
    page = tmp_path / "report.html"
    ran = CliRunner().invoke(cli, [*line, "report", *where, "--out", str(page)])
    assert f"{page} (" in ran.stdout
    assert "): 8 events from 4 files of the archive (" in ran.stdout, ran.stderr
