"""The archive as a directory, and compaction: killed anywhere, nothing is lost and nothing twice. No Java in here."""

from __future__ import annotations

import json
import operator
import os
import signal
import subprocess
import sys
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qworker.errors import InvalidOptionError, PipelineError
from qworker.pipeline.jobs import compact as compacting
from qworker.pipeline.jobs.change import Change, recover
from qworker.pipeline.jobs.compact import compact, plan
from qworker.pipeline.jobs.lake import Lake

DAY = "queue=emails/day=2031-05-04"


def write(root: Path, batch: str, *numbers: int, day: str = DAY, extra: bool = False) -> None:
    """Write a batch of events, each with its number."""
    columns = {"number": pa.array(numbers, pa.int64()), "event": ["sent"] * len(numbers)}
    if extra:
        columns["trace_id"] = ["t"] * len(numbers)
    target = root / day / f"batch={batch}"
    target.mkdir(parents=True)
    pq.write_table(pa.table(columns), target / "part-0.parquet")


def read(root: Path) -> list[int]:
    """Read the archive as others do."""
    files = sorted(root.glob("queue=*/day=*/*/*.parquet"))
    return sorted(n for file in files for n in pq.read_table(file).column("number").to_pylist())


def run_compact(lake: Lake):
    with lake.writing():
        recover(lake)
        return compact(lake, plan(lake))


def test_the_files_of_a_day_become_one_with_all_their_rows(tmp_path):
    for number in range(5):
        write(tmp_path, f"aaaa0001-{number:012d}", 2 * number, 2 * number + 1)
    write(tmp_path, "aaaa0001-000000000000", 100, day="queue=emails/day=2031-05-05")
    done = run_compact(Lake(tmp_path))
    assert (done.days, done.files_before, done.files_after, done.rows) == (1, 5, 1, 10)
    assert read(tmp_path) == [*range(10), 100]
    assert len(list((tmp_path / DAY).rglob("*.parquet"))) == 1
    assert list(tmp_path.glob("_work/*")) == []
    assert run_compact(Lake(tmp_path)).days == 0


def test_a_column_that_older_files_lack_is_null_in_their_rows(tmp_path):
    write(tmp_path, "aaaa0001-000000000000", 1)
    write(tmp_path, "aaaa0001-000000000001", 2, extra=True)
    run_compact(Lake(tmp_path))
    (file,) = (tmp_path / DAY).rglob("*.parquet")
    assert pq.ParquetFile(file).read().column("trace_id").to_pylist() == [None, "t"]


def test_only_days_before_a_limit_are_chosen(tmp_path):
    for day in ("2031-05-03", "2031-05-04"):
        for number in range(2):
            write(tmp_path, f"aaaa0001-{number:012d}", number, day=f"queue=emails/day={day}")
    days = plan(Lake(tmp_path), before=date(2031, 5, 4))
    assert [str(day.day) for day in days] == ["2031-05-03"]


def test_one_process_writes_at_a_time(tmp_path):
    lake = Lake(tmp_path)
    with (
        lake.writing(),
        pytest.raises(PipelineError, match=f"process {os.getpid()} is writing into"),
        Lake(tmp_path).writing(),
    ):
        pass
    with lake.writing():
        pass


@pytest.mark.parametrize("name", ["s3a://bucket/lake", Path("hdfs://host/lake")])
def test_an_archive_is_a_directory(name):
    with pytest.raises(InvalidOptionError, match="is a URL; name a directory"):
        Lake(name)


def test_a_file_is_not_an_archive(tmp_path):
    (tmp_path / "x").touch()
    with pytest.raises(InvalidOptionError, match="is a file"):
        Lake(tmp_path / "x")


CALLS = ["compact._rewrite", "change._finish", "change._exchange", "change.shutil.rmtree"]


