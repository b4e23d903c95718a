"""Where the demo finds its input."""

from __future__ import annotations

import asyncio

import pytest

from qworker.demo.sources import find_sources
from qworker.errors import InvalidOptionError
from tests.rights import like_others


@pytest.mark.slow  # lists thousands of files
def test_the_default_is_the_standard_library_and_the_environment():
    sources = find_sources(None, most=10**6)
    modules = {source.module for source in sources.files}
    assert {"asyncio", "asyncio.base_events", "msgspec"} <= modules
    assert len(sources.files) >= 2000
    assert len({source.path for source in sources.files}) == len(sources.files)


def test_a_large_environment_is_cut_and_says_so(monkeypatch):
    monkeypatch.setattr("qworker.demo.sources._environment", lambda: [asyncio.__path__[0]])
    sources = find_sources(None, most=10)
    assert len(sources.files) == 10
    assert sources.left_out[-1].endswith("files: the demo takes 10")


def test_the_files_of_a_path_come_in_order_with_module_names(tmp_path):
    for name in ("b.py", "a/__init__.py", "a/c.py", "a/__pycache__/x.py", "notes.txt"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.touch()
    sources = find_sources(tmp_path)
    assert [source.module for source in sources.files] == ["b", "a", "a.c"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [("absent", "does not exist"), ("file.py", "is not a directory"), ("empty", "holds no .py")],
)
def test_a_wrong_path_is_refused_with_the_next_step(tmp_path, name, problem):
    (tmp_path / "file.py").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidOptionError, match=problem) as refused:
        find_sources(tmp_path / name)
    assert refused.value.field == "path"
    assert "name a directory with Python source code" in refused.value.limit


def test_a_directory_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "a.py").touch()
    (tmp_path / "locked").mkdir(mode=0)
    with like_others():
        left_out = find_sources(tmp_path).left_out
    assert left_out == (f"{tmp_path}/locked: Permission denied",)


def test_unprintable_names_are_left_out(tmp_path):
    (tmp_path / "a.py").touch()
    (tmp_path / "esc\x1b[31m.py").touch()
    sources = find_sources(tmp_path)
    assert len(sources.files) == 1
    assert "\x1b" not in sources.left_out[0]


def test_links_to_directories_are_not_followed(tmp_path):
    (tmp_path / "a.py").touch()
    (tmp_path / "loop").symlink_to(tmp_path)
    assert len(find_sources(tmp_path).files) == 1
