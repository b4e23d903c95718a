"""The lake as a Delta table: commits, other tools, compaction, conversion, and what is refused. No Java in here."""

from __future__ import annotations

import json
import os
import shutil
import time
from datetime import date, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from pyarrow.parquet import ParquetFile

from qworker.cli.main import cli
from qworker.errors import ArchiveDamagedError, InvalidOptionError, PipelineError
from qworker.pipeline.jobs import files as event_files
from qworker.pipeline.jobs import table as tables
from qworker.pipeline.jobs.compact import compact, plan, vacuum
from qworker.pipeline.jobs.deleted import Deleted
from qworker.pipeline.jobs.files import write_events
from qworker.pipeline.jobs.holes import Hole
from qworker.pipeline.jobs.increment import Increment, forget
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.reading import earlier_events
from tests.pipeline.forging import EPOCH, T0, Journal, at, store

DAY_MS = 86_400_000


def sent(*numbers: int, queue: str = "emails", day: int = 0) -> Journal:
    """Make a journal of sends with these numbers."""
    journal = Journal(queue)
    for number in numbers:
        journal.number = number
        journal.write(f"m{number}", f"sent@{day * DAY_MS + number}")
    return journal


def read(lake: Lake) -> list[int]:
    """Read the numbers of the events as others do."""
    rows = lake.table().to_pyarrow_dataset().to_table(columns=["number"])
    return sorted(rows.column("number").to_pylist())


@pytest.mark.slow
def test_duckdb_and_polars_see_the_rows_of_the_log_and_no_others(tmp_path):
    import duckdb
    import polars

    lake = Lake(tmp_path / "lake")
    store(lake, sent(*range(5)), sent(0, 1, queue="orders", day=1))
    store(lake, sent(5))
    copied = lake.files()[0]
    shutil.copy(copied, copied.with_name("part-copy.parquet"))
    events = lake.table().to_pyarrow_dataset()
    query = "select queue, day, count(*), max(number) from events group by all order by queue"
    rows = [("emails", T0.date(), 6, 5), ("orders", T0.date() + timedelta(days=1), 2, 1)]
    assert duckdb.sql(query).fetchall() == rows
    assert events.to_table().num_rows == 8
    frame = polars.scan_delta(str(lake.root)).group_by("queue", "day")
    found = frame.agg(polars.len(), polars.max("number")).sort("queue").collect().rows()
    assert found == rows


def test_the_log_has_the_bounds_of_each_file(tmp_path):
    lake = Lake(tmp_path)
    store(lake, sent(*range(3)))
    (line,) = [
        json.loads(line)["add"]
        for line in (tmp_path / "_delta_log" / f"{1:020d}.json").read_text().splitlines()
        if '"add"' in line
    ]
    stats = json.loads(line["stats"])
    assert stats["numRecords"] == 3
    assert (stats["minValues"]["number"], stats["maxValues"]["number"]) == (0, 2)
    assert stats["minValues"]["ts"] == "2031-05-04T10:00:00.000Z"
    assert stats["maxValues"]["ts"] == "2031-05-04T10:00:00.003Z"


def test_the_bounds_of_a_file_are_those_of_all_its_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(event_files, "ROWS", 2)
    (file,) = store(Lake(tmp_path), sent(*range(5)))
    assert ParquetFile(file.path).metadata.num_row_groups == 3
    stats = json.loads(file.stats)
    assert (stats["minValues"]["number"], stats["maxValues"]["number"]) == (0, 4)


def test_a_commit_has_its_files_and_offsets_or_neither(tmp_path, monkeypatch):
    lake = Lake(tmp_path)
    store(lake, sent(0), offsets={"emails": {"epoch": 1, "entry": 1}})
    files = write_events([], tmp_path, name="none")
    assert files == []

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", lambda *_, **__: full(tmp_path))
        with pytest.raises(PipelineError, match=r"No space left .* nothing was committed: check"):
            store(lake, sent(1), offsets={"emails": {"epoch": 1, "entry": 2}})
    assert (read(lake), lake.offsets()) == ([0], {"emails": {"epoch": 1, "entry": 1}})
    store(lake, sent(1), offsets={"emails": {"epoch": 1, "entry": 2}})
    assert (read(lake), lake.offsets()) == ([0, 1], {"emails": {"epoch": 1, "entry": 2}})


def test_of_two_archivers_the_second_commits_nothing(tmp_path):
    lake = Lake(tmp_path)
    store(lake, sent(0))
    after = lake.last()
    store(lake, sent(1))
    with pytest.raises(PipelineError, match=r"another archiver .* nothing was committed"):
        lake.commit([], after=after, offsets={})
    assert lake.offsets() is None


