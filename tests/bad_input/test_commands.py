"""What the command line, the environment and the configuration file may hold that is wrong: exit code 2, one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

from tests.cli.conftest import Ran, Shop
from tests.consumer.workers import Lab
from tests.rights import like_others
from tests.timing import DEADLINE_S

pytestmark = pytest.mark.bad_input

Run = Callable[..., Ran]

SHOW = ("config", "show")
LIST = ("queue", "ls")
ARABIC_FIVE = "٥"


class Wrong(NamedTuple):
    """A command line with its environment and qworker.toml, and what the one line on stderr says of it."""

    said: str
    args: tuple[str, ...] = LIST
    environ: Mapping[str, str] = MappingProxyType({})
    file: bytes | None = None


def variable(name: str, value: str, said: str) -> Wrong:
    return Wrong(f"{name}: {said}", SHOW, {name: value})


def file(text: bytes, said: str) -> Wrong:
    return Wrong(said, SHOW, {}, text)


def flag(said: str, *args: str) -> Wrong:
    return Wrong(said, args)


URLS = {
    "empty": variable("QWORKER_URL", "", "is empty; write redis://"),
    "another scheme": variable(
        "QWORKER_URL", "http://h", "http:// is not a known scheme; write redis"
    ),
    "no scheme": variable("QWORKER_URL", "localhost:6379", "has no scheme; write redis://"),
    "port over 65535": variable("QWORKER_URL", "redis://h:99999", "has a wrong port; a port is"),
    "port 0": variable("QWORKER_URL", "redis://h:0", "has a wrong port; a port is a number from 1"),
    "bad percent escape": variable(
        "QWORKER_URL", "redis://h/%zz", "has a '%' that does not start an"
    ),
    "escape that is not UTF-8": variable("QWORKER_URL", "redis://:%ff@h", "has an escape that is"),
    "missing CA file": variable(
        "QWORKER_URL", "rediss://h?ssl_ca_certs=/none.pem", "ssl_ca_certs: no file '/none.pem'"
    ),
    "database that is none": variable("QWORKER_URL", "redis://h/x", "has a wrong database"),
    "unknown option": variable(
        "QWORKER_URL", "redis://h?dbb=1", "has an unknown option; did you mean db?"
    ),
    "of the second variable": variable("REDIS_URL", "http://h", "http:// is not a known scheme"),
    "of Sentinel": flag(
        "--url: names no service; write the Sent", *LIST, "--url", "redis+sentinel://h"
    ),
    "of Cluster": flag("--url: names an empty host; write", *LIST, "--url", "redis+cluster://h,"),
    "of Cluster with a database": flag(
        "--url: names a database; a Cluster has", *LIST, "--url", "redis+cluster://h/3"
    ),
    "Sentinel and Cluster as flags": flag(
        "no such option '--sentinel'", *LIST, "--sentinel", "--cluster"
    ),
    "beside the embedded store": flag(
        "--embedded: excludes --url; pass one of them",
        *(*LIST, "--embedded", "--url", "redis://h"),
    ),
}

FILES = {
    "unknown key": file(
        b"[daemon]\ntik = '1s'", "qworker.toml: daemon.tik: is unknown; did you mean tick?"
    ),
    "unknown table": file(b"[deamon]", "qworker.toml: deamon: is unknown; did you mean daemon?"),
    "key in the wrong place": file(b"tick = '1s'", "is in the wrong table; move it to [daemon]"),
    "wrong type": file(b"[run]\nprocs = '2'", "qworker.toml: run.procs: '2' is not an integer"),
    "boolean for an integer": file(b"[run]\nprocs = true", "run.procs: True is not an integer"),
    "key written twice": file(b"[daemon]\ntick = 5\ntick = 6", "is not TOML: "),
    "byte order mark": file(b"\xef\xbb\xbfurl = 'x'", "begins with a byte order mark"),
    "UTF-16": file("url = 'x'".encode("utf-16"), "begins with a byte order mark"),
    "not UTF-8": file(b"namespace = '\xff'", "is not UTF-8 (at byte 13)"),
    "not TOML": file(b"namespace: a", "is not TOML: "),
    "larger than any": file(b"#" * (1024 * 1024 + 1), "is larger than 1 MiB"),
    "directory": flag("is not a regular file; name a TOML file", *LIST, "--config", "/"),
    "missing": flag("/none.toml: cannot be read: No such file", *LIST, "--config", "/none.toml"),
    "device": flag("/dev/zero: is not a regular file", *LIST, "--config", "/dev/zero"),
}

VARIABLES = {
    "text": variable("QWORKER_TICK", "abc", "'abc' is not a duration; write"),
    "number without end": variable("QWORKER_TICK", "1e999", "'1e999' is not a duration; write"),
    "spaces": variable("QWORKER_TICK", " 5 ", "' 5 ' is not a duration; write"),
    "Arabic digit": variable("QWORKER_TICK", ARABIC_FIVE, r"'\u0665' is not a duration; write"),
    "Arabic digit as an integer": variable("QWORKER_PROCS", ARABIC_FIVE, r"'\u0665' is not an int"),
    "empty": variable("QWORKER_TICK", "", "is empty; it must be a duration from 10ms to 1m"),
    "NaN": variable("QWORKER_GRACE", "nan", "'nan' is not a duration; write"),
    "exponent as an integer": variable("QWORKER_BATCH", "1e2", "'1e2' is not an integer; it must"),
    "namespace": variable("QWORKER_NAMESPACE", "A", "'A' is not a valid name; 1 to 64 of a-z"),
    "queues": variable("QWORKER_QUEUES", "a,B", "'B' is not a valid name; 1 to 64 of a-z"),
    "concurrency 0": variable(
        "QWORKER_CONCURRENCY", "0", "0 is out of range; it must be an integer from 1 to 1000"
    ),
    "concurrency 10,000": variable(
        "QWORKER_CONCURRENCY", "10000", "10000 is out of range; it must"
    ),
    "visibility 0": variable(
        "QWORKER_VISIBILITY", "0", "0 is out of range; it must be a duration from 1s to 12h"
    ),
    "visibility over 12 h": variable("QWORKER_VISIBILITY", "13h", "'13h' is out of range; it must"),
    "grace below 0": variable("QWORKER_GRACE", "-1", "'-1' is not a duration"),
    "port below 0": variable(
        "QWORKER_METRICS_PORT", "-1", "-1 is out of range; it must be an integer from 0 to 65535"
    ),
    "port over 65535": variable("QWORKER_METRICS_PORT", "65536", "65536 is out of range; it must"),
    "log format": variable(
        "QWORKER_LOG_FORMAT",
        "console",
        "'console' is not accepted; it must be one",
    ),
}

FLAGS = {
    "tick of text": flag("--tick: 'abc' is not a duration", "daemon", "--tick", "abc"),
    "port over 65535": flag("--metrics-port: 65536 is out of", "daemon", "--metrics-port", "65536"),
    "concurrency 0": flag("--concurrency: 0 is out of range", "run", "m", "--concurrency", "0"),
    "max receives a billion": flag(
        "max-receives: 1000000000 is out of range", "queue", "set", "a", "max-receives=1000000000"
    ),
    "weight of a queue not received from": flag(
        "weights: 'b' is not among the queues", "run", "m", "--queues", "a", "--weights", "b=1"
    ),
    "message id": flag("ID: 'a b' is not a message id; pass an id as", "message", "show", "a b"),
    "message id with a brace": flag("ID: '{x}' is not a message id", "message", "cancel", "{x}"),
    "receipt": flag("receipt: 'a:b' is not a receipt", "message", "show", "a:b"),
    "module that is not there": flag("there is no module 'nowhere'", "run", "nowhere"),
}  # fmt: skip

TABLE = {
    f"{subject}: {what}": wrong
    for subject, wrongs in {
        "URL": URLS,
        "file": FILES,
        "variable": VARIABLES,
        "flag": FLAGS,
    }.items()
    for what, wrong in wrongs.items()
}


@pytest.mark.parametrize("case", TABLE)
@pytest.mark.slow
def test_what_is_wrong_is_said_in_one_line(
    run: Run, bare: Run, shop: Shop, in_empty_directory: Path, case: str
) -> None:
    """The place, its value's problem, what is accepted; exit code 2, no traceback, nothing written."""
    wrong = TABLE[case]
    shop.send("a")
    before = shop.dump()
    if wrong.file is not None:
        (in_empty_directory / "qworker.toml").write_bytes(wrong.file)

    if "REDIS_URL" in wrong.environ:
        ran = bare(*wrong.args, env=dict(wrong.environ))
    else:
        ran = run(*wrong.args, **{"QWORKER_METRICS_PORT": "0", **wrong.environ})

    assert ran.code == 2
    assert ran.out == ""
    error = ran.err.splitlines()[-1]
    assert error.startswith("error: ")
    assert wrong.said in error
    assert error.isascii()
    assert "Traceback" not in ran.err
    assert case.startswith("flag: module") or ran.err == f"{error}\n"
    assert shop.dump() == before


