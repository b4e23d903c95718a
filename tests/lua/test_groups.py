"""Groups in the scripts: whose turn it is, how many run, in which order, and that every end frees its slot."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from qworker.engine.claim import claim
from qworker.engine.groups import end_wait, group_page, largest, running_page, set_limit
from qworker.engine.message import ANYWHERE, delete, enqueue, hold
from qworker.engine.poll import GROUPS, glance, poll
from qworker.engine.reap import promote, reap
from qworker.engine.receive import Suspects
from qworker.engine.remove import purge, revoke
from qworker.engine.send import UNTIL_END, NewMessage, send
from qworker.engine.settle import Outcomes
from qworker.engine.shares import share
from qworker.errors import GroupFullError
from qworker.wire.envelope import tail
from tests.lua.drive import NOW, Drive
from tests.lua.group_calls import EMPTY, found, get, idle, ids, in_small_pages, limit, nacked, put


def test_groups_take_turns(drive: Drive) -> None:
    """A group with many messages is served as often as one with few."""
    put(drive, *[f"a:a{n}" for n in range(5)], "b:b0", "b:b1", "c:c0")
    assert get(drive, "l1", 6) == ["a0", "b0", "c0", "a1", "b1", "a2"]
    assert get(drive, "l2", 6) == ["a3", "a4"]


def _deleted(drive: Drive) -> None:
    (item,) = drive.redis.zrange(drive.keys.delayed, 0, 0)
    drive.run(delete(drive.keys, [item], [ANYWHERE], now_ms=NOW))


def _expired(drive: Drive) -> None:
    assert drive.run(promote(drive.keys, 10, now_ms=NOW + 60_000)).moved == 0


def _revoked(drive: Drive) -> None:
    drive.run(promote(drive.keys, 10, now_ms=NOW + 500))
    assert get(drive, "l2", at=NOW + 500) == ["a0"]
    drive.redis.delete(drive.keys.wake)
    assert drive.run(revoke(drive.keys, [b"l2"])) == 1


def _claimed(drive: Drive) -> None:
    drive.run(promote(drive.keys, 10, now_ms=NOW + 500))
    batch = drive.receive("l2", at=NOW + 500)
    drive.redis.delete(drive.keys.wake)
    taken = drive.run(claim(drive.keys, "l3", [("l2", batch.deadline_ms)], 1, now_ms=NOW + 60_000))
    assert taken.batch.items == []


@pytest.mark.parametrize(
    "end",
    [
        _deleted,
        lambda drive: drive.run(purge(drive.keys, "delayed", now_ms=NOW)),
        _expired,
        _revoked,
        _claimed,
    ],
)
def test_the_end_of_a_retry_rings_for_the_next_of_its_group(
    drive: Drive, end: Callable[[Drive], object]
) -> None:
    """A worker that waits receives it at once, and not when it looks again."""
    made = [
        NewMessage(name, tail(b"", {"g": "=a", "x": str(NOW + lasts)}), group="=a")
        for name, lasts in (("a0", 30_000), ("a1", 90_000))
    ]
    drive.run(send(drive.keys, made, lane="", sequence=0, now_ms=NOW))
    assert get(drive, "l1") == ["a0"]
    drive.settle(nacked("l1", 500))
    assert get(drive, "none") == []
    drive.redis.delete(drive.keys.wake)
    end(drive)
    assert drive.redis.llen(drive.keys.wake) == 1
    assert get(drive, "l4", at=NOW + 60_000) == ["a1"]


def test_messages_without_a_group_take_turns_as_one(drive: Drive) -> None:
    """Neither a flood of them nor one of a group keeps the other from being received."""
    put(drive, *[f"p{n}" for n in range(50)])
    put(drive, *[f"a:a{n}" for n in range(3)])
    assert get(drive, "l1", 6) == ["p0", "a0", "p1", "a1", "p2", "a2"]


def test_weights(drive: Drive) -> None:
    """A group of weight 3 gets three times as many turns."""
    put(drive, *[f"{g}:{g}{n}" for g in "ab" for n in range(40)])
    limit(drive, "a", "w=3")
    assert Counter(i[0] for i in get(drive, "l1", 40)) == {"a": 30, "b": 10}


def test_a_tenant_gains_nothing_by_many_groups(drive: Drive) -> None:
    """Groups of one parent share the turns of one."""
    put(drive, *[f"evil/{n}:e{n}" for n in range(200)], *[f"good:g{n}" for n in range(20)])
    received = get(drive, "l1", 20)
    assert Counter(i[0] for i in received) == {"e": 10, "g": 10}
    assert [i for i in received if i[0] == "e"] == [f"e{n}" for n in range(10)]


def test_a_group_that_returns_has_no_credit(drive: Drive) -> None:
    """It starts at the virtual time of the queue, not where it left off."""
    put(drive, "b:b0", *[f"a:a{n}" for n in range(100)])
    get(drive, "l1", 60)
    put(drive, *[f"b:c{n}" for n in range(20)])
    assert Counter(i[0] for i in get(drive, "l2", 20)) == {"a": 10, "c": 10}


def test_concurrency(drive: Drive) -> None:
    """No more than the limit are in flight, and an ack lets the next one run; others go on."""
    limit(drive, "a", "c=2")
    put(drive, *[f"a:a{n}" for n in range(5)], "b:b0")
    batch = drive.receive("l1", 10)
    assert ids(batch.items) == ["a0", "b0", "a1"]
    assert drive.receive("l2", 10).items == []
    assert drive.receive("l3", 10, Outcomes("l1", acks=["1"])).items != []
    assert get(drive, "l4", 10) == []


def test_concurrency_of_a_parent(drive: Drive) -> None:
    """The limit of `acme/` is for all groups under it together; that of `acme/*` for each."""
    limit(drive, "acme/", "c=3")
    limit(drive, "acme/*", "c=2")
    put(drive, *[f"acme/{g}:{g}{n}" for g in "xy" for n in range(4)])
    assert get(drive, "l1", 10) == ["x0", "y0", "x1"]
    drive.settle(Outcomes("l1", ack_all=True))
    assert get(drive, "l2", 10) == ["y1", "x2", "y2"]


def test_a_message_has_a_slot_of_its_parent_until_it_ends(drive: Drive) -> None:
    """Also while it is a suspect, or claimed by another receiver; and the end of one with a unique key frees it."""
    limit(drive, "acme/", "c=1")
    flags = {"g": "acme/x", "u": "k"}
    message = NewMessage("a0", tail(b"", flags), "k", UNTIL_END, group="acme/x")
    drive.run(send(drive.keys, [message], lane="", sequence=0, now_ms=NOW))
    put(drive, "acme/y:b0")
    batch = drive.receive("l1", visibility_ms=10)
    assert ids(batch.items) == ["a0"]
    drive.run(claim(drive.keys, "l2", [("l1", batch.deadline_ms)], 1, now_ms=NOW + 1000))
    assert get(drive, "none", suspects=Suspects.NEVER) == []
    crashed = Outcomes("l2")
    crashed.crash("0")
    drive.settle(crashed)
    assert get(drive, "none", suspects=Suspects.NEVER) == []
    assert get(drive, "l3", suspects=Suspects.FIRST) == ["a0"]
    assert get(drive, "none", suspects=Suspects.NEVER) == []
    drive.settle(Outcomes("l3", uniques=["0", "k", "a0"]))
    assert get(drive, "l4") == ["b0"]
    drive.settle(Outcomes("l4", acks=["0"]))
    assert idle(drive) == EMPTY


@pytest.mark.parametrize("group", ["=a", "a", "acme/x"])
def test_an_ack_rings_for_the_next_of_a_full_group(drive: Drive, group: str) -> None:
    """A worker that waits receives it at once, and not when it looks again."""
    for name in ("a", "acme/"):
        limit(drive, name, "c=1")
    put(drive, f"{group}:a0", f"{group}:a1")
    assert get(drive, "l1") == ["a0"]
    drive.redis.delete(drive.keys.wake)
    drive.settle(Outcomes("l1", acks=["0"]))
    assert drive.redis.llen(drive.keys.wake) == 1


def test_a_lost_lease_rings_for_others_of_its_parent(drive: Drive) -> None:
    """A worker that waits receives it at once, though nothing came back: the lost message had expired."""
    limit(drive, "acme/", "c=1")
    put(drive, "acme/x:a0", ttl_ms=500)
    put(drive, "acme/y:b0")
    assert get(drive, "l1", 1, visibility_ms=10) == ["a0"]
    drive.redis.delete(drive.keys.wake)
    drive.run(reap(drive.keys, ["l1"], tick_ms=1000, now_ms=NOW + 1000))
    assert drive.stats()["expired"] == 1
    assert drive.redis.llen(drive.keys.wake) == 1
    assert get(drive, "l2", at=NOW + 1000) == ["b0"]


def test_running_members_do_not_wait(drive: Drive) -> None:
    """They do not count towards max_waiting, nor does one that was deleted among the others."""
    limit(drive, "a", "m=3")
    put(drive, *[f"a:a{number}" for number in range(3)])
    assert get(drive, "l1", 1) == ["a0"]
    put(drive, "a:a3")
    with pytest.raises(GroupFullError):
        put(drive, "a:a4")
    items = drive.redis.zrange(drive.keys.delayed, 1, 1)
    drive.run(delete(drive.keys, items, [ANYWHERE], now_ms=NOW))
    put(drive, "a:a4")
    assert get(drive, "l2") == ["a1", "a3", "a4"]


def test_a_lower_limit_holds_for_groups_that_stand_in_line(drive: Drive) -> None:
    """Those of a parent as well, although the change has not looked at them yet."""
    limit(drive, "*", "c=2")
    put(drive, *[f"{group}:{group[-1]}{n}" for group in ("acme/x", "y") for n in range(3)])
    assert get(drive, "l1", 2) == ["x0", "y0"]
    limit(drive, "*", "c=1")
    assert get(drive, "l2") == []
    drive.settle(Outcomes("l1", ack_all=True))
    assert sorted(get(drive, "l3")) == ["x1", "y1"]


def test_an_ordered_group_runs_one_at_a_time(drive: Drive) -> None:
    """The next one follows the end of the one before, and a retry holds its group."""
    put(drive, *[f"=a:a{n}" for n in range(3)])
    assert get(drive, "l1") == ["a0"]
    assert get(drive, "l2") == []
    drive.settle(nacked("l1", 5000))
    assert get(drive, "l3") == []
    [group] = drive.run(group_page(drive.keys, now_ms=NOW))[2]
    assert (group.waiting, group.reason, group.until_ms) == (2, "delayed", NOW + 5000)
    drive.run(promote(drive.keys, 100, now_ms=NOW + 5000))
    [group] = drive.run(group_page(drive.keys, now_ms=NOW))[2]
    assert (group.waiting, group.reason, group.until_ms) == (3, "turn", None)
    assert get(drive, "l4", at=NOW + 5000) == ["a0"]
    assert get(drive, "l5", 10, at=NOW + 5000) == []
    drive.settle(Outcomes("l4", acks=["0"]))
    assert get(drive, "l6") == ["a1"]


def test_everything_that_takes_a_message_out_of_a_lease_frees_its_slot(drive: Drive) -> None:
    """Acks, nacks, releases, deaths, discards, reaps."""
    limit(drive, "*", "c=1")
    ends = ["ack", "nack", "release", "bury", "discard", "reap"]
    for number, end in enumerate(ends):
        put(drive, f"g:m{number}")
        lease = f"l{number}"
        assert get(drive, lease) == [f"m{number}"], end
        outcome = Outcomes(lease)
        if end == "ack":
            outcome = Outcomes(lease, acks=["0"])
        elif end == "nack":
            outcome.nack("0", 0)
        elif end == "release":
            outcome.release("0")
        elif end == "bury":
            outcome.bury("0", "rejected")
        elif end == "discard":
            outcome.discard("0")
        if end == "reap":
            drive.run(reap(drive.keys, [lease], tick_ms=1000, now_ms=NOW + 31_000))
            drive.run(reap(drive.keys, [lease], tick_ms=1000, now_ms=NOW + 62_000))
        else:
            drive.settle(outcome)
        again = drive.receive(f"{lease}again", suspects=Suspects.FIRST)
        if again.items:
            drive.settle(Outcomes(f"{lease}again", acks=["0"]))
        assert idle(drive) == EMPTY, end


def test_a_suspect_of_an_ordered_group_runs_before_the_rest_of_it(drive: Drive) -> None:
    """It is delivered alone from another list, and its group waits for it."""
    put(drive, "=a:a0", "=a:a1")
    assert get(drive, "l1") == ["a0"]
    crashed = Outcomes("l1")
    crashed.crash("0")
    drive.settle(crashed)
    assert get(drive, "l2", suspects=Suspects.NEVER) == []
    assert get(drive, "l3", suspects=Suspects.FIRST) == ["a0"]
    assert get(drive, "l4", suspects=Suspects.NEVER) == []
    drive.settle(Outcomes("l3", acks=["0"]))
    assert get(drive, "l5") == ["a1"]


def test_waiting_members_can_be_deleted_held_and_enqueued(drive: Drive) -> None:
    """They are among the delayed messages for all that looks there."""
    put(drive, *[f"a:a{n}" for n in range(4)])
    items = drive.redis.zrange(drive.keys.delayed, 0, -1)
    assert drive.run(delete(drive.keys, [items[0]], now_ms=NOW))
    assert drive.run(hold(drive.keys, [items[1]], now_ms=NOW))
    assert get(drive, "l1", 10) == ["a2", "a3"]
    drive.run(enqueue(drive.keys, [items[1]], now_ms=NOW))
    assert get(drive, "l2", 10) == ["a1"]


def test_an_index_that_is_acked_twice_frees_one_slot(drive: Drive) -> None:
    """Another one of its group is still in flight."""
    limit(drive, "a", "c=2")
    put(drive, *[f"a:a{n}" for n in range(4)])
    assert get(drive, "l1") == ["a0", "a1"]
    drive.settle(Outcomes("l1", acks=["1", "1"]))
    assert get(drive, "l2") == ["a2"]
    assert found(drive) == []


def test_more_groups_than_one_command_reads(drive: Drive) -> None:
    """Each message of a group of its own: a call gives five hundred and says how many are left; one acks them all."""
    for first in range(0, 1200, 600):
        put(drive, *[f"g{n}:m{n}" for n in range(first, first + 600)])
    leases = ["l1", "l2", "l3"]
    batches = [drive.receive(lease, 1000) for lease in leases]
    assert [(len(each.items), each.ready_left) for each in batches] == [
        (500, 700),
        (500, 200),
        (200, 0),
    ]
    drive.settle(*(Outcomes(lease, ack_all=True) for lease in leases))
    assert idle(drive) == EMPTY


def test_a_rate_is_answered_with_the_wait(drive: Drive) -> None:
    """10 a second with bursts of 2; others are served meanwhile."""
    limit(drive, "a", "r=10/1000 b=2")
    put(drive, *[f"a:a{n}" for n in range(5)])
    assert get(drive, "l1") == ["a0", "a1"]
    batch = drive.receive("l2")
    assert (batch.items, batch.hint_ms) == ([], 100)
    put(drive, "b:b0")
    assert get(drive, "l3") == ["b0"]
    assert get(drive, "l4", at=NOW + 99) == []
    assert get(drive, "l5", at=NOW + 100) == ["a2"]
    assert get(drive, "l6", at=NOW + 5000) == ["a3", "a4"]


@pytest.mark.parametrize(("group", "limited"), [("a", "a"), ("acme/x", "acme/"), ("acme/x", "*")])
def test_members_that_have_ended_take_no_token(drive: Drive, group: str, limited: str) -> None:
    """What has expired or was cancelled does not start: as many others start as without it."""
    limit(drive, limited, "c=2 r=10/1000 b=2")
    put(drive, f"{group}:a0", f"{group}:a1", ttl_ms=1000)
    put(drive, f"{group}:a2", f"{group}:a3", f"{group}:a4")
    drive.redis.zadd(drive.keys.cancelled, {"a2": NOW * 10})
    assert get(drive, "l1", at=NOW + 1000) == ["a3", "a4"]


@pytest.mark.parametrize(("group", "limited"), [("a", "a"), ("acme/x", "acme/"), ("acme/x", "*")])
@pytest.mark.parametrize("acked", ["alone", "whole", "each"])
def test_a_group_that_runs_empty_owes_its_tokens(
    drive: Drive, group: str, limited: str, acked: str
) -> None:
    """Its next burst begins when the rate allows it, not when its messages have ended."""
    limit(drive, limited, "r=10/1000 b=2")
    put(drive, f"{group}:a0", f"{group}:a1")
    if acked == "alone":
        assert get(drive, "l1", 1) + get(drive, "l2", 1) == ["a0", "a1"]
        drive.settle(*[Outcomes(lease, acks=["0"]) for lease in ("l1", "l2")])
    else:
        assert get(drive, "l1", 2) == ["a0", "a1"]
        drive.settle(
            Outcomes("l1", ack_all=True) if acked == "whole" else Outcomes("l1", acks=["2"])
        )
        drive.settle(Outcomes("l1", acks=["1"]))
    put(drive, f"{group}:a2", f"{group}:a3")
    assert get(drive, "l3") == []
    assert get(drive, "l4", at=NOW + 100) == ["a2"]


@pytest.mark.slow
@pytest.mark.parametrize("rate", ["r=100/1000 b=1", "r=100/1000 b=10"])
def test_a_rate_holds_over_any_window(drive: Drive, rate: str) -> None:
    """Never more than its rate and one burst in a second, never less while messages wait."""
    limit(drive, "a", rate)
    put(drive, *[f"a:a{n}" for n in range(400)])
    times: list[int] = []
    for step in range(450):
        at = NOW + 5 * step
        times += [at] * len(drive.receive(f"l{step}", 100, at=at).items)
    burst = int(rate.rpartition("=")[2])
    for start in range(NOW, NOW + 1250, 250):
        number = sum(start <= at < start + 1000 for at in times)
        assert 99 - burst // 2 <= number <= 100 + burst
    assert idle(drive)["sets"][0] == 0 or len(times) < 400


@pytest.mark.parametrize(
    ("rate", "number", "wait_ms"),
    [("100/1000 b=10", 5, 50), ("100/1000 b=3", 1, 10), ("1000/1000 b=100", 50, 50), ("4/1000 b=9", 1, 250)],
)  # fmt: skip
def test_messages_of_a_rate_start_by_handfuls(
    drive: Drive, rate: str, number: int, wait_ms: int
) -> None:
    """Half of a burst together, and none waits more than 50 ms for others: one call a message would cost more."""
    limit(drive, "a", f"r={rate}")
    put(drive, *[f"a:a{n}" for n in range(300)])
    burst = int(rate.rpartition("=")[2])
    assert len(get(drive, "l1", 300)) == burst
    for step in range(1, 5):
        at = NOW + step * wait_ms
        batch = drive.receive(f"m{step}", 300, at=at - 1)
        assert (batch.items, batch.hint_ms) == ([], 1)
        assert len(get(drive, f"n{step}", 300, at=at)) == number


def test_the_first_share_counts_what_is_in_flight(drive: Drive) -> None:
    """In calls of a few slots, before it is stored; a limit that is set later finds them counted."""
    put(drive, *[f"a:a{n}" for n in range(12)])
    assert len(get(drive, "l1", 2) + get(drive, "l2", 8)) == 10
    for _ in range(3):
        assert drive.run(in_small_pages(share(drive.keys, [("t/", 1, "c=3 s=1")]))) is None
        assert not drive.redis.exists(drive.keys.limits)
    reports = drive.run(in_small_pages(share(drive.keys, [("t/", 1, "c=3 s=1")])))
    assert [report.version for report in reports] == [1]
    assert not drive.redis.hexists(drive.keys.groups, "@looking")
    assert found(drive, repair=False) == []
    drive.run(set_limit(drive.keys, "a", "c=2"))
    assert get(drive, "l3") == []
    assert found(drive, repair=False) == []


def test_polls_and_glances_see_groups(drive: Drive) -> None:
    """Those that may run, and those whose time has come; a glance sees also those that still wait."""
    limit(drive, "a", "r=1/1000 b=1")
    put(drive, "a:a0", "a:a1")
    drive.redis.delete(drive.keys.wake)
    polled = drive.run(poll([drive.keys], levels=True))
    assert (polled.available[0].ready, polled.levels) == (1, {0: (GROUPS,)})
    assert drive.run(glance([(drive.keys, (GROUPS,))])) == 1
    assert get(drive, "l1", at=int(time.time() * 1000)) == ["a0"]
    assert get(drive, "l2", at=int(time.time() * 1000)) == []
    drive.redis.delete(drive.keys.wake)
    assert drive.run(poll([drive.keys])).available == {}
    assert drive.run(glance([(drive.keys, (GROUPS,))])) == 1
    drive.redis.zadd(drive.keys.later, {"a": 1})
    assert drive.run(poll([drive.keys])).available[0].ready == 1


def test_a_poll_does_not_count_suspects_that_wait_for_a_rate(drive: Drive) -> None:
    """For a second at most, also after a clock was set back."""
    put(drive, "a:a0")
    get(drive, "l1")
    _crash(drive, "l1", "0")
    now_ms = int(time.time() * 1000)
    for at, suspects in ((now_ms + 900, 0), (now_ms + 9000, 1), (now_ms - 1, 1)):
        drive.redis.hset(drive.keys.meta, "suspects_ms", at)
        available = drive.run(poll([drive.keys])).available
        assert sum(one.suspects for one in available.values()) == suspects


def test_a_clock_set_back_delays_a_rate_by_a_burst_at_most(drive: Drive) -> None:
    """A time of an hour ahead is not waited for."""
    limit(drive, "a", "r=10/1000 b=2")
    put(drive, *[f"a:a{n}" for n in range(5)])
    assert get(drive, "l1", at=NOW + 3_600_000) == ["a0", "a1"]
    assert get(drive, "l2", at=NOW) == []
    assert get(drive, "l3", at=NOW + 100) == ["a2"]
    assert get(drive, "l4", at=NOW + 200) == ["a3"]


def test_rate_limited_members_let_their_group_wait(drive: Drive) -> None:
    """Others of the queue go on, and the message comes first again."""
    put(drive, "a:a0", "a:a1", "b:b0")
    batch = drive.receive("l1", 1)
    assert ids(batch.items) == ["a0"]
    limited = Outcomes("l1")
    limited.limit("0", 30_000)
    drive.settle(limited)
    assert get(drive, "l2") == ["b0"]
    batch = drive.receive("l3")
    assert (batch.items, batch.hint_ms) == ([], 30_000)
    assert get(drive, "l4", at=NOW + 30_000) == ["a0", "a1"]


def test_a_rate_limited_key_waits_with_all_its_groups(drive: Drive) -> None:
    """Whichever of them met the limit; groups of other keys go on."""
    put(drive, "k/a:a0", "k/b:b0", "other/a:o0")
    assert get(drive, "l1", 1) == ["a0"]
    limited = Outcomes("l1")
    limited.limit("0", 30_000, of_parent=True)
    drive.settle(limited)
    assert get(drive, "l2") == ["o0"]
    batch = drive.receive("l3", at=NOW + 10_000)
    assert (batch.items, batch.hint_ms) == ([], 20_000)
    assert get(drive, "l4", at=NOW + 30_000) == ["b0", "a0"]
    for lease in ("l2", "l4"):
        drive.settle(Outcomes(lease, ack_all=True), at=NOW + 30_000)
    get(drive, "l5", at=NOW + 60_000)
    assert idle(drive) == EMPTY


def _told_to_wait(drive: Drive, lease: str, *, of_parent: bool = False) -> None:
    limited = Outcomes(lease)
    limited.limit("0", 30_000, of_parent=of_parent)
    drive.settle(limited)


def _resumed(drive: Drive, name: str, at: int = NOW + 1000) -> bool:
    return drive.run(end_wait(drive.keys, name, now_ms=at))


@pytest.mark.parametrize("met", [True, False], ids=["met", "not met"])
@pytest.mark.parametrize("name", ["a", "=a", "k/a", "=k/a"])
def test_the_wait_of_a_group_ends_when_an_operator_says_so(
    drive: Drive, name: str, met: bool
) -> None:
    """Its first message is the next, also if no receive has met the wait; else a sleeping receiver is woken."""
    put(drive, f"{name}:a0", f"{name}:a1")
    assert get(drive, "l1", 1) == ["a0"]
    _told_to_wait(drive, "l1")
    if met:
        assert get(drive, "l2") == []
    drive.redis.delete(drive.keys.wake)
    assert _resumed(drive, name.removeprefix("="))
    assert drive.redis.llen(drive.keys.wake) == met
    assert not _resumed(drive, name.removeprefix("="))
    drive.redis.delete(drive.keys.wake)
    assert get(drive, "l3", 1, at=NOW + 1000) == ["a0"]
    drive.settle(Outcomes("l3", ack_all=True), at=NOW + 1000)
    assert get(drive, "l4", at=NOW + 1000) == ["a1"]


def test_the_wait_of_a_key_ends_for_all_its_groups(drive: Drive) -> None:
    """Those of another key wait on."""
    put(drive, "k/a:a0", "k/b:b0", "o/a:o0")
    assert (get(drive, "l1", 1), get(drive, "l2", 1)) == (["a0"], ["o0"])
    for lease in ("l1", "l2"):
        _told_to_wait(drive, lease, of_parent=True)
    assert get(drive, "l3") == []
    states = {state.name: state for state in drive.run(group_page(drive.keys, now_ms=NOW))[2]}
    assert {states[name].reason for name in ("k/a", "k/b", "o/a")} == {"rate_limited"}
    assert [states[name].told_to_wait for name in ("k/a", "k/b", "o/a")] == ["k/", "k/", "o/"]
    assert _resumed(drive, "k/")
    assert sorted(get(drive, "l4", at=NOW + 1000)) == ["a0", "b0"]
    assert get(drive, "l5", at=NOW + 29_999) == []
    assert get(drive, "l6", at=NOW + 30_000) == ["o0"]


def test_the_end_of_a_wait_leaves_a_rate_as_it_is(drive: Drive) -> None:
    """A handler's word ends, not a limit: the token of the message that met it is spent."""
    limit(drive, "a", "r=1/10000 b=1")
    put(drive, "a:a0")
    get(drive, "l1")
    _told_to_wait(drive, "l1")
    assert get(drive, "l2") == []
    assert _resumed(drive, "a")
    batch = drive.receive("l3", at=NOW + 1000)
    assert (batch.items, batch.hint_ms) == ([], 9000)
    assert get(drive, "l4", at=NOW + 10_000) == ["a0"]


