"""The first limit of a queue: what is in flight is counted before, in short calls, whatever happens between them."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.engine.groups import COUNTING, set_limit
from qworker.engine.settle import Outcomes
from qworker.engine.shares import share
from tests.lua.drive import NOW, Drive
from tests.lua.group_calls import found, get, in_small_pages, put

#: From then on a caller that made its last call at NOW has stopped.
_STOPPED = NOW + 60_001


def page(drive: Drive, name: str = "a", words: str = "c=2", at: int = NOW) -> str:
    """Make one call, which counts 3 slots; returns its cursor."""
    cursor: str = drive.run(in_small_pages(set_limit(drive.keys, name, words, now_ms=at)))
    return cursor


def mark(drive: Drive) -> Any:
    """What says that callers are at work, '' if none are."""
    return (drive.redis.hget(drive.keys.groups, "@looking") or b"").decode()


def uncounted(drive: Drive) -> list[str]:
    """The fields of slots that are not counted."""
    held = drive.redis.hgetall(drive.keys.slots)
    return sorted(token.decode() for token, name in held.items() if b"\1" in name)


@pytest.mark.parametrize("back_ms", [0, 3_600_000])
def test_a_caller_that_stops_halfway_is_forgotten_after_a_minute(
    drive: Drive, back_ms: int
) -> None:
    """Deliveries are not counted for it any longer, also if the clock was set back; the next one counts them."""
    put(drive, *[f"a:a{number}" for number in range(20)])
    get(drive, "l1", 8)
    assert page(drive) == COUNTING
    get(drive, "l2", 1, at=NOW + 60_000)
    assert (mark(drive)[:1], uncounted(drive)) == ("c", ["l1"])
    get(drive, "l3", 1, at=NOW - back_ms if back_ms else _STOPPED)
    assert (mark(drive), uncounted(drive)) == ("", ["l1", "l3:0"])
    while page(drive, at=_STOPPED) == COUNTING:
        pass
    assert (mark(drive), uncounted(drive)) == ("", [])
    assert found(drive, repair=False) == []


def test_a_change_that_stops_halfway_is_forgotten_after_a_minute(drive: Drive) -> None:
    """Its limit was the last one: deliveries are not counted, and groups that were full run as their messages end."""
    put(drive, *[f"g{number}:m{number}" for number in range(300)], "z:z1", "z:z2")
    while drive.run(set_limit(drive.keys, "z", "c=1", now_ms=NOW)) != "0":
        pass
    assert get(drive, "l1", 301)[-1] == "z1"
    drive.run(set_limit(drive.keys, "z", "", now_ms=NOW))
    assert mark(drive) == f"1 {NOW}"
    put(drive, "b:b0")
    assert get(drive, "l2", at=_STOPPED) == ["b0"]
    assert (mark(drive), uncounted(drive)[-1]) == ("", "l2:0")
    drive.settle(Outcomes("l1", ack_all=True))
    assert get(drive, "l3") == ["z2"]


def test_a_removal_beside_a_count_leaves_it_alone(drive: Drive) -> None:
    """Another caller removes limits that are not there: what was counted need not be looked at again."""
    put(drive, *[f"a:a{number}" for number in range(20)])
    get(drive, "l1", 8)
    assert page(drive) == COUNTING
    before = mark(drive)
    assert page(drive, "b", "") == "0"
    assert mark(drive) == before != ""


def test_a_count_that_another_server_began_ends_with_the_first_share(drive: Drive) -> None:
    """Deliveries are not counted for it once the share is gone."""
    put(drive, "a:a0", "a:a1")
    get(drive, "l1", 1)
    drive.redis.hset(drive.keys.groups, "@looking", f"c0ther:3 {NOW}")
    assert drive.run(share(drive.keys, [("t/", 1, "c=3 s=1")])) is not None
    assert (mark(drive), uncounted(drive)) == ("", [])


def test_a_repair_beside_a_count_lowers_none(drive: Drive) -> None:
    """A message of a batch is gone: its slot is freed, and the others of the batch are counted once."""
    put(drive, *[f"a:a{number}" for number in range(20)])
    get(drive, "l1", 8)
    get(drive, "l2", 8)
    assert page(drive) == COUNTING
    key = drive.keys.lease(uncounted(drive)[-1])
    held = drive.held(key)
    drive.redis.delete(key)
    drive.redis.hset(key, mapping={i: item for i, item in held.items() if i != b"8"})
    assert "slot a" in found(drive)
    while page(drive) == COUNTING:
        pass
    assert found(drive, repair=False) == []
