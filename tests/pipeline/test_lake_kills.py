"""Archiver, compaction and vacuum killed again and again, while two readers and an audit go on.

QWORKER_LAKE_KILLS=20 pytest tests/pipeline/test_lake_kills.py -rP         the long form
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from qworker.pipeline.jobs.archive import archive
from qworker.pipeline.jobs.audit import Window
from qworker.pipeline.jobs.compact import vacuum
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.reading import server_options
from qworker.pipeline.jobs.run_audit import audit_all
from tests.pipeline.redis_journals import ForgedJournal, line
from tests.topologies.servers import client_of

#: How often each is killed, at night and in the long form.
MORE_KILLS = int(os.environ.get("QWORKER_LAKE_KILLS", "2"))
QUEUES = ("emails", "orders")
AN_AGE_AGO_S = 8 * 86_400


def files_on_disk(lake: Lake) -> set[Path]:
    return set(lake.root.rglob("*.parquet")) - set((lake.root / "_delta_log").rglob("*"))


def make_orphans_old(lake: Lake) -> int:
    """Give files that no commit names the age at which a vacuum deletes them; returns their number."""
    log = "".join(each.read_text() for each in (lake.root / "_delta_log").glob("*.json"))
    orphans = [file for file in files_on_disk(lake) if file.name not in log]
    old = time.time() - AN_AGE_AGO_S
    for file in orphans:
        try:
            os.utime(file, (old, old))
        except FileNotFoundError:
            continue  # a vacuum was quicker
    return len(orphans)


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Process:
    """A process of `tests.pipeline.lake_processes` that is begun anew when it was killed."""

    def __init__(self, *words: str) -> None:
        self._words = words
        self._process = self._begin()

    def _begin(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.lake_processes", *self._words],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill(self, *, again: bool) -> None:
        """Kill it, wherever it is; it must not have ended for another reason."""
        assert self._process.stdout is not None
        begun = self._process.stdout.readline()
        assert begun == "begun\n", self._process.communicate()[1]
        time.sleep(random.uniform(0.05, 0.5))
        self._process.kill()
        _, said = self._process.communicate()
        assert self._process.returncode == -9, said
        if again:
            self._process = self._begin()


class Reader(threading.Thread):
    """Reads one version after another, each some time after it looked which files it has."""

    def __init__(
        self, lake: Lake, read: Callable[[Lake, list[str]], list[tuple[str, int]]]
    ) -> None:
        super().__init__(daemon=True)
        self._lake, self._read = lake, read
        self.ended, self.reads, self.error = threading.Event(), 0, ""
        self.start()

    def run(self) -> None:
        try:
            while not self.ended.is_set():
                now = self._lake.pinned()
                files, ends = [str(file) for file in now.files()], now.offsets()
                time.sleep(random.uniform(0, 0.8))
                if not files:
                    continue
                found: dict[str, list[int]] = {queue: [] for queue in QUEUES}
                for queue, number in self._read(now, files):
                    found[queue].append(number)
                for queue, numbers in found.items():
                    assert sorted(numbers) == list(range(len(numbers))), queue
                    assert ends is not None
                    assert len(numbers) == ends.get(queue, {"event": 0})["event"], queue
                self.reads += 1
        except BaseException as error:
            self.error = repr(error)


def by_duckdb(lake: Lake, files: list[str]) -> list[tuple[str, int]]:
    with duckdb.connect() as connection:
        return connection.execute(
            "select queue, number from read_parquet(?, hive_partitioning = true)", [files]
        ).fetchall()


def by_delta(lake: Lake, files: list[str]) -> list[tuple[str, int]]:
    table = lake.table().to_pyarrow_dataset().to_table(columns=["queue", "number"])
    return list(zip(*(table[name].to_pylist() for name in ("queue", "number")), strict=True))


@pytest.fixture
def client(store_url):
    with client_of(store_url) as client:
        yield client


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "kills",
    [
        1,
        pytest.param(
            MORE_KILLS,
            marks=pytest.mark.nightly(
                "test_kills_of_archiver_and_vacuum_lose_no_row_and_disturb_no_reader"
            ),
        ),
    ],
)
def test_kills_of_archiver_and_vacuum_lose_no_row_and_disturb_no_reader(
    spark, client, store_url, namespace, tmp_path, kills
):
    lake = Lake(tmp_path / "lake")
    lake.create(namespace)
    lake.commit([], after=0, offsets={})
    fed, orphans = threading.Event(), 0

    def feed() -> None:
        number = 0
        while not fed.wait(0.02):
            for journal in journals:
                journal.write(line("sent", f"m{number}"), line("sent", f"n{number}"))
            number += 1

    journals = [ForgedJournal(client, namespace, queue) for queue in QUEUES]
    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    readers = [Reader(lake, by_duckdb), Reader(lake, by_delta)]
    audits = []
    done = threading.Event()

    def auditing() -> None:
        # With pauses, or they would take most of the time of a small machine.
        while not audits or not done.wait(3):
            audits.append(audit_all(spark, window=Window(), lake=lake))

    auditor = threading.Thread(target=auditing, daemon=True)
    auditor.start()
    archiver = Process("archive", str(lake.root), store_url, namespace)
    tidy = Process("tidy", str(lake.root))
    for kill in range(kills):
        again, version = kill < kills - 1, lake.table().version()
        wait_for(
            lambda version=version: lake.table().version() > version + 2
        )  # it has begun to commit
        archiver.kill(again=again)
        tidy.kill(again=again)
        orphans += make_orphans_old(lake)
    done.set()
    fed.set()
    feeder.join()
    wait_for(lambda: all(reader.reads or reader.error for reader in readers))
    auditor.join()
    for reader in readers:
        reader.ended.set()
        reader.join()
        assert not reader.error
        assert reader.reads
    assert [result.wrong for result in audits] == [{}] * len(audits)

    archive(spark, lake, server_options(store_url, namespace), once=True)
    rows = sorted(by_delta(lake, []))
    assert rows == [
        (queue, n) for queue, each in zip(QUEUES, journals, strict=True) for n in range(each.events)
    ]
    orphans += make_orphans_old(lake)
    vacuum(lake)
    log = "".join(each.read_text() for each in (lake.root / "_delta_log").glob("*.json"))
    assert all(file.name in log for file in files_on_disk(lake))
    print(
        f"{kills} kills of each, {len(rows):,} rows, {orphans} orphans, reads: "
        f"{', '.join(str(reader.reads) for reader in readers)}, audits: {len(audits)}"
    )
