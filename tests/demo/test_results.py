"""The results of the demo: the index has each file once, and duplicates are counted."""

from __future__ import annotations

import pytest

from qworker.demo.results import Results, keys_of
from qworker.demo.summary import FileSummary


@pytest.fixture
def results(tmp_path):
    results = Results.create(tmp_path / "results.sqlite")
    yield results
    results.close()


def summary(path: str, key: str, *, imports: tuple[str, ...] = ()) -> FileSummary:
    return FileSummary(key, path, path, 10, 1, 2, list(imports))


def test_a_file_handled_twice_is_in_the_index_once_and_counted_as_a_duplicate(results):
    for key in ("k1", "k2"):
        found = [summary("a.py", key, imports=("os",)), summary(f"{key}.py", key)]
        results.note(handled=keys_of(found, "total"), summaries=found)
    index = results.index()
    assert (index.files, index.lines, index.symbols) == (3, 30, 9)
    assert index.imports == (("os", 1),)
    assert results.duplicates() == 1


def test_the_same_file_in_two_tasks_is_not_a_duplicate(results):
    results.note(handled=[("1", "index_file", "a.py"), ("2", "check_file", "a.py")])
    assert results.duplicates() == 0


def test_messages_handled_by_one_process_can_be_left_out(results, monkeypatch):
    results.note(handled=[("1", "index_file", "a.py")])
    monkeypatch.setattr("os.getpid", lambda: 4711)
    results.note(handled=[("2", "index_file", "b.py")])
    assert results.handled() == {"1", "2"}
    assert results.handled(by_others_than=4711) == {"1"}


def test_a_transaction_that_fails_leaves_nothing(results):
    with pytest.raises(AttributeError):
        results.note(sent=["1"], summaries=[None])
    assert results.sent() == set()
    results.note(sent=["1"])
    assert results.sent() == {"1"}


def test_an_empty_index_adds_up_to_nothing(results):
    index = results.index()
    assert (index.files, index.lines, index.symbols, index.imports) == (0, 0, 0, ())
