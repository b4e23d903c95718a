"""An archive in an object store: what a directory can, and what can go wrong with a store."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner

from qworker.cli.main import cli
from qworker.errors import ArchiveDamagedError, InvalidOptionError, PipelineError
from qworker.pipeline.jobs.archive import Archiver, read_archive
from qworker.pipeline.jobs.compact import compact, plan, vacuum
from qworker.pipeline.jobs.deleted import Deleted
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.reading import server_options
from qworker.pipeline.jobs.run_audit import audit_increment
from qworker.pipeline.jobs.s3_options import S3Options
from qworker.pipeline.jobs.store import ObjectPath, absent, one_line
from qworker.pipeline.report import report_increment
from tests.pipeline.forging import EPOCH, Journal, store
from tests.pipeline.object_store import Store, object_store
from tests.pipeline.test_archive import journalled
from tests.pipeline.test_report_increments import SCOPE, figures, full, offsets

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def objects() -> Iterator[Store]:
    with object_store() as started:
        yield started


@pytest.fixture
def bucket(objects, monkeypatch) -> Iterator[Store]:
    """The store, as a user that may write."""
    for name, value in objects.environment().items():
        monkeypatch.setenv(name, value)
    yield objects
    objects.behave("")


@pytest.fixture
def lake(bucket, request) -> Lake:
    """A new archive in it."""
    return Lake(bucket.url(f"{request.node.name.replace('[', '-').strip(']')}/lake"))


def sent(*numbers: int) -> Journal:
    journal = Journal()
    for number in numbers:
        journal.number = number
        journal.write(f"m{number}", f"sent@{number}")
    return journal


def numbers(lake: Lake) -> list[int]:
    table = lake.table().to_pyarrow_dataset().to_table(columns=["number"])
    return sorted(table["number"].to_pylist())


def test_commits_offsets_compaction_retention_and_vacuum_are_as_in_a_directory(lake):
    assert not lake.exists()
    store(lake, sent(0, 1), offsets={"emails": {"epoch": 1, "entry": 2, "event": 2}})
    store(lake, sent(2))
    store(lake, sent(3))
    assert (numbers(lake), lake.last()) == ([0, 1, 2, 3], 3)
    before = lake.pinned()
    done = compact(lake, plan(lake))
    assert (done.files_before, done.files_after, numbers(lake)) == (3, 1, [0, 1, 2, 3])
    assert lake.offsets() == {"emails": {"epoch": 1, "entry": 2, "event": 2}}
    assert not absent(before.files()), "readers of the earlier version go on"
    assert vacuum(lake, kept_h=0) == 3
    assert absent(before.files()) == {*before.files()}
    assert numbers(lake) == [0, 1, 2, 3]
    assert lake.expire(date(2031, 5, 5)) == 1
    assert (numbers(lake), lake.expired_queues()) == ([], {"emails"})
    assert Deleted.of(lake.root).numbers == {("emails", 0, EPOCH): ((0, 4),)}


def test_other_tools_read_it_in_place(lake):
    store(lake, sent(0, 1), sent(2))
    events = lake.table().to_pyarrow_dataset()  # noqa: F841  of the query
    assert duckdb.sql("select queue, count(*) from events group by queue").fetchall() == [
        ("emails", 3)
    ]


def test_of_two_writers_one_fails_and_nothing_of_it_counts(lake):
    store(lake, sent(0))
    after = lake.last()
    came = threading.Barrier(4)
    outcomes: list[str] = []

    def write() -> None:
        came.wait()
        try:
            lake.commit([], after=after, offsets={})
            outcomes.append("committed")
        except PipelineError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("committed") == 1
    assert lake.last() == after + 1
    assert any(f"another archiver has written into {lake.root}" in text for text in outcomes)


@pytest.mark.bad_input("object store: overwrites in spite of If-None-Match")
def test_a_store_that_overwrites_commits_is_refused_before_anything_is_written(bucket, lake):
    bucket.behave("forgetful")
    with pytest.raises(InvalidOptionError) as refused:
        store(lake, sent(0))
    assert str(refused.value) == (
        f"archive: the store at {bucket.endpoint} overwrites an object that it was asked to keep (If-None-Match); "
        "two writers would lose each other's commits: use a store with conditional puts, or a directory"
    )
    assert [*lake.root.under()] == []


@pytest.mark.bad_input("object store: full in the middle")
def test_a_store_that_is_full_commits_nothing(bucket, lake):
    store(lake, sent(0))
    bucket.behave("full")
    with pytest.raises(PipelineError) as failed:
        store(lake, sent(1))
    text = str(failed.value)
    assert text.startswith(f"the archive {lake.root} cannot be written (")
    assert "Storage backend is full" in text
    assert text.endswith(
        "; nothing was committed: check its bucket and space, AWS_ENDPOINT_URL, AWS_REGION, the keys and their "
        "rights, then run it again"
    )
    bucket.behave("")
    assert (numbers(lake), lake.last()) == ([0], 1)
    store(lake, sent(1))
    assert numbers(lake) == [0, 1]


@pytest.mark.bad_input("object store: no right to write")
def test_without_the_right_to_write_nothing_is_committed_and_reads_go_on(bucket, lake, monkeypatch):
    store(lake, sent(0))
    for name, value in bucket.environment("reader").items():
        monkeypatch.setenv(name, value)
    reader = Lake(str(lake.root))
    assert numbers(reader) == [0]
    with pytest.raises(PipelineError, match=r"cannot be written \(.*(?i:access.denied)"):
        store(reader, sent(1))
    with pytest.raises(PipelineError, match=r"nothing was committed"):
        reader.commit([], after=reader.last())
    other = Lake(bucket.url("not-there"))
    with pytest.raises(PipelineError, match="it was not created"):
        store(other, sent(1))
    assert numbers(lake) == [0]


@pytest.mark.bad_input("object store: wrong keys, or not there")
def test_a_store_that_cannot_be_reached_is_named_with_what_to_check(bucket, lake, monkeypatch):
    store(lake, sent(0))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x" * 40)
    with pytest.raises(PipelineError, match=r"cannot be read \(.*(?i:access.denied)"):
        Lake(str(lake.root)).exists()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    ran = CliRunner().invoke(cli, ["spark", "compact", "--archive", str(lake.root)])
    assert ran.exit_code == 1
    assert f"error: the archive {lake.root} cannot be read (" in ran.stderr
    assert "check its bucket and space, AWS_ENDPOINT_URL" in ran.stderr


@pytest.mark.bad_input("object store: broken log")
def test_a_broken_log_is_named(lake):
    store(lake, sent(0))
    (lake.root / "_delta_log" / f"{1:020d}.json").write_text('{"add":')
    with pytest.raises(ArchiveDamagedError, match="_delta_log: not a log of commits"):
        lake.files()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("s3://", "does not name a path in a bucket"),
        ("s3://bucket", "does not name a path in a bucket"),
        ("s3://b_ck!t/lake", "does not name a path in a bucket"),
        ("gs://bucket/lake", "is not an s3:// URL"),
    ],
)
@pytest.mark.bad_input("object store: URL")
def test_a_url_that_names_no_place_is_refused(url, problem):
    ran = CliRunner().invoke(cli, ["spark", "compact", "--archive", url])
    assert ran.exit_code == 2
    assert f"archive: {url!r} {problem}; " in ran.stderr


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"AWS_ENDPOINT_URL": "minio:9000"}, "'minio:9000' is not an address; write https://HOST"),
        ({"AWS_ACCESS_KEY_ID": "k"}, "AWS_SECRET_ACCESS_KEY: is not set, but the other one is"),
        ({"AWS_SECRET_ACCESS_KEY": "s"}, "AWS_ACCESS_KEY_ID: is not set, but the other one is"),
    ],
)
def test_half_a_configuration_is_refused(given, text):
    with pytest.raises(InvalidOptionError, match=text):
        S3Options.of_environment(given)


def test_no_text_shows_the_keys():
    given = {"AWS_ACCESS_KEY_ID": "mykey", "AWS_SECRET_ACCESS_KEY": "mysecret"}
    place = ObjectPath(
        "bucket/lake", S3Options.of_environment({**given, "AWS_SESSION_TOKEN": "t0k"})
    )
    shown = f"{place} {place!r} {place.options!r}"
    assert not any(secret in shown for secret in ("mykey", "mysecret", "t0k"))


def test_both_spellings_name_the_same_place(monkeypatch):
    assert str(Lake("s3a://bucket/a/lake/").root) == str(Lake("s3://bucket/a/lake").root)
    assert str(Lake(Path("s3://bucket/lake")).root) == "s3://bucket/lake"


def test_an_error_over_many_lines_becomes_one():
    text = (
        "Kernel error -> S3 error\n   \x1b[31m↳\x1b[0m GET failed\n      \x1b[31m↳\x1b[0m no route"
    )
    assert one_line(OSError(text)) == "Kernel error -> S3 error: GET failed: no route"


def test_a_directory_is_converted_before_it_is_copied(bucket):
    ran = CliRunner().invoke(cli, ["spark", "convert", "--archive", bucket.url("old")])
    assert ran.exit_code == 2
    assert (
        "is a URL, and earlier versions archived into directories; convert the directory"
        in ran.stderr
    )


def test_archiver_sql_report_and_increments_work_on_a_store(
    spark, client, store_url, namespace, bucket, lake, tmp_path
):
    """Queries see the rows of a directory; a file that is not whole, or not there, is named."""
    journalled(client, namespace, "emails").send_many([b"{}"] * 5)
    source = server_options(store_url, namespace)
    archiver, other = Archiver(spark, lake, source), Archiver(spark, lake, source)
    written = archiver.archive_batch().events
    with pytest.raises(PipelineError, match="another archiver"):
        other.archive_batch()
    line = ["--url", store_url, "--namespace", namespace, "spark"]
    query = "select queue, event, count(*) as n from archive where day > '2000-01-01' group by all"
    ran = CliRunner().invoke(cli, [*line, "sql", "--archive", str(lake.root), "--json", query])
    assert ran.exit_code == 0, ran.stderr
    assert sum(row["n"] for row in json.loads(ran.stdout)) == written
    page = tmp_path / "report.html"
    ran = CliRunner().invoke(
        cli, [*line, "report", "--archive", str(lake.root), "--out", str(page), "--json"]
    )
    assert (ran.exit_code, json.loads(ran.stdout)["data"]["rows"]) == (0, written), ran.stderr
    first, _ = audit_increment(spark, lake=lake)
    again, last = audit_increment(spark, lake=lake)
    assert (first.wrong, again.wrong, last.version) == ({}, {}, lake.table().version())
    assert first.open == again.open > 0

    file = lake.files()[0]
    whole = file.read_bytes()
    with file.open_write() as stream:
        stream.write(whole[:-40])
    ran = CliRunner().invoke(cli, [*line, "audit", "--archive", str(lake.root)])
    assert ran.exit_code == 5
    assert f"error: {file}: not a whole Parquet file" in ran.stderr
    file.unlink()
    with pytest.raises(ArchiveDamagedError, match="the file is missing"):
        read_archive(spark, lake)


@pytest.mark.nightly(
    "pipeline/test_report_increments.py::test_an_increment_has_the_figures_of_a_full_report"
)
def test_a_report_in_increments_on_a_store_has_the_figures_of_a_full_one(spark, lake):
    """Each reads the files that came since, and carries the rest in the store."""
    days = []
    for number, steps in enumerate(
        ({"a": "sent@0 delivered@5"}, {"a": "acked@30", "b": "sent@40"})
    ):
        journal = Journal(number=2 * number, sent={"a": 0})
        for message, events in steps.items():
            journal.write(message, events)
        store(lake, journal, offsets=offsets(journal))
        days.append(report_increment(spark, lake, SCOPE))
    assert [(day.events, day.read.files, day.rebuilt) for day in days] == [(2, 1, None)] * 2
    assert [day.since is None for day in days] == [True, False]
    assert figures(days[-1].document) == figures(full(spark, lake))
    kept = [file.key for file in (lake.root / "_report").under()]
    assert sum("/figures-" in key for key in kept) == 1, "those before are deleted"


def test_many_files_are_found_by_listing_them(lake, monkeypatch):
    monkeypatch.setattr("qworker.pipeline.jobs.store._LISTED", 3)
    for number in range(5):
        store(lake, sent(number))
    files = lake.files()
    assert absent(files) == set()
    files[2].unlink()
    assert absent(files) == {files[2]}