def test_an_ordered_group_waits_on_for_its_delayed_retry(drive: Drive) -> None:
    """No handler said that others must wait: the retry has a delay of its own."""
    put(drive, "=a:a0", "=a:a1")
    get(drive, "l1", 1)
    drive.settle(nacked("l1", 30_000))
    assert not _resumed(drive, "a")
    assert get(drive, "l2", at=NOW + 1000) == []
    (state,) = drive.run(group_page(drive.keys, now_ms=NOW + 1000))[2]
    assert (state.by_delay, state.until_ms) == (True, NOW + 30_000)


@pytest.mark.parametrize("name", ["none", "none/"])
def test_what_does_not_wait_is_not_resumed(drive: Drive, name: str) -> None:
    """Neither a group that there is not nor one whose turn it is."""
    put(drive, "a:a0")
    assert not _resumed(drive, name)
    assert not _resumed(drive, "a")
    assert get(drive, "l1") == ["a0"]
    drive.settle(Outcomes("l1", ack_all=True))
    assert idle(drive) == EMPTY


def test_a_group_that_runs_empty_still_waits(drive: Drive) -> None:
    """Its handler was told to, whatever becomes of that message."""
    put(drive, "a:a0")
    get(drive, "l1")
    limited = Outcomes("l1")
    limited.limit("0", 30_000)
    drive.settle(limited)
    _deleted(drive)
    put(drive, "a:a1")
    assert get(drive, "l2", at=NOW + 29_999) == []
    assert get(drive, "l3", at=NOW + 30_000) == ["a1"]


