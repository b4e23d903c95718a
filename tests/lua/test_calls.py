"""Groups of calls (join, gather, abandon, values): begun once, each end counted once, decided once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import qworker
from qworker.client.plan import run_plan
from qworker.client.relay import relay
from qworker.engine.calls import End, WaitingRun, abandon, begin, count_ends, read_values
from qworker.engine.command import Command
from qworker.engine.effects import member_effect
from qworker.engine.outbox import OutboxMessage, OutboxPage, forward
from qworker.engine.run import signal_run
from qworker.engine.settle import Outcomes
from qworker.errors import AccessDeniedError, LeaseLostError
from qworker.wire.calls import MemberCall, Policy, Spec, lane_of, write_spec
from tests.lua.drive import NOW, Drive, deny, guarded, own

LANE = "out-a1"
OK, DEAD = b"ok\n1", b"dead max_receives ValueError b t g.0\nno"


def spec_of(size: int, policy: Policy = "all", **changed: Any) -> Spec:
    """A group g of calls in the queue b, whose callback has the body `done`."""
    members = [MemberCall("b", 0, "", "", f"q1 g.{n} ", b"\nx") for n in range(size)]
    then = (0, "", "", "q1 g ", b" h=1 j=- r=1000\ndone")
    return structs.replace(Spec("g", size, policy, 0, members, then), **changed)


def start(drive: Drive, spec: Spec, number: int = 1, **given: Any) -> Any:
    """Begin a group."""
    lane = given.pop("lane", lane_of("g"))
    return drive.run(begin(drive.keys, "g", write_spec(spec), lane, number, now_ms=NOW, **given))


def count(drive: Drive, *ends: tuple[int, bytes], first: int = 1, lane: str = LANE) -> Any:
    """Count ends of members, with consecutive numbers."""
    told = [End(n, b"g", member, words) for n, (member, words) in enumerate(ends, first)]
    return drive.run(count_ends(drive.keys, lane, told, now_ms=NOW))


def ready(drive: Drive) -> list[str]:
    """The bodies that are ready."""
    return [item.partition("\n")[2] for item in drive.state("ready").get("ready", [])]


def sent(drive: Drive) -> list[str]:
    """The heads of the messages in the outbox for queue b."""
    page: OutboxPage = drive.run(forward(drive.keys, "b", now_ms=NOW))
    return [entry.head.decode() for entry in page.entries]  # type: ignore[union-attr]


def test_a_group_begins_with_its_members_in_an_outbox(engine_drive: Drive) -> None:
    """In their order, and once, however often the call is repeated; also after the group has ended."""
    drive = engine_drive
    assert start(drive, spec_of(2)).sent == 2
    assert start(drive, spec_of(2)).sent == 2
    assert sent(drive) == ["q1 g.0 ", "q1 g.1 "]
    assert drive.redis.zscore(drive.keys.joins, "g") == NOW
    drive.run(abandon(drive.keys, ["g"], ""))
    assert start(drive, spec_of(2)).sent == 2
    assert sent(drive) == ["q1 g.0 ", "q1 g.1 "]
    assert not drive.redis.exists(drive.keys.join("g"))


def test_a_group_in_parts_continues_where_it_stopped(drive: Drive) -> None:
    """Another process may send the parts again; a part of a group that is gone changes nothing."""
    members = spec_of(3).members
    one = spec_of(3, members=members[:2])
    two = spec_of(3, first=2, members=members[2:])
    assert start(drive, two, 2).gone
    assert start(drive, one).sent == 2
    assert start(drive, one, 7, lane="out-b2").sent == 2
    assert start(drive, two, 2).sent == 3
    assert sent(drive) == ["q1 g.0 ", "q1 g.1 ", "q1 g.2 "]


def test_the_queues_of_all_parts_are_kept(drive: Drive) -> None:
    """A cancel looks for the calls there, and for later steps of chains in the others."""
    spec = spec_of(2, queues=["d"])
    members = [structs.replace(spec.members[0], queue="c")]
    start(drive, structs.replace(spec, members=spec.members[:1]))
    start(drive, structs.replace(spec, first=1, members=members, queues=None), number=2)
    listed = drive.redis.hget(drive.keys.join("g"), "@queues").decode()
    assert sorted(listed.split()) == ["b", "c", "d"]


def test_a_second_start_with_another_content_sends_nothing(drive: Drive) -> None:
    """The first one counts, and is returned."""
    start(drive, spec_of(1, start=b"one", keep=1000))
    begun = start(drive, spec_of(1, start=b"two", keep=1000), 1, lane="out-b2")
    assert begun.start == b"one"
    assert sent(drive) == ["q1 g.0 "]
    count(drive, (0, OK))
    drive.receive("L")
    drive.settle(_ended("L"))
    assert drive.state("join:g") == {
        "join:g": {"@start": "one", "@size": "1", "@sent": "1", "@over": "1"}
    }
    assert 0 < drive.redis.pttl(drive.keys.join("g")) <= 1000


def told(drive: Drive, queue: str) -> list[tuple[bytes, int, bytes]]:
    """The ends in the outbox for a queue: group, member, words."""
    page: OutboxPage = drive.run(forward(drive.keys, queue, now_ms=NOW))
    return [(e.group_id, e.member, e.words) for e in page.entries if isinstance(e, End)]


def test_the_first_success_names_the_rest_to_their_queues(engine_drive: Drive) -> None:
    """Those that have not ended, with the later steps of chains; once, and also if the group began in parts."""
    drive = engine_drive
    members = [MemberCall("b" if n % 2 else "c", 0, "", "", f"q1 g.{n} ", b"\nx") for n in range(5)]
    one = spec_of(5, "first", members=members[:3], rest={"d": " 1-1 2-1", "b": " 2-2"})
    two = spec_of(5, "first", members=members[3:], first=3, rest={"d": " 4-1"})
    start(drive, one)
    start(drive, two, 2)
    count(drive, (3, DEAD), (0, b"discarded c t g.0"))
    assert [*told(drive, "b"), *told(drive, "c"), *told(drive, "d")] == []
    count(drive, (2, OK), (1, OK), (4, OK), first=3)
    assert told(drive, "b") == [(b"g", 0, b"rest 1")]
    assert told(drive, "c") == [(b"g", 0, b"rest 4")]
    assert told(drive, "d") == [(b"g", 0, b"rest 1-1 4-1")]
    assert drive.redis.hget(drive.keys.join("g"), "@rest") == b"", "it takes no more room"
    assert ready(drive) == ["done"]


def test_without_cancel_rest_the_first_success_tells_nothing(drive: Drive) -> None:
    """The others run on; so they do if no call has succeeded."""
    start(drive, spec_of(2, "first"))
    count(drive, (0, OK))
    assert told(drive, "b") == []
    drive.run(abandon(drive.keys, ["g"], ""))
    start(drive, spec_of(1, "first", rest={}), 7)
    count(drive, (0, b"discarded b t g.0"), first=2)
    assert told(drive, "b") == []


def test_a_group_that_is_all_over_tells_nothing_of_a_rest(drive: Drive) -> None:
    """Its only call has succeeded; a withdrawn death counts as a call that has not ended."""
    start(drive, spec_of(1, "first", rest={}))
    count(drive, (0, OK))
    assert told(drive, "b") == []
    drive.run(abandon(drive.keys, ["g"], ""))
    start(drive, spec_of(2, "first", rest={}), 7)
    count(drive, (1, DEAD), (1, b""), (0, OK), first=2)
    assert told(drive, "b") == [(b"g", 0, b"rest 1")]


def test_a_group_that_is_decided_midway_sends_no_more_of_the_rest(drive: Drive) -> None:
    """Its first part had the first success; a part that is sent again is noted once."""
    members = spec_of(4).members
    one = spec_of(4, "first", members=members[:2], rest={"d": " 0-1 1-1"}, start=b"s", keep=1000)
    two = spec_of(4, "first", members=members[2:], first=2, rest={}, start=b"s", keep=1000)
    start(drive, one)
    assert start(drive, one, 7, lane="out-b2").sent == 2
    count(drive, (0, OK))
    assert told(drive, "b") == [(b"g", 0, b"rest 1")]
    assert told(drive, "d") == [(b"g", 0, b"rest 1-1")]
    assert start(drive, two, 2).gone
    assert sent_ids(drive) == ["q1 g.0 ", "q1 g.1 "]
    other = structs.replace(one, start=b"t")
    assert start(drive, other, 9, lane="out-b3").start == b"s"


def sent_ids(drive: Drive) -> list[str]:
    """The heads of the messages among what is in the outbox for queue b."""
    page: OutboxPage = drive.run(forward(drive.keys, "b", now_ms=NOW))
    return [entry.head.decode() for entry in page.entries if isinstance(entry, OutboxMessage)]


def test_the_rest_gets_tombstones_where_it_is(engine_drive: Drive) -> None:
    """For a day, in one step per thousands; a tombstone that stands for longer does so."""
    drive = engine_drive
    day_ms = 86_400_000
    longer = {"g.1": NOW + 7 * day_ms, "g.5009": NOW + 7 * day_ms}
    drive.redis.zadd(drive.keys.cancelled, longer)
    count(drive, (0, b"rest 1 2-1 " + b" ".join(b"%d" % n for n in range(10, 5010))))
    stones = dict(drive.redis.zrange(drive.keys.cancelled, 0, -1, withscores=True))
    assert len(stones) == 5002
    named = {
        str(name, "utf-8") if isinstance(name, bytes) else name: at for name, at in stones.items()
    }
    assert {name: named.pop(name) for name in longer} == longer
    assert set(named.values()) == {NOW + day_ms}
    # Relayed twice, it is left out.
    drive.redis.delete(drive.keys.cancelled)
    count(drive, (0, b"rest 1"))
    assert not drive.redis.exists(drive.keys.cancelled)


def _ended(lease: str) -> Outcomes:
    outcomes = Outcomes(lease)
    outcomes.ack_with(0, [("end",)])
    return outcomes


def test_each_end_counts_once_and_the_last_sends_the_callback(engine_drive: Drive) -> None:
    """Ends told twice, by the same number or another one, change nothing."""
    drive = engine_drive
    start(drive, spec_of(2))
    count(drive, (0, OK), (0, b"ok\n2"))
    count(drive, (0, OK), (0, b"ok\n2"), (1, b"discarded b t g.1"))
    count(drive, (1, OK), first=9)
    assert ready(drive) == ["done"]
    values = drive.run(read_values(drive.keys, "g"))
    assert values.ends == (OK, b"discarded b t g.1")
    assert drive.stats("sent", "stored", "gathered") == {"sent": 1, "stored": 1, "gathered": 1}
    assert not drive.redis.exists(drive.keys.joins)


@pytest.mark.parametrize("policy", ["all", "successes"])
def test_a_redrive_withdraws_a_death(drive: Drive, policy: Policy) -> None:
    """Until the callback is sent; a drop makes it final."""
    start(drive, spec_of(2, policy))
    count(drive, (0, DEAD))
    told = drive.state("result:g")
    assert bool(told) == (policy == "successes")
    count(drive, (0, b""), (0, OK), first=2)
    assert drive.state("result:g") == {}
    count(drive, (1, OK), first=9)
    assert ready(drive) == ["done"]


def test_a_dropped_dead_letter_ends_a_group_of_successes(drive: Drive) -> None:
    """Its callback is not sent, its values go, and those who wait for the result have been told of the death."""
    start(drive, spec_of(2, "successes"))
    count(drive, (0, DEAD), (0, b"purged b t g.0"), (1, OK))
    assert drive.state("ready", "joins", "join:g", "result:g") == {
        "result:g": DEAD.decode(),
    }


def test_the_first_success_decides_and_later_ones_do_not(drive: Drive) -> None:
    """Failures before it do not end the group."""
    start(drive, spec_of(3, "first"))
    count(drive, (0, DEAD), (2, OK), (1, b"ok\n2"))
    assert ready(drive) == ["done"]
    assert drive.run(read_values(drive.keys, "g")).ends == (DEAD, b"", OK)


def test_values_over_the_limit_count_as_failures(drive: Drive) -> None:
    """So a group keeps at most 64 MiB."""
    start(drive, spec_of(2))
    drive.redis.hset(drive.keys.join("g"), "@bytes", 67_108_860)
    count(drive, (0, b"ok\n" + b"1" * 10), (1, b""))
    assert drive.redis.hget(drive.keys.join("g"), "0").startswith(b"dead bad_result")


def test_a_value_over_the_limit_is_no_first_success(drive: Drive) -> None:
    """The callback would get no value; the group waits for another call."""
    start(drive, spec_of(2, "first"))
    drive.redis.hset(drive.keys.join("g"), "@bytes", 67_108_860)
    count(drive, (0, b"ok\n" + b"1" * 10))
    assert ready(drive) == []
    assert drive.redis.zscore(drive.keys.joins, "g") == NOW


def test_a_wait_for_a_first_success_sees_deaths_until_there_is_one(drive: Drive) -> None:
    """Once no call is left; a success after that takes back what was said."""
    start(drive, spec_of(2, "first"))
    count(drive, (0, DEAD))
    assert drive.state("result:g") == {}
    count(drive, (1, DEAD), first=2)
    assert drive.state("result:g") == {"result:g": DEAD.decode()}
    count(drive, (1, OK), first=3)
    assert (drive.state("result:g"), ready(drive)) == ({}, ["done"])


def test_a_dropped_dead_letter_keeps_its_words(drive: Drive) -> None:
    """The callback gets the error that the call died of, not the drop."""
    start(drive, spec_of(2))
    count(drive, (0, DEAD), (0, b"purged b t g.0"), (1, OK))
    assert drive.run(read_values(drive.keys, "g")).ends == (DEAD, OK)


def test_what_a_redrive_replaces_is_no_part_of_the_size(drive: Drive) -> None:
    """A call that is redriven a thousand times takes no more of the limit than one that succeeds at once."""
    start(drive, spec_of(2))
    count(drive, *((0, words) for _ in range(20) for words in (DEAD, b"")), (0, OK))
    assert drive.redis.hget(drive.keys.join("g"), "@bytes") == str(len(OK)).encode()


def test_a_run_in_the_place_of_a_callback_gets_a_signal(engine_drive: Drive) -> None:
    """Parked or not, by the deciding end; its groups end with it."""
    drive = engine_drive
    for name in ("r", "s"):
        drive.send(name, flags={"c": "1", "r": "1000"})
    drive.receive("L", 1)
    run = {"then": None, "run": ("r", "!gather#1")}
    start(drive, spec_of(1, **run), run=WaitingRun("r", "L", "0"))
    parked = Outcomes("L")
    parked.park(0, None, "~wait:gather#1", "!gather#1")
    drive.settle(parked)
    count(drive, (0, OK))
    assert ready(drive) == ["s", "r"]
    assert drive.redis.hget(drive.keys.run("r"), "!gather#1") == f" t={NOW}\n1".encode()
    assert drive.run(read_values(drive.keys, "g")).ends == (OK,)
    drive.receive("M", 2)
    ended = Outcomes("M")
    ended.discard(2)
    drive.settle(ended)
    assert not drive.redis.exists(drive.keys.join("g"))
    assert drive.run(signal_run(drive.keys, "s", "!x", b"\n1", known=True)) == b"\n1"


def test_a_run_that_has_ended_is_not_signalled(drive: Drive) -> None:
    """Its state would come to life again, without an end."""
    drive.send("r", flags={"c": "1", "r": "1000"})
    drive.receive("L")
    start(drive, spec_of(1, then=None, run=("r", "!gather#1")), run=WaitingRun("r", "L", "0"))
    drive.redis.zrem(drive.keys.runs, "r")
    drive.redis.delete(drive.keys.run("r"))
    count(drive, (0, OK))
    assert drive.state("run:r", "joins") == {}


def test_a_delivery_that_was_given_up_begins_no_group(engine_drive: Drive) -> None:
    """Its run may have ended: a group would begin for nothing, and the run would count as one that goes on."""
    drive = engine_drive
    drive.send("r", flags={"c": "1", "r": "1000"})
    drive.receive("L")
    back = Outcomes("L")
    back.release("*")
    drive.settle(back)
    run = {"then": None, "run": ("r", "!gather#1")}
    with pytest.raises(LeaseLostError):
        start(drive, spec_of(1, **run), run=WaitingRun("r", "L", "0"))
    assert not drive.redis.exists(drive.keys.join("g"), drive.keys.runs, drive.keys.out)


def test_a_delivery_in_company_begins_groups(drive: Drive) -> None:
    """The messages of its lease share a field, or have one each."""
    for name in ("r", "s"):
        drive.send(name, flags={"c": "1", "r": "1000"})
    drive.receive("L", 2)
    run = {"then": None, "run": ("s", "!gather#1")}
    assert start(drive, spec_of(1, **run), run=WaitingRun("s", "L", "2")).sent == 1
    drive.settle(Outcomes("L", acks=["1"]))
    assert start(drive, spec_of(1, **run), run=WaitingRun("s", "L", "2")).sent == 1
    with pytest.raises(LeaseLostError):
        start(drive, spec_of(1, then=None, run=("r", "!g")), run=WaitingRun("r", "L", "1"))


@pytest.mark.bad_input(
    "server: a right that is taken away before the end that decides a group of calls is counted"
)
@pytest.mark.parametrize("command", ["hset", "rpush", "zrem"])
def test_an_end_is_counted_as_a_whole_or_not_at_all(command: str) -> None:
    """Counted by half it would not be counted again, and the callback would never be sent."""
    with guarded() as drive:
        start(drive, spec_of(1))
        before = drive.state()
        deny(drive, command)
        with pytest.raises(AccessDeniedError, match="may not write"):
            count(drive, (0, OK))
        assert drive.state() == before
        drive.redis.execute_command("ACL", "SETUSER", "u", f"+{command}")
        count(drive, (0, OK))
        assert ready(drive) == ["done"]


@pytest.mark.bad_input("server: a right that is taken away before a signal wakes a run")
@pytest.mark.parametrize("command", ["hdel", "rpush", "zrem"])
def test_a_run_is_woken_as_a_whole_or_not_at_all(command: str) -> None:
    """Woken by half it would wait for ever."""
    with guarded() as drive:
        drive.send("r", flags={"c": "1", "r": "1000"})
        drive.receive("L")
        parked = Outcomes("L")
        parked.park(0, None, "~wait:go", "!go")
        drive.settle(parked)
        before = drive.state()
        deny(drive, command)
        with pytest.raises(AccessDeniedError, match="may not write"):
            drive.run(signal_run(drive.keys, "r", "!go", b"\n1", now_ms=NOW))
        assert drive.state() == before
        drive.redis.execute_command("ACL", "SETUSER", "u", f"+{command}")
        drive.run(signal_run(drive.keys, "r", "!go", b"\n1", now_ms=NOW))
        assert len(ready(drive)) == 1


def test_an_end_without_its_group_changes_nothing(drive: Drive) -> None:
    """Its group was abandoned; the lane goes on."""
    count(drive, (0, OK))
    assert ready(drive) == []
    start(drive, spec_of(1))
    [waited] = drive.run(abandon(drive.keys, ["g"], "cancelled", now_ms=NOW))
    assert waited
    assert drive.state("result:g", "joins", "join:g") == {
        "result:g": "cancelled",
        # Known for as long as tombstones of its members may stand.
        "join:g": {"@size": "1", "@sent": "1", "@over": str(NOW), "@queues": "b"},
    }
    assert drive.redis.pttl(drive.keys.join("g")) > 6 * 86_400_000


def test_an_abandoned_group_wakes_its_run(drive: Drive) -> None:
    """Which continues with the ends that were counted; later ones are not. A second call changes nothing."""
    drive.send("r", flags={"c": "1", "r": "1000"})
    drive.receive("L")
    start(drive, spec_of(2, then=None, run=("r", "!gather#1")), run=WaitingRun("r", "L", "0"))
    count(drive, (0, OK))
    parked = Outcomes("L")
    parked.park(0, None, "~gather#1", "!gather#1")
    drive.settle(parked)
    assert drive.run(abandon(drive.keys, ["g"], "cancelled")) == [True]
    assert len(ready(drive)) == 1
    count(drive, (1, OK), first=2)
    assert drive.run(read_values(drive.keys, "g")).ends == (OK, b"")
    assert drive.run(abandon(drive.keys, ["g"], "cancelled")) == [False]


@pytest.mark.parametrize("kind", ["cancel", "discard"])
def test_a_run_that_was_cancelled_names_the_queues_of_its_calls(drive: Drive, kind: str) -> None:
    """For as long as its result: a cancel may not have reached them all. One that ended otherwise does not."""
    drive.send("r", flags={"c": "1", "r": "5000"})
    drive.receive("L")
    spec = spec_of(2, then=None, run=("r", "!gather#1"), queues=["d"])
    start(drive, spec, run=WaitingRun("r", "L", "0"))
    count(drive, (0, OK))
    ended = Outcomes("L")
    getattr(ended, kind)(0)
    drive.settle(ended)
    left = drive.redis.hgetall(drive.keys.join("g"))
    assert drive.redis.zcard(drive.keys.joins) == 0
    if kind == "discard":
        assert left == {}
        return
    assert {*left.pop(b"@queues").split()} == {b"b", b"d"}
    assert left == {b"@size": b"2", b"@sent": b"2", b"@over": b"1"}
    assert 0 < drive.redis.pttl(drive.keys.join("g")) <= 5000
    assert drive.run(abandon(drive.keys, ["g"], "cancelled", now_ms=NOW)) == [False]


def test_every_end_of_a_member_is_told(drive: Drive) -> None:
    """By an ack with its value, and in the words of its result by death, discard, delete, expiry, purge and a drop."""
    flags = {"i": f"{drive.keys.queue}:g:0:t", "j": "-"}
    start(drive, spec_of(1, "successes"))
    drive.send("m", flags=flags)
    drive.receive("L")
    acked = Outcomes("L")
    acked.ack_with(0, [member_effect(drive.keys.queue, "g", 0, OK)])
    drive.settle(acked)
    drive.settle(acked)
    drive.send("n", flags=flags)
    drive.receive("L2")
    dead = Outcomes("L2")
    dead.bury(0, "rejected", ("ValueError", "no"))
    drive.settle(dead)
    page: OutboxPage = drive.run(forward(drive.keys, drive.keys.queue, now_ms=NOW))
    words = [entry.words for entry in page.entries]  # type: ignore[union-attr]
    step = f"{drive.keys.queue} t n"
    assert words == [OK, f"dead rejected ValueError {step}\nno".encode()]
    assert drive.stats("dead_of_groups") == {"dead_of_groups": 1}

    def run(command: Command[Any]) -> Any:
        return drive.run(command)

    assert run_plan(run, relay(drive.namespace, drive.keys)) == {}
    assert "done" in ready(drive)


def test_letters_of_flags_and_outcomes_have_one_meaning() -> None:
    """A letter that meant two things once stopped queues."""
    root = Path(qworker.__file__).parents[1]
    protocol = (root / "docs/protocol.md").read_text("utf-8")
    table = protocol[protocol.index("| Flag | Value |") : protocol.index("The **body** of a task")]
    rows = [row.split("|")[1:3] for row in table.splitlines()[2:] if row.startswith("|")]
    letters = [letter for row in rows for letter in re.findall(r"`([a-z])`", row[0])]
    letters += re.findall(r"`([a-z])` 1: free", table)
    assert len(letters) == len(set(letters)) > 20
    kinds = (root / "qworker/lua/lib/outcomes.lua").read_text("utf-8")
    found = re.search(r"local KINDS = '(\w+)'", kinds)
    assert found is not None
    assert len(found[1]) == len(set(found[1]))


def test_a_member_is_refused_by_a_worker_that_cannot_count_its_end() -> None:
    """Every step had a task, a queue and an id; what follows a member has none, so an older worker buries it."""
    import msgspec

    from qworker.client.steps import ChainStep, with_steps
    from qworker.wire.calls import MemberRef

    class EarlierStep(msgspec.Struct):
        task: str
        queue: str
        id: str

    body = with_steps(b'{"task":"t","args":[]}', [ChainStep(join=MemberRef("q", "g", 0))])
    then = msgspec.json.encode(msgspec.json.decode(body)["then"])
    with pytest.raises(msgspec.ValidationError, match="task"):
        msgspec.json.decode(then, type=list[EarlierStep])
    assert own("m", flags=" i=q j=-").startswith("q1 m ")
