"""drop.lua: delete dead letters."""

from __future__ import annotations

from typing import Any

from qworker.engine.dead import drop
from qworker.wire.ids import EntryId
from tests.lua.drive import NOW, Drive, own
from tests.lua.test_redrive import bury


def dropped(drive: Drive, *entries: str) -> Any:
    """Drop entries; how many there were."""
    chosen = [EntryId.parse(entry) for entry in entries]
    number, seen = drive.run(drop(drive.keys, chosen, now_ms=NOW))
    assert seen == len(entries)
    return number


def test_deletes_existing_messages(engine_drive: Drive) -> None:
    """Only the entries named, counted as purged; foreign ones as well, and none twice."""
    drive = engine_drive
    entries = bury(drive, own("a"), "hello", own("b"))
    assert dropped(drive, entries[0], entries[1], entries[0], "5-5") == 2
    assert drive.state() == {
        "dead": [{"envelope": own("b"), "reason": "rejected"}],
        "stats": {"purged": "2"},
    }
    assert dropped(drive, entries[0]) == 0
    assert dropped(drive, f"{10**18}-{10**18}") == 0  # as long as an id can be


def test_an_invalid_counter_does_not_fail_the_call(drive: Drive) -> None:
    """The dead letter is gone by then, and the reply says that it is degraded."""
    (entry,) = bury(drive, own("a"))
    drive.redis.hset(drive.keys.stats, "purged", "many")
    assert drive.call("drop", drive.standard_keys(), NOW, entry) == ["OK", str(NOW), 1, 1, 1]
    assert drive.state("dead") == {"dead": []}


def test_hundred_dead_letters_in_one_call(drive: Drive) -> None:
    """A full call deletes all."""
    entries = bury(drive, *(own(f"m{number:03d}") for number in range(101)))
    assert dropped(drive, *entries[:100]) == 100
