"""A report in increments has the figures of a full one, and reads all again if what it carried does not fit.

QWORKER_WORLDS=40 pytest tests/pipeline/test_report_increments.py       more random histories
"""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qworker.cli.main import cli
from qworker.errors import PipelineError
from qworker.pipeline.jobs import increment as increments
from qworker.pipeline.jobs.compact import compact, plan
from qworker.pipeline.jobs.files import EventFile
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.objects import write_rows
from qworker.pipeline.jobs.reading import earlier_events, ends_of, read_events
from qworker.pipeline.report import Reported, Scope, carried, make_document, report_increment
from qworker.pipeline.report.buckets import bucket_width, carried_width
from qworker.pipeline.report.sums import Sums, percentiles
from tests.pipeline.forging import Journal, at, store
from tests.pipeline.random_days import DAY, GROUPS, HOUR, group, history, runs_and_groups

WORLDS = int(os.environ.get("QWORKER_WORLDS", "1"))
SCOPE = Scope("shop", "an archive", targets_ms={"emails": 2000.0}, default_target_ms=60_000.0)
#: What differs between two reports of the same events.
OF_THE_RUN = ("generated_ms",)


def full(spark, lake: Lake, scope: Scope = SCOPE) -> dict[str, Any]:
    """Report on all of an archive in the usual way."""
    lake = lake.pinned()
    events = read_events(spark, lake=lake)
    return make_document(events, scope, ends=ends_of(lake), earlier=earlier_events(lake, None))


def figures(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in OF_THE_RUN}


def offsets(*journals: Journal) -> dict[str, Any]:
    """Where the journals end: the events of each, and one entry for each."""
    return {
        each.queue: {"epoch": each.epoch, "entry": each.number, "event": each.number}
        for each in journals
    }


@pytest.mark.nightly("test_an_increment_has_the_figures_of_a_full_report")
@pytest.mark.timeout(1800)
def test_increments_have_the_figures_of_a_full_report_on_random_days(spark, tmp_path):
    """Of messages, of runs that last for days, and of groups that are decided on another day."""
    seed = random.randrange(10**6)
    for number in range(WORLDS):
        rng, days = random.Random(seed + number), 3
        lake = Lake(tmp_path / f"lake{number}")
        journals = [*history(rng, days), *runs_and_groups(rng, days)]
        for day in range(days):
            parts = []
            for journal in journals:
                part = Journal(journal.queue)
                part.rows = [
                    row for row in journal.rows if at(day * DAY) <= row["ts"] < at((day + 1) * DAY)
                ]
                stored = [row for row in journal.rows if row["ts"] < at((day + 1) * DAY)]
                part.number = stored[-1]["number"] + 1 if stored else 0
                parts.append(part)
            store(lake, *(part for part in parts if part.rows), offsets=offsets(*parts))
            done = report_increment(spark, lake, SCOPE)
            assert done.rebuilt is None, (seed + number, done.rebuilt)
            assert (done.since is None) == (day == 0)
            assert done.events == sum(len(part.rows) for part in parts) - sum(
                row["event"] == "mode" for part in parts for row in part.rows
            )
            if day == days - 1 or WORLDS > 1:
                assert figures(done.document) == figures(full(spark, lake)), f"seed {seed + number}"
        assert done.document["data"]["rows"] > 20
        assert done.document["runs"]["workflows"]
        assert done.document["groups"]["queues"][0]["groups"] == GROUPS


def orders() -> tuple[Journal, Journal]:
    """A run that sleeps and a group of calls that waits; and how both end."""
    journal = Journal("orders")
    journal.write(
        "r",
        f"sent@0 delivered@10 released@20:sleep delivered@{HOUR} acked@{HOUR + 2}",
        task="order",
    )
    group(journal, "g", 30, HOUR)
    rows = journal.sort().rows
    return Journal("orders", rows=rows[:4], number=4), Journal("orders", rows=rows[4:], number=7)


@pytest.fixture(scope="module")
def reported(spark, tmp_path_factory) -> tuple[Lake, Reported]:
    """An archive with a message of each kind, a run and a group, and an incremental report on it."""
    lake, journal = Lake(tmp_path_factory.mktemp("reported") / "lake"), Journal()
    journal.write("a", "sent@0 delivered@10 acked@30")
    journal.write("b", f"sent@5 delivered@20 dead@{HOUR}:rejected")
    journal.write("c", f"sent@{HOUR}")
    begun, _ = orders()
    store(lake, journal.sort(), begun, offsets=offsets(journal, begun))
    return lake, report_increment(spark, lake, SCOPE)


@pytest.fixture
def lake(reported, tmp_path) -> Lake:
    """A copy of that archive."""
    return Lake(shutil.copytree(reported[0].root, tmp_path / "lake"))


def test_a_report_without_new_events_reads_none_and_has_the_same_figures(spark, reported, lake):
    first, again = reported[1], report_increment(spark, lake, SCOPE)
    assert (first.since, first.events, again.events, again.read.files) == (None, 11, 0, 0)
    assert again.since is not None
    assert figures(again.document) == figures(first.document)
    kept = lake.root / "_report"
    assert len([*kept.glob("figures-*")]) == len([*kept.glob("events-*")]) == 1


