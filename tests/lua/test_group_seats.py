"""The numbers of groups, which go round: one is given again when no seat of it is taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from qworker.engine.calls import WaitingRun, abandon
from qworker.engine.message import delete, hold
from qworker.engine.reap import promote
from qworker.engine.remove import purge
from qworker.engine.run import signal_run
from qworker.engine.settle import Outcomes
from tests.lua.drive import NOW, Drive
from tests.lua.group_calls import EMPTY, found, get, idle, ids, put
from tests.lua.test_calls import OK, count, spec_of, start

_NUMBERS = 2**21
_Leave = Callable[[Drive, Sequence[bytes]], object]


def _delete(drive: Drive, items: Sequence[bytes]) -> object:
    return drive.run(delete(drive.keys, items, now_ms=NOW))


def _hold(drive: Drive, items: Sequence[bytes]) -> object:
    return drive.run(hold(drive.keys, items, now_ms=NOW))


def _purge(drive: Drive, items: Sequence[bytes]) -> object:
    return drive.run(purge(drive.keys, "ready", len(items), now_ms=NOW))


@pytest.mark.parametrize("leave", [_delete, _hold, _purge])
def test_a_group_whose_members_leave_out_of_turn_has_run_empty(drive: Drive, leave: _Leave) -> None:
    """Its number may be given to another group, whose members it must not take for its own."""
    put(drive, "=a:a0", "=a:a1", "p/b:b0", "c:c0")
    assert get(drive, "l1", 1) == ["a0"]
    leave(drive, drive.redis.zrange(drive.keys.delayed, 0, -1))
    assert not [name for name in idle(drive)["groups"] if name not in (b":=a", ":=a")]
    assert idle(drive)["sets"] == [0, 0]
    drive.redis.hset(drive.keys.groups, "@number", _NUMBERS)
    put(drive, "d:d0", "d:d1", "e:e0")  # with the numbers that the others had
    put(drive, "=a:a2")
    assert sorted(get(drive, "l2")) == ["d0", "d1", "e0"]
    assert found(drive) == []
    drive.settle(*[Outcomes(lease, ack_all=True) for lease in ("l1", "l2")])
    assert get(drive, "l3") == ["a2"]
    drive.settle(Outcomes("l3", ack_all=True))
    assert idle(drive) == EMPTY


@pytest.mark.parametrize("leave", [_delete, _hold])
@pytest.mark.parametrize(("goes_round", "stay"), [(False, 2), (True, 2), (True, 1)])
def test_no_seats_stay_behind_the_last_member(
    drive: Drive, leave: _Leave, goes_round: bool, stay: int
) -> None:
    """When those before it have been received, its number is free, though one of them is in flight."""
    put(drive, "=a:a0")
    if goes_round:  # it goes back before the first seat: that is the last one of the number
        assert get(drive, "l0", 1) == ["a0"]
        back = Outcomes("l0")
        back.release("0")
        drive.settle(back)
    put(drive, "=a:a1", "=a:a2", "=a:a3")
    members = {ids([item])[0]: item for item in drive.redis.zrange(drive.keys.delayed, 0, -1)}
    leave(drive, [members[f"a{number}"] for number in range(stay, 4)])
    for number in range(stay):
        assert get(drive, f"l{number + 1}") == [f"a{number}"]
        if number < stay - 1:
            drive.settle(Outcomes(f"l{number + 1}", ack_all=True))
    drive.redis.hset(drive.keys.groups, "@number", _NUMBERS)
    put(drive, *[f"{name}:{name}{number}" for name in "bc" for number in range(5)])
    put(drive, "=a:a4")
    drive.settle(Outcomes(f"l{stay}", ack_all=True))
    sent = [f"{name}{number}" for name in "bc" for number in range(5)]
    assert sorted(get(drive, "l9")) == ["a4", *sent]
    assert found(drive) == []
    drive.settle(Outcomes("l9", ack_all=True))
    assert idle(drive) == EMPTY


def _signal(drive: Drive) -> None:
    drive.run(signal_run(drive.keys, "a0", "!gather#1", b"\n1", now_ms=NOW + 1))


def _gather(drive: Drive) -> None:
    count(drive, (0, OK))


def _abandon(drive: Drive) -> None:
    drive.run(abandon(drive.keys, ["g"], "cancelled"))


@pytest.mark.parametrize("wake", [_signal, _gather, _abandon])
def test_a_run_that_is_woken_leaves_its_seat(drive: Drive, wake: Callable[[Drive], None]) -> None:
    """It has waited for its turn since its time came, and waits under another text now."""
    put(drive, "=a:a0", at=NOW)
    assert get(drive, "l1") == ["a0"]
    start(drive, spec_of(1, then=None, run=("a0", "!gather#1")), run=WaitingRun("a0", "l1", "0"))
    parked = Outcomes("l1")
    parked.park("0", 1, "~wait:gather#1", "!gather#1", keep_ms=60_000)
    drive.settle(parked, at=NOW)
    drive.run(promote(drive.keys, 10, now_ms=NOW + 1))
    wake(drive)
    assert found(drive, repair=False) == []
    assert get(drive, "l2", at=NOW + 1) == ["a0"]
    drive.settle(Outcomes("l2", ack_all=True), at=NOW + 1)
    assert idle(drive) == EMPTY


@pytest.mark.bad_input("data found: a message in two places")
def test_a_second_copy_leaves_its_seat(drive: Drive) -> None:
    """The group has no other message."""
    put(drive, "a:a0")
    [item] = drive.redis.zrange(drive.keys.delayed, 0, -1)
    drive.redis.rpush(drive.keys.ready[0], item)
    words = (NOW, 1, "0", "", "", item, "delayed", "", "", item)
    assert drive.call("repair_twice", drive.standard_keys(), *words)[2] == "copy"
    assert idle(drive) == EMPTY


@pytest.mark.parametrize("together", [True, False])
def test_numbers_go_round(drive: Drive, together: bool) -> None:
    """The last one and those after it are given; those of groups that wait are left out."""
    drive.redis.hset(drive.keys.groups, "@number", 0)
    put(drive, "old:o0", "old:o1")  # has number 1
    drive.redis.hset(drive.keys.groups, "@number", _NUMBERS - 3)
    names = [f"g{n}" for n in range(6)]
    for message in names if not together else [""]:
        put(
            drive,
            *[f"{name}:{name}-{n}" for name in ([message] if message else names) for n in (0, 1)],
        )
    seats = [score for _, score in drive.redis.zrange(drive.keys.delayed, 0, -1, withscores=True)]
    assert len(set(seats)) == 14
    assert max(seats) < 2**53
    assert found(drive) == []
    got = get(drive, "l1", 7) + get(drive, "l2", 7)
    assert sorted(got) == sorted(["o0", "o1", *[f"{name}-{n}" for name in names for n in (0, 1)]])
    assert got.index("o0") < got.index("o1")


@pytest.mark.parametrize("together", [True, False])
def test_more_numbers_are_taken_than_a_look_notes(drive: Drive, together: bool) -> None:
    """Those after the last one that is noted are looked at when it is their turn."""
    drive.redis.hset(drive.keys.groups, "@number", 0)
    put(drive, *[f"g{number:02}:old{number}" for number in range(20)])
    drive.redis.hset(drive.keys.groups, "@number", _NUMBERS)
    for names in (["a", "b"],) if together else (["a"], ["b"]):
        put(drive, *[f"{name}:{name}0" for name in names])
    seats = [score for _, score in drive.redis.zrange(drive.keys.delayed, 0, -1, withscores=True)]
    assert len(set(seats)) == 22
    assert found(drive) == []


def test_receives_look_ahead_in_time(drive: Drive) -> None:
    """Before half of what they saw to be free is given, so that senders who may not look have the other half."""
    groups = drive.keys.groups
    put(drive, "a:a0")
    for given, free in [(0, 2**20), (2**19, 2**20), (2**19 + 1, 2**20 + 2**19 + 1)]:
        drive.redis.hset(groups, "@number", given)
        get(drive, f"l{given}", 1)
        assert int(drive.redis.hget(groups, "@free")) == free
        put(drive, "b:b0")


def test_a_member_that_goes_back_before_the_first_seat_of_the_last_number(drive: Drive) -> None:
    """Its seat is the last one there is, and not the time of what is held."""
    drive.redis.hset(drive.keys.groups, "@number", _NUMBERS - 2)
    put(drive, "a:a0")
    assert get(drive, "l1") == ["a0"]
    drive.redis.hset(drive.keys.groups, "@number", 2 * _NUMBERS - 2)
    released = Outcomes("l1")
    released.release("0")
    drive.settle(released)
    assert drive.redis.zrange(drive.keys.delayed, 0, -1, withscores=True)[0][1] == 2**53 - 1
    put(drive, "b:b0")
    assert sorted(get(drive, "l2")) == ["a0", "b0"]


def test_a_group_without_its_messages_is_found(drive: Drive) -> None:
    """As an earlier version left it, or another program: it loses its number, and stands in no line."""
    put(drive, "a:a0", "=b:b0", "p/c:c0")
    drive.redis.delete(drive.keys.delayed)
    put(drive, "d:d0", "d:d1")
    drive.redis.zpopmax(drive.keys.delayed)
    kinds = sorted(found(drive, repair=False))
    assert kinds == ["seat =b", "seat a", "seat d", "seat p/c"]
    assert sorted(found(drive)) == kinds
    assert found(drive) == []
    assert get(drive, "l1") == ["d0"]
    drive.settle(Outcomes("l1", ack_all=True))
    assert idle(drive) == EMPTY
