"""The numbers of groups, which go round: one is given again when no seat of it is taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from msgspec import structs

from qworker.engine.calls import WaitingRun, abandon
from qworker.engine.message import delete, hold
from qworker.engine.reap import promote
from qworker.engine.remove import purge
from qworker.engine.run import signal_run
from qworker.engine.scripts import Script
from qworker.engine.send import NewMessage, send
from qworker.engine.settle import Outcomes
from qworker.wire.envelope import tail
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
def test_numbers_that_go_round_pass_many_that_are_taken(drive: Drive, together: bool) -> None:
    """Hundreds of groups have waited since they were given: new ones get others, and keep their order and limits."""
    put(drive, *[f"g{n}:{n}" for n in range(500)])
    for at in range(3):
        drive.redis.hset(drive.keys.groups, "@number", (1 + at) * _NUMBERS + 100 * at)
        new = [f"=o{at}{n}:o{at}{n}-{turn}" for n in range(5) for turn in (0, 1)]
        for messages in [new] if together else [[message] for message in new]:
            put(drive, *messages)
    assert drive.redis.exists(drive.keys.ready[0]) == 0
    assert drive.redis.zcard(drive.keys.turns) == 515
    assert found(drive) == []


@pytest.mark.parametrize(
    ("free", "looks", "passed"), [(0, 20, 1_000_000), (0, 1_000_000, 500), (1, 20, 500)]
)
@pytest.mark.slow
def test_a_call_does_not_look_for_numbers_for_each_of_many_groups(
    drive: Drive, free: int, looks: int, passed: int
) -> None:
    """The server would stand still. One group gets the number that is free, others are stored without their groups."""
    drive.redis.hset(drive.keys.groups, "@number", _NUMBERS - 1)  # they get the numbers 0 to 1023
    for first in (0, 512):
        put(drive, *[f"g{n:04}:{n:04}" for n in range(first, first + 512)])
    if free:
        drive.run(delete(drive.keys, drive.redis.zrange(drive.keys.delayed, 3, 3), now_ms=NOW))
    drive.redis.hset(drive.keys.groups, "@number", 1023)
    drive.redis.hdel(drive.keys.groups, "@free", "@again", "@taken")
    messages = [NewMessage(f"m{n}", tail(b"", {"g": f"n{n}"}), group=f"n{n}") for n in range(300)]
    call = send(drive.keys, messages, lane="", sequence=0, now_ms=NOW)
    assert call.script is not None
    source = call.script.source
    for all_of_them, few in (
        (b"SEATS = 2097152", b"SEATS = 1024"),
        (b"MAX_TAKEN = 1048576", b"MAX_TAKEN = 512"),
        (b"MAX_PASSED = 200, 1000000", b"MAX_PASSED = %d, %d" % (looks, passed)),
    ):
        assert source.count(all_of_them) == 1
        source = source.replace(all_of_them, few)
    before = drive.info("commandstats")
    drive.run(structs.replace(call, script=Script("send", source, call.script.roles)))
    after = drive.info("commandstats")
    for command in ("cmdstat_zcount", "cmdstat_hincrby"):
        assert after[command]["calls"] - before.get(command, {"calls": 0})["calls"] < 2000
    assert drive.redis.llen(drive.keys.ready[0]) == 300 - free
    assert found(drive) == []
    received = [message for number in range(20) for message in get(drive, f"l{number}", 500)]
    assert len({*received}) == len(received) == 1324 - free


def test_a_sender_that_may_not_look_passes_no_numbers(drive: Drive) -> None:
    """None that it has not been told of is free for it, but for the next sender that may."""
    put(drive, "a:a0")
    drive.redis.hset(drive.keys.groups, mapping={"@free": 1, "@again": 0, "@taken": ""})
    messages = [NewMessage(f"m{n}", tail(b"", {"g": f"n{n}"}), group=f"n{n}") for n in range(20)]
    call = send(drive.keys, messages, lane="", sequence=0, now_ms=NOW)
    assert call.script is not None
    may_look = b"redis.acl_check_cmd('ZCOUNT', delayed, 0, 0)"
    source = call.script.source.replace(may_look, b"false")
    assert source != call.script.source
    drive.run(structs.replace(call, script=Script("send", source, call.script.roles)))
    assert drive.redis.llen(drive.keys.ready[0]) == 20
    assert int(drive.redis.hget(drive.keys.groups, "@number")) <= 1 + 20 + 20


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
