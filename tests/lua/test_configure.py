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
