"""What `make test` leaves out: only variations of tests that it runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

import pytest

from tests.conftest import check_nightly

TESTS: Final = Path(__file__).parent
#: How a nightly test names the one that `make test` runs in its place: of its own file, or of another one.
_MARK: Final = re.compile(r'\bmark\.nightly\(\s*"(?:(?P<file>[\w/]+\.py)::)?(?P<name>test_\w+)"')
_ANY_MARK: Final = re.compile(r"\bmark\.nightly\b")
_OF_A_FILE: Final = re.compile(r"^pytestmark = (?:.+|\[\n(?:    .+\n)*.*)mark\.nightly", re.M)
_DECORATED: Final = re.compile(r"(?:^@[^\n]*\n(?:[ )\]}][^\n]*\n)*)+^def (test_\w+)", re.M)


def nightly(text: str) -> set[str]:
    """The tests of a file of which no row runs by day."""
    if _OF_A_FILE.search(text):
        return set(re.findall(r"^def (test_\w+)", text, re.M))
    return {
        test[1]
        for test in _DECORATED.finditer(text)
        if _ANY_MARK.search(test[0]) and "pytest.param(" not in test[0]
    }


def wrong_marks(texts: Mapping[str, str]) -> list[str]:
    """Say of each mark in files of tests, by path, what is wrong with the test that it names."""
    wrong = []
    for path, text in texts.items():
        marks = list(_MARK.finditer(text))
        if len(marks) != len(_ANY_MARK.findall(text)):
            wrong.append(f'{path}: nightly("test_…") or nightly("folder/test_file.py::test_…")')
        for mark in marks:
            named = texts.get(mark["file"] or path, "")
            if f"def {mark['name']}(" not in named:
                wrong.append(f"{path}: there is no {mark['file'] or path}::{mark['name']}")
            elif mark["name"] in nightly(named):
                wrong.append(f"{path}: {mark['name']} is nightly itself")
    return wrong


def test_a_nightly_test_names_one_that_every_run_runs() -> None:
    """Otherwise what it alone shows would go unseen until the night."""
    paths = [path for path in TESTS.rglob("test_*.py") if path != Path(__file__)]
    assert not wrong_marks(
        {str(path.relative_to(TESTS)): path.read_text("utf-8") for path in paths}
    )


class Item:
    """A row of a test, by night if it has a mark."""

    def __init__(self, test: str, mark: pytest.MarkDecorator | None = None) -> None:
        self.originalname = self.nodeid = test
        self.path = Path("test_a.py")
        self.mark = mark

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        assert name == "nightly"
        return self.mark and self.mark.mark


def test_a_test_whose_rows_are_all_nightly_is_refused() -> None:
    """Its own rows as well as those of a test that another one names."""
    row, named = pytest.mark.nightly, pytest.mark.nightly("test_one")
    elsewhere = pytest.mark.nightly("b.py::test_two")

    def check(*items: Item) -> None:
        check_nightly(cast(list[pytest.Item], [*items]))

    check(Item("test_one"), Item("test_one", row), Item("test_two", named))
    check(Item("test_one", elsewhere))
    for mark in (row, named):
        with pytest.raises(pytest.UsageError, match="no row of test_one runs by day"):
            check(Item("test_one", mark), Item("test_one", mark), Item("test_two"))


def test_a_mark_that_names_nothing_by_day_is_found() -> None:
    """A row may be nightly beside other rows of its test; a file, as a whole."""
    day = "def test_day(): pass\n"
    row = '@each(pytest.param(1), pytest.param(2, marks=pytest.mark.nightly("test_row")))\ndef test_row(one): pass\n'
    night = '@slow\n@pytest.mark.nightly(\n    "test_day"\n)\ndef test_night(): pass\n'
    whole = 'pytestmark = [\n    slow,\n    pytest.mark.nightly("a.py::test_day"),\n]\ndef test_whole(): pass\n'
    assert not wrong_marks({"a.py": day + row + night, "b.py": whole})

    def wrong(mark: str) -> list[str]:
        text = f"@pytest.mark.nightly{mark}\ndef test_it(): pass\n"
        return wrong_marks({"a.py": day + night, "b.py": whole, "c.py": text})

    assert wrong("") == ['c.py: nightly("test_…") or nightly("folder/test_file.py::test_…")']
    assert wrong('("test_other")') == ["c.py: there is no c.py::test_other"]
    assert wrong('("d.py::test_other")') == ["c.py: there is no d.py::test_other"]
    assert wrong('("test_it")') == ["c.py: test_it is nightly itself"]
    assert wrong('("a.py::test_night")') == ["c.py: test_night is nightly itself"]
    assert wrong('("b.py::test_whole")') == ["c.py: test_whole is nightly itself"]
