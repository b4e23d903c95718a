"""`qworker spark send` and `qworker spark redrive`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
from click.testing import CliRunner, Result

from qworker.cli.main import cli
from qworker.errors import InvalidOptionError
from qworker.pipeline.sink.inputs import format_of
from tests.tables import each
from tests.topologies.servers import client_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[..., Result]


@pytest.fixture
def run(
    spark: SparkSession,
    store_url: str,
    namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    """Run a command line in this process and its Spark, against a namespace of the test's own."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> Result:
        wiped: dict[str, str | None] = {
            name: None for name in os.environ if name.startswith(("QWORKER_", "REDIS_"))
        }
        env = {**wiped, "QWORKER_URL": store_url, "QWORKER_NAMESPACE": namespace}
        return CliRunner().invoke(cli, ["spark", *args], env=env)

    return run


@pytest.fixture
def client(store_url: str) -> Iterator[redis.Redis]:
    """A plain client."""
    with client_of(store_url) as made:
        yield made


@pytest.fixture
def ready(client: redis.Redis, namespace: str) -> Callable[[], list[str]]:
    """The bodies in ready of queue `emails`, sorted."""

    def ready() -> list[str]:
        items = client.lrange(f"{namespace}:{{emails}}:ready", 0, -1)
        return sorted(item.partition(b"\n")[2].decode() for item in items)

    return ready


def test_sends_a_parquet_file_and_resumes(
    run: Run, spark: SparkSession, ready: Callable[[], list[str]], tmp_path: Path
) -> None:
    """Rows become calls; a second run under the same write id sends nothing and says so."""
    spark.range(3).selectExpr("id", "concat('u', id) as to").write.parquet(str(tmp_path / "users"))
    args = ("send", "users", "--queue", "emails", "--task", "hello", "--write-id", "w1")
    done = run(*args)
    assert done.exit_code == 0, done.output
    assert "rows read      3" in done.stdout
    assert "write id       w1" in done.stdout
    assert "note: queue 'emails' is new" in done.stderr
    assert ready() == [
        f'{{"task":"hello","args":[],"kwargs":{{"id":{at},"to":"u{at}"}}}}' for at in range(3)
    ]
    again = json.loads(run(*args, "--json").stdout)
    del again["seconds"]
    assert again == {
        "queue": "emails",
        "write_id": "w1",
        "rows": 3,
        "sent": 0,
        "already_there": 3,
    }


def test_sends_csv_as_text_or_by_a_schema(run: Run, ready: Callable[[], list[str]]) -> None:
    """CSV columns are text, so that nothing is guessed, unless a schema gives types."""
    Path("zips.csv").write_text("zip,n\n00123,5\n")
    assert run("send", "zips.csv", "--queue", "emails").exit_code == 0
    typed = run("send", "zips.csv", "--queue", "emails", "--schema", "zip STRING, n INT")
    assert typed.exit_code == 0, typed.output
    assert ready() == ['{"zip":"00123","n":"5"}', '{"zip":"00123","n":5}']


def test_sends_json_lines_as_they_stand(run: Run, ready: Callable[[], list[str]]) -> None:
    """The text of a line is the body, or the arguments of a task; `--id` names a field of it."""
    lines = ['{"id": 1, "big": 123456789012345678901234567890}', "", '{"id": 2}', '{"id": 2}']
    Path("events.jsonl").write_text("\n".join(lines))
    done = run("send", "events.jsonl", "--queue", "emails", "--task", "t", "--id", "id")
    assert done.exit_code == 0, done.output
    assert ready() == [f'{{"task":"t","args":[],"kwargs":{line}}}' for line in (lines[0], lines[2])]


def test_sends_a_table(run: Run, spark: SparkSession, ready: Callable[[], list[str]]) -> None:
    """What is not a file is a table or view of the session."""
    spark.range(2).createOrReplaceTempView("numbers_to_send")
    done = run("send", "numbers_to_send", "--queue", "emails")
    assert done.exit_code == 0, done.output
    assert ready() == ['{"id":0}', '{"id":1}']


def test_line_without_an_object_is_reported(run: Run) -> None:
    """A broken line ends the send with one line that quotes it, and says how to continue."""
    Path("events.jsonl").write_text('{"id": 1}\n{"id": ]}\n')
    done = run("send", "events.jsonl", "--queue", "emails", "--write-id", "w")
    assert done.exit_code == 2
    assert 'a line of events.jsonl: is not a JSON object: {"id": ]}' in done.stderr
    assert "run it again with --write-id w" in done.stderr


