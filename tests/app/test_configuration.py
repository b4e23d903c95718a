"""An app without its own URL: the server, keys and time of the configuration file that `qworker run` reads."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from qworker import InvalidOptionError, QWorker
from qworker.store.connections import ConnectionFactory
from tests.rights import like_others

FILE = "redis://:hunter2@file:6379/1"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Write a file into the current directory, which no variable overrides."""
    monkeypatch.chdir(tmp_path)
    for variable in (
        "QWORKER_URL",
        "REDIS_URL",
        "QWORKER_CONFIG",
        "QWORKER_GIVE_UP",
        "QWORKER_KEYS_FILE",
    ):
        monkeypatch.delenv(variable, raising=False)

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o600)
        return path

    return write


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qworker.toml", f'url = "{FILE}"\n[run]\nprocs = 2\n'),
        ("pyproject.toml", f'[tool.qworker]\nurl = "{FILE}"\n'),
    ],
)
def test_the_file_counts_over_redis_url(write, monkeypatch, name: str, text: str) -> None:
    """As it does for `qworker run`, which would receive nothing from the server of REDIS_URL."""
    write(name, text)
    monkeypatch.setenv("REDIS_URL", "redis://other")
    assert QWorker().url == FILE
    assert QWorker().given_url is None


def test_its_own_url_and_the_environment_count_over_the_file(write, monkeypatch) -> None:
    """The file is not even read for it."""
    write("qworker.toml", "not TOML")
    assert QWorker(url="redis://own").url == "redis://own"
    monkeypatch.setenv("QWORKER_URL", "redis://named")
    assert QWorker().url == "redis://named"


def test_a_process_in_another_directory_is_told_the_file(
    write, monkeypatch, tmp_path_factory
) -> None:
    """By QWORKER_CONFIG, even if others may write it; without it there is an error with the next step."""
    path = write("other.toml", f'url = "{FILE}"\n')
    path.chmod(0o666)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    with pytest.raises(
        InvalidOptionError, match=r"set QWORKER_URL .* directory of your qworker.toml"
    ):
        _ = QWorker().url
    monkeypatch.setenv("QWORKER_CONFIG", str(path))
    assert QWorker().url == FILE


def test_keys_and_give_up_are_those_of_the_file(write, monkeypatch) -> None:
    """A worker refuses what is sent unsigned."""
    key = base64.b64encode(b"k" * 32).decode()
    keys = write("keys.toml", f'[signing]\na = "{key}"\n')
    write("qworker.toml", f'url = "{FILE}"\ngive_up = "2s"\nkeys_file = "{keys}"\n')
    assert QWorker().keyring
    assert QWorker().give_up_s == 2
    assert QWorker(give_up="5s").give_up_s == 5
    monkeypatch.setenv("QWORKER_GIVE_UP", "3s")
    assert QWorker().give_up_s == 3


@pytest.mark.parametrize("text", [f'url = "{FILE}"\n', "not TOML"])
@pytest.mark.bad_input("configuration: a stranger's file beside an app")
def test_a_file_of_others_neither_redirects_nor_stops_an_app(write, monkeypatch, text: str) -> None:
    """It is ignored, and a line says why."""
    write("qworker.toml", text).chmod(0o666)
    monkeypatch.setenv("REDIS_URL", "redis://mine")
    app = QWorker()
    with capture_logs() as lines:
        assert (app.url, app.url) == ("redis://mine", "redis://mine")
        assert not app.keyring
        assert app.give_up_s == 60
    (line,) = lines
    assert line["event"] == "config_file_ignored"
    assert line["problem"].startswith(f"{Path.cwd()}/qworker.toml")
    assert "hunter2" not in line["problem"]


def test_a_file_that_cannot_be_read_is_ignored(write, monkeypatch) -> None:
    """Its owner may have meant it for other services."""
    write("qworker.toml", f'url = "{FILE}"\n').chmod(0)
    monkeypatch.setenv("REDIS_URL", "redis://mine")
    with like_others():
        assert QWorker().url == "redis://mine"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("not TOML", "is not TOML"),
        ("url = 5", "url: is int, not str"),
        ('url = "http://h"', "http:// is not a known scheme"),
        ('url = "embedded:store"', "names an embedded store by a relative path"),
        ('give_up = "soon"', "give_up"),
    ],
)
@pytest.mark.bad_input("configuration: a wrong file beside an app")
def test_a_wrong_file_of_ones_own_is_an_error(write, monkeypatch, text: str, problem: str) -> None:
    """`qworker run` refuses it, too; the text names it."""
    write("qworker.toml", text)
    monkeypatch.setenv("REDIS_URL", "redis://mine")
    with pytest.raises(InvalidOptionError, match=problem) as caught:
        _ = QWorker().url, QWorker().give_up_s
    assert "qworker.toml" in str(caught.value)


def test_without_a_current_directory_there_is_no_file(write, monkeypatch, tmp_path) -> None:
    """A service may outlive the directory that it was started in."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv("REDIS_URL", "redis://mine")
    assert QWorker().url == "redis://mine"
    os.chdir(tmp_path)


def test_an_app_sends_where_the_file_says(write, store_url, namespace) -> None:
    """Sync and async."""
    write("qworker.toml", f'url = "{store_url}"\n')
    app = QWorker(namespace)

    async def send() -> None:
        await app.aqueue("q").send(2)
        await app.aclose()

    app.queue("q").send(1)
    app.queue("q").send(1)
    asyncio.run(send())
    assert [message.body for message in app.queue("q").peek(5)] == [b"1", b"1", b"2"]
    app.close()


@pytest.mark.parametrize("is_same", [True, False])
def test_a_redis_url_that_the_file_overrides_is_named_once(
    write, monkeypatch, store_url, namespace, logs, is_same: bool
) -> None:
    """The directory decides where messages go: whoever runs an app in another's project should see it."""
    path = write("qworker.toml", f'url = "{store_url}"\n')
    monkeypatch.setenv("REDIS_URL", store_url if is_same else "redis://:hunter2@other")
    app = QWorker(namespace)
    for _ in range(2):
        app.queue("q").send(1)
    app.close()
    told = [line for line in logs if line["event"] == "redis_url_not_used"]
    assert [line["server_from"] for line in told] == ([] if is_same else [str(path)])
    assert "hunter2" not in str(logs)


def test_an_app_that_is_told_its_connections_reads_no_file(write, store_url, namespace) -> None:
    """In a worker the supervisor has read it, and in tests there may be no file with keys."""
    write("qworker.toml", 'keys_file = "/etc/of/production.toml"\n')
    app = QWorker(namespace)
    app.connect_with(ConnectionFactory(store_url))
    app.queue("q").send(1)
    app.close()
