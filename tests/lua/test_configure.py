"""configure.lua: set attributes of a queue; create it where it is new."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.engine.attributes import configure
from tests import servers
from tests.lua.drive import NOW, Drive


def configured(drive: Drive, at: int = NOW, **attributes: str) -> Any:
    """Set attributes; the time of the call."""
    return drive.run(configure(drive.keys, attributes, now_ms=at))


def test_sets_and_removes_attributes(engine_drive: Drive) -> None:
    """A value is set, '' takes an attribute away; when the queue was made and last changed is noted."""
    drive = engine_drive
    assert configured(drive, maxlen="5", delay_ms="7") == NOW
    assert drive.state() == {
        "meta": {
            "maxlen": "5",
            "delay_ms": "7",
            "created_ms": "1000000",
            "modified_ms": "1000000",
        }
    }
    configured(drive, at=NOW + 9, maxlen="", ttl_ms="8", none="")
    assert drive.state() == {
        "meta": {
            "delay_ms": "7",
            "ttl_ms": "8",
            "created_ms": "1000000",
            "modified_ms": "1000009",
        }
    }


def test_no_attributes_create_the_queue(drive: Drive) -> None:
    """A queue may be made with all defaults."""
    configured(drive)
    assert drive.state() == {"meta": {"created_ms": "1000000", "modified_ms": "1000000"}}


@pytest.mark.parametrize(
    ("before", "after", "tokens"),
    [("out", "", 8), ("all", "", 8), ("out", "in", 8), ("all", "in", 8), ("out", "all", 0),
     ("all", "out", 0), ("in", "", 0), ("", "", 0), ("", "out", 0), ("in", "out", 0)],
)  # fmt: skip
def test_opening_the_output_wakes_waiters(
    drive: Drive, before: str, after: str, tokens: int
) -> None:
    """Receivers that wait for a paused queue are woken when messages may be received again, and only then."""
    configured(drive, paused=before)
    configured(drive, paused=after)
    assert drive.state("wake").get("wake", []) == ["1"] * tokens


def test_other_attributes_do_not_wake(drive: Drive) -> None:
    """While the output stays paused nothing rings."""
    configured(drive, paused="out")
    configured(drive, maxlen="5")
    assert drive.state("wake") == {}


def test_full_server_can_be_resumed() -> None:
    """Over maxmemory a paused queue can be opened, so that it can be drained."""
    for engine, _ in servers.engines():
        with servers.start(engine) as server:
            drive = Drive(server.url, "n", "q")
            configured(drive, paused="out")
            drive.redis.config_set("maxmemory", 1)
            configured(drive, paused="")
            assert "paused" not in drive.state()["meta"]
            drive.close()


def test_a_change_of_the_journal_is_an_event_of_it(engine_drive: Drive) -> None:
    """So readers know what the journal left out; a mode that stays, or a first one, is no change."""
    drive = engine_drive
    configured(drive, journal="all")
    assert drive.state("journal") == {}
    drive.send("a")
    configured(drive, at=NOW + 1, journal="all", maxlen="5")
    configured(drive, at=NOW + 2, journal="off")
    configured(drive, at=NOW + 3, journal="")
    drive.receive("L")
    configured(drive, at=NOW + 4, journal="outcomes")
    entries = drive.state("journal")["journal"]
    assert [(entry["n"], entry["k"], entry["t"], entry["e1"]) for entry in entries[1:]] == [
        ("1", "1", str(NOW + 2), f"mode - - - off -\nq1 - {NOW + 2} 0 0 0 0"),
        ("2", "1", str(NOW + 4), f"mode - - - outcomes -\nq1 - {NOW + 4} 0 0 0 0"),
    ]
    assert drive.stats("journal_entries", "journal_events") == {
        "journal_entries": 3, "journal_events": 3,
    }  # fmt: skip


def test_a_shed_journal_still_tells_of_its_mode(drive: Drive) -> None:
    """It is one line, and without it all that follows would look lost."""
    configured(drive, journal="all")
    drive.send("a")
    drive.redis.hset(drive.keys.meta, "journal_shed", 1)
    configured(drive, journal="off")
    assert drive.state("journal")["journal"][-1]["e1"].startswith("mode - - - off -")


def test_a_broken_journal_stops_no_change(drive: Drive) -> None:
    """The attribute is set; the event is left out."""
    configured(drive, journal="all")
    drive.send("a")
    drive.redis.delete(drive.keys.journal)
    drive.redis.set(drive.keys.journal, "x")
    configured(drive, journal="off")
    assert drive.redis.hget(drive.keys.meta, "journal") == b"off"
