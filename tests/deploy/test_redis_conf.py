"""deploy/redis.conf starts Redis 7.0 and Valkey, and they do what its comments promise."""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests import servers
from tests.deploy.checkers import DEPLOY
from tests.timing import DEADLINE_S

CONF = DEPLOY / "redis.conf"
# Given on the command line below: a test must neither take the port nor write to the real folder.
OVERRIDDEN = {"port", "dir"}
UNITS = {"kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}


def directives() -> dict[str, str]:
    """Read name → value from the file; no name occurs twice."""
    lines = [shlex.split(line, comments=True) for line in CONF.read_text().splitlines()]
    pairs = [(words[0], " ".join(words[1:])) for words in lines if words]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def plain(value: str) -> str:
    """Write a size as CONFIG GET does: 64mb is 67108864."""
    number, unit = value[:-2], value[-2:].lower()
    return str(int(number) * UNITS[unit]) if number.isdigit() and unit in UNITS else value


@contextmanager
def started(engine: str, folder: Path) -> Iterator[tuple[redis.Redis, subprocess.Popen[bytes]]]:
    """Start `engine` with the file in `folder`, and kill it (SIGKILL) at the end."""
    path = dict(servers.engines()).get(engine)
    if path is None:
        with servers.start(engine):  # skips or fails, with the reason
            raise AssertionError
    socket, log = folder / "s", folder / "log"
    overrides = ("--port", "0", "--dir", str(folder), "--unixsocket", str(socket))
    with log.open("ab") as out:
        process = subprocess.Popen([path, str(CONF), *overrides], stdout=out, stderr=out)
    client = redis.Redis(
        unix_socket_path=str(socket), decode_responses=True, retry=Retry(NoBackoff(), 0)
    )
    try:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                client.ping()
                break
            except redis.RedisError:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.01)
        yield client, process
    finally:
        client.close()
        process.kill()
        process.wait()


@pytest.fixture(params=["valkey", "redis"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # A short name: the path of a Unix socket must stay below 108 bytes.
    return tmp_path_factory.mktemp("r")


def test_server_takes_every_line(engine: str, folder: Path) -> None:
    """It comes up, and CONFIG GET says what the file says."""
    want = {name: plain(value) for name, value in directives().items() if name not in OVERRIDDEN}
    with started(engine, folder) as (client, _):
        have = {name: client.config_get(name).get(name) for name in want}
    assert have == want


def test_what_was_accepted_survives_a_kill(engine: str, folder: Path) -> None:
    """SIGKILL right after the reply loses nothing: the append-only file is on."""
    with started(engine, folder) as (client, _):
        client.rpush("ready", *range(500))
    with started(engine, folder) as (client, _):
        assert client.lrange("ready", 0, -1) == [str(number) for number in range(500)]


def test_full_server_refuses_sends_and_lets_itself_be_drained(engine: str, folder: Path) -> None:
    """noeviction: nothing is deleted to make room, and receiving still works."""
    with started(engine, folder) as (client, _):
        client.rpush("ready", *range(100))
        client.config_set("maxmemory", 1)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            client.rpush("ready", "one more")
        assert client.lpop("ready", 200) == [str(number) for number in range(100)]


def test_a_single_server_takes_writes() -> None:
    """min-replicas-to-write stays a comment: without replicas it would refuse every write."""
    assert "min-replicas-to-write" not in directives()
    assert "min-replicas-to-write 1" in CONF.read_text()


def test_its_figures_of_loss_are_those_of_the_readme() -> None:
    """A measurement that is made again changes both: each count of thousands stands in each."""
    figures = re.findall(r"\d+(?:,\d{3})+", CONF.read_text())
    readme = (DEPLOY.parent / "README.md").read_text()
    assert len(figures) >= 3
    assert [figure for figure in figures if figure not in readme] == []
    (lag,) = re.findall(r"min-replicas-max-lag (\d+)", CONF.read_text())
    assert f"`max-lag {lag}`" in readme


def test_nothing_is_renamed() -> None:
    """rename-command breaks replicas and Sentinel and protects nothing."""
    assert "rename-command" not in directives()