@pytest.mark.parametrize("waits", [(30_000, 1000), (1000, 30_000)])
def test_of_several_waits_of_a_group_the_latest_counts(
    drive: Drive, waits: tuple[int, int]
) -> None:
    """Whichever handler says so."""
    put(drive, "a:a0", "a:a1")
    drive.receive("l1", 2)
    limited = Outcomes("l1")
    for index, wait_ms in enumerate(waits, 1):
        limited.limit(index, wait_ms)
    drive.settle(limited)
    assert get(drive, "l2", at=NOW + 29_999) == []
    assert get(drive, "l3", at=NOW + 30_000) == ["a0", "a1"]


def test_expired_and_cancelled_members_end(drive: Drive) -> None:
    """They are not delivered, and their group goes on."""
    put(drive, "a:a0", ttl_ms=1000)
    put(drive, "a:a1", "a:a2")
    drive.redis.zadd(drive.keys.cancelled, {"a1": NOW * 10})
    assert get(drive, "l1", at=NOW + 1000) == ["a2"]
    drive.settle(Outcomes("l1", acks=["0"]))
    assert idle(drive) == EMPTY


def test_groups_that_have_nothing_to_give_hold_up_no_others(drive: Drive) -> None:
    """A receive of one message looks beyond groups that were purged, and those that must wait."""
    for first in range(0, 150, 50):
        put(drive, *[f"gone{n}:m{n}" for n in range(first, first + 50)])
    drive.run(purge(drive.keys, "ready", 1000, now_ms=NOW))
    limit(drive, "slow/*", "r=1/1000 b=1")
    slow = [f"slow/{n}:{name}{n}" for name in "st" for n in range(3)]
    put(drive, *slow, "b:b0")
    assert get(drive, "l1", 1) == ["b0"]
    assert get(drive, "l2", 1) == ["s0"]
    assert get(drive, "l3", 10) == ["s1", "s2"]
    drive.settle(*[Outcomes(f"l{n}", ack_all=True) for n in (1, 2, 3)])
    assert sorted(get(drive, "l4", at=NOW + 1000)) == ["t0", "t1", "t2"]
    drive.settle(Outcomes("l4", ack_all=True))
    get(drive, "l5", at=NOW + 9000)
    assert idle(drive) == EMPTY