def test_two_archivers_that_commit_at_the_same_moment_are_told_apart(tmp_path, monkeypatch):
    """The log decides: the check before has seen no other."""
    lake = Lake(tmp_path)
    store(lake, sent(0))
    after, behind = lake.last(), lake.table()
    store(lake, sent(1))
    monkeypatch.setattr(lake, "table", lambda: behind)
    with pytest.raises(PipelineError, match="another archiver"):
        lake.commit([], after=after, offsets={})


@pytest.mark.slow
def test_a_pinned_lake_stays_as_it_is(tmp_path):
    lake = Lake(tmp_path)
    store(lake, sent(0), offsets={"emails": {"epoch": 1, "entry": 1}})
    pinned = lake.pinned()
    store(lake, sent(1), offsets={"emails": {"epoch": 1, "entry": 2}})
    compact(lake, plan(lake))
    assert (read(pinned), pinned.offsets()) == ([0], {"emails": {"epoch": 1, "entry": 1}})
    assert (read(lake), lake.offsets()) == ([0, 1], {"emails": {"epoch": 1, "entry": 2}})


@pytest.mark.slow
def test_the_files_of_a_day_become_one_and_readers_keep_the_old_ones_for_a_week(tmp_path):
    lake = Lake(tmp_path)
    for number in range(5):
        store(lake, sent(number))
    store(lake, sent(100, day=1))
    before = lake.files()
    done = compact(lake, plan(lake))
    assert (done.days, done.files_before, done.files_after) == (1, 5, 1)
    assert read(lake) == [*range(5), 100]
    assert compact(lake, plan(lake)).days == 0
    orphan = before[0].with_name("part-of-a-killed-task.parquet")
    orphan.touch()
    assert vacuum(lake) == 0
    assert all(file.exists() for file in before)
    for file in (*before, orphan):
        os.utime(file, (0, 0))
    assert vacuum(lake, kept_h=0) == 6
    assert read(lake) == [*range(5), 100]


@pytest.mark.slow
def test_old_days_are_deleted_and_their_queues_remembered(tmp_path):
    """In one commit, which an archiver beside it survives; the files stay for those who still read them."""
    lake = Lake(tmp_path)
    ends = {"emails": {"epoch": 1, "entry": 9}, "idle": {"epoch": 1, "entry": 0}}
    for day in range(3):
        store(lake, sent(day, day=day), offsets=ends)
    store(lake, sent(0, queue="orders", day=2))
    archiver, pinned = lake.last(), lake.pinned()
    assert (lake.expire(T0.date()), lake.expired_queues()) == (0, frozenset())
    assert lake.expire(T0.date() + timedelta(days=2)) == 2
    assert lake.commit([], after=archiver, offsets=ends) == archiver + 1
    assert (read(lake), lake.offsets()) == ([0, 2], ends)
    assert read(pinned) == [0, 0, 1, 2]
    assert all(file.exists() for file in pinned.files())
    assert lake.expired_queues() == earlier_events(lake, None).deleted.queues == {"emails"}
    assert earlier_events(lake, None).queues == set()
    assert lake.expire(T0.date() + timedelta(days=3)) == 2
    assert (list(lake.days()), lake.expired_queues()) == ([], {"emails"})
    assert not compact(lake, plan(lake)).days


def midnight(queue: str) -> Journal:
    """Events before and after midnight; the clock is set back over it once, and there is a gap before it."""
    journal = Journal(queue)
    day_ms = 14 * 3_600_000  # T0 is at ten
    for number, ms in enumerate((-9, -8, -7, 1, 2, -3, -2, 3, 4, 5)):
        journal.number = number if number < 2 else number + 2
        journal.write(f"m{number}", f"sent@{day_ms + ms}")
    journal.number = 2
    journal.add(event="gap", reason="2 events shed", ts=at(day_ms - 7.5))
    return journal


