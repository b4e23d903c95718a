"""An archive whose disk is full, or that may not be written, or of a later version: nothing is committed by halves."""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from qworker.cli.main import cli
from qworker.cli.spark.report import write
from qworker.errors import InvalidOptionError, PipelineError
from qworker.pipeline.jobs import lake as lakes
from qworker.pipeline.jobs.compact import compact, plan, vacuum
from qworker.pipeline.jobs.lake import Lake
from tests.pipeline.forging import Journal, store
from tests.pipeline.test_objects import numbers, sent

NOBODY = 65534


@pytest.fixture
def lake() -> Iterator[Lake]:
    """An archive with two events, in a directory that every user can reach."""
    with tempfile.TemporaryDirectory(prefix="qworker-lake-") as name:
        root = Path(name)
        root.chmod(0o755)
        lake = Lake(root / "lake")
        store(lake, sent(0))
        store(lake, sent(1))
        yield lake


@contextmanager
def read_only(root: Path) -> Iterator[None]:
    """Take the right to write from this process: root has it on all files, so it is another user meanwhile."""
    if os.geteuid() == 0:
        os.seteuid(NOBODY)
        try:
            yield
        finally:
            os.seteuid(0)
        return
    modes = {path: path.stat().st_mode for path in (root, *root.rglob("*"))}
    for path in modes:
        path.chmod(0o555)
    try:
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let writes fail behind this many bytes of a file, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.bad_input("archive: no right to write")
def test_without_the_right_to_write_nothing_changes_and_reads_go_on(lake):
    with read_only(lake.root):
        assert numbers(lake) == [0, 1]
        with pytest.raises(PipelineError) as failed:
            store(lake, sent(2))
        text = str(failed.value)
        assert text.startswith(f"the archive {lake.root} cannot be written (")
        assert "Permission denied" in text
        assert text.endswith(
            "; nothing was committed: check the rights and the space on its disk, then run it again"
        )
        with pytest.raises(PipelineError, match="nothing was committed: check the rights"):
            lake.commit([], after=lake.last())
        with pytest.raises(PipelineError, match="2031-05-04 cannot be compacted"):
            compact(lake, plan(lake))
        with pytest.raises(PipelineError, match="it was not created: check the rights"):
            store(Lake(lake.root.parent / "other"), sent(1))
    assert (numbers(lake), lake.last()) == ([0, 1], 2)


@pytest.mark.bad_input("archive: disk full in the middle")
def test_a_disk_that_is_full_commits_nothing_and_leaves_no_file(lake):
    many = Journal()
    for number in range(2, 5000):
        many.write(f"m{number}", f"sent@{number}")
    before = sorted(lake.root.rglob("*.parquet"))
    with files_of_at_most(8192), pytest.raises(PipelineError) as failed:
        store(lake, many)
    text = str(failed.value)
    assert text.startswith(f"the archive {lake.root} cannot be written (")
    assert "File too large" in text
    assert "; nothing was committed: check the rights and the space on its disk" in text
    assert sorted(lake.root.rglob("*.parquet")) == before
    assert (numbers(lake), lake.last()) == ([0, 1], 2)


@pytest.mark.bad_input("archive: disk full at the commit")
def test_a_commit_that_does_not_fit_is_no_commit(lake):
    offsets = {f"queue{number}": {"epoch": 1, "entry": 2, "event": 2} for number in range(200)}
    with files_of_at_most(4096), pytest.raises(PipelineError, match="nothing was committed"):
        lake.commit([], after=lake.last(), offsets=offsets)
    assert (numbers(lake), lake.last(), lake.offsets()) == ([0, 1], 2, None)
    lake.commit([], after=lake.last(), offsets=offsets)
    assert lake.offsets() == offsets


@pytest.mark.bad_input("archive: disk full in a compaction")
def test_a_compaction_that_does_not_fit_changes_nothing(lake):
    with files_of_at_most(512), pytest.raises(PipelineError, match="cannot be compacted") as failed:
        compact(lake, plan(lake))
    assert f"the archive {lake.root} has not changed" in str(failed.value)
    assert numbers(lake) == [0, 1]
    compact(lake, plan(lake))
    assert numbers(lake) == [0, 1]
    assert vacuum(lake, kept_h=0) >= 2


@pytest.mark.bad_input("archive: written by a later version")
def test_an_archive_of_a_later_version_is_refused_by_every_verb(lake, monkeypatch):
    monkeypatch.setattr(lakes, "_FORMAT", 2)
    later = Lake(lake.root.parent / "later")
    store(later, sent(0))
    monkeypatch.setattr(lakes, "_FORMAT", 1)
    text = (
        f"archive: {str(later.root)!r} has format 2, and this version knows 1; "
        "use the version of qworker that wrote it, or a newer one"
    )
    with pytest.raises(InvalidOptionError) as refused:
        later.commit([], after=1)
    assert str(refused.value) == text
    for verb in (["compact"], ["audit", "--no-live"], ["report", "--no-live"]):
        ran = CliRunner().invoke(cli, ["spark", *verb, "--archive", str(later.root)])
        assert (ran.exit_code, text in ran.stderr) == (2, True), ran.stderr


@pytest.mark.bad_input("report: no right to write")
def test_a_report_that_cannot_be_written_says_why(lake):
    out = lake.root.parent / "report.html"
    with read_only(lake.root.parent), pytest.raises(PipelineError) as refused:
        write(out, None)
    assert str(refused.value) == (
        f"{out} cannot be written (Permission denied): check the rights and the space on its disk"
    )
    write(out, None)
    with files_of_at_most(16), pytest.raises(PipelineError, match="File too large"):
        write(out, "x" * 100)
    assert not [*out.parent.glob("*report*")]