def test_deleted_and_held_members_do_not_wait(drive: Drive) -> None:
    """They count neither towards max_waiting nor in the list of groups, also where the seats begin again."""
    limit(drive, "a", "m=3")
    put(drive, "a:a0")
    items = drive.redis.zrange(drive.keys.delayed, 0, -1)
    get(drive, "l1")
    released = Outcomes("l1")
    released.release("0")
    drive.settle(released)  # before the first seat
    put(drive, "a:a1", "a:a2")
    with pytest.raises(GroupFullError):
        put(drive, "a:a3")
    items = drive.redis.zrange(drive.keys.delayed, 0, -1)
    drive.run(delete(drive.keys, items[:1], now_ms=NOW))
    drive.run(hold(drive.keys, items[1:2], now_ms=NOW))
    _, _, page = drive.run(group_page(drive.keys))
    assert [(state.name, state.waiting) for state in page] == [("a", 1)]
    put(drive, "a:a3", "a:a4")
    with pytest.raises(GroupFullError):
        put(drive, "a:a5")


def _crash(drive: Drive, lease: str, *indices: str, at: int = NOW) -> None:
    for index in indices:
        crashed = Outcomes(lease)
        crashed.crash(index)
        drive.settle(crashed, at=at)


@pytest.mark.parametrize(("name", "limited"), [("a", "a"), ("t/a", "t/"), ("t/a", "t/*")])
def test_a_suspect_waits_for_the_rate_of_its_group(drive: Drive, name: str, limited: str) -> None:
    """It is a start like others; other suspects do not wait behind it."""
    limit(drive, limited, "r=1/60000 b=1")
    put(drive, f"{name}:a0", f"{name}:a1")
    assert get(drive, "l0") == ["a0"]
    put(drive, "plain")
    assert get(drive, "l1") == ["plain"]
    _crash(drive, "l0", "0")
    _crash(drive, "l1", "0")
    assert get(drive, "l2", suspects=Suspects.FIRST) == ["plain"]
    batch = drive.receive("l3", suspects=Suspects.FIRST)
    assert (batch.items, batch.ready_left, batch.suspects, batch.hint_ms) == ([], 0, 0, 1000)
    # Of those that wait for a token one gets it.
    due = NOW + 60_000
    assert get(drive, "l4", at=due - 1, suspects=Suspects.FIRST) == []
    assert get(drive, "l5", at=due + 1000, suspects=Suspects.FIRST) == ["a0"]
    assert get(drive, "l6", at=due + 1000, suspects=Suspects.FIRST) == []
    assert get(drive, "l7", at=due + 61_000, suspects=Suspects.FIRST) == ["a1"]
    for lease in ("l2", "l5", "l7"):
        drive.settle(Outcomes(lease, acks=["0"]), at=due + 61_000)
    get(drive, "l8", at=due + 200_000)
    assert idle(drive) == EMPTY