@pytest.fixture(scope="module")
def followed(spark, reported, tmp_path_factory) -> tuple[Lake, Reported]:
    """That archive with more events, and the report that followed."""
    lake = Lake(shutil.copytree(reported[0].root, tmp_path_factory.mktemp("followed") / "lake"))
    add_late(lake)
    return lake, report_increment(spark, lake, SCOPE)


def add_late(lake: Lake) -> list[EventFile]:
    """Archive another message, and the ends of the run and of the group."""
    journal = Journal(number=7)
    journal.write("late", f"sent@{HOUR + 1}")
    _, ended = orders()
    return store(lake, journal, ended, offsets=offsets(journal, ended))


def test_an_increment_has_the_figures_of_a_full_report(spark, followed):
    """Of messages, runs and groups that the first report has carried, and of what came since."""
    lake, then = followed
    assert (then.events, then.read.files, then.rebuilt) == (4, 2, None)
    (run,), (of_queue,) = then.document["runs"]["workflows"], then.document["groups"]["queues"]
    assert (run["runs"], run["completed"], of_queue["groups"], of_queue["ok"]) == (1, 1, 1, 1)
    assert figures(then.document) == figures(full(spark, lake))


@pytest.mark.parametrize(
    "when",
    [
        "before it keeps its own",
        pytest.param(
            "meanwhile",
            marks=pytest.mark.nightly("test_of_two_reports_at_a_time_the_second_keeps_nothing"),
        ),
    ],
)
def test_of_two_reports_at_a_time_the_second_keeps_nothing(
    spark, reported, followed, tmp_path, when, monkeypatch
):
    """And the next one goes on from what the first has kept."""
    lake = Lake(shutil.copytree(followed[0].root, tmp_path / "lake"))
    kept, before, first = (each.root / "_report" for each in (lake, reported[0], followed[0]))
    shutil.rmtree(kept)
    shutil.copytree(before, kept)

    def overtake() -> None:
        """End as the first report did."""
        shutil.copytree(first, kept, dirs_exist_ok=True)
        for old in before.glob("*-*"):
            shutil.rmtree(kept / old.name)

    def other(step: str) -> None:
        if step == "keeping the figures" and when != "meanwhile":
            overtake()

    def write(*what: Any) -> None:
        overtake()
        write_rows(*what)

    if when == "meanwhile":
        monkeypatch.setattr(increments, "write_rows", write)
    with pytest.raises(PipelineError, match=r"another incremental report of .* run one at a time"):
        report_increment(spark, lake, SCOPE, on_step=other)
    assert (kept / "state.json").read_text() == (first / "state.json").read_text()
    last = carried.fitting(lake.pinned(), SCOPE)
    assert last is not None
    assert (last.sizes, last.sums["overview"][()][0]) == ({}, 15)


def change(lake: Lake, **fields: Any) -> None:
    file = lake.root / "_report" / "state.json"
    document = json.loads(file.read_text())
    file.write_text(json.dumps(document | {"more": document["more"] | fields}))


def of_another_version(lake: Lake) -> None:
    change(lake, format=99)


def without_its_figures(lake: Lake) -> None:
    for kept in (lake.root / "_report").glob("figures-*"):
        shutil.rmtree(kept)


def with_broken_figures(lake: Lake) -> None:
    for kept in (lake.root / "_report").glob("figures-*/*"):
        kept.write_bytes(kept.read_bytes()[:100])


def without_its_events(lake: Lake) -> None:
    for kept in (lake.root / "_report").glob("events-*"):
        shutil.rmtree(kept)


def without_a_file_of_its_events(lake: Lake) -> None:
    next((lake.root / "_report").glob("events-*/*.parquet")).unlink()


def that_is_broken(lake: Lake) -> None:
    (lake.root / "_report" / "state.json").write_text("{")


def for_other_targets(lake: Lake) -> None:
    change(lake, targets=[{}, 1.0])


def of_an_archive_made_anew(lake: Lake) -> None:
    other = Lake(lake.root.parent / "other")
    journal = Journal()
    journal.write("z", "sent@0")
    store(other, journal)
    shutil.rmtree(lake.root / "_delta_log")
    (other.root / "_delta_log").rename(lake.root / "_delta_log")


def of_an_archive_put_back(lake: Lake) -> None:
    max((lake.root / "_delta_log").glob("*.json")).unlink()


def with_files_that_a_vacuum_deleted(lake: Lake) -> None:
    """They were compacted since, so the archive is whole without them."""
    files = add_late(lake)
    compact(lake, plan(lake))
    for file in files:
        Path(file.path).unlink()


