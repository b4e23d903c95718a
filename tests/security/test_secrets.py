"""Passwords are where they are needed and nowhere else: not in a text, an argument, a metric, a log, a key, a table."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import traceback
import urllib.request
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import pytest
import structlog
from click.testing import CliRunner
from structlog.testing import capture_logs

from qworker.cli.main import cli
from qworker.client.execute.sync import Client
from qworker.engine.inspect import lengths
from qworker.errors import QworkerError
from qworker.store.connections import ConnectionFactory
from qworker.store.url import ServerURL
from tests import servers
from tests.topologies.servers import until

#: What must not be seen. In a URL it is at times percent-encoded, and cut by what ends a part of it.
MARKER = "Marker7Secret"
SEED = 20
_HOSTS = (
    "localhost", "127.0.0.1:1", "[::1]:1", "h:99999", "h:x", "", "10.0.0.1", "höst", "h.example:6379",
    "a:1,b:2", "a:1,b:2,c", "%00", "[::1", "user@h",
)  # fmt: skip
_SCHEMES = (
    "redis", "rediss", "unix", "embedded", "redis+sentinel", "rediss+sentinel", "redis+cluster",
    "rediss+cluster", "http", "REDIS", "rédis", "", "redis+", "postgres",
)  # fmt: skip
_ENDS = (
    "", "/0", "/x", "/99", "/master/0", "?db=1", "?db=x", "?ssl_ca_certs=/nowhere", "?insecure=true", "?nonsense=1",
    "?password={m}", "?ssl_cert_reqs={m}", "?sentinel_password={m}", "#{m}", "/{m}", "?{m}", "?db={m}",
)  # fmt: skip
_USERS = ("", "user", "us:er", "%75ser", "{m}")
_SECRETS = (
    "{m}",
    "%4Darker7Secret",
    "{m}/x",
    "{m}#x",
    "{m}?x=1",
    "{m}@x",
    "{m}:x",
    "{m} x",
    "{m}%zz",
    "é{m}",
    "{m}\n",
)


@dataclass(frozen=True)
class Case:
    """A URL. `alone`: the marker is a password and nothing else, and the rest is shown."""

    url: str
    alone: bool


def cases(number: int) -> list[Case]:
    """Make URLs of every scheme, right and wrong ones, each with the marker for a password."""
    draw, made = random.Random(SEED), list[Case]()
    for at in range(number):
        user, end = draw.choice(_USERS), draw.choice(_ENDS)
        secret = draw.choice((_SECRETS[0], _SECRETS[0], draw.choice(_SECRETS)))
        scheme, host = _SCHEMES[at % len(_SCHEMES)], draw.choice(_HOSTS)
        if at % 5 == 0:
            # One that is right, of each scheme that is one: mutations of wrong ones are mostly wrong.
            user, secret, end = "user", _SECRETS[0], "/master/0" if "sentinel" in scheme else "/0"
            host = "" if scheme == "unix" else "127.0.0.1:1"
        parts = (scheme, user, secret, host, end)
        template = (
            "{}://{}:{}@{}{}"
            if at % 5 == 0
            else draw.choice(
                ("{}://{}:{}@{}{}", "{}://{}:{}@{}{}", "{}:{}:{}@{}{}", "{}:///{}:{}@{}{}")
            )
        )
        alone = "{m}" not in user and ("{m}" not in end or "password" in end)
        made.append(Case(template.format(*parts).replace("{m}", MARKER), alone))
    return made


def hidden(text: str, url: str) -> None:
    """Nothing of the marker shows, whichever way it was written."""
    assert MARKER[1:] not in text, url
    assert "arker7" not in text, url


def text_of(error: BaseException) -> str:
    """All that a program could print of an error."""
    lines = "".join(traceback.format_exception(error))
    # The frames quote our source, which has the name of a variable and not its value.
    return f"{error} {error!r} {error.args} {lines}"


CASES = cases(420)


def test_the_urls_are_of_all_kinds() -> None:
    """Some are right, some wrong, of every scheme."""
    right = set()
    for case in CASES:
        try:
            right.add(ServerURL.parse(case.url).scheme)
        except QworkerError:
            continue
    assert right >= {"redis", "rediss", "unix", "redis+sentinel", "redis+cluster"}
    assert len({case.url for case in CASES}) >= 200
    assert all("arker7" in case.url for case in CASES)


@pytest.mark.slow
def test_no_text_of_a_url_shows_its_password() -> None:
    """Errors with their tracebacks, and the value itself, however it is printed."""
    for case in CASES:
        try:
            parsed = ServerURL.parse(case.url)
        except QworkerError as error:
            hidden(text_of(error), case.url)
            continue
        if case.alone:
            hidden(f"{parsed} {parsed!r} {parsed.address}", case.url)


def test_no_connection_that_fails_shows_its_password() -> None:
    """Refused, unknown or nothing at all at the other end: texts, causes, logs and the factory itself."""
    tried = 0
    for case in CASES:
        if not case.alone or not ("127.0.0.1:1" in case.url or "[::1]:1" in case.url):
            continue
        with capture_logs() as lines:
            try:
                factory = ConnectionFactory(case.url, connect_timeout_s=0.2, reply_timeout_s=0.2)
                hidden(repr(factory), case.url)
                factory.connect()
            except (QworkerError, UnicodeError) as error:
                tried += 1
                hidden(text_of(error), case.url)
        hidden(str(lines), case.url)
    assert tried >= 20


def run(arguments: list[str], url: str) -> str:
    wiped: dict[str, str | None] = {
        name: None for name in os.environ if name.startswith(("QWORKER_", "REDIS_"))
    }
    ran = CliRunner().invoke(cli, arguments, env={**wiped, "QWORKER_URL": url})
    structlog.reset_defaults()
    return ran.output + ran.stderr + (text_of(ran.exception) if ran.exception else "")


@pytest.mark.slow
def test_no_command_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`config show` for every URL; `doctor` and `queue ls` where that takes no time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("qworker.cli.framework.context._PATIENCE_S", 0.01)
    monkeypatch.setattr("qworker.cli.doctor._PATIENCE_S", 0.01)
    for at, case in enumerate(CASES):
        if "\n" in case.url or not case.alone:
            continue
        options = ["--json" if at % 2 else "--log-level=info"]
        hidden(run(["config", "show", *options], case.url), case.url)
        if "127.0.0.1:1" in case.url:
            hidden(run(["doctor"], case.url), case.url)
            hidden(run(["queue", "ls"], case.url), case.url)


def test_a_wrong_password_is_not_shown(tmp_path: Path) -> None:
    """The server's refusal, and what it answers to a command that it does not know, name neither of them."""
    with servers.start("valkey", "--requirepass", "right") as server:
        url = f"unix://:{MARKER}@{server.socket}"
        with Client(ConnectionFactory(url)) as client, pytest.raises(QworkerError) as error:
            client.execute(lengths([]))
        hidden(text_of(error.value), url)


