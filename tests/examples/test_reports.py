"""The example of results: returned, failed, not yet."""

from __future__ import annotations

import threading

import pytest

from examples import reports
from qworker.testing import drain


@pytest.fixture
def app(qworker_bind):
    return qworker_bind(reports.app)


def test_reports_come_back_in_order_and_failures_are_told(app, tmp_path):
    (tmp_path / "a.txt").write_text("to be or not to be to")
    timer = threading.Timer(0.2, lambda: drain(app, errors="collect"))
    timer.start()
    lines = reports.reports([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")])
    timer.join()
    assert lines == [
        f"{tmp_path}/a.txt: 7 words, most of them 'to'",
        f"{tmp_path}/b.txt: failed, FileNotFoundError (not_retried)",
    ]


def test_a_report_without_a_worker_is_not_there_yet(app):
    [line] = reports.reports(["a.txt"], timeout="10ms")
    assert "not yet; qworker result show reports " in line
