"""An archive whose disk is full, or that may not be written, or of a later version: nothing is committed by halves."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from qworker.cli.main import cli
from qworker.cli.spark.report import write
from qworker.errors import InvalidOptionError, PipelineError
from qworker.pipeline.jobs import table as tables
from qworker.pipeline.jobs.compact import compact, plan, vacuum
from qworker.pipeline.jobs.increment import Increment
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.run_audit import audit_increment
from qworker.pipeline.report import Scope, report_increment
from tests.pipeline.forging import Journal, store
from tests.pipeline.test_objects import numbers, sent

NOBODY = 65534
NIGHTLY = pytest.mark.nightly("test_what_audit_and_report_carry_is_kept_whole_or_not_at_all")


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


class Disk:
    """A small disk of its own, which can be full; without the right to mount one, a limit on the size of files."""

    def __init__(self, root: Path, *, mounted: bool) -> None:
        self.root, self.mounted = root, mounted

    @contextmanager
    def full_but_for(self, left: int) -> Iterator[None]:
        """Leave this many bytes of it."""
        if not self.mounted:
            with files_of_at_most(left):
                yield
            return
        filler = self.root / "filler"
        state = os.statvfs(self.root)
        with filler.open("wb") as stream:
            stream.write(bytes(max(0, state.f_bavail * state.f_frsize - left)))
        try:
            yield
        finally:
            filler.unlink()


@pytest.fixture
def disk(tmp_path) -> Iterator[Disk]:
    """A disk of 4 MB."""
    root = tmp_path / "disk"
    root.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(root)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield Disk(root, mounted=mounted)
    finally:
        if mounted:
            subprocess.run(["umount", str(root)], check=True)


@pytest.mark.slow
@pytest.mark.bad_input("archive: disk full at every page of a batch")
@pytest.mark.parametrize(
    "step",
    [
        8192,
        pytest.param(
            4096,
            marks=pytest.mark.nightly(
                "test_a_batch_on_a_disk_that_fills_up_is_committed_whole_or_not_at_all"
            ),
        ),
    ],
)
def test_a_batch_on_a_disk_that_fills_up_is_committed_whole_or_not_at_all(disk, step):
    """Wherever the disk is full: in the first file, between two files, at the commit."""
    lake = Lake(disk.root / "lake")
    store(lake, sent(0))
    stored, last, failures = [0], lake.last(), []
    for left in range(0, 64 * 1024, step):
        batch = sent(*range(len(stored), len(stored) + 300))
        offsets = {"emails": {"epoch": 1, "entry": 9, "event": stored[-1] + 301}}
        with disk.full_but_for(left):
            try:
                store(lake, batch, offsets=offsets)
            except PipelineError as error:
                failures.append(str(error))
            else:
                stored, last = [*stored, *range(len(stored), len(stored) + 300)], last + 1
        # Readers see all of it or nothing, and the next run goes on there.
        assert (numbers(lake), lake.last()) == (stored, last)
    assert len(failures) > 1
    assert last > 2
    for text in failures:
        assert text.startswith(f"the archive {lake.root} cannot be written (")
        assert "; nothing was committed: check the rights and the space on its disk" in text
    vacuum(lake, kept_h=0)
    assert numbers(lake) == stored


@pytest.mark.bad_input("audit, report: disk full, no right to write")
@pytest.mark.parametrize("job", [pytest.param("audit", marks=NIGHTLY), "report"])
def test_what_audit_and_report_carry_is_kept_whole_or_not_at_all(spark, disk, job):
    """A report keeps figures as well as events."""
    lake = Lake(disk.root / "lake")
    journal = Journal()
    for number in range(400):
        journal.write(f"m{number}", f"sent@{number}")
    ends = {"emails": {"epoch": journal.epoch, "entry": 400, "event": 400}}
    store(lake, journal, offsets=ends)
    jobs = {
        "audit": lambda: audit_increment(spark, lake=lake)[0].events,
        "report": lambda: report_increment(spark, lake, Scope("shop", "an archive")).events,
    }
    with disk.full_but_for(4096), pytest.raises(PipelineError) as full:
        jobs[job]()
    assert str(full.value).startswith(f"the archive {lake.root}/_{job}/")
    assert "check the rights and the space on its disk, then run it again" in str(full.value)
    assert Increment.of(lake, job).at is None
    assert jobs[job]() == 400
    assert Increment.of(lake, job).at is not None


@pytest.mark.bad_input("audit, report: no right to write")
@pytest.mark.parametrize("job", ["audit", "report"])
def test_without_the_right_to_keep_anything_nothing_is_read(lake, job):
    with read_only(lake.root), pytest.raises(PipelineError) as failed:
        Increment(lake.root / f"_{job}").check_writable()
    text = str(failed.value)
    assert text.startswith(f"the archive {lake.root}/_{job} cannot be written (")
    assert "Permission denied" in text
    assert text.endswith(
        "; nothing was read: check the rights and the space on its disk, then run it again"
    )


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


@pytest.mark.slow
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
    monkeypatch.setattr(tables, "_FORMAT", 2)
    later = Lake(lake.root.parent / "later")
    store(later, sent(0))
    monkeypatch.setattr(tables, "_FORMAT", 1)
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
