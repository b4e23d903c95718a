"""Trust in files: a configuration that was not named, and programs on PATH."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from qworker.config.files import read_file
from qworker.config.trust import distrust, find_programs, is_trusted_directory
from qworker.consumer.app_names import find_module
from qworker.errors import InvalidOptionError

OTHER_USER = 12345


def file_of(folder: Path, name: str = "qworker.toml", text: str = 'namespace = "shop"\n') -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(0o600)
    return path


def refused(folder: Path) -> str:
    with pytest.raises(InvalidOptionError) as caught:
        read_file(folder)
    return str(caught.value)


@pytest.mark.parametrize("name", ["qworker.toml", "pyproject.toml"])
class TestFoundFiles:
    """A configuration file that was not named is read only if no other user can have put it there."""

    def write(self, folder: Path, name: str) -> Path:
        head = "[tool.qworker]\n" if name == "pyproject.toml" else ""
        return file_of(folder, name, f'{head}namespace = "shop"\n')

    @pytest.mark.parametrize("mode", [0o600, 0o644, 0o664])
    def test_a_file_of_this_user_is_read(self, tmp_path, name, mode):
        """A file of this user is read, also with the modes of a umask of 002."""
        path = self.write(tmp_path, name)
        path.chmod(mode)
        tmp_path.chmod(0o775)
        assert read_file(tmp_path).values == {"namespace": "shop"}

    def test_a_file_that_others_can_write_to_is_refused(self, tmp_path, name):
        """A file with mode 0666 is refused; the error says how to trust it."""
        path = self.write(tmp_path, name)
        path.chmod(0o666)
        text = refused(tmp_path)
        assert "is writable by every user" in text
        assert f"--config {name}" in text
        assert read_file(tmp_path, path).values == {"namespace": "shop"}

    def test_a_file_in_a_directory_that_others_can_write_to_is_refused(self, tmp_path, name):
        """In a directory with mode 0777 others can replace a file; with the sticky bit they cannot."""
        self.write(tmp_path, name)
        tmp_path.chmod(0o777)
        assert "is in a directory that is writable by every user" in refused(tmp_path)
        tmp_path.chmod(0o1777)
        assert read_file(tmp_path).values == {"namespace": "shop"}

    @pytest.mark.root
    def test_a_file_or_link_of_another_user_is_refused(self, tmp_path, name):
        """A file of another user is refused, also by root, and so is another user's link to a file of this user."""
        path = self.write(tmp_path, name)
        os.chown(path, OTHER_USER, OTHER_USER)
        assert "belongs to another user" in refused(tmp_path)
        path.rename(tmp_path / "theirs")
        own = file_of(tmp_path, "own", path.name and (tmp_path / "theirs").read_text())
        path.symlink_to(own)
        os.lchown(path, OTHER_USER, OTHER_USER)
        assert "is a link of another user" in refused(tmp_path)

    @pytest.mark.root
    def test_a_file_in_a_directory_of_another_user_is_refused(self, tmp_path, name):
        """A file in the directory of another user is refused, regardless of its owner."""
        self.write(tmp_path, name)
        os.chown(tmp_path, OTHER_USER, OTHER_USER)
        assert "is in a directory that belongs to another user" in refused(tmp_path)


@pytest.mark.root
def test_a_pyproject_toml_of_another_user_without_our_table_is_ignored(tmp_path):
    """You can run qworker in another user's directory with such a file."""
    path = file_of(tmp_path, "pyproject.toml", "[project]\nname = 'x'\n")
    os.chown(path, OTHER_USER, OTHER_USER)
    os.chown(tmp_path, OTHER_USER, OTHER_USER)
    assert read_file(tmp_path).path is None


@pytest.mark.parametrize(
    "url", ["embedded:store", "embedded:./store", "embedded:../store", "embedded:.", "EMBEDDED:s"]
)
def test_a_relative_store_in_a_found_file_is_refused(tmp_path, url):
    """A found file may not name a store beside it, which may have come with it; a named file may."""
    path = file_of(tmp_path, text=f'url = "{url}"\n')
    text = refused(tmp_path)
    assert "qworker.toml: url" in text
    assert "relative path" in text
    assert read_file(tmp_path, path).values == {"url": url}


@pytest.mark.parametrize(
    "url", ["embedded:", "embedded:/srv/store", "embedded:~/store", "embedded:%2Fsrv", "redis://h"]
)
def test_other_urls_in_a_found_file_are_read(tmp_path, url):
    """A project's file may name its server, and a store by its whole path."""
    file_of(tmp_path, text=f'url = "{url}"\n')
    assert read_file(tmp_path).values == {"url": url}


def test_a_file_that_another_group_can_write_to_is_not_trusted(tmp_path):
    """A file that a group can write to is trusted only if it is the user's primary group."""
    tmp_path.chmod(0o770)
    status = os.stat(tmp_path)
    assert distrust(status) is None
    of_a_team = os.stat_result((*status[:5], status.st_gid + 1, *status[6:]))
    assert distrust(of_a_team) == "is writable by a group of users"


def test_the_sticky_bit_makes_no_file_trusted(tmp_path):
    """It keeps others from replacing what is in a directory, not from writing to a file."""
    path = file_of(tmp_path)
    mode, *others = os.stat(path)
    assert distrust(os.stat_result((mode | 0o1006, *others))) == "is writable by every user"


def test_programs_are_found_by_absolute_entries_alone(tmp_path, monkeypatch):
    """Only absolute directories of PATH count; a program that two of them contain is one."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    (tmp_path / "a" / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "a" / "tool").chmod(0o755)
    (tmp_path / "b" / "tool").symlink_to(tmp_path / "a" / "tool")
    monkeypatch.chdir(tmp_path)
    assert list(find_programs("tool", "a:./a:")) == []
    assert list(find_programs("tool", f"a:{tmp_path}/b:{tmp_path}/a")) == [f"{tmp_path}/b/tool"]


def test_the_current_directory_is_the_last_to_import_from(tmp_path, monkeypatch):
    """An app in another folder imports from the current directory last, and not if others can write to it."""
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
