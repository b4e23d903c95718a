"""The jobs on a server: what the audit finds there, and the verbs `audit`, `report`, `sql` and `compact`."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from click.testing import CliRunner

from qworker.cli.main import cli
from qworker.cli.spark.reading import instant
from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.engine.attributes import configure
from qworker.engine.raw import raw
from qworker.errors import InvalidOptionError
from qworker.pipeline.jobs.archive import archive
from qworker.pipeline.jobs.audit import Window
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.reading import server_options
from qworker.pipeline.jobs.run_audit import audit_all
from qworker.pipeline.views import Result, plain
from qworker.store.connections import ConnectionFactory
from qworker.wire.codec import encode_call
from qworker.wire.keys import QueueKeys

pytestmark = pytest.mark.slow


class Shop:
    """A namespace whose queues are journalled."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client, self.namespace = client, namespace

    def keys(self, name: str) -> QueueKeys:
        return QueueKeys(self.namespace, name)

    def ask(self, *words: str | int | bytes):
        return self.client.execute(raw(*words))

    def queue(self, name: str, sent: int = 10, acked: int = 6) -> Queue:
        """Make a queue with messages: this many sent, and some of them acked."""
        self.client.execute(configure(self.keys(name), {"journal": "all"}))
        queue = Queue(self.client, self.namespace, name)
        queue.send_many([encode_call("send_email", [at], {}) for at in range(sent)])
        for message in queue.receive(acked):
            queue.ack(message)
        return queue

    def forge_again(self, name: str) -> None:
        """Write the last entry once more, with the next numbers."""
        keys = self.keys(name)
        entry_id, fields = self.ask("XREVRANGE", keys.journal, "+", "-", "COUNT", 1)[0]
        entry = dict(zip(fields[::2], fields[1::2], strict=True))
        epoch, _, number = entry_id.decode().partition("-")
        entry[b"n"] = b"%d" % (int(entry[b"n"]) + int(entry[b"k"]))
        words = [word for pair in entry.items() for word in pair]
        self.ask("XADD", keys.journal, f"{epoch}-{int(number) + 1}", *words)
        self.ask("HINCRBY", keys.stats, "journal_entries", 1)
        self.ask("HINCRBY", keys.stats, "journal_events", int(entry[b"k"]))


@pytest.fixture(scope="module")
def shop(store_url):
    with Client(ConnectionFactory(store_url), give_up_s=10.0) as client:
        yield Shop(client, f"jobs{datetime.now(UTC).timestamp():.0f}")


@pytest.fixture(scope="module")
def sabotaged(shop) -> Shop:
    """One intact queue, and three that were tampered with."""
    clean = shop.queue("clean")
    clean.bury(clean.receive(1)[0], error="ValueError: no")
    shop.queue("robbed")
    shop.ask("LPOP", shop.keys("robbed").ready[0])
    shop.queue("forged")
    shop.forge_again("forged")
    shop.queue("trimmed")
    first = shop.ask("XRANGE", shop.keys("trimmed").journal, "-", "+", "COUNT", 2)[1][0]
    shop.ask("XTRIM", shop.keys("trimmed").journal, "MINID", first)
    return shop


@pytest.fixture(scope="module")
def run(spark, sabotaged, store_url):
    """Run a command line in this process, which has a session of Spark already."""

    def run_verb(*words: str):
        line = ["--namespace", sabotaged.namespace, "spark", *words]
        return CliRunner().invoke(cli, line, env={"QWORKER_URL": store_url})

    return run_verb


def test_the_audit_finds_deleted_forged_and_trimmed_messages_only(run):
    ran = run("audit", "--json")
    assert ran.exit_code == 3
    document = json.loads(ran.stdout)
    assert [row["queue"] for row in document["samples"]["lost"]] == ["robbed"]
    twice = document["samples"]["acked_twice"]
    assert {row["queue"] for row in twice} == {"forged"}
    assert [hole["queue"] for hole in document["holes"]] == ["trimmed"]
    assert document["holes"][0]["missing"] == 10
    assert (document["lost"], document["acked_twice"], document["gaps"]) == (1, len(twice), 1)
    assert (document["started_after_ack"], document["unsure"]) == (0, 0)
    assert document["dead"] == 1


def test_the_audit_of_an_untouched_queue_is_silent(run):
    ran = run("audit", "--queues", "clean")
    assert ran.exit_code == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "every message is accounted for"


def test_an_archive_makes_up_for_a_journal_that_was_trimmed_since(spark, shop, store_url, tmp_path):
    source = server_options(store_url, shop.namespace)
    shop.queue("later")
    lake = Lake(tmp_path)
    archive(spark, lake, {**source, "queues": "later"}, once=True)
    shop.ask("XTRIM", shop.keys("later").journal, "MAXLEN", 0)
    for message in Queue(shop.client, shop.namespace, "later").receive(4):
        Queue(shop.client, shop.namespace, "later").ack(message)
    result = audit_all(spark, window=Window(), lake=lake, source=source, queues="later")
    assert (result.wrong, result.ended, result.open, result.lost) == ({}, {"acked": 10}, 0, 0)


def test_a_report_is_a_page_and_the_same_numbers_as_json(run, tmp_path):
    page = tmp_path / "report.html"
    ran = run("report", "--out", str(page), "--json", "--queues", "clean")
    assert ran.exit_code == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert document["totals"]["in"] == 10
    assert document["totals"]["acked"] == 6
    assert document["dead"][0]["reason"] == "rejected"
    assert document["data"]["rows"] == 24
    assert 'id="plotly"' in page.read_text()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["report.html"]


