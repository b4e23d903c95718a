"""prune.lua: forget idle lanes, expired unique keys and expired tombstones, a slice at a time."""

from __future__ import annotations

import pytest

from qworker.engine.reap import START, Cursors, Pruned, prune
from tests import servers
from tests.lua.drive import NOW, Drive

MINUTE_MS = 60_000
#: The cursors of hashes that have been seen to their ends.
ENDED = ("", "", "")


def pruned(drive: Drive, cursors: Cursors = START, at: int = NOW) -> Pruned:
    """Prune one slice with lanes idle for 15 minutes."""
    return drive.run(prune(drive.keys, 15 * MINUTE_MS, cursors, now_ms=at))


def test_forgets_expired_entries(engine_drive: Drive) -> None:
    """Lanes after 15 minutes, unique keys, row ids and tombstones when their time is over; the limits count as over."""
    drive = engine_drive
    at = NOW + 15 * MINUTE_MS
    lanes = {"idle": f"7 {NOW}", "busy": f"9 {NOW + 1}", "older": "1 5", "kept": f"3 {NOW + 1} 1 a"}
    drive.redis.hset(drive.keys.producers, mapping=lanes)
    drive.redis.hset(drive.keys.unique, mapping={"over": f"a {at}", "held": f"b {at + 1}"})
    drive.redis.hset(drive.keys.rows, mapping={"over": f"a {at}", "held": f"b {at + 1}"})
    drive.redis.zadd(drive.keys.cancelled, {"a": at, "b": at + 1})
    assert pruned(drive, at=at) == Pruned(ENDED, tombstones_left=False, forgotten=5)
    assert drive.state() == {
        "producers": {"busy": f"9 {NOW + 1}", "kept": f"3 {NOW + 1} 1 a"},
        "unique": {"held": f"b {at + 1}"},
        "rows": {"held": f"b {at + 1}"},
        "cancelled": {"b": at + 1},
    }
    assert pruned(drive, at=at) == Pruned(ENDED, tombstones_left=False, forgotten=0)


def test_forgets_idle_lanes_among_the_counters(engine_drive: Drive) -> None:
    """With the first slice; counters stay, whatever they are called."""
    at = NOW + 15 * MINUTE_MS
    kept = {"sent": "3", "dead:x": "1", "lane:busy": f"9 {NOW + 1}"}
    idle = {"lane:idle": f"7 {NOW}", "lane:x": "rubbish"}
    engine_drive.redis.hset(engine_drive.keys.stats, mapping={**kept, **idle})
    assert pruned(engine_drive, at=at).forgotten == 2
    assert engine_drive.state() == {"stats": kept}


@pytest.mark.bad_input("data found: nonsense in other tables")
def test_forgets_entries_of_other_programs(drive: Drive) -> None:
    """A field whose time cannot be read would stay forever: it goes."""
    drive.redis.hset(drive.keys.producers, mapping={"x": "rubbish", "y": "", "z": "5 x"})
    drive.redis.hset(drive.keys.unique, "k", f"{NOW + 5} ")
    assert pruned(drive).forgotten == 4
    assert drive.state() == {}


def test_large_tables_go_a_slice_at_a_time(engine_drive: Drive) -> None:
    """A call looks at a part and hands out cursors; continuing from them sees everything, each once over."""
    drive = engine_drive
    drive.redis.hset(
        drive.keys.producers, mapping={f"l{n}": f"1 {NOW * (n % 2)}" for n in range(3000)}
    )
    drive.redis.hset(drive.keys.unique, mapping={f"k{n}": f"a {NOW + n % 2}" for n in range(3000)})
    drive.redis.hset(drive.keys.rows, mapping={f"r{n}": f"a {NOW + n % 2}" for n in range(3000)})
    done = pruned(drive)
    assert all(done.cursors)
    assert 0 < done.forgotten <= 1800
    forgotten = done.forgotten
    while not done.done:
        done = pruned(drive, done.cursors)
        forgotten += done.forgotten
    state = drive.state()
    assert [len(state[part]) for part in ("producers", "unique", "rows")] == [1500] * 3
    assert forgotten == 4500


def test_what_has_been_seen_is_left_out(drive: Drive) -> None:
    """A hash whose cursor says that it is through is not looked at again beside the others."""
    for part in ("producers", "unique", "rows"):
        drive.redis.hset(drive.base + part, "x", "a 1")
    for kept in range(3):
        cursors = ["", "", ""]
        cursors[kept] = "0"
        assert pruned(drive, (cursors[0], cursors[1], cursors[2])).forgotten == 1
    assert drive.state() == {}


def test_tombstones_are_bounded(drive: Drive) -> None:
    """However many tombstones are over, a call forgets 500 of them at most."""
    drive.redis.zadd(drive.keys.cancelled, {f"m{number}": number for number in range(1200)})
    done = [pruned(drive) for _ in range(4)]
    assert [call.forgotten for call in done] == [500, 500, 200, 0]
    assert [call.done for call in done] == [False, False, True, True]
    drive.redis.zadd(drive.keys.cancelled, {f"m{number}": number for number in range(500)})
    assert pruned(drive).done


def test_full_server_is_pruned() -> None:
    """Over maxmemory pruning continues."""
    for engine, _ in servers.engines():
        with servers.start(engine) as server:
            drive = Drive(server.url, "n", "q")
            drive.redis.hset(drive.keys.producers, "l", "1 5")
            drive.redis.config_set("maxmemory", 1)
            assert pruned(drive).forgotten == 1
            drive.close()
