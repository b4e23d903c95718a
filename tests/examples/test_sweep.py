"""The example of a scheduled sweep: it looks and sends; removing is its own task."""

from __future__ import annotations

import os
import time

import pytest

from examples import sweep
from qworker.testing import drain


@pytest.fixture
def app(qworker_bind, tmp_path, monkeypatch):
    monkeypatch.setenv("SWEEP", str(tmp_path))
    return qworker_bind(sweep.app)


def old_file(path):
    path.write_text("old")
    os.utime(path, (0, time.time() - 2 * sweep.TOO_OLD_S))
    return path


def test_old_files_are_removed_and_new_ones_stay(app, tmp_path):
    old, new = old_file(tmp_path / "old"), tmp_path / "new"
    new.write_text("new")
    sweep.sweep.send()
    assert drain(app).handled == 2
    assert (old.exists(), new.exists()) == (False, True)


def test_a_file_that_waits_to_be_removed_is_not_sent_again(app, tmp_path):
    old_file(tmp_path / "old")
    sweep.sweep.send()
    sweep.sweep.send()
    assert drain(app, queues=["sweeps"]).handled == 2
    assert app.queue("removals").inspect().ready == 1


def test_a_file_that_was_touched_since_stays(app, tmp_path):
    old = old_file(tmp_path / "old")
    sweep.remove.send(str(old))
    old.touch()
    assert drain(app).discarded == 1
    assert old.exists()


def test_a_missing_file_is_not_a_failure(app, tmp_path):
    sweep.remove.send(str(tmp_path / "gone"))
    drained = drain(app)
    assert (drained.discarded, drained.failed) == (1, 0)


def test_the_sweep_is_on_a_schedule(app):
    entry = app.schedules["sweep"]
    assert entry.schedule.spec == "every 1m missed=skip"
    assert entry.task is sweep.sweep
