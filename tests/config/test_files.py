"""The configuration file: where it is found, and which files are refused."""

from __future__ import annotations

import os

import pytest

from qworker.config.files import ConfigFile, read_file
from qworker.errors import InvalidOptionError
from tests.rights import like_others


@pytest.fixture
def write(tmp_path):
    """Write a file in the directory, readable by its owner only."""

    def write(name: str, content: str | bytes):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(0o600)
        return path

    return write


def refused(*args) -> InvalidOptionError:
    with pytest.raises(InvalidOptionError) as caught:
        read_file(*args)
    return caught.value


def test_without_a_file_the_configuration_is_empty(tmp_path):
    """Without a file the configuration is empty; parent directories are not searched."""
    (tmp_path / "qworker.toml").write_text('namespace = "above"')
    below = tmp_path / "below"
    below.mkdir()
    assert read_file(below) == ConfigFile()


def test_qworker_toml_is_read_whole(tmp_path, write):
    """qworker.toml is read whole."""
    path = write("qworker.toml", 'namespace = "shop"\n[run]\nprocs = 2\n')
    assert read_file(tmp_path) == ConfigFile(path, {"namespace": "shop", "run": {"procs": 2}})


def test_of_pyproject_toml_our_table_is_read(tmp_path, write):
    """Only [tool.qworker] of a pyproject.toml is read, also if the file is named."""
    path = write("pyproject.toml", '[project]\nname = "x"\n[tool.qworker]\nnamespace = "shop"\n')
    assert read_file(tmp_path) == ConfigFile(path, {"namespace": "shop"})
    assert read_file(tmp_path / "elsewhere", path) == ConfigFile(path, {"namespace": "shop"})


@pytest.mark.parametrize("content", ["", "[tool.ruff]\n", "tool = 5\n"])
def test_a_pyproject_toml_without_our_table_is_ignored(tmp_path, write, content):
    """A pyproject.toml without [tool.qworker] is ignored."""
    write("pyproject.toml", content)
    assert read_file(tmp_path) == ConfigFile()


def test_qworker_toml_wins_with_a_warning(tmp_path, write):
    """qworker.toml wins over the table of pyproject.toml, and a warning says so."""
    write("pyproject.toml", '[tool.qworker]\nnamespace = "a"\n')
    write("qworker.toml", 'namespace = "b"\n')
    file = read_file(tmp_path)
    assert file.values == {"namespace": "b"}
    assert "also has [tool.qworker], which is ignored" in file.warnings[0]


def test_a_named_file_is_read_alone(tmp_path, write):
    """A named file is read alone."""
    write("qworker.toml", 'namespace = "a"\n')
    path = write("other.toml", 'namespace = "b"\n')
    assert read_file(tmp_path, path) == ConfigFile(path, {"namespace": "b"})


def test_an_empty_file_sets_nothing(tmp_path, write):
    """An empty file sets nothing."""
    path = write("qworker.toml", "")
    assert read_file(tmp_path) == ConfigFile(path, {})


@pytest.mark.parametrize("name", ["qworker.toml", "pyproject.toml"])
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(b"\xef\xbb\xbfa = 1", "begins with a byte order mark", id="BOM"),
        pytest.param("a = 1".encode("utf-16"), "begins with a byte order mark", id="UTF-16"),
        pytest.param(b'a = "\xe4"', "is not UTF-8 (at byte 5)", id="not UTF-8"),
        pytest.param(
            b"a = 1\na = 2\n",
            "is not TOML: Cannot overwrite a value (at line 2",
            id="duplicate key",
        ),
        pytest.param(b"a: 1\n", "is not TOML", id="YAML"),
        pytest.param(b"a = " + b"[" * 100_000, "is not TOML", id="depth bomb"),
        pytest.param(b"#" * (1024 * 1024 + 1), "is larger than 1 MiB", id="too large"),
    ],
)
def test_other_content_than_toml_is_refused(tmp_path, write, name, content, problem):
    """The error for other content than TOML names the file."""
    path = write(name, content)
    error = refused(tmp_path)
    assert error.field == str(path)
    assert problem in error.problem


def test_an_error_never_quotes_the_file(tmp_path, write):
    """An error never quotes the file, which may hold a password."""
    write("qworker.toml", 'url = "redis://:S3CR3T@h\n')
    assert "S3CR3T" not in str(refused(tmp_path))


def test_a_tool_qworker_that_is_not_a_table_is_refused(tmp_path, write):
    """A tool.qworker that is not a table is refused."""
    write("pyproject.toml", "[tool]\nqworker = 5\n")
    assert "that is not a table" in refused(tmp_path).problem


def test_a_named_file_must_exist(tmp_path):
    """A named file must exist."""
    assert "cannot be read: No such file" in refused(tmp_path, tmp_path / "none.toml").problem


def test_a_directory_is_refused(tmp_path):
    """A directory is refused, and so is a pipe, which would block."""
    (tmp_path / "qworker.toml").mkdir()
    assert "is not a regular file" in refused(tmp_path).problem
    os.mkfifo(tmp_path / "pipe")
    pipe = refused(tmp_path, tmp_path / "pipe")
    assert (pipe.field, pipe.problem) == (str(tmp_path / "pipe"), "is not a regular file")


def test_a_dangling_link_is_refused(tmp_path):
    """A dangling link is refused, not ignored."""
    (tmp_path / "qworker.toml").symlink_to(tmp_path / "gone")
    assert "cannot be read" in refused(tmp_path).problem


def test_an_unreadable_file_is_refused(tmp_path, write):
    """An unreadable file is refused."""
    write("qworker.toml", "").chmod(0)
    with like_others():
        assert "Permission denied" in refused(tmp_path).problem


@pytest.mark.parametrize(
    ("mode", "url", "warned"),
    [
        pytest.param(0o644, "redis://:S3CR3T@h", True, id="password, readable by all"),
        pytest.param(0o640, "redis://:S3CR3T@h", False, id="password, readable by the group"),
        pytest.param(0o644, "redis://h", False, id="no password"),
    ],
)
def test_a_password_that_all_users_can_read_causes_a_warning(tmp_path, write, mode, url, warned):
    """A password that all users can read causes a warning, which does not show it."""
    write("qworker.toml", f'url = "{url}"\n').chmod(mode)
    warnings = read_file(tmp_path).warnings
    assert [("chmod 600" in warning, "S3CR3T" in warning) for warning in warnings] == [
        (True, False)
    ] * warned