def test_sql_reads_history_and_state(run):
    ran = run("sql", "select queue, ready, dead from queues where queue = 'clean'", "--json")
    assert ran.exit_code == 0, ran.stderr
    assert json.loads(ran.stdout) == [{"queue": "clean", "ready": 3, "dead": 1}]
    ran = run(
        "sql", "--csv", "select event, count(*) as n from journal where queue = 'clean' group by 1"
    )
    rows = {row["event"]: int(row["n"]) for row in csv.DictReader(io.StringIO(ran.stdout))}
    assert rows == {"sent": 10, "delivered": 7, "acked": 6, "dead": 1}
    ran = run("sql", "--limit", "2", "select message_id from messages")
    assert len(ran.stdout.splitlines()) == 3
    assert "more than 2 rows" in ran.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sql", "selct 1"], "it must be one statement of Spark SQL"),
        (["sql", "select * from archive"], "and archive with --archive DIR"),
        (["sql", "--csv", "--json", "select 1"], "exclude each other"),
        (["audit", "--archive", "/nowhere"], "is not an archive; create one"),
        (["audit", "--no-live"], "leaves nothing to read"),
        (["audit", "--since", "yesterday"], "is not a time; write a time such as"),
        (["audit", "--since", "2031-05-04", "--until", "2031-05-03"], "is not after --since"),
        (["report", "--target", "emails=fast"], "is not a duration"),
        (["report", "--out", "/nowhere/report.html"], "no such directory"),
        (["report", "--conf", "spark"], "is not a setting; write NAME=VALUE"),
        (["archive", "--out", "gs://bucket/x"], "is not an s3:// URL; name s3://BUCKET/PATH"),
        (["compact", "--archive", "/nowhere"], "is not an archive"),
    ],
)
def test_bad_input_is_one_clear_line(run, words, said):
    ran = run(*words)
    assert ran.exit_code == 2
    lines = [line for line in ran.stderr.splitlines() if not line.endswith("…")]
    assert len(lines) == 1
    assert said in lines[0]


@pytest.mark.bad_input("server: away when Spark would read it")
@pytest.mark.parametrize(
    "words", [["audit"], ["report"], ["sql", "select 1"], ["redrive", "--where", "true"]]
)
def test_a_server_that_is_away_is_reported_before_spark_starts(run, words):
    ran = run(*words, "--url", "redis://127.0.0.1:1", "--give-up", "200ms")
    assert ran.exit_code == 1
    assert "the server was not reached" in ran.stderr
    assert "starting Spark" not in ran.stderr


def test_compact_reports_its_changes(run, spark, shop, store_url, tmp_path):
    lake = Lake(tmp_path / "lake")
    source = server_options(store_url, shop.namespace)
    options = {**source, "queues": "clean", "maxEntriesPerTrigger": "5"}
    done = archive(spark, lake, options, once=True)
    assert (done.batches, done.events) == (2, 24)
    ran = run("compact", "--archive", str(lake.root), "--json")
    assert ran.exit_code == 0, ran.stderr
    done = json.loads(ran.stdout)
    assert (done["days"], done["files_before"], done["files_after"]) == (1, 2, 1)
    ran = run(
        "sql", "--archive", str(lake.root), "--no-live", "--csv", "select count(*) from archive"
    )
    assert ran.stdout.splitlines()[-1] == "24"
    assert run("compact", "--archive", str(lake.root)).stdout.startswith("nothing to compact")


def test_values_of_spark_become_those_of_json():
    moment = datetime(2031, 5, 4, 10, tzinfo=UTC)
    assert [plain(value) for value in (moment, date(2031, 5, 4), Decimal("1.50"), b"\xff", {1: [b"a"]})] == [
        "2031-05-04T10:00:00.000Z", "2031-05-04", "1.50", "\ufffd", {"1": ["a"]},
    ]  # fmt: skip
    assert [plain(value) for value in (float("nan"), float("inf"), None, True)] == [
        None, None, None, True,
    ]  # fmt: skip


def test_csv_quotes_what_has_to_be_and_leaves_null_empty():
    result = Result(("a", "b"), (('x,"y"', None), (True, {"k": [1]})), False)
    assert result.csv() == 'a,b\n"x,""y""",\ntrue,"{""k"":[1]}"\n'


def test_a_time_is_an_instant_or_a_duration_before_now():
    now = datetime(2031, 5, 4, 10, tzinfo=UTC)
    assert instant("24h", "--since", now) == datetime(2031, 5, 3, 10, tzinfo=UTC)
    assert instant("2031-05-04", "--since", now) == datetime(2031, 5, 4, tzinfo=UTC)
    assert instant("2031-05-04T10:00+02:00", "--since", now).utcoffset().seconds == 7200
    with pytest.raises(InvalidOptionError, match="'soon' is not a time"):
        instant("soon", "--since", now)


def test_the_data_source_takes_no_password(monkeypatch):
    monkeypatch.delenv("QWORKER_SPARK_URL", raising=False)
    options = server_options("redis://app:s%2Fcret@redis.example/3", "shop")
    assert options == {"urlEnv": "QWORKER_SPARK_URL", "namespace": "shop"}
    import os

    assert os.environ["QWORKER_SPARK_URL"] == "redis://app:s%2Fcret@redis.example:6379/3"