@pytest.mark.bad_input("configuration: wrong file")
def test_an_unreadable_file_is_refused(bare: Run, in_empty_directory: Path) -> None:
    """By its name, with the reason."""
    path = in_empty_directory / "qworker.toml"
    path.write_text("")
    path.chmod(0)

    with like_others():
        ran = bare(*SHOW)

    assert (ran.code, "cannot be read: Permission denied" in ran.err) == (2, True)


@pytest.mark.bad_input("configuration: wrong file")
def test_an_empty_file_says_nothing(bare: Run, in_empty_directory: Path) -> None:
    """All is as without it."""
    (in_empty_directory / "qworker.toml").write_bytes(b"")

    assert bare(*SHOW).code == 0


@pytest.mark.slow
@pytest.mark.bad_input("number or time: grace of 30 s")
def test_a_long_grace_time_is_noted(lab: Lab) -> None:
    """Kubernetes would kill the worker before it ends; it starts anyway."""
    lab.app("@app.task\ndef handle() -> None: ...")
    worker = lab.start("--burst", "--grace", "30s")

    assert worker.process.wait(DEADLINE_S) == 0
    assert "note: grace is 30s; Kubernetes kills 30 s after SIGTERM" in worker.log.read_text()


@pytest.mark.slow
@pytest.mark.bad_input("configuration: module that cannot be used")
@pytest.mark.parametrize(
    ("source", "spec", "said"),
    [
        pytest.param(
            "import nowhere_to_be_found",
            "jobs",
            "No module named 'nowhere_to_be_found'",
            marks=pytest.mark.nightly("test_an_app_that_cannot_be_used_is_bad_input"),
        ),
        ("app = 7", "jobs", "module 'jobs' holds no QWorker"),
        ("", "job", "or on the Python path; did you mean jobs?"),
        ("", "jobs.app", "or on the Python path; did you mean jobs:app?"),
        ("", "./job.py", "/job.py'"),
        pytest.param(
            "",
            "../jobs",
            "there is no file '/",
            marks=pytest.mark.nightly("test_an_app_that_cannot_be_used_is_bad_input"),
        ),
        (
            "",
            "my jobs",
            "'my jobs' is not the name of a module; write MODULE, MODULE:ATTR, or the path",
        ),
        ("", ".", "'.' is not the name of a module; write MODULE, MODULE:ATTR, or the path"),
        ("", "jobs:ap", "module 'jobs' has no 'ap'; the module holds app"),
        pytest.param(
            "",
            "jobs:note",
            "'jobs:note' is of type function, not a QWorker; the module holds app",
            marks=pytest.mark.nightly("test_an_app_that_cannot_be_used_is_bad_input"),
        ),
        (
            "@app.task\ndef one() -> None: ...\n@app.task(name='one')\ndef two() -> None: ...",
            "jobs",
            "'one' is defined twice, at ",
        ),
        (
            "@app.task(queue='Mail')\ndef one() -> None: ...",
            "jobs",
            "queue: 'Mail' is not a valid name",
        ),
    ],
)
def test_an_app_that_cannot_be_used_is_bad_input(
    lab: Lab, source: str, spec: str, said: str
) -> None:
    """One line behind the log, with both places where a name is taken twice; exit code 2."""
    lab.app(source)
    worker = lab.start(spec=spec)

    assert worker.process.wait(DEADLINE_S) == 2
    error = worker.log.read_text().splitlines()[-1]
    assert error.startswith("error: ")
    assert said in error
    if "twice" in said:
        assert error.count("jobs.py:") >= 2
    assert lab.queue().peek() == []


@pytest.mark.slow
def test_a_module_that_is_imported_under_two_names_is_bad_input(lab: Lab) -> None:
    """Its tasks would be there twice: the line names the place, and no message is touched."""
    lab.app("sys.path.insert(0, 'shop')\nimport tasks\nimport shop.tasks\n")
    (lab.directory / "shop").mkdir()
    (lab.directory / "shop" / "tasks.py").write_text(
        "from jobs import app\n\n@app.task(name='one')\ndef one() -> None: ...\n"
    )
    message_id = lab.send("one")
    worker = lab.start()

    assert worker.process.wait(DEADLINE_S) == 2
    error = worker.log.read_text().splitlines()[-1]
    assert "'one' is defined twice, at " in error
    assert error.count("tasks.py:3") == 2
    assert [message.id for message in lab.queue().peek()] == [message_id]