def test_what_waits_for_a_time_takes_no_slot_of_its_parent(drive: Drive) -> None:
    """A retry of an ordered group holds up its group, not the others that share a limit with it."""
    limit(drive, "k/", "c=1")
    put(drive, "=k/a:a0", "=k/a:a1", "k/b:b0")
    assert get(drive, "l1", 1) == ["a0"]
    drive.settle(nacked("l1", 1000))
    assert get(drive, "l2") == ["b0"]
    assert found(drive, repair=False) == []
    drive.run(promote(drive.keys, 10, now_ms=NOW + 1000))
    assert get(drive, "l3", at=NOW + 1000) == []
    drive.settle(Outcomes("l2", acks=["0"]), at=NOW + 1000)
    assert get(drive, "l4", at=NOW + 1000) == ["a0"]
    assert found(drive, repair=False) == []
    drive.settle(nacked("l4", 1000), at=NOW + 1000)
    drive.run(purge(drive.keys, "delayed", 10, now_ms=NOW + 1000))
    assert get(drive, "l5", at=NOW + 1000) == ["a1"]
    drive.settle(Outcomes("l5", acks=["0"]), at=NOW + 1000)
    assert idle(drive) == EMPTY


def test_a_suspect_that_waits_for_its_rate_takes_no_slot_of_its_parent(drive: Drive) -> None:
    """It gets one again before it runs."""
    limit(drive, "k/", "c=1")
    limit(drive, "k/a", "r=1/60000 b=1")
    put(drive, "k/a:a0", "k/b:b0")
    assert get(drive, "l1", 1) == ["a0"]
    _crash(drive, "l1", "0")
    assert get(drive, "l2", suspects=Suspects.FIRST) == ["b0"]
    assert found(drive, repair=False) == []
    due = NOW + 60_000
    assert get(drive, "l3", at=due, suspects=Suspects.FIRST) == []
    drive.settle(Outcomes("l2", acks=["0"]), at=due)
    assert get(drive, "l4", at=due + 1000, suspects=Suspects.FIRST) == ["a0"]
    put(drive, "k/b:b1", at=due + 1000)
    assert get(drive, "l5", at=due + 1000) == []
    assert found(drive, repair=False) == []
    drive.settle(Outcomes("l4", acks=["0"]), at=due + 1000)
    assert get(drive, "l6", at=due + 1000) == ["b1"]
    drive.settle(Outcomes("l6", acks=["0"]), at=due + 1000)
    get(drive, "l7", at=due + 99_000)
    assert idle(drive) == EMPTY


