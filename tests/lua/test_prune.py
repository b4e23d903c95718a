"""prune.lua: forget idle lanes, expired unique keys and row ids, a slice at a time, and look for tombstones."""

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
    """Lanes after 15 minutes, unique keys and row ids when their time is over; the limits count as over."""
    drive = engine_drive
    at = NOW + 15 * MINUTE_MS
    lanes = {"idle": f"7 {NOW}", "busy": f"9 {NOW + 1}", "older": "1 5", "kept": f"3 {NOW + 1} 1 a"}
    drive.redis.hset(drive.keys.producers, mapping=lanes)
    held = {"held": f"b {at + 1}", "timed": f"c {at + 1} for", "debounced": f"d {2**53} @5 5"}
    over = {"over": f"a {at}", "timed over": f"a {at} for"}
    drive.redis.hset(drive.keys.unique, mapping=held | over)
    drive.redis.hset(drive.keys.rows, mapping={"over": f"a {at}", "held": f"b {at + 1}"})
    assert pruned(drive, at=at) == Pruned(ENDED, until_ms=None, forgotten=5)
    assert drive.state() == {
        "producers": {"busy": f"9 {NOW + 1}", "kept": f"3 {NOW + 1} 1 a"},
        "unique": held,
        "rows": {"held": f"b {at + 1}"},
    }
    assert pruned(drive, at=at) == Pruned(ENDED, until_ms=None, forgotten=0)


def test_forgets_idle_lanes_among_the_counters(engine_drive: Drive) -> None:
    """With the first slice; counters stay, whatever they are called."""
    at = NOW + 15 * MINUTE_MS
    kept = {"sent": "3", "dead:lane:x": "1", "lane:busy": f"9 {NOW + 1}"}
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


def test_tombstones_are_left_to_a_walk(drive: Drive) -> None:
    """A call says up to when they are to be forgotten, once one expires within an hour; it forgets none itself."""
    hour_ms = 60 * MINUTE_MS
    stones = {"a": NOW + hour_ms + 1, "b": NOW + 9 * hour_ms}
    drive.redis.zadd(drive.keys.cancelled, stones)
    assert pruned(drive) == Pruned(ENDED, until_ms=None, forgotten=0)
    assert pruned(drive, at=NOW + 1) == Pruned(ENDED, until_ms=NOW + 1 + 2 * hour_ms, forgotten=0)
    assert pruned(drive, at=NOW + 10 * hour_ms).until_ms == NOW + 12 * hour_ms
    assert drive.state() == {"cancelled": stones}


def test_full_server_is_pruned() -> None:
    """Over maxmemory pruning continues."""
    for engine, _ in servers.engines():
        with servers.start(engine) as server:
            drive = Drive(server.url, "n", "q")
            drive.redis.hset(drive.keys.producers, "l", "1 5")
            drive.redis.config_set("maxmemory", 1)
            assert pruned(drive).forgotten == 1
            drive.close()
