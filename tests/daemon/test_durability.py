"""Weaknesses of real servers: settings that lose messages, and those that only might."""

from __future__ import annotations

import time
from typing import Final

import pytest

from qworker.client.execute.sync import Client
from qworker.daemon.durability import Durability, Grade, Weakness, inspect_server
from qworker.errors import LoginError
from qworker.store.connections import ConnectionFactory
from tests import servers
from tests.ports import free_port
from tests.timing import DEADLINE_S

LOSS, OPEN, RISK, UNKNOWN = Grade.LOSS, Grade.OPEN, Grade.RISK, Grade.UNKNOWN
#: A server that nothing is said about.
SOUND: Final = (
    *("--appendonly", "yes", "--appendfsync", "everysec"),
    *("--maxmemory", "100mb", "--maxmemory-policy", "noeviction"),
)
AT_ONCE: Final = ("--repl-diskless-sync-delay", "0")


def seen(url: str) -> Durability:
    """Inspect the server at a URL."""
    with Client(ConnectionFactory(url), give_up_s=5) as client:
        return inspect_server(client)


def grades(report: Durability) -> dict[str, Grade]:
    """The findings by name."""
    return {finding.name: finding.grade for finding in report.findings}


@pytest.mark.parametrize("engine", ["valkey", "redis"])
@pytest.mark.parametrize(
    ("settings", "findings", "durable"),
    [
        ((), {}, True),
        (("--appendfsync", "always"), {}, True),
        (("--appendonly", "no"), {"appendonly": LOSS}, False),
        (("--appendfsync", "no"), {"appendfsync": LOSS}, False),
        (("--maxmemory-policy", "allkeys-lru"), {"maxmemory-policy": LOSS}, False),
        (("--maxmemory-policy", "volatile-ttl"), {"maxmemory-policy": LOSS}, False),
        (("--maxmemory", "0"), {"maxmemory": RISK}, True),
        (
            ("--appendonly", "no", "--maxmemory", "0", "--maxmemory-policy", "allkeys-lfu"),
            {"appendonly": LOSS, "maxmemory-policy": LOSS, "maxmemory": RISK},
            False,
        ),
    ],
)
def test_settings_of_a_server(
    engine: str, settings: tuple[str, ...], findings: dict[str, Grade], durable: bool
) -> None:
    """Each setting that loses messages is found, and nothing else."""
    with servers.start(engine, *SOUND, *settings) as server:
        report = seen(server.url)
        assert (report.engine, report.version) == (server.engine, server.version)
    assert grades(report) == findings
    assert report.durable is durable


@pytest.mark.bad_input("server: settings that lose messages")
def test_says_what_can_be_lost_and_the_setting_to_change() -> None:
    """A finding reads as a sentence and ends in the line of the configuration."""
    with servers.start("valkey", *SOUND, "--appendonly", "no") as server:
        (finding,) = seen(server.url).findings
    assert str(finding) == (
        "appendonly is off: when the server stops, every message since its last snapshot is lost, "
        "or all of them if it makes no snapshots; set: appendonly yes"
    )
    assert str(Weakness("x", LOSS, "the disk is full", "")) == "the disk is full"


def test_without_the_right_to_config_info_shows_the_rest() -> None:
    """On a managed server the settings that only CONFIG shows are unknown, and so is the whole."""
    with servers.start("valkey", *SOUND) as server:
        server.redis().execute_command(
            "ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-config"
        )
        report = seen(f"unix://app:pw@{server.socket}")
        assert grades(report) == {"appendfsync": UNKNOWN}
        assert report.durable is None
        server.redis().config_set("appendonly", "no")
        report = seen(f"unix://app:pw@{server.socket}")
        assert grades(report) == {"appendonly": LOSS}
        assert report.durable is False


def test_where_nothing_may_be_read_all_is_unknown() -> None:
    """Without CONFIG and INFO the findings say what to allow."""
    with servers.start("redis", *SOUND) as server:
        server.redis().execute_command(
            "ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-config", "-info"
        )
        report = seen(f"unix://app:pw@{server.socket}")
    assert grades(report) == {"appendonly": UNKNOWN, "maxmemory-policy": UNKNOWN}
    assert (report.version, report.durable) == ("unknown", None)
    assert "allow the commands INFO and CONFIG GET" in str(report.findings[0])


@pytest.mark.parametrize("login", ["", "app:wrong@", ":wrong@"])
def test_without_a_login_the_password_is_the_problem(login: str) -> None:
    """A server that refuses the login is reported as that, not as one that hides its settings."""
    with (
        servers.start("redis", *SOUND, "--requirepass", "right") as server,
        pytest.raises(LoginError, match=r"check them in the URL|put user:password@"),
    ):
        seen(f"unix://{login}{server.socket}")


def test_passwords_are_not_asked_for() -> None:
    """No command that would return a password is sent."""
    with servers.start("valkey", *SOUND) as server:
        redis = server.redis()
        redis.config_set("slowlog-log-slower-than", 0)
        redis.config_set("requirepass", "secret")
        seen(f"unix://:secret@{server.socket}")
        asked = b" ".join(entry["command"] for entry in redis.slowlog_get(128))
    assert b"CONFIG GET appendonly" in asked
    for word in (b"requirepass", b"masterauth", b"*"):
        assert b"CONFIG GET " + word not in asked


@pytest.mark.parametrize(
    ("settings", "url", "findings"),
    [
        ((), "redis://127.0.0.1:{port}", {}),
        ((), "redis://localhost:{port}", {}),
        (
            ("--bind", "0.0.0.0", "--protected-mode", "no"),
            "redis://127.0.0.1:{port}",
            {"requirepass": OPEN},
        ),
        (
            ("--bind", "0.0.0.0", "--protected-mode", "no"),
            "redis://0.0.0.0:{port}",
            {"requirepass": OPEN},
        ),
        (
            ("--bind", "0.0.0.0", "--protected-mode", "no", "--requirepass", "pw"),
            "redis://:pw@0.0.0.0:{port}",
            {"default-user": OPEN},
        ),
        (
            ("--protected-mode", "no", "--requirepass", "pw"),
            "redis://:pw@127.0.0.1:{port}",
            {"default-user": OPEN},
        ),
    ],
)
def test_server_without_a_password_that_others_reach(
    settings: tuple[str, ...], url: str, findings: dict[str, Grade]
) -> None:
    """A port that listens to the network without a password is a risk."""
    port = free_port()
    with servers.start("valkey", *SOUND, "--port", str(port), *settings):
        assert grades(seen(url.format(port=port))) == findings


def test_master_that_takes_writes_alone() -> None:
    """With replicas, writes that none of them has are a risk."""
    port = free_port()
    with (
        servers.start("valkey", *SOUND, "--port", str(port), *AT_ONCE) as master,
        servers.start("valkey", *SOUND, "--replicaof", "127.0.0.1", str(port)) as replica,
    ):
        redis = master.redis()
        deadline = time.monotonic() + DEADLINE_S
        while not redis.wait(1, 100):
            redis.set("a", 1)
            assert time.monotonic() < deadline
        assert grades(seen(master.url)) == {"min-replicas-to-write": RISK}
        assert grades(seen(replica.url)) == {}
        redis.config_set("min-replicas-to-write", 1)
        assert grades(seen(master.url)) == {}
