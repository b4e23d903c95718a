"""Servers that are open to others: found, reported, and refused if the daemon is strict."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from qworker.client.execute.sync import Client
from qworker.daemon.durability import inspect_server
from qworker.store.connections import ConnectionFactory
from tests import servers
from tests.consumer.forkserver import Order, WarmProcess, start_module
from tests.ports import free_port
from tests.security.guarded import guarded

#: Everything else about these servers is as it should be.
SOUND = ("--appendonly", "yes", "--maxmemory", "256mb")
OPEN = ("--bind", "0.0.0.0", "--protected-mode", "no")


def daemon(url: str, mode: str, directory: Path) -> WarmProcess | subprocess.Popen[bytes]:
    """Start `qworker daemon`; its log is `directory/log`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("QWORKER")}
    environ = {**kept, "QWORKER_URL": url, "QWORKER_LOG_FORMAT": "json"}
    words = ["daemon", "--durability", mode, "--metrics-port", "0"]
    with (directory / "log").open("wb") as log:
        return start_module(Order("qworker", words, str(directory), environ), log)


@pytest.mark.slow
def test_strict_refuses_a_server_that_is_open(tmp_path: Path) -> None:
    """One without a password, on a port that others reach: exit code 3, and why."""
    port = free_port()
    with servers.start("valkey", *SOUND, *OPEN, "--port", str(port)):
        process = daemon(f"redis://127.0.0.1:{port}", "strict", tmp_path)
        assert process.wait(60) == 3
    log = (tmp_path / "log").read_text()
    assert "open to others" in log
    assert "asks for no password" in log


def test_a_password_that_opens_everything_is_open_too() -> None:
    """The default user of a server that others reach has every right: one password is all that there is to learn."""
    port = free_port()
    with servers.start("valkey", *SOUND, *OPEN, "--port", str(port)) as server:
        with server.redis() as raw:
            raw.config_set("requirepass", "secret")
        with Client(ConnectionFactory(f"redis://:secret@127.0.0.1:{port}")) as client:
            report = inspect_server(client)
    assert (report.open, report.durable) == (True, True)
    assert [finding.name for finding in report.findings] == ["default-user"]


@pytest.mark.slow
def test_roles_are_not_found_fault_with(tmp_path: Path) -> None:
    """The same port with users of `qworker acl`: nothing to tell, and nothing in the server's log of refusals."""
    port = free_port()
    listen = [*SOUND, *OPEN, "--port", str(port)]
    with guarded("valkey", "shop", tmp_path, listen=listen) as server:
        password = server.passwords["qworker-daemon"]
        with Client(
            ConnectionFactory(f"redis://qworker-daemon:{password}@127.0.0.1:{port}")
        ) as client:
            report = inspect_server(client)
        assert (report.findings, report.open) == ((), False)
        assert server.refused() == []