def test_numbers_of_deleted_days_are_noted_also_where_the_clock_was_set_back(tmp_path):
    """As far as no event that is kept has one of them; numbers that were missing before go with their days."""
    lake = Lake(tmp_path)
    first = midnight("emails")
    other = Journal("emails", epoch=first.epoch + 9, number=4)
    other.write("late", "sent@1")
    other.add(event="gap", reason="2 events in 1 entries", ts=at(2))
    store(lake, Journal("emails", rows=[*first.rows, *other.rows]))
    ends = {"emails": {"epoch": first.epoch, "entry": 12, "event": 12}}
    lake.commit([], after=lake.last(), offsets=ends)
    assert lake.expire(T0.date() + timedelta(days=1)) == 1
    (note,) = (tmp_path / "_deleted").iterdir()
    noted = Deleted.of(tmp_path).numbers
    # 0 to 4, and 7 and 8, which are after 5 and 6 of the next day; 0 to 6 of the other epoch.
    assert noted == {
        ("emails", 0, first.epoch): ((0, 5), (7, 9)),
        ("emails", 0, first.epoch + 9): ((0, 7),),
    }
    earlier = earlier_events(lake, None)
    assert (earlier.queues, earlier.deleted.numbers) == (frozenset(), noted)
    times = (None, None, "file gone")
    holes = [
        Hole("emails", 0, first.epoch, -1, 5, *times),
        Hole("emails", 0, first.epoch, 6, 2, *times),
        Hole("emails", 0, first.epoch, 3, 3, *times),
        Hole("emails", 0, first.epoch, 8, 2, *times),
        Hole("other", 0, first.epoch, -1, 5, *times),
    ]
    assert [(hole.after, hole.missing) for hole in earlier.left(holes, ())] == [
        (3, 2), (8, 2), (-1, 5),
    ]  # fmt: skip
    # The next day goes too: then it is one stretch, in one note.
    assert lake.expire(T0.date() + timedelta(days=2)) == 1
    (later,) = (tmp_path / "_deleted").iterdir()
    assert later != note
    assert Deleted.of(tmp_path).numbers["emails", 0, first.epoch] == ((0, 12),)
    vacuum(lake, kept_h=0)
    assert later.exists()


def test_a_file_that_is_not_whole_is_deleted_with_its_day(tmp_path):
    """Its numbers are those that are nowhere else."""
    lake = Lake(tmp_path)
    for number in range(3):
        (file,) = store(lake, sent(number))
        if number == 1:
            Path(file.path).write_bytes(b"PAR1")
    assert lake.expire(T0.date() + timedelta(days=1)) == 1
    assert Deleted.of(tmp_path).numbers == {("emails", 0, EPOCH): ((0, 3),)}


@pytest.mark.bad_input("archive: a note of deleted events that is not whole")
def test_a_note_that_cannot_be_read_is_named_with_what_to_do(tmp_path):
    lake = Lake(tmp_path)
    store(lake, sent(0))
    lake.expire(T0.date() + timedelta(days=1))
    (note,) = (tmp_path / "_deleted").iterdir()
    for text in ("", "[]", '{"emails": [[0, 1]]}', '{"emails": 3}'):
        note.write_text(text)
        with pytest.raises(ArchiveDamagedError, match=f"{note.name}.* delete it: then numbers"):
            earlier_events(lake, None)