def test_of_many_suspects_that_wait_for_a_rate_a_few_are_looked_at_a_second(drive: Drive) -> None:
    """A clock that is set back makes the next look no later."""
    limit(drive, "a", "r=1/600000 b=12")
    put(drive, *[f"a:a{number}" for number in range(12)])
    get(drive, "l1")
    put(drive, "plain")
    get(drive, "l0")
    _crash(drive, "l1", *map(str, range(1, 13)))
    _crash(drive, "l0", "0")
    assert get(drive, "l2", suspects=Suspects.FIRST) == []
    assert get(drive, "l3", at=NOW + 999, suspects=Suspects.FIRST) == []
    assert get(drive, "l4", at=NOW + 1000, suspects=Suspects.FIRST) == ["plain"]
    assert get(drive, "l5", at=NOW + 1000, suspects=Suspects.FIRST) == []
    put(drive, "next")
    get(drive, "l6")
    _crash(drive, "l6", "0")
    assert get(drive, "l7", at=NOW + 1001, suspects=Suspects.FIRST) == []
    looks = [get(drive, f"back{n}", at=NOW - 3000 - n, suspects=Suspects.FIRST) for n in range(3)]
    assert ["next"] in looks


def test_a_rate_limited_suspect_waits(drive: Drive) -> None:
    """Its group waits, and so does the message itself: it is not received again at once."""
    put(drive, "a:a0")
    get(drive, "l1")
    crashed = Outcomes("l1")
    crashed.crash("0")
    drive.settle(crashed)
    assert get(drive, "l2", suspects=Suspects.FIRST) == ["a0"]
    limited = Outcomes("l2")
    limited.limit("0", 30_000)
    drive.settle(limited)
    assert get(drive, "l3", suspects=Suspects.FIRST) == []
    drive.run(promote(drive.keys, 100, now_ms=NOW + 30_000))
    assert get(drive, "l4", at=NOW + 30_000, suspects=Suspects.FIRST) == ["a0"]
    drive.settle(Outcomes("l4", acks=["0"]), at=NOW + 30_000)
    get(drive, "l5", at=NOW + 60_000)
    assert idle(drive) == EMPTY


def test_a_group_that_ran_empty_and_gets_a_member_of_ready_keeps_its_turn(drive: Drive) -> None:
    """Versions without groups put members there; the receive that seats one may have ended the last of the group."""
    put(drive, "p1")
    put(drive, "a:a0", "t/b:b0", ttl_ms=1000)
    for name in ("a", "t%2Fb"):
        drive.redis.rpush(drive.keys.ready[0], f"q1 {name[0]}1 {NOW} 0 0 0 0 g={name}\nx")
    received = get(drive, "l1", at=NOW + 2000)
    for number in range(2, 5):
        received += get(drive, f"l{number}", at=NOW + 2000)
    assert sorted(received) == ["a1", "p1", "t1"]


def test_an_expired_or_deleted_member_leaves_no_record_of_its_parent(drive: Drive) -> None:
    """Nothing of the group is in flight that would clear it later."""
    put(drive, "t/a:a0", ttl_ms=1000)
    put(drive, "z:z0")
    assert get(drive, "l1", at=NOW + 1000) == ["z0"]
    drive.settle(Outcomes("l1", ack_all=True))
    assert idle(drive) == EMPTY
    put(drive, "t/a:a1")
    drive.run(purge(drive.keys, "ready", now_ms=NOW))
    assert get(drive, "l2") == []
    assert idle(drive) == EMPTY


def test_the_slots_of_a_batch_come_free_in_parts(drive: Drive) -> None:
    """Of many acks the field that they share is written again, of few each slot gets its own; the limits hold."""
    limit(drive, "*", "c=1")
    for number in range(2):
        put(drive, *[f"g{n}:{number}-{n}" for n in range(20)], f"p{number}")
    assert len(get(drive, "l1", 100)) == 22
    for first, last, shared in ((1, 7, True), (5, 14, True), (15, 15, False), (15, 16, False)):
        acks = [str(index) for index in range(first, last + 1)]
        drive.settle(Outcomes("l1", acks=acks))
        assert drive.redis.hexists(drive.keys.slots, "l1") == shared
        assert found(drive, repair=False) == []
    seen = len(get(drive, "l2", 100))
    drive.settle(Outcomes("l1", ack_all=True), Outcomes("l2", ack_all=True))
    seen += len(get(drive, "l3", 100))
    drive.settle(Outcomes("l3", ack_all=True))
    assert (seen, idle(drive)) == (20, EMPTY)


def test_the_first_limit_counts_what_is_in_flight(drive: Drive) -> None:
    """A batch, parts of one that was loosened, and a message alone: each frees its slot."""
    put(drive, *[f"a:a{n}" for n in range(14)], "b:b0")
    assert len(get(drive, "l1", 2)) == 2
    assert len(get(drive, "l2", 9)) == 9
    drive.settle(Outcomes("l2", acks=["3"]))
    assert not drive.redis.hexists(drive.keys.slots, "l2")
    assert get(drive, "l3", 1) == ["a10"]
    assert found(drive, repair=False) == []
    assert drive.redis.hlen(drive.keys.groups) > 0
    drive.run(set_limit(drive.keys, "*", "c=10"))
    assert found(drive, repair=False) == []
    assert get(drive, "l4") == []
    for number, (lease, index) in enumerate((("l1", "1"), ("l2", "9"), ("l3", "0"))):
        drive.settle(Outcomes(lease, acks=[index]))
        assert get(drive, f"m{number}") == [f"a{11 + number}"]
        assert found(drive, repair=False) == []
    leases = ["l1", "l2", *(f"m{number}" for number in range(3))]
    drive.settle(*(Outcomes(lease, ack_all=True) for lease in leases))
    assert idle(drive) == EMPTY


def test_what_is_not_counted_is_shown(drive: Drive) -> None:
    """Groups that wait and run, those that only run, and ordered ones, which are counted."""
    put(drive, "a:a0", "b:b0", "=c:c0", "a:a1", "=c:c1")
    assert sorted(get(drive, "l1")) == ["a0", "a1", "b0", "c0"]
    put(drive, "a:a2")
    _, _, states = drive.run(group_page(drive.keys))
    assert sorted((s.name, s.waiting, s.running) for s in states) == [("=c", 1, 1), ("a", 1, 0)]
    assert drive.run(running_page(drive.keys)) == ("0", {"a": 2, "b": 1})
    _, large = drive.run(largest(drive.keys, 10, now_ms=NOW))
    assert sorted((g.name, g.waiting, g.running) for g in large) == [("=c", 1, 1), ("a", 1, 2)]