@pytest.mark.slow
@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "renames"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", CALLS)
def test_killed_at_any_step_nothing_is_lost_or_twice(tmp_path, call, after, exchange):
    """A separate process kills itself before or after a step; the next writer puts things right."""
    for number in range(4):
        write(tmp_path, f"aaaa0001-{number:012d}", 2 * number, 2 * number + 1)
    killed = subprocess.run(
        [
            sys.executable,
            "-c",
            KILLED,
            str(tmp_path),
            call,
            json.dumps(after),
            json.dumps(exchange),
        ],
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    seen = read(tmp_path)
    # Two renames have a moment between them in which the day is missing; never is anything twice.
    assert seen == list(range(8)) or (not exchange and seen == [])
    run_compact(Lake(tmp_path))
    assert read(tmp_path) == list(range(8))
    assert len(list((tmp_path / DAY).rglob("*.parquet"))) == 1
    assert list(tmp_path.glob("_work/*")) == []


KILLED = """
import json, operator, os, signal, sys
from pathlib import Path
from qworker.pipeline.jobs import change, compact
from qworker.pipeline.jobs.lake import Lake

root, name, after, exchange = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4])
if not exchange:
    def rename_away(one, other):
        return False
    change._exchange = rename_away
path, _, last = name.rpartition(".")
target = operator.attrgetter(path)(sys.modules["qworker.pipeline.jobs"])
step = getattr(target, last)

def killed(*args, **kwargs):
    if after:
        step(*args, **kwargs)
        if last == "_exchange" and not exchange:
            # Between the two renames.
            Path(args[1]).rename(next(Path(root).glob("_work/*")) / "old")
    os.kill(os.getpid(), signal.SIGKILL)

setattr(target, last, killed)
lake = Lake(root)
with lake.writing():
    compact.compact(lake, compact.plan(lake))
"""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", ["_finish", "Path.rename", "shutil.rmtree"])
def test_a_new_batch_killed_at_any_step_is_there_with_its_offsets_or_not_at_all(
    tmp_path, monkeypatch, call, after
):
    class Killed(BaseException):
        pass

    def prepared(*numbers: int) -> tuple[Change, list[Path]]:
        change = Change(lake)
        for day in ("queue=emails/day=2031-05-03", DAY):
            write(change.directory, change.batch, *numbers, day=day)
        return change, [*change.directory.rglob("*.parquet")]

    lake = Lake(tmp_path)
    change, files = prepared(1)
    change.commit(files, offsets={"emails": 1})
    change, files = prepared(2, 3)
    write(change.directory, "of-a-failed-attempt", 99)
    path, _, name = f"change.{call}".rpartition(".")
    target = operator.attrgetter(path)(sys.modules["qworker.pipeline.jobs"])
    step, calls = getattr(target, name), []

    def killed(*args, **kwargs):
        calls.append(args)
        # The second rename is that of the first day.
        if len(calls) < (2 if name == "rename" else 1):
            return step(*args, **kwargs)
        if after:
            step(*args, **kwargs)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(target, name, killed)
        with pytest.raises(Killed):
            change.commit(files, offsets={"emails": 3})
    recover(lake)
    assert read(tmp_path) == [1, 1, 2, 2, 3, 3]
    assert lake.offsets() == {"emails": 3}
    assert list(lake.work.iterdir()) == []


def test_what_was_prepared_and_not_committed_is_thrown_away(tmp_path):
    lake = Lake(tmp_path)
    change = Change(lake)
    write(change.directory, change.batch, 1)
    assert recover(lake) == 0
    assert read(tmp_path) == []
    assert list(lake.work.iterdir()) == []


def test_rows_that_do_not_add_up_change_nothing(tmp_path, monkeypatch):
    for number in range(2):
        write(tmp_path, f"aaaa0001-{number:012d}", number)
    real = compacting._conformed
    monkeypatch.setattr(compacting, "_conformed", lambda batch, schema: real(batch, schema)[:0])
    with pytest.raises(PipelineError, match="0 of 2 rows were written; nothing was changed"):
        run_compact(Lake(tmp_path))
    assert read(tmp_path) == [0, 1]
