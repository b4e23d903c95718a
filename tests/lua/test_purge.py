"""purge.lua: delete messages of one state, the oldest first. Unacked messages are not touched."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.engine.remove import purge
from tests.lua.drive import NOW, Drive, own


def purged(drive: Drive, state: str, limit: int = 1000) -> Any:
    """Purge a state; how many."""
    return drive.run(purge(drive.keys, state, limit, now_ms=NOW)).messages


def filled(drive: Drive) -> None:
    """Messages in every state."""
    drive.send("u")
    drive.receive("L")
    drive.send("a", "b")
    drive.send("p", priority=7)
    drive.send("d1", delay_ms=1)
    drive.send("d2", delay_ms=2)
    drive.redis.rpush(drive.keys.suspect, own("s"))
    drive.redis.hincrby(drive.keys.stats, "stored", 1)
    for each in ("x", "y"):
        drive.redis.xadd(drive.keys.dead, {"envelope": own(each)})
    drive.redis.delete(drive.keys.wake)


def test_purges_one_state_and_leaves_the_others(engine_drive: Drive) -> None:
    """Ready holds the suspects and every priority; leases stay whatever is purged."""
    drive = engine_drive
    filled(drive)
    whole = drive.state()
    assert purged(drive, "ready") == 4
    assert drive.state() == {
        part: value for part, value in whole.items() if part not in ("ready", "ready:7", "suspect")
    } | {"stats": whole["stats"] | {"purged": "4", "stored": "3"}}
    assert purged(drive, "delayed") == 2
    assert purged(drive, "dead") == 2
    assert drive.state() == {
        "lease:L": {"0": own("u")},
        "unacked": {"L": NOW + 30_000},
        "dead": [],
        "meta": {"levels": "7"},
        "stats": whole["stats"] | {"purged": "8", "stored": "1"},
    }
    assert [purged(drive, state) for state in ("ready", "delayed", "dead")] == [0, 0, 0]


def test_limit_takes_the_oldest_first(drive: Drive) -> None:
    """Suspects go before the highest priority, that before the lowest; the earliest due and dead first."""
    filled(drive)
    assert purged(drive, "ready", 3) == 3
    assert drive.state("ready", "ready:7", "suspect") == {"ready": [own("b")]}
    assert purged(drive, "delayed", 1) == 1
    assert drive.state("delayed") == {"delayed": {own("d2", ready_ms=NOW + 2): NOW + 2}}
    assert purged(drive, "dead", 1) == 1
    assert drive.state("dead") == {"dead": [{"envelope": own("y")}]}


def test_full_limit_of_suspects_leaves_ready_alone(drive: Drive) -> None:
    """A limit that the first list fills is not exceeded by the next."""
    filled(drive)
    assert purged(drive, "ready", 1) == 1
    assert drive.state("ready", "ready:7", "suspect") == {
        "ready": [own("a"), own("b")],
        "ready:7": [own("p")],
    }


def test_items_of_others_are_purged_and_not_counted_as_stored(drive: Drive) -> None:
    """Plain messages that were never received, foreign ones and newer versions were never counted."""
    drive.redis.rpush(drive.keys.ready[0], "{}", "hello", "q2 x\n", own("a"))
    drive.redis.hset(drive.keys.stats, "stored", 1)
    assert purged(drive, "ready") == 4
    assert drive.stats("stored", "purged") == {"stored": 0, "purged": 4}


def test_frees_unique_keys(drive: Drive) -> None:
    """A purged message's key is free again, if it still is its own; one of a dead letter was freed before."""
    drive.send("a", flags={"u": "k%k"})
    drive.send("b", flags={"u": "l"}, delay_ms=5)
    drive.send("c", flags={"u": "m"})
    drive.redis.hset(drive.keys.unique, mapping={"k%k": "a 9", "l": "b 9", "m": "other 9"})
    purged(drive, "ready")
    purged(drive, "delayed")
    assert drive.state("unique") == {"unique": {"m": "other 9"}}


def test_thousand_messages_in_one_call(drive: Drive) -> None:
    """A full call deletes a thousand; fewer than the limit means that none is left."""
    for first in range(0, 1200, 600):
        drive.send(*(f"m{number}" for number in range(first, first + 600)))
    assert [purged(drive, "ready"), purged(drive, "ready")] == [1000, 200]


@pytest.mark.parametrize("state", ["ready", "delayed", "dead"])
def test_bytes_bound_a_call(engine_drive: Drive, state: str) -> None:
    """A call ends after a mebibyte, and says whether there may be more."""
    drive = engine_drive
    items = [own(f"m{number:02d}", body="x" * 100_000) for number in range(30)]
    if state == "ready":
        drive.redis.rpush(drive.keys.suspect, *items[:5])
        drive.redis.rpush(drive.keys.ready[0], *items[5:])
    elif state == "delayed":
        drive.redis.zadd(drive.keys.delayed, {item: n for n, item in enumerate(items)})
    else:
        for item in items:
            drive.redis.xadd(drive.keys.dead, {"envelope": item})
    calls = []
    for _ in range(4):
        done = drive.run(purge(drive.keys, state, now_ms=NOW))
        calls.append((done.messages, done.more))
    assert calls == [(11, True), (11, True), (8, False), (0, False)]
    assert not any(drive.state("ready", "suspect", "delayed", "dead").values())
