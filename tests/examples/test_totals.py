"""The example of a group of calls: one summary of all files, those that cannot be read among them."""

from __future__ import annotations

import threading

import pytest

from examples import totals
from qworker.testing import drain


@pytest.fixture
def app(qworker_bind):
    return qworker_bind(totals.app)


def test_a_summary_has_a_line_for_each_file(app, tmp_path):
    (tmp_path / "a.txt").write_text("to be or not")
    (tmp_path / "b.txt").write_text("to be")
    timer = threading.Timer(0.2, lambda: drain(app, errors="collect"))
    timer.start()
    lines = totals.summary([str(tmp_path / name) for name in ("a.txt", "none.txt", "b.txt")])
    timer.join()
    assert lines == [
        f"{tmp_path}/a.txt: 4 words",
        f"{tmp_path}/none.txt: FileNotFoundError",
        f"{tmp_path}/b.txt: 2 words",
        "6 words in all",
    ]