def test_dry_run_sends_nothing(run: Run, ready: Callable[[], list[str]]) -> None:
    """A dry run counts the rows and shows the first body."""
    Path("a.csv").write_text("n\n1\n2\n")
    done = run("send", "a.csv", "--queue", "emails", "--dry-run", "--json")
    assert json.loads(done.stdout) == {
        "queue": "emails",
        "format": "csv",
        "rows": 2,
        "first_body": '{"n":"1"}',
        "sent": 0,
        "dry_run": True,
    }
    assert ready() == []


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("none.csv",), "FILE|TABLE: there is no file or table named 'none.csv'"),
        (("a.txt",), "--format: cannot be guessed from the name 'a.txt'; give one of parquet, csv"),
        (("a.csv", "--format", "xml"), "--format: 'xml' is not one of parquet, csv, jsonl"),
        (("a.csv", "--id", "idd"), "column idd: is not there; did you mean 'id'?"),
        (("a.csv", "--delay", "soon"), "option delay: 'soon' is not a duration"),
        (("a.csv", "--write-id", "{}"), "option writeId: '{}' is not a write id"),
        (("a.txt", "--format", "parquet"), "'a.txt' cannot be read"),
    ],
)
def test_bad_input_is_one_line(run: Run, args: tuple[str, ...], text: str) -> None:
    """Errors are one line, with exit code 2."""
    Path("a.csv").write_text("id\n1\n")
    Path("a.txt").write_text("id\n1\n")
    done = run("send", *args, "--queue", "emails")
    assert done.exit_code == 2, done.output
    assert text in done.stderr


def test_redrives_by_a_condition(run: Run, client: redis.Redis, namespace: str) -> None:
    """What fits is counted by reason and task first, then put back; what does not fit stays."""
    client.hset(f"{namespace}:queues", "emails", 1)
    for number in range(4):
        fields = {
            "envelope": f'q1 m{number} 1 5 5 0 0\n{{"task": "t{number % 2}"}}',
            "reason": "max_receives",
            "class": "",
            "error": "",
            "died_ms": "1",
        }
        client.xadd(f"{namespace}:{{emails}}:dead", fields)
    where = ("redrive", "--where", "task = 't1'")
    dry = run(*where, "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert "2  emails  max_receives  t1" in dry.stdout
    assert "would redrive 2 dead letters; nothing was changed" in dry.stdout
    assert run(*where).exit_code == 2, "it cannot prompt"
    done = run(*where, "--yes", "--rate", "100/s", "--queue", "emails", "--json")
    assert json.loads(done.stdout) == {
        "matched": 2,
        "by_reason": {"max_receives": 2},
        "by_task": {"t1": 2},
        "redriven": 2,
        "gone": 0,
        "foreign": 0,
        "dry_run": False,
    }
    assert client.xlen(f"{namespace}:{{emails}}:dead") == 2
    assert client.llen(f"{namespace}:{{emails}}:ready") == 2
    assert "no matching dead letter" in run(*where, "--yes").stdout


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--where", "tusk = 'a'"), "columns are queue, shard, message_id"),
        (("--where", "true", "--rate", "fast"), "'fast' is not a rate"),
        (("--where", "true", "--queue", "none"), "'none' does not exist"),
    ],
)
def test_bad_condition_is_one_line(run: Run, args: tuple[str, ...], text: str) -> None:
    """A condition over columns that are not there names those that are."""
    done = run("redrive", *args)
    assert done.exit_code == 2, done.output
    assert text in done.stderr
    assert done.stderr.count("error:") == 1


@each(
    "name, kind",
    [
        ("a.parquet", "parquet"),
        ("a.CSV.gz", "csv"),
        ("a.json", "jsonl"),
        ("x/*.ndjson.zst", "jsonl"),
    ],
)
def test_format_follows_from_the_name(name: str, kind: str) -> None:
    """The ending says the format, packed or not."""
    assert format_of(name) == kind


def test_format_of_a_directory_follows_from_its_files(tmp_path: Path) -> None:
    """Spark writes directories; their files say what they are, markers do not."""
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "part-0.csv").touch()
    assert format_of(str(tmp_path)) == "csv"
    (tmp_path / "part-0.csv").unlink()
    with pytest.raises(InvalidOptionError):
        format_of(str(tmp_path))