@pytest.mark.parametrize("settled_first", [False, True])
def test_a_group_that_sends_whenever_it_is_received_has_its_turns_only(
    drive: Drive, settled_first: bool
) -> None:
    """It is empty after each receive, and would be next again if that gave it credit."""
    put(drive, *[f"b:b{n}" for n in range(40)])
    put(drive, "a:a")
    got, held = [], None
    for number in range(40):
        if settled_first and held:
            drive.settle(Outcomes(held, ack_all=True))
        held = f"l{number}"
        got += get(drive, held, 2 if number % 2 else 1)
        put(drive, f"a:a{number}")
    assert 27 <= sum(word.startswith("b") for word in got) <= 33


def test_many_groups_that_run_empty_do_not_hide_one_that_did(drive: Drive) -> None:
    """Their names are kept in a bounded place, whose older half is looked at, too."""
    put(drive, "a:a0")
    assert get(drive, "l0") == ["a0"]
    names = [f"a-group-with-a-long-name-{n:03}" for n in range(250)]
    put(drive, *(f"{name}:m{n}" for n, name in enumerate(names)))
    assert [len(get(drive, f"m{n}", 100)) for n in range(3)] == [100, 100, 50]
    put(drive, "a:a1", "b:b0")
    assert get(drive, "l1", 1) == ["b0"]


def test_leases_are_revoked_with_their_slots(drive: Drive) -> None:
    """Of groups that are counted, and of others."""
    put(drive, "=a:a0", "b:b0", "=a:a1", "c/c:c0")
    assert sorted(get(drive, "l1")) == ["a0", "b0", "c0"]
    assert drive.run(revoke(drive.keys, [b"l1"])) == 3
    assert get(drive, "l2") == ["a1"]
    drive.settle(Outcomes("l2", ack_all=True))
    assert idle(drive) == EMPTY


@pytest.mark.parametrize("name", ["=a", "=t/a"])
def test_a_batch_ends_at_its_size(drive: Drive, name: str) -> None:
    """A member that does not fit any more stays the next of its group."""
    flags = {"g": name}
    for group, message in ((name, "a0"), ("b", "b0"), ("c", "c0")):
        body = tail(b"x" * 600_000, flags if group == name else {"g": group})
        made = [NewMessage(message, body, group=group)]
        drive.run(send(drive.keys, made, lane="", sequence=0, now_ms=NOW))
    received = [get(drive, f"l{number}") for number in range(3)]
    assert sorted(received) == [["a0"], ["b0"], ["c0"]]
    drive.settle(*[Outcomes(f"l{number}", ack_all=True) for number in range(3)])
    assert idle(drive) == EMPTY


@pytest.mark.parametrize("end", ["delete", "purge"])
@pytest.mark.parametrize("wait", ["release", "nack"])
def test_a_delayed_member_holds_its_ordered_group_until_it_ends(
    drive: Drive, wait: str, end: str
) -> None:
    """A released one as well as a nacked one; to delete or purge it lets the next one run."""
    put(drive, "=a:a0", "=a:a1")
    assert get(drive, "l1") == ["a0"]
    outcome = Outcomes("l1")
    if wait == "release":
        outcome.release("0", 60_000)
    else:
        outcome.nack("0", 60_000)
    drive.settle(outcome)
    assert get(drive, "l2") == []
    if end == "delete":
        [item] = drive.redis.zrange(drive.keys.delayed, 0, 0)
        drive.run(delete(drive.keys, [item], now_ms=NOW))
    else:
        drive.run(purge(drive.keys, "delayed", now_ms=NOW))
    assert get(drive, "l3") == ["a1"]
    drive.settle(Outcomes("l3", ack_all=True))
    assert idle(drive) == EMPTY


def test_a_run_that_sleeps_holds_its_ordered_group(drive: Drive) -> None:
    """The next one of the group begins when the run has ended, not when it is parked."""
    put(drive, "=acct:a", "=acct:b")
    assert get(drive, "l1", 1) == ["a"]
    outcomes = Outcomes("l1")
    outcomes.park("0", 1000, "~sleep", keep_ms=60_000)
    drive.settle(outcomes)
    assert get(drive, "l2") == []
    drive.run(promote(drive.keys, 10, now_ms=NOW + 1000))
    assert get(drive, "l3", at=NOW + 1000) == ["a"]
    assert get(drive, "l4", at=NOW + 1000) == []
    drive.settle(Outcomes("l3", acks=["0"]), at=NOW + 1001)
    assert get(drive, "l5", at=NOW + 1001) == ["b"]
    drive.settle(Outcomes("l5", acks=["0"]), at=NOW + 1002)
    assert idle(drive) == EMPTY


@pytest.mark.parametrize(
    ("names", "limits", "left"),
    [
        (["a"], {}, 49),
        (["p/0", "p/1"], {}, 49),
        ([f"p/{n}" for n in range(50)], {}, 17),
        (["a"], {"a": "c=5"}, 4),
        (["=a", "b"], {}, 25),
        (["p/0", "p/1"], {"p/": "c=8"}, 7),
        (["a"], {"a": "r=1/1000 b=10"}, 9),
    ],
)
def test_a_receive_says_how_many_more_may_run(
    drive: Drive, names: list[str], limits: dict[str, str], left: int
) -> None:
    """Not how many groups stand in line: a worker receives as many at once as it is told."""
    for name, words in limits.items():
        limit(drive, name, words)
    for number in range(50):
        put(drive, f"{names[number % len(names)]}:m{number}")
    assert drive.receive("l1", 1).ready_left == left


def test_no_group_starves_while_the_clock_goes_back(drive: Drive) -> None:
    """By an hour, with groups that wait for a rate and for a handler's time: each runs at its rate from then on."""
    limit(drive, "slow", "r=10/1000 b=1")
    limit(drive, "p/", "r=10/1000 b=1")
    for group, name in (("slow", "s"), ("p/x", "p"), ("fair", "f"), ("=order", "o")):
        put(drive, *[f"{group}:{name}{n}" for n in range(3)])
    later = NOW + 3_600_000
    assert len(get(drive, "l1", at=later)) == 6
    drive.settle(Outcomes("l1", ack_all=True), at=later)
    seen: list[str] = []
    for step in range(40):
        at = NOW + 50 * step
        seen += get(drive, f"m{step}", at=at)
        drive.settle(Outcomes(f"m{step}", ack_all=True), at=at)
    assert sorted(seen) == ["o1", "o2", "p1", "p2", "s1", "s2"]
    get(drive, "last", at=NOW + 9000)
    assert idle(drive) == EMPTY


@pytest.mark.parametrize("number", [2, 120])
def test_waits_that_handlers_asked_for_are_no_longer_after_a_clock_was_set_back(
    drive: Drive, number: int
) -> None:
    """As long as they were to last; and none hides a group that waits for its rate, however many they are."""
    limit(drive, "rated", "r=10/1000 b=1")
    put(drive, *[f"g{n}:m{n}" for n in range(number)])
    get(drive, "L", number)
    limited = Outcomes("L")
    for n in range(number):
        limited.limit(str(n + 1), 30_000)
    later = NOW + 3_600_000
    drive.settle(limited, at=later)
    put(drive, "rated:a", "rated:b", "rated:c", at=later)
    assert get(drive, "A", at=later) == ["a"]
    assert get(drive, "B", 1, at=later) == []
    batch = drive.receive("C", number, at=NOW)
    assert (ids(batch.items), batch.hint_ms) == ([], 100)  # a burst
    assert get(drive, "D", at=NOW + 100) == ["b"]
    assert get(drive, "E", at=NOW + 200) == ["c"]
    assert get(drive, "F", at=NOW + 29_999) == []
    assert len(get(drive, "G", number, at=NOW + 30_000)) == min(number, 100)  # of a call