def fetched(url: str) -> str:
    """Fetch a page; an error while its process says that it is not ready yet."""
    with urllib.request.urlopen(url) as page:
        text: str = page.read().decode()
        return text


@pytest.mark.slow
def test_no_process_shows_it(tmp_path: Path) -> None:
    """The daemon and a worker with its children: their arguments, logs and metrics, with and without a server."""
    (tmp_path / "jobs.py").write_text(
        "from qworker import QWorker\napp = QWorker('secrets')\n@app.task\ndef f() -> None: ...\n"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("QWORKER")}
    with servers.start("valkey", "--requirepass", MARKER) as server:
        url = f"unix://:{MARKER}@{server.socket}"
        environ = {
            **kept,
            "QWORKER_URL": url,
            "QWORKER_LOG_LEVEL": "debug",
            "PYTHONPATH": str(Path.cwd()),
        }
        log = tmp_path / "log"
        with log.open("wb") as output:
            started = [
                subprocess.Popen(
                    [sys.executable, "-m", "qworker", *words, "--metrics-port", "0"],
                    env={**environ, "QWORKER_LOG_FORMAT": "json"},
                    cwd=tmp_path,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
                for words in (["daemon"], ["run", "jobs", "--procs", "1"])
            ]
        try:
            until(lambda: log.read_text().count("metrics_served") == 2)
            until(
                lambda: (
                    "child_ready" in log.read_text() or psutil.Process(started[1].pid).children()
                )
            )
            seen = ""
            for port in re.findall(r'"metrics_served".*?"port": (\d+)', log.read_text()):
                for path in ("/metrics", "/healthz"):
                    seen += until(partial(fetched, f"http://127.0.0.1:{port}{path}"))
            for process in started:
                family = [psutil.Process(process.pid)]
                family += family[0].children(recursive=True)
                seen += " ".join(word for each in family for word in each.cmdline())
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(60)
        hidden(seen + log.read_text(), url)
