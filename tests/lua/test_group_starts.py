"""New groups stand in line in the order of their arrival, within a turn of the queue."""

from __future__ import annotations

import pytest

from qworker.engine.send import NewMessage, send
from qworker.engine.settle import Outcomes
from qworker.wire.envelope import tail
from tests.lua.drive import NOW, Drive
from tests.lua.group_calls import EMPTY, get, idle, limit, put

STEP = 2.0**-17


def test_new_groups_come_after_those_that_wait(drive: Drive) -> None:
    """However their names sort, and although each call finds new ones: what waits first starts first."""
    put(drive, *[f"z{number}:z{number}" for number in range(4)])
    assert get(drive, "first", 2) == ["z0", "z1"]
    seen = []
    for turn in range(3):
        put(drive, *[f"a{turn}{number}:a{turn}{number}" for number in range(2)])
        seen += get(drive, f"l{turn}", 2)
    assert seen == ["z2", "z3", "a00", "a01", "a10", "a11"]


def test_new_parents_come_after_those_that_wait(drive: Drive) -> None:
    """A parent stands in line as a group does."""
    put(drive, "z/one:z1", "z/two:z2")
    seen = []
    for turn in range(3):
        put(drive, f"a{turn}/one:a{turn}")
        seen += get(drive, f"l{turn}", 1)
    assert seen == ["z1", "a0", "a1"]


def test_groups_of_a_call_begin_together(drive: Drive) -> None:
    """Each moves the start of the next call by a step; one that has had a turn comes a turn later."""
    put(drive, "b:b1", "a:a1", "b:b2")
    put(drive, "c:c1")
    assert drive.redis.zrange(drive.keys.turns, 0, -1, withscores=True) == [
        (b"a", 0.0),
        (b"b", 0.0),
        (b"c", 2 * STEP),
    ]
    assert get(drive, "l1") == ["a1", "b1", "c1", "b2"]
    drive.settle(Outcomes("l1", ack_all=True))
    assert idle(drive) == EMPTY


def test_a_new_group_begins_within_a_turn_of_the_queue(drive: Drive) -> None:
    """Those that have had a turn get the next one after a bounded number of new groups."""
    put(drive, "g:g1", "g:g2", "g:g3")
    assert get(drive, "l1", 1) == ["g1"]
    drive.redis.hset(drive.keys.groups, "@start", "0.999999")
    put(drive, "a1:a1", "a2:a2")
    put(drive, "a3:a3")
    assert drive.redis.zscore(drive.keys.turns, "a2") == 0.999999
    assert (
        drive.redis.zscore(drive.keys.turns, "a3")
        == drive.redis.zscore(drive.keys.turns, "g")
        == 1.0
    )
    assert get(drive, "l2", 4) == ["a1", "a2", "a3", "g2"]


def test_a_start_of_long_ago_is_behind_the_queue(drive: Drive) -> None:
    """A new group has no credit; a start that is too far ahead, of a queue whose groups were removed, is cut."""
    put(drive, "g:g1", "g:g2", "g:g3")
    assert get(drive, "l1", 3) == ["g1", "g2", "g3"]
    put(drive, "h:h1")
    assert drive.redis.zscore(drive.keys.turns, "h") == 2.0
    drive.redis.hset(drive.keys.groups, "@start", "7")
    put(drive, "i:i1")
    assert drive.redis.zscore(drive.keys.turns, "i") == 3.0


def test_a_group_with_members_in_flight_is_not_new(drive: Drive) -> None:
    """It returns where its turns have brought it, not after those that are new."""
    limit(drive, "a", "w=100")
    put(drive, "a:a1")
    assert get(drive, "l1") == ["a1"]
    drive.redis.hset(drive.keys.groups, "@start", "0.5")
    put(drive, "a:a2", "b:b1")
    stand = drive.redis.zrange(drive.keys.turns, 0, -1, withscores=True)
    assert stand == [(b"a", 0.01), (b"b", 0.5)]


def test_members_of_new_groups_are_read_together(drive: Drive) -> None:
    """Groups of a call have their numbers in the order in which they stand in line, whatever their names."""
    names = [f"{number * 7919 % 1000:03}" for number in range(100)]
    put(drive, *[f"{name}:m{name}" for name in names])
    before = drive.info("commandstats").get("cmdstat_zrange", {"calls": 0})["calls"]
    assert get(drive, "l1", 100) == [f"m{name}" for name in sorted(names)]
    assert drive.info("commandstats")["cmdstat_zrange"]["calls"] - before < 15


@pytest.mark.parametrize("number", [0, 126, 254, 65_534, 2_000_000])
def test_numbers_of_any_length_are_kept(drive: Drive, number: int) -> None:
    """A group's number takes one to five bytes of its record, which a receive writes again."""
    drive.redis.hset(drive.keys.groups, "@number", number)
    names = [f"g{at}" for at in range(4)]
    for turn in range(3):
        put(drive, *[f"{name}:{name}-{turn}" for name in names])
    for turn in range(3):
        assert get(drive, f"l{turn}", 4) == [f"{name}-{turn}" for name in names]
        drive.settle(Outcomes(f"l{turn}", ack_all=True))
    assert idle(drive) == EMPTY


def test_many_that_ran_empty_within_a_turn_are_known(drive: Drive) -> None:
    """They begin a turn later, however many there are; the virtual time in front of their names is not one."""
    names = [f"-{at:02}" for at in range(20)]  # a few are looked up otherwise
    put(drive, *[f"{name}:{name}" for name in names])
    assert len(get(drive, "l1", 20)) == 20
    put(drive, *[f"{name}:{name}-again" for name in names], "0:zero", "x:new")
    stand = dict(drive.redis.zrange(drive.keys.turns, 0, -1, withscores=True))
    assert {name.decode() for name, tag in stand.items() if tag == 1.0} == set(names)
    assert stand[b"0"] == stand[b"x"] < 0.01


def test_only_a_flag_of_the_header_names_a_group(drive: Drive) -> None:
    """Not what stands in a body; and names of any characters are read as they were sent."""
    sent = [
        NewMessage("m0", tail(b"a g=evil \n"), group=""),
        NewMessage("m1", tail(b"{}", {"g": "good"}), group="good"),
    ]
    drive.run(send(drive.keys, sent, lane="", sequence=0, now_ms=NOW))
    assert drive.redis.llen(drive.keys.ready[0]) == 1
    assert drive.redis.zrange(drive.keys.turns, 0, -1) == [b"good"]
    put(drive, "a b:m2", "a.b-c_d:m3", "ü:m4", "=o:m5", "p/c:m6", "a%b:m7")
    stand = drive.redis.zrange(drive.keys.turns, 0, -1)
    assert {name.decode() for name in stand} >= {"a b", "a.b-c_d", "ü", "=o", "p/", "a%b"}
