"""drop.lua: delete dead letters."""

from __future__ import annotations

from typing import Any

from qworker.client.commands.redriving import drop
from tests.lua.drive import NOW, STANDARD_PARTS, Drive, own
from tests.lua.test_redrive import bury


def dropped(drive: Drive, *entries: str) -> Any:
    """Drop entries; how many there were."""
    number, seen = drive.run(drop(drive.keys, entries, now_ms=NOW))
    assert seen == len(entries)
    return number


def test_deletes_what_is_there(engine_drive: Drive) -> None:
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


def test_a_counter_that_is_no_number_does_not_fail_the_call(drive: Drive) -> None:
    """The letter is gone by then, and the reply says that it is degraded."""
    (entry,) = bury(drive, own("a"))
    drive.redis.hset(drive.keys.stats, "purged", "many")
    assert drive.call("drop", drive.standard_keys(), NOW, entry) == ["OK", str(NOW), 1, 1, 1]
    assert drive.state("dead") == {"dead": []}


def test_hundred_letters_in_one_call(drive: Drive) -> None:
    """A full call deletes all, one more is refused; and so is what is no whole id."""
    entries = bury(drive, *(own(f"m{number:03d}") for number in range(101)))
    keys = drive.standard_keys()
    words = ("", "x", "-", "+", "1", f"({entries[0]}", f"1-{2**64}")
    drive.assert_refused_argument(
        [
            lambda: drive.call("drop", keys, NOW, *entries),
            lambda: drive.call("drop", keys, "x", "1-1"),
        ]
        + [lambda word=word: drive.call("drop", keys, NOW, entries[0], word) for word in words]
    )
    assert dropped(drive, *entries[:100]) == 100
    drive.redis.hdel(drive.keys.meta, "test")
    drive.assert_refused_argument([lambda: drive.call("drop", keys, NOW, entries[100])])


def test_key_of_another_type_refuses(engine_drive: Drive) -> None:
    """A key that holds something else is named."""
    drive = engine_drive
    (entry,) = bury(drive, own("a"))
    drive.redis.hset(drive.keys.meta, "levels", "5")
    drive.assert_broken(
        STANDARD_PARTS, lambda: drive.call("drop", drive.standard_keys(), NOW, entry)
    )
