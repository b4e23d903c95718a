"""What may be wrong with a journal or an archive, planted one by one: the audit names each, and accuses nothing else.

Each wrong has its own queue. All are archived and audited together: over the archive and the live journal, at once and
in increments; at night also over each of them alone, and over an archive in an object store.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner

from qworker.cli.main import cli
from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.engine.attributes import configure
from qworker.engine.raw import raw
from qworker.errors import PipelineError
from qworker.pipeline.jobs import audit_counts
from qworker.pipeline.jobs.archive import Archiver, archive
from qworker.pipeline.jobs.audit import AuditResult, Window
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.reading import read_events, server_options
from qworker.pipeline.jobs.run_audit import audit_all, audit_increment
from qworker.store.connections import ConnectionFactory
from qworker.wire.keys import QueueKeys, queues_key
from tests.pipeline.object_store import Store, object_store

# The first test of the module pays for the jobs of all.
pytestmark = [pytest.mark.slow, pytest.mark.wrongs, pytest.mark.timeout(600)]


@dataclass
class Wrongs:
    """Queues with a journal of everything, and an archive of them."""

    client: Client
    namespace: str
    lake: Lake
    url: str
    results: dict[str, AuditResult] = field(default_factory=dict)
    #: Audits that are made when a test asks for their results.
    audits: dict[str, Callable[[], AuditResult]] = field(default_factory=dict)

    def keys(self, name: str) -> QueueKeys:
        return QueueKeys(self.namespace, name)

    def ask(self, *words: str | int):
        return self.client.execute(raw(*words))

    def queue(self, name: str, sent: int = 20) -> Queue:
        queue = self.switch(name, "all")
        queue.send_many([b"{}"] * sent)
        return queue

    def switch(self, name: str, mode: str) -> Queue:
        """Set the mode of a journal; creates a new queue."""
        queue = Queue(self.client, self.namespace, name)
        self.client.execute(configure(queue.keys, {"journal": mode}))
        self.ask("HSET", queues_key(self.namespace), name, 1)
        return queue

    def finish(self, queue: Queue, number: int) -> None:
        """Receive and ack messages: one call each."""
        queue.ack(*queue.receive(number))

    def archive(self, spark, **options: str) -> int:
        source = {**server_options(self.url, self.namespace), "failOnDataLoss": "false", **options}
        return archive(spark, self.lake, source, once=True).events

    def delete_entry(self, name: str, at: int) -> None:
        """Delete an entry of the journal: -1 is the last one, -2 the one before."""
        key = self.keys(name).journal
        self.ask("XDEL", key, self.ask("XREVRANGE", key, "+", "-", "COUNT", -at)[-1][0])

    def parts(self, name: str) -> list[str]:
        prefix = self.keys(name).meta.removesuffix("meta")
        pattern = prefix.replace("[", "\\[") + "*"
        return [key.decode() for key in self.ask("KEYS", pattern)]

    def remember(self, name: str) -> None:
        """Keep a copy of a queue, as a replica has it that then hears no more."""
        for key in self.parts(name):
            self.ask("COPY", key, f"{key}:kept")

    def roll_back(self, name: str) -> None:
        """Put the copy in place of the queue, as a failover to that replica does."""
        kept = [key for key in self.parts(name) if key.endswith(":kept")]
        for key in self.parts(name):
            if key not in kept:
                self.ask("DEL", key)
        for key in kept:
            self.ask("RENAME", key, key.removesuffix(":kept"))

    def result(self, kind: str) -> AuditResult:
        """What an audit found."""
        if kind not in self.results:
            self.results[kind] = self.audits[kind]()
        return self.results[kind]

    def holes(self, kind: str, name: str) -> list[tuple[str, int | None]]:
        """Why each hole of a queue is there, and how many events are missing."""
        return [
            (hole["why"], hole["missing"])
            for hole in self.result(kind).holes
            if hole["queue"] == name
        ]

    def accused(self, kind: str, name: str) -> dict[str, int]:
        """Messages of a queue that the audit names, by finding; open ones are not a finding."""
        found: dict[str, int] = {}
        for finding, rows in self.result(kind).samples.items():
            number = sum(row["queue"] == name for row in rows)
            if number and finding != "open":
                found[finding] = number
        return found


def early(wrongs: Wrongs) -> None:
    """What happens before anything is archived."""
    wrongs.finish(wrongs.queue("clean"), 20)
    for name in ("tail", "middle", "off", "vanished", "cut", "copied", "put-back", "twice"):
        wrongs.queue(name)
    wrongs.finish(wrongs.queue("removed"), 20)
    # Its journal began while the clock was ahead.
    name = "clock"
    ahead = (int(datetime.now(UTC).timestamp()) + 10) * 1000 * 1024
    wrongs.switch(name, "all")
    wrongs.ask("HSET", wrongs.keys(name).meta, "journal_epoch", ahead)
    wrongs.finish(wrongs.queue(name), 20)
    for name in ("rolled-back", "reused"):
        queue = wrongs.queue(name)
        wrongs.remember(name)
        wrongs.finish(queue, 10)


def late(wrongs: Wrongs) -> None:
    """What is planted between the first archived batch and the second one."""
    for name in ("tail", "middle", "cut", "copied", "put-back", "twice"):
        wrongs.finish(Queue(wrongs.client, wrongs.namespace, name), 10)
    wrongs.delete_entry("tail", -1)
    wrongs.queue("middle", 5)
    wrongs.delete_entry("middle", -2)
    for name in ("removed", "clock"):
        Queue(wrongs.client, wrongs.namespace, name).remove()
        wrongs.finish(wrongs.queue(name, 15), 15)
    wrongs.finish(wrongs.switch("off", "off"), 20)
    wrongs.finish(wrongs.queue("off", 5), 5)
    for name in ("rolled-back", "reused"):
        wrongs.roll_back(name)
    reused = wrongs.queue("reused", 2)
    for _ in range(3):
        wrongs.finish(reused, 5)


def break_files(lake: Lake) -> None:
    """What is done to the archive afterwards."""
    files = {name: [] for name in ("cut", "vanished", "copied")}
    for file in lake.appended(-1):
        files.get(file.parent.parent.name.removeprefix("queue="), []).append(file)
    files["cut"][-1].unlink()
    for file in files["vanished"]:
        file.unlink()
    copied = files["copied"][-1]
    (copied.parent / "part-copy.parquet").write_bytes(copied.read_bytes())


def stored_copy(lake: Lake, objects: Store) -> Lake:
    """Copy an archive into an object store."""
    stored = Lake(objects.url("lake"))
    for file in lake.root.rglob("*"):
        if file.is_file():
            with (stored.root / str(file.relative_to(lake.root))).open_write() as stream:
                stream.write(file.read_bytes())
    return stored


@pytest.fixture(scope="module")
def wrongs(spark, store_url, tmp_path_factory) -> Iterator[Wrongs]:
    namespace = f"wrongs{datetime.now(UTC).timestamp():.0f}"
    lake = Lake(tmp_path_factory.mktemp("wrongs") / "lake")
    with ExitStack() as stack:
        client = stack.enter_context(Client(ConnectionFactory(store_url), give_up_s=10.0))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        wrongs = Wrongs(client, namespace, lake, store_url)
        early(wrongs)
        wrongs.archive(spark)
        wrongs.results["begun"] = audit_increment(spark, lake=lake)[0]
        offsets = lake.offsets()
        late(wrongs)
        wrongs.archive(spark, queues="put-back")
        now = lake.offsets()
        assert now != offsets
        # As a version does that was restored, with the files of later ones.
        lake.commit([], after=lake.last(), offsets={**now, "put-back": offsets["put-back"]})
        wrongs.archive(spark)
        break_files(lake)
        source = server_options(store_url, namespace)
        patch.setattr(audit_counts, "SAMPLES", 1000)  # all queues share the samples

        def judged(**given: Any) -> AuditResult:
            return audit_all(spark, window=Window(), **given)

        def judge_stored() -> AuditResult:
            objects = stack.enter_context(object_store())
            for name, value in objects.environment().items():
                patch.setenv(name, value)
            return judged(lake=stored_copy(lake, objects))

        wrongs.audits = {
            "archive": partial(judged, lake=lake),
            "stored": judge_stored,
            "live": partial(judged, source=source),
            "both": partial(judged, lake=lake, source=source),
        }
        for kind in ("increment", "nothing new"):
            wrongs.results[kind], _ = audit_increment(spark, lake=lake, source=source)
        yield wrongs


@pytest.fixture(scope="module")
def stored(spark, wrongs) -> Counter[tuple[str, str]]:
    """The events that the archive has, by queue and event."""
    rows = read_events(spark, lake=wrongs.lake, queues="reused,clock").select("queue", "event")
    return Counter(map(tuple, rows.collect()))


#: In half of the parts, or elsewhere: each wrong is named there as it is in both.
NIGHTLY = pytest.mark.nightly("test_a_queue_without_a_wrong_is_not_named")
ARCHIVE, STORED, LIVE = (
    pytest.param(kind, marks=NIGHTLY) for kind in ("archive", "stored", "live")
)
ARCHIVED = (ARCHIVE, STORED, "both", "increment")
EVERYWHERE = (LIVE, *ARCHIVED)


@pytest.mark.parametrize("kind", EVERYWHERE)
def test_a_queue_without_a_wrong_is_not_named(wrongs, kind):
    assert (wrongs.holes(kind, "clean"), wrongs.accused(kind, "clean")) == ([], {})


@pytest.mark.parametrize("kind", EVERYWHERE)
def test_the_last_entry_deleted_from_the_journal_is_a_hole(wrongs, kind):
    assert wrongs.holes(kind, "tail") == [("trimmed", 10)]
    assert "lost" not in wrongs.accused(kind, "tail")


@pytest.mark.parametrize("kind", EVERYWHERE)
def test_an_entry_deleted_in_the_middle_is_a_hole_in_every_audit(wrongs, kind):
    assert wrongs.holes(kind, "middle") == [("trimmed", 10)]
    assert "lost" not in wrongs.accused(kind, "middle")


@pytest.mark.parametrize("kind", EVERYWHERE)
def test_what_ended_while_the_journal_was_off_is_not_lost(wrongs, kind):
    assert wrongs.holes(kind, "off") == [("journal off", None)]
    accused = wrongs.accused(kind, "off")
    assert accused == ({} if kind in ("archive", "stored") else {"unsure": 20})


@pytest.mark.parametrize("kind", ARCHIVED)
def test_a_journal_that_was_rolled_back_is_named(wrongs, kind):
    (hole,) = wrongs.holes(kind, "rolled-back")
    assert hole == ("rolled back", 20)


@pytest.mark.parametrize("kind", ARCHIVED)
def test_events_under_numbers_used_again_are_archived_and_the_roll_back_is_named(
    wrongs, stored, kind
):
    assert wrongs.holes(kind, "reused") == [("rolled back", 20)]
    assert wrongs.accused(kind, "reused") == {}
    journal = wrongs.ask("XRANGE", wrongs.keys("reused").journal, "-", "+")
    events = sum(
        rows for (queue, event), rows in stored.items() if queue == "reused" and event != "gap"
    )
    assert events == sum(int(fields[3]) for _, fields in journal) + 20


@pytest.mark.parametrize("kind", ARCHIVED)
def test_a_queue_made_again_with_the_clock_set_back_is_archived(wrongs, stored, kind):
    ((why, missing),) = wrongs.holes(kind, "clock")
    assert (why, missing) == ("new epoch", None)
    assert wrongs.accused(kind, "clock") == {}
    assert stored["clock", "acked"] == 35


@pytest.mark.parametrize("kind", ARCHIVED)
def test_a_queue_removed_and_made_again_is_a_stretch_that_nobody_can_tell_about(wrongs, kind):
    assert wrongs.holes(kind, "removed") == [("new epoch", None)]
    assert wrongs.accused(kind, "removed") == {}


@pytest.mark.parametrize("kind", ARCHIVED)
def test_a_deleted_file_is_a_hole_also_at_the_end(wrongs, kind):
    assert wrongs.holes(kind, "cut") == [("file gone", 20)]


@pytest.mark.parametrize("kind", [ARCHIVE, STORED, "both"])
def test_a_queue_whose_files_are_all_gone_is_a_hole(wrongs, kind):
    assert wrongs.holes(kind, "vanished") == [("file gone", 20)]


@pytest.mark.parametrize("kind", ARCHIVED)
def test_rows_that_are_there_twice_are_called_so_and_no_message_is_accused(wrongs, kind):
    doubled = {row["queue"]: row["rows"] for row in wrongs.result(kind).doubled}
    assert doubled == {"put-back": 20}
    assert (wrongs.holes(kind, "put-back"), wrongs.accused(kind, "put-back")) == ([], {})
    assert wrongs.result(kind).wrong["duplicate_rows"] == 20


@pytest.mark.parametrize("kind", ARCHIVED)
def test_a_file_that_was_copied_into_the_archive_is_not_read(wrongs, kind):
    assert (wrongs.holes(kind, "copied"), wrongs.accused(kind, "copied")) == ([], {})


@pytest.mark.parametrize("kind", ["begun", "nothing new"])
def test_an_increment_tells_what_is_wrong_once(wrongs, kind):
    """Before anything was wrong, and after it was told; what is open is carried on."""
    result = wrongs.result(kind)
    assert (result.wrong, result.doubts) == ({}, {})
    assert result.open > 0


def test_an_increment_reads_what_is_new(wrongs):
    """And the events of messages that were open, or had just ended: here all, and those whose files are gone since."""
    begun, then, both = (wrongs.result(kind) for kind in ("begun", "increment", "both"))
    assert (then.events, then.messages) == (both.events + 20, both.messages + 20)
    kept = json.loads((wrongs.lake.root / "_audit" / "state.json").read_text())
    assert kept["version"] == wrongs.lake.table().version()
    assert begun.events < both.events


def audited(wrongs: Wrongs, *words: str):
    line = ["--namespace", wrongs.namespace, "spark", "audit", "--json", *words]
    return CliRunner().invoke(cli, line, env={"QWORKER_URL": wrongs.url})


@pytest.mark.parametrize(
    ("queues", "code"),
    [
        ("clean,copied", 0),
        ("cut,off", 3),
        pytest.param(
            *("put-back", 3),
            marks=pytest.mark.nightly("test_the_exit_code_says_clean_wrong_or_cannot_tell"),
        ),
        ("removed", 5),
    ],
)
def test_the_exit_code_says_clean_wrong_or_cannot_tell(wrongs, queues, code):
    """What is wrong comes before what is in doubt."""
    ran = audited(wrongs, "--archive", str(wrongs.lake.root), "--queues", queues)
    assert ran.exit_code == code, ran.stderr
    assert json.loads(ran.stdout)["ok"] is (code == 0)


def test_a_truncated_file_is_named_with_what_to_do(wrongs, tmp_path):
    shutil.copytree(wrongs.lake.root, tmp_path / "lake")
    file = next((tmp_path / "lake" / "queue=clean").glob("day=*/*.parquet"))
    file.write_bytes(file.read_bytes()[:-40])
    ran = audited(wrongs, "--archive", str(tmp_path / "lake"), "--queues", "clean")
    assert ran.exit_code == 5
    assert (
        ran.stderr.strip().splitlines()[-1].startswith(f"error: {file}: not a whole Parquet file")
    )


def test_a_second_archiver_stops_before_it_writes(spark, wrongs, tmp_path):
    """What it would write is in the archive already."""
    source = {**server_options(wrongs.url, wrongs.namespace), "queues": "clean"}
    lake = Lake(tmp_path / "lake")
    one, other = Archiver(spark, lake, source), Archiver(spark, lake, source)
    written = one.archive_batch().events
    with pytest.raises(PipelineError, match="another archiver"):
        other.archive_batch()
    assert read_events(spark, lake=lake).count() == written