@pytest.mark.bad_input("report: what was carried does not fit")
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (of_another_version, "another version of qworker made the last report"),
        (without_its_figures, "the figures of the last report are not there"),
        (with_broken_figures, "the figures of the last report are not there"),
        (without_its_events, "files of the archive or of the last report are gone"),
        (without_a_file_of_its_events, "files of the archive or of the last report are gone"),
        (that_is_broken, "what the last report kept cannot be read"),
        (for_other_targets, "the last report had other targets"),
        (of_an_archive_made_anew, "the archive was recreated since the last report"),
        (of_an_archive_put_back, "files of the archive or of the last report are gone"),
        (with_files_that_a_vacuum_deleted, "files of the archive or of the last report are gone"),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_a_report_is_not_carried_on(lake, spoil, reason):
    """Told as the reason for which all is read again, before anything is counted."""
    spoil(lake)
    with pytest.raises(carried.UnfitError) as told:
        carried.fitting(lake.pinned(), SCOPE)
    assert str(told.value).startswith(reason)


def test_the_command_tells_what_it_read(spark, lake, tmp_path):
    """All of the archive once more, if the journal was rolled back."""
    page = tmp_path / "page.html"
    line = ["spark", "report", "--archive", str(lake.root), "--incremental", "--out", str(page)]
    line += ["--target", "emails=2s", "--target", "60s"]
    add_late(lake)
    ran = CliRunner().invoke(cli, line)
    assert "read the events since the report of 20" in ran.stderr
    assert "4 events from 2 files of the archive" in ran.stdout
    back = Journal(number=6)
    back.add(event="gap", reason="0 events rolled back", ts=at(2 * HOUR), message_id=None, number=6)
    back.number = 6
    back.write("other", f"sent@{2 * HOUR + 1} delivered@{2 * HOUR + 5} acked@{2 * HOUR + 9}")
    store(lake, back, offsets=offsets(back))
    ran = CliRunner().invoke(cli, [*line, "--json"])
    rebuilt = "events of emails no longer count: rolled back"
    assert f"read all of the archive, because {rebuilt}" in ran.stderr
    document = json.loads(ran.stdout)
    read = [document["read"][name] for name in ("events", "files", "since_ms", "rebuilt")]
    assert read == [16, 5, None, rebuilt]
    counted = {name: document["totals"][name] for name in ("in", "acked", "dead", "backlog")}
    assert counted == {"in": 4, "acked": 3, "dead": 1, "backlog": 0}
    assert [gap["why"] for gap in document["gaps"]] == ["rolled back"]


@pytest.mark.bad_input("report: increments of a part")
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--incremental"], "--incremental: needs an archive; pass --archive DIR"),
        (["--restart"], "--restart: requires --incremental; pass both, or neither"),
        (
            ["--incremental", "--archive", "LAKE", "--since", "24h"],
            "--since: excludes --incremental",
        ),
        (
            ["--incremental", "--archive", "LAKE", "--queues", "a"],
            "--queues: excludes --incremental",
        ),
        (["--incremental", "--archive", "LAKE", "--live"], "--live: excludes --incremental"),
    ],
)
def test_an_incremental_report_is_of_a_whole_archive(lake, words, named):
    words = [str(lake.root) if word == "LAKE" else word for word in words]
    ran = CliRunner().invoke(cli, ["spark", "report", *words])
    assert ran.exit_code == 2
    assert named in ran.stderr


def test_sums_of_two_stretches_are_those_of_both_at_every_width():
    one, other = Sums(1), Sums(1)
    one.add("flow", [(("q", 3), [1, 0, 0, 0, 5]), (("q", 4), [2, 0, 0, 0, 5])])
    other.add("flow", [(("q", 5), [1, 1, 0, 0, 5])])
    one.add("backlog", [(("q", 3, 9), [2, 300]), (("q", 3, None), [1, 200])])
    other.add("backlog", [(("q", 3, 9), [2, 100])])
    one.add("overview", [((), [3, 10, 20])])
    other.add("overview", [((), [2, 15, 30])])
    both = one.plus(other).wider(5)
    assert both.tables == one.wider(5).plus(other.wider(5)).tables
    assert both["flow"] == {("q", 0): [3, 0, 0, 0, 10], ("q", 1): [1, 1, 0, 0, 5]}
    assert both["backlog"] == {("q", 0, 1): [4, 100], ("q", 0, None): [1, 200]}
    assert both["overview"] == {(): [5, 10, 30]}
    assert Sums.of_arrow(both.to_arrow(), 5) == both


def test_carried_buckets_fit_into_those_of_every_longer_span():
    widths = sorted({bucket_width(days * 3600.0) for days in range(1, 24 * 4000, 7)} | {1, 2, 5})
    for width in widths:
        carried = carried_width(width)
        assert all(longer % carried == 0 for longer in widths if longer >= width), width


def test_percentiles_of_bins_are_exact_where_their_values_are_equal():
    assert percentiles({}) == {"p50_ms": None, "p95_ms": None, "p99_ms": None}
    assert percentiles({5: (2, 2000), 9: (2, 8000)}) == {
        "p50_ms": 1.0,
        "p95_ms": 4.0,
        "p99_ms": 4.0,
    }