def test_two_that_delete_days_do_not_meet(tmp_path, monkeypatch):
    lake = Lake(tmp_path)
    for day in range(3):
        store(lake, sent(day, day=day))
    behind = lake.table()
    with monkeypatch.context() as patch:
        days = list(lake.days())
        assert lake.expire(T0.date() + timedelta(days=1)) == 1
        patch.setattr(lake, "table", lambda: behind)
        patch.setattr(lake, "days", lambda: days)
        with pytest.raises(PipelineError, match=r"another process .* no day was deleted: run it"):
            lake.expire(T0.date() + timedelta(days=2))
    assert read(lake) == [1, 2]
    assert len([*(tmp_path / "_deleted").iterdir()]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("idle_days", [0, 25])
def test_old_commits_are_deleted_but_not_the_offsets(tmp_path, idle_days):
    """A checkpoint stands for them; the log stays as it is where its newest offsets would go with it soon."""
    lake = Lake(tmp_path)
    store(lake, sent(0), offsets={"emails": {"epoch": 1, "entry": 1}})
    lake.expire(T0.date() + timedelta(days=1))
    for number in range(2):
        lake.table().create_checkpoint()
        store(lake, sent(number), offsets={"emails": {"epoch": 1, "entry": number}})
    log = sorted((tmp_path / "_delta_log").glob("0*"))
    now = time.time()
    for file in log[:-1]:
        os.utime(file, (now - 40 * 86_400,) * 2)
    os.utime(log[-1], (now - idle_days * 86_400,) * 2)
    before = (read(lake), lake.offsets(), lake.last(), lake.expired_queues())
    vacuum(lake)
    left = sorted((tmp_path / "_delta_log").glob("0*"))
    assert left == log if idle_days else len(left) < len(log)
    assert (read(lake), lake.offsets(), lake.last(), lake.expired_queues()) == before


@pytest.mark.slow
def test_files_that_were_added_since_are_known_after_a_compaction_and_for_a_week(tmp_path):
    lake = Lake(tmp_path)
    for number in range(4):
        store(lake, sent(number))
        if number == 1:
            seen = lake.pinned()
    added = lake.appended(seen.version)
    assert len(added) == 2
    assert {*lake.files()} == {*seen.files(), *added}
    compact(lake, plan(lake))
    assert lake.appended(seen.version) == added
    assert lake.appended(lake.pinned().version) == {}
    damaged = lake.files()[0]
    damaged.rename(damaged.with_suffix(".away"))
    assert lake.appended(seen.version) == added
    damaged.with_suffix(".away").rename(damaged)
    vacuum(lake, kept_h=0)
    with pytest.raises(
        PipelineError, match=r"have been deleted: audit at least once a week; now audit"
    ):
        lake.appended(seen.version)


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{}", "'format'"), ("x", "Expecting value"), ('{"format": 9}', "its format is 9")],
)
def test_what_an_audit_kept_is_refused_if_it_cannot_be_read(tmp_path, text, problem):
    lake = Lake(tmp_path)
    assert Increment.of(lake).at is None
    (tmp_path / "_audit").mkdir()
    (tmp_path / "_audit" / "state.json").write_text(text)
    with pytest.raises(ArchiveDamagedError, match=rf"{problem}.*--incremental --restart"):
        Increment.of(lake)
    forget(lake)
    forget(lake)
    assert Increment.of(lake).at is None


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--incremental"], "--incremental"),
        (["--restart", "--archive", "LAKE"], "--restart"),
        (["--incremental", "--archive", "LAKE", "--since", "24h"], "--since"),
        (["--incremental", "--archive", "LAKE", "--queues", "a"], "--queues"),
    ],
)
def test_an_incremental_audit_is_of_a_whole_archive(tmp_path, words, named):
    store(Lake(tmp_path), sent(0))
    words = [str(tmp_path) if word == "LAKE" else word for word in words]
    refused = CliRunner().invoke(cli, ["spark", "audit", *words])
    assert (refused.exit_code, named in refused.stderr) == (2, True), refused.output


def test_keep_on_the_command_line(tmp_path):
    lake = Lake(tmp_path)
    store(lake, sent(0, 1))
    words = ["spark", "compact", "--archive", str(tmp_path), "--json", "--keep"]
    for wrong in ("12h", "soon", "-3d"):
        refused = CliRunner().invoke(cli, [*words, wrong])
        assert (refused.exit_code, "--keep" in refused.stderr) == (2, True), refused.output
    kept = CliRunner().invoke(cli, [*words, "3650d"])
    assert (json.loads(kept.stdout)["expired_days"], read(lake)) == (0, [0, 1])


def test_only_days_before_a_limit_are_chosen(tmp_path):
    lake = Lake(tmp_path)
    for day in (0, 1):
        for number in range(2):
            store(lake, sent(number, day=day))
    days = plan(lake, before=at(DAY_MS).date())
    assert [day.day for day in days] == [T0.date()]


def test_a_day_that_lacks_a_file_is_not_compacted(tmp_path):
    lake = Lake(tmp_path)
    store(lake, sent(0))
    store(lake, sent(1))
    lake.files()[0].unlink()
    with pytest.raises(PipelineError, match="emails 2031-05-04 cannot be compacted"):
        compact(lake, plan(lake))
    assert len(lake.files()) == 2


@pytest.mark.parametrize("name", ["gs://bucket/lake", Path("hdfs://host/lake")])
def test_an_archive_is_a_directory_or_in_a_store_that_is_known(name):
    with pytest.raises(
        InvalidOptionError, match="is not an s3:// URL; name s3://BUCKET/PATH, or a directory"
    ):
        Lake(name)


def test_a_file_is_not_an_archive(tmp_path):
    (tmp_path / "x").touch()
    with pytest.raises(InvalidOptionError, match="is a file"):
        Lake(tmp_path / "x")


def test_what_is_not_a_lake_of_this_namespace_and_version_is_refused(tmp_path, monkeypatch):
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(tmp_path / "foreign", pa.table({"a": [1]}))
    with pytest.raises(InvalidOptionError, match="is a Delta table that qworker did not create"):
        Lake(tmp_path / "foreign").create("shop")
    Lake(tmp_path / "shop").create("shop")
    with pytest.raises(InvalidOptionError, match="holds namespace 'shop', not 'bank'"):
        Lake(tmp_path / "shop").create("bank")
    monkeypatch.setattr(tables, "_FORMAT", 2)
    Lake(tmp_path / "future").create("shop")
    monkeypatch.setattr(tables, "_FORMAT", 1)
    with pytest.raises(InvalidOptionError, match="has format 2, and this version knows 1"):
        Lake(tmp_path / "future").exists()