def test_a_settle_takes_a_full_group_out_of_line(drive: Drive) -> None:
    """A group at its limit is not even looked at by receives."""
    put(drive, *[f"a:a{n}" for n in range(3)])
    assert get(drive, "l1", 2) == ["a0", "a1"]
    drive.run(set_limit(drive.keys, "a", "c=1"))
    drive.settle(Outcomes("l1", acks=["1"]))
    assert drive.redis.zrange(drive.keys.turns, 0, -1) == []


@pytest.mark.slow
def test_a_change_of_limits_that_was_interrupted_keeps_no_group_out_of_line(drive: Drive) -> None:
    """All were full when the last limit was removed, and a page of them has looked: acks let the rest run."""
    limit(drive, "*", "c=1")
    names = [f"g{number}" for number in range(900)]
    for part in "ab":
        put(drive, *[f"{name}:{name}{part}" for name in names])
    leases = [f"k{number}" for number in range(3)]
    assert {len(get(drive, lease, 300)) for lease in leases} == {300}
    assert drive.run(set_limit(drive.keys, "*", "")) != "0"
    assert drive.redis.zcard(drive.keys.turns) == 250
    drive.settle(*(Outcomes(lease, ack_all=True) for lease in leases))
    assert (len(get(drive, "l2", 1000)), len(get(drive, "l3", 1000))) == (500, 400)


@pytest.mark.slow
def test_a_change_of_limits_lets_all_run_that_were_full_or_waited_for_a_time(drive: Drive) -> None:
    """In calls of 250: a batch has more, and more than those wait for their rate; others are not looked at."""
    limit(drive, "*", "c=1")
    limit(drive, "p/", "c=1")
    put(drive, *[f"g{n}:a{n}" for n in range(400)], *[f"g{n}:b{n}" for n in range(400)])
    put(drive, "p/x:x", "p/y:y")
    assert len(get(drive, "l1", 401)) == 401
    put(drive, *[f"h{n}:h{n}" for n in range(600)])
    for n in range(600):
        drive.redis.zadd(drive.keys.later, {f"h{n}": NOW + 3_600_000})
        drive.redis.zrem(drive.keys.turns, f"h{n}")
    drive.redis.hdel(drive.keys.limits, "p/")
    calls, cursor = 1, drive.run(set_limit(drive.keys, "*", ""))
    while cursor != "0":
        calls, cursor = calls + 1, drive.run(set_limit(drive.keys, "", "", cursor))
        assert calls < 9
    assert drive.redis.zcard(drive.keys.turns) == 400 + 1 + 600
    assert drive.redis.zcard(drive.keys.later) == 0


def test_a_full_group_that_saw_no_change_of_limits_runs_when_a_slot_is_free(drive: Drive) -> None:
    """A scan may pass a slot that its lease just gives a field of its own."""
    limit(drive, "a", "c=1")
    put(drive, "a:a0", "a:a1", "b:b0")
    assert get(drive, "l1") == ["a0", "b0"]
    drive.redis.hdel(drive.keys.limits, "a")
    drive.settle(Outcomes("l1", ack_all=True))
    assert get(drive, "l2") == ["a1"]


def test_names_of_recent_groups_take_four_kilobytes(drive: Drive) -> None:
    """Twice, for those of the turn before; of a large batch the first in line are kept, which would be next again."""
    names = [f"g{number:03}" + "x" * 196 for number in range(60)]
    put(drive, *[f"{name}:m{at}" for at, name in enumerate(names)])
    assert len(get(drive, "l1", 60)) == 60
    kept = [value or b"" for value in drive.redis.hmget(drive.keys.groups, "@before", "@recent")]
    assert [3900 < len(value) <= 4096 for value in kept] == [True, True]
    noted = [name for value in kept for name in value.decode().split("\n")[1:-1]]
    assert noted == names[: len(noted)]


def test_what_runs_is_counted_once_in_calls_of_five_hundred(drive: Drive) -> None:
    """Of batches, of messages alone, and of a batch in part: no call returns more, and none is counted twice."""
    for first in (0, 550):
        put(drive, *[f"g{number}:m{number}" for number in range(first, first + 550)])
    for lease, count in (("l1", 490), ("l2", 1), ("l3", 120), ("l4", 1), ("l5", 488)):
        assert len(get(drive, lease, count)) == count
    drive.settle(Outcomes("l3", acks=["7"]))
    seen: Counter[str] = Counter()
    cursor = "r0"
    while cursor != "0":
        cursor, page = drive.run(running_page(drive.keys, cursor))
        seen.update(page)
        assert sum(page.values()) <= 500
    assert (len(seen), set(seen.values())) == (1099, {1})


def test_a_group_with_a_past_stands_no_earlier_than_the_queue(drive: Drive) -> None:
    """It was full while others ran; the turns of that time are not made up for."""
    limit(drive, "a", "c=1")
    put(drive, *[f"{g}:{g}{n}" for g in "ab" for n in range(40)])
    assert get(drive, "l1", 1) == ["a0"]
    get(drive, "l2", 20)
    limit(drive, "a", "c=100")
    drive.settle(Outcomes("l1", acks=["0"]))
    tag = float(drive.redis.hget(drive.keys.groups, "@tag") or 0)
    assert (drive.redis.zscore(drive.keys.turns, "a") or 0) >= tag > 10
    assert Counter(i[0] for i in get(drive, "l3", 20))["a"] <= 11


def test_a_batch_is_filled_beyond_groups_that_give_nothing(drive: Drive) -> None:
    """As many more of those that stand in line are looked at, while others of the first ones still wait."""
    put(drive, "a:a0")
    drive.run(purge(drive.keys, "ready", 1000, now_ms=NOW))
    put(drive, "b:b0", "c:c0", "d:d0")
    assert get(drive, "l1", 2) == ["b0", "c0"]


@pytest.mark.parametrize("name", ["a", "t/a"])
def test_messages_that_have_expired_keep_no_other_group_waiting(drive: Drive, name: str) -> None:
    """Sixteen of them end in one turn, so a flood of them costs others a part of a call."""
    put(drive, *[f"{name}:a{n}" for n in range(600)], ttl_ms=1000)
    put(drive, f"{name}:last", "b:b0", "b:b1", at=NOW + 1)
    assert get(drive, "l1", 2, at=NOW + 2000) == ["b0", "b1"]
    assert get(drive, "l2", 1, at=NOW + 2000) == []
    assert get(drive, "l3", 1, at=NOW + 2000) == []
    put(drive, *[f"b:c{n}" for n in range(100)], at=NOW + 2000)
    assert get(drive, "l4", 100, at=NOW + 2000)[:20].count("last") == 1
