"""Whose files count: a configuration that was only found, and programs on PATH."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from qworker.config.files import read_file
from qworker.config.trust import distrust, find_programs, is_trusted_directory
from qworker.consumer.app_names import find_module
from qworker.errors import InvalidOptionError

SOMEBODY = 12345


def file_of(folder: Path, name: str = "qworker.toml", text: str = 'namespace = "shop"\n') -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(0o600)
    return path


def refused(folder: Path) -> str:
    with pytest.raises(InvalidOptionError) as caught:
        read_file(folder)
    return str(caught.value)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.mark.parametrize("name", ["qworker.toml", "pyproject.toml"])
class TestFoundFiles:
    """A configuration file that was not named counts only if nobody else can have put it there."""

    def write(self, folder: Path, name: str) -> Path:
        head = "[tool.qworker]\n" if name == "pyproject.toml" else ""
        return file_of(folder, name, f'{head}namespace = "shop"\n')

    @pytest.mark.parametrize("mode", [0o600, 0o644, 0o664])
    def test_a_file_of_ours_is_read(self, tmp_path, name, mode):
        """Ours is read, also with the modes that a umask of 002 gives."""
        path = self.write(tmp_path, name)
        path.chmod(mode)
        tmp_path.chmod(0o775)
        assert read_file(tmp_path).values == {"namespace": "shop"}

    def test_one_that_others_may_write_to(self, tmp_path, name):
        """A file with mode 0666 is refused; the error says how to trust it."""
        path = self.write(tmp_path, name)
        path.chmod(0o666)
        text = refused(tmp_path)
        assert "can be written to by every user" in text
        assert f"--config {name}" in text
        assert read_file(tmp_path, path).values == {"namespace": "shop"}

    def test_in_a_directory_that_others_may_write_to(self, tmp_path, name):
        """In a directory with mode 0777 anything may have taken its place; with the sticky bit, ours is ours."""
        self.write(tmp_path, name)
        tmp_path.chmod(0o777)
        assert "stands in a directory that can be written to by every user" in refused(tmp_path)
        tmp_path.chmod(0o1777)
        assert read_file(tmp_path).values == {"namespace": "shop"}

    @as_root
    def test_one_of_another_user(self, tmp_path, name):
        """A file of another user is refused, by root as well, and beside it a link of theirs to ours."""
        path = self.write(tmp_path, name)
        os.chown(path, SOMEBODY, SOMEBODY)
        assert "belongs to another user" in refused(tmp_path)
        path.rename(tmp_path / "theirs")
        own = file_of(tmp_path, "own", path.name and (tmp_path / "theirs").read_text())
        path.symlink_to(own)
        os.lchown(path, SOMEBODY, SOMEBODY)
        assert "is a link of another user" in refused(tmp_path)

    @as_root
    def test_in_a_directory_of_another_user(self, tmp_path, name):
        """A file in the directory of another user is refused, whoever's it is."""
        self.write(tmp_path, name)
        os.chown(tmp_path, SOMEBODY, SOMEBODY)
        assert "stands in a directory that belongs to another user" in refused(tmp_path)


@as_root
def test_a_pyproject_toml_of_others_without_our_table_is_passed_over(tmp_path):
    """What says nothing of qworker stops nobody who works in a directory of others."""
    path = file_of(tmp_path, "pyproject.toml", "[project]\nname = 'x'\n")
    os.chown(path, SOMEBODY, SOMEBODY)
    os.chown(tmp_path, SOMEBODY, SOMEBODY)
    assert read_file(tmp_path).path is None


@pytest.mark.parametrize(
    "url", ["embedded:store", "embedded:./store", "embedded:../store", "embedded:.", "EMBEDDED:s"]
)
def test_a_relative_store_in_a_found_file(tmp_path, url):
    """A found file names no store beside it, which may have come with it; a named file may."""
    path = file_of(tmp_path, text=f'url = "{url}"\n')
    text = refused(tmp_path)
    assert "qworker.toml: url" in text
    assert "relative path" in text
    assert read_file(tmp_path, path).values == {"url": url}


@pytest.mark.parametrize(
    "url", ["embedded:", "embedded:/srv/store", "embedded:~/store", "embedded:%2Fsrv", "redis://h"]
)
def test_other_urls_in_a_found_file(tmp_path, url):
    """A project's own file may say where its server is, and name a store by its whole path."""
    file_of(tmp_path, text=f'url = "{url}"\n')
    assert read_file(tmp_path).values == {"url": url}


def test_a_group_that_is_not_our_own(tmp_path):
    """What a group of users may write to is not trusted, unless the group is our own."""
    tmp_path.chmod(0o770)
    found = os.stat(tmp_path)
    assert distrust(found) is None
    of_a_team = os.stat_result((*found[:5], found.st_gid + 1, *found[6:]))
    assert distrust(of_a_team) == "can be written to by a group of users"


def test_programs_are_found_by_absolute_entries_alone(tmp_path, monkeypatch):
    """Of PATH only absolute directories count; a program that two of them show is one."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    (tmp_path / "a" / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "a" / "tool").chmod(0o755)
    (tmp_path / "b" / "tool").symlink_to(tmp_path / "a" / "tool")
    monkeypatch.chdir(tmp_path)
    assert list(find_programs("tool", "a:./a:")) == []
    assert list(find_programs("tool", f"a:{tmp_path}/b:{tmp_path}/a")) == [f"{tmp_path}/b/tool"]


def test_the_current_directory_is_imported_from_last(tmp_path, monkeypatch):
    """An app of another folder imports from the current one behind all else, and not from one open to others."""
    app = tmp_path / "app"
    app.mkdir()
    (app / "tasks.py").touch()
    monkeypatch.setattr(sys, "path", ["/python"])
    monkeypatch.chdir(tmp_path)
    assert find_module(str(app / "tasks.py")) == "tasks"
    assert sys.path == [str(app), "/python", str(tmp_path)]
    monkeypatch.setattr(sys, "path", ["/python"])
    tmp_path.chmod(0o1777)
    assert not is_trusted_directory(tmp_path)
    find_module(str(app / "tasks.py"))
    assert sys.path == [str(app), "/python"]
