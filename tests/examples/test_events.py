"""The example of events: many in one transaction, each with its own outcome."""

from __future__ import annotations

import time

import pytest

from examples import events
from examples.events import Event, load, totals
from qworker import ArgumentsError
from qworker.testing import drain


@pytest.fixture
def app(qworker_bind, tmp_path, monkeypatch):
    monkeypatch.setenv("EVENTS", str(tmp_path / "events.sqlite"))
    return qworker_bind(events.app)


def send(*found: Event) -> None:
    load.send_many(load.call(event) for event in found)


def test_events_are_added_up_by_kind(app):
    send(*(Event(f"e{n}", "order" if n % 3 else "visit", 0, amount=n) for n in range(1200)))
    assert drain(app, max_messages=2000).handled == 1200
    assert totals() == {
        "order": sum(n for n in range(1200) if n % 3),
        "visit": sum(range(0, 1200, 3)),
    }


def test_an_event_that_comes_twice_counts_once(app):
    send(Event("e1", "order", 0), Event("e1", "order", 0))
    assert drain(app).handled == 2
    assert totals() == {"order": 1}


def test_an_event_from_the_future_is_buried_and_the_others_are_loaded(app):
    future_ms = int(time.time() * 1000) + 3_600_000
    send(Event("e1", "order", 0), Event("e2", "order", future_ms), Event("e3", "order", 0))
    drained = drain(app)
    assert (drained.handled, len(drained.dead)) == (2, 1)
    assert totals() == {"order": 2}


def test_a_batch_that_fails_as_a_whole_is_tried_again(app, monkeypatch):
    real, tries = events.database, []

    def database():
        tries.append(1)
        if len(tries) == 1:
            raise events.sqlite3.OperationalError("database is locked")
        return real()

    monkeypatch.setattr(events, "database", database)
    send(Event("e1", "order", 0), Event("e2", "order", 0))
    drained = drain(app, errors="collect")
    assert (drained.handled, drained.failed) == (2, 2)
    assert totals() == {"order": 2}


def test_an_invalid_event_is_refused_on_sending(app):
    with pytest.raises(ArgumentsError):
        load.send({"id": 1})