def test_a_broken_log_is_named(tmp_path):
    lake = Lake(tmp_path)
    store(lake, sent(0))
    (tmp_path / "_delta_log" / f"{1:020d}.json").write_text('{"add":')
    with pytest.raises(ArchiveDamagedError, match="_delta_log: not a log of commits"):
        lake.files()


@pytest.mark.bad_input("archive: a commit is gone")
def test_a_log_that_lacks_a_commit_is_named(tmp_path):
    """In place of the newest version before it, which would look whole."""
    lake = Lake(tmp_path)
    for number in range(4):
        store(lake, sent(number))
    (tmp_path / "_delta_log" / f"{2:020d}.json").unlink()
    with pytest.raises(ArchiveDamagedError, match="the commits between 1 and 3 are missing"):
        lake.files()


@pytest.mark.bad_input("archive: features of other programs")
@pytest.mark.parametrize("feature", ["deletionVectors", "columnMapping"])
def test_a_table_whose_files_are_not_its_rows_is_refused(tmp_path, feature):
    """Spark would read rows that another program has deleted."""
    lake = Lake(tmp_path)
    store(lake, sent(0))
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    protocol |= {"readerFeatures": [feature], "writerFeatures": [feature]}
    commit = [{"protocol": protocol}, {"commitInfo": {"timestamp": 1, "operation": "UPGRADE"}}]
    (tmp_path / "_delta_log" / f"{2:020d}.json").write_text("\n".join(map(json.dumps, commit)))
    with pytest.raises(InvalidOptionError, match=f"another program has enabled {feature}"):
        lake.files()


@pytest.mark.bad_input("archive: a commit of another program")
def test_files_that_another_program_added_are_new_to_an_increment_too(tmp_path):
    lake = Lake(tmp_path)
    (own,) = store(lake, sent(0))
    seen = lake.table().version()
    write_deltalake(str(tmp_path), lake.table().to_pyarrow_dataset().to_table(), mode="append")
    ((file, size),) = lake.appended(seen).items()
    assert (size, str(file) != own.path) == (file.stat().st_size, True)


def old_layout(root: Path) -> list[Path]:
    """Make an archive of the first layout: two batches of three events."""
    files = []
    for batch in range(2):
        numbers = range(3 * batch, 3 * batch + 3)
        made = Lake(root.with_name(f"made-{batch}"))
        (file,) = store(made, sent(*numbers))
        day = root / Path(file.path).parent.relative_to(made.root)
        target = day / f"batch=20310504T10000{batch}-3f9a1c07"
        target.mkdir(parents=True)
        files.append(shutil.copy(file.path, target / "part-00000-aa.parquet"))
    (root / "_offsets.json").write_text('{"emails": {"epoch": 1, "entry": 6, "event": 6}}')
    (root / "_lock").touch()
    return files


def run(*words: str):
    return CliRunner().invoke(cli, ["--namespace", "shop", "spark", *words])


def test_an_archive_of_the_first_layout_is_refused_and_converted(tmp_path):
    root = tmp_path / "lake"
    old_layout(root)
    refused = run("compact", "--archive", str(root))
    assert refused.exit_code == 2
    assert f"convert it: qworker spark convert --archive {root}" in refused.stderr
    done = run("convert", "--archive", str(root), "--json")
    assert (done.exit_code, json.loads(done.stdout)["files"]) == (0, 2), done.stderr
    lake = Lake(root)
    assert read(lake) == list(range(6))
    assert lake.offsets() == {"emails": {"epoch": 1, "entry": 6, "event": 6}}
    assert sorted(path.name for path in root.iterdir()) == ["_delta_log", "queue=emails"]
    assert [day.day for day in lake.days()] == [date(2031, 5, 4)]
    assert (
        "is not an archive of an earlier version" in run("convert", "--archive", str(root)).stderr
    )


def test_a_conversion_of_a_broken_file_changes_nothing_and_is_repeated(tmp_path):
    root = tmp_path / "lake"
    files = old_layout(root)
    whole = files[1].read_bytes()
    files[1].write_bytes(whole[:-40])
    failed = run("convert", "--archive", str(root))
    assert f"error: {files[1]}: not a whole Parquet file" in failed.stderr
    assert Lake(root).files() == []
    files[1].write_bytes(whole)
    assert run("convert", "--archive", str(root)).exit_code == 0
    assert read(Lake(root)) == list(range(6))
