"""The usual receive from groups does what the other does: the same histories in two queues, one of them without it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from msgspec import structs

from qworker.engine.command import Command
from qworker.engine.groups import set_limit
from qworker.engine.receive import UNKNOWN, Batch, settle_receive
from qworker.engine.scripts import Script, load_script
from qworker.engine.send import NewMessage, Sent, send
from qworker.engine.settle import Outcomes, Settled, settle
from qworker.errors import BrokenQueueError
from qworker.wire.envelope import tail
from qworker.wire.keys import QueueKeys
from tests.lua.drive import NOW, Drive
from tests.lua.group_calls import EMPTY, get, idle, put

#: Where the short way and the long one take the usual turns → what keeps them from it.
_WAYS = {
    "settle_receive": {
        b"groups, word = not book and short_groups(": b"groups, word = book == 0 and short_groups(",
        b"local each = waiting == 0 and turns.take_each(": b"local each = waiting < 0 and turns.take_each(",
    },
    "settle": {b"fields = uncounted(": b"fields = leases < 0 and uncounted("},
    "send": {b"member = set[10] and": b"member = number < 0 and"},
}
#: A history with parents and messages without groups, and one with few groups.
_BY_DAY = (2, 3)
_NAMES = [f"g{number}" for number in range(40)] + [f"=o{number}" for number in range(20)]


@pytest.fixture
def pair(store_url: str, namespace: str) -> Iterator[tuple[Drive, Drive]]:
    """Two queues; the second is for calls without the usual way."""
    both = Drive(store_url, namespace, "one"), Drive(store_url, namespace, "two")
    yield both
    for drive in both:
        drive.close()


def other_way(command: Command[Any]) -> Command[Any]:
    """The same call of a script without its usual way, which ends where the other begins."""
    assert command.script is not None
    name, source = command.script.name, command.script.source
    for way, never in _WAYS[name].items():
        assert source.count(way) == 1
        source = source.replace(way, never)
    return structs.replace(command, script=Script(name, source, command.script.roles))


def slots_of(stored: dict[str, str | bytes]) -> dict[str, Any]:
    """Lease → the names of its slots, whether they are marked together or one by one."""
    found: dict[str, Any] = {}
    for lease, value in stored.items():
        packed = value if isinstance(value, bytes) else value.encode("latin-1")
        mark = "\1" if packed[:1] == b"\1" and ":" not in lease else ""
        if ":" in lease:
            found[lease] = packed
        else:
            names = msgspec.msgpack.decode(packed[len(mark) :])
            found[lease] = [name and mark + name for name in names]
    return found


def kept(drive: Drive) -> dict[str, Any]:
    """All that a queue keeps, with slots in one form.

    Left out is what the short way does not write: `reaped_ms` for a lease that follows on another, `@ms` where nothing
    is received, and more tokens for a doorbell that has one.
    """
    state = drive.state()
    state["wake"] = bool(state.get("wake"))
    state.get("stats", {}).pop("reaped_ms", None)
    raw = drive.redis.hgetall(drive.keys.slots)
    state["slots"] = slots_of({token.decode(): name for token, name in raw.items()})
    records = drive.redis.hgetall(drive.keys.groups)
    records.pop(b"@ms", None)
    state["groups"] = {
        field: msgspec.msgpack.decode(value) if field[:1] == b":" else value
        for field, value in records.items()
    }
    return state


class History:
    """What happens to two queues alike, by chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.names = _NAMES + ["p/a", "p/b", ""] * (seed % 3 == 2)
        if seed % 4 == 3:
            self.names = self.names[:5] + self.names[-4:]
        self.at, self.number, self.limited = NOW, 0, ""
        #: Lease → the indices that it has left.
        self.leases: dict[str, list[str]] = {}

    def sent(self) -> list[NewMessage]:
        """Members of all kinds of groups; some expire soon, and a few fill a batch by themselves."""
        chance, sent = self.chance, []
        for _ in range(chance.randint(0, 60)):
            self.number += 1
            group, flags = chance.choice(self.names), {}
            if group:
                flags["g"] = group
            if group.startswith("="):
                flags["o"] = str(self.at)
            if chance.random() < 0.05:
                flags["x"] = str(self.at + chance.randint(1, 400))
            body = b"x" * (300_000 if chance.random() < 0.01 else chance.randint(1, 50))
            sent.append(NewMessage(f"m{self.number}", tail(body, flags), group=group))
        return sent

    def send(self) -> Callable[[QueueKeys], Command[Sent]]:
        """Send one message, of any group or none; the same call for each queue."""
        self.number += 1
        group, at, number = self.chance.choice(self.names), self.at, self.number
        flags = {"g": group, "o": str(at)} if group.startswith("=") else {"g": group}
        message = NewMessage(f"m{number}", tail(b"x", flags if group else None), group=group)
        return lambda keys: send(keys, [message], lane="a", sequence=number, now_ms=at)

    def acked(self) -> list[Outcomes]:
        """Acks of whole leases, by their indices or not, and of parts of some."""
        chance, acked = self.chance, []
        for lease in [each for each in self.leases if chance.random() < 0.7]:
            indices = self.leases.pop(lease)
            way = chance.random()
            if (
                way < 0.03
            ):  # a handler raised RateLimited; or of a message of no group, and the queue waits
                acked.append(Outcomes(lease))
                acked[-1].limit(indices[0], chance.randint(1, 60))
                if rest := indices[1:]:
                    self.leases[lease] = rest
            elif way < 0.5:
                acked.append(Outcomes(lease, ack_all=True))
            elif way < 0.9 or len(indices) == 1:
                acked.append(Outcomes(lease, acks=chance.sample(indices, len(indices))))
            else:
                acked.append(Outcomes(lease, acks=indices[::2]))
                self.leases[lease] = indices[1::2]
        return acked

    def limits(self) -> list[tuple[str, str]]:
        """Limits to set; they are removed after a step or some."""
        chance, limited = self.chance, self.limited
        if limited and chance.random() < 0.4:
            self.limited = ""
            return [(limited, "")]
        if limited or chance.random() > 0.07:
            return []
        self.limited = chance.choice(["g1", "*"])
        words = chance.choice(["c=1", "r=5/1000 b=1", "r=1/1 b=10"])
        return [(self.limited, words)] + [(self.limited, "")] * (chance.random() < 0.2)

    def looking(self) -> str:
        """What a caller of limits leaves that stops halfway, '' mostly."""
        chance = self.chance
        return chance.choice(["1", "c0:3"]) + f" {self.at}" if chance.random() < 0.03 else ""

    def settle(self) -> Callable[[QueueKeys], Command[Settled]]:
        """Settle leases; the same call for each queue."""
        acked, at = self.acked(), self.at
        return lambda keys: settle(keys, acked, now_ms=at)

    def receive(self, lease: str) -> Callable[[QueueKeys], Command[Batch]]:
        """Settle leases and receive; the same call for each queue."""
        chance, at = self.chance, self.at
        count, acked = chance.choice([0, 1, 1, 2, 5, 10, 20, 40]), self.acked()
        caller, each = chance.choice(["", "host:1"]), chance.random() < 0.3
        return lambda keys: settle_receive(
            keys,
            lease,
            count,
            outcomes=acked,
            visibility_ms=60_000,
            caller=caller,
            each=each,
            now_ms=at,
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "steps"),
    [
        *((seed, 30) for seed in _BY_DAY),
        *(
            pytest.param(
                *(seed, 60),
                marks=pytest.mark.nightly("test_the_same_history_leaves_the_same_queue"),
            )
            for seed in range(int(os.environ.get("QWORKER_HISTORIES") or 8))
        ),
    ],
)
def test_the_same_history_leaves_the_same_queue(
    pair: tuple[Drive, Drive], seed: int, steps: int
) -> None:
    """Members deleted, expired and large, of ordered groups, of parents, and beside messages without a group."""
    history, used = History(seed), 0
    chance, (one, two) = history.chance, pair
    for step in range(steps):
        history.at += chance.randint(0, 40) - (5000 if chance.random() < 0.02 else 0)
        if chance.random() < 0.8 and (sent := history.sent()):
            for drive in pair:
                drive.run(send(drive.keys, sent, lane="", sequence=0, now_ms=history.at))
        if (waiting := one.redis.zrange(one.keys.delayed, 0, 5)) and chance.random() < 0.1:
            for drive in pair:  # a seat is empty
                drive.redis.zrem(drive.keys.delayed, waiting[-1])
        for name, words in history.limits():
            for drive in pair:
                drive.run(set_limit(drive.keys, name, words, now_ms=history.at))
        mark = history.looking()
        for drive in pair if mark else ():
            drive.redis.hset(drive.keys.groups, "@looking", mark)
        for _ in range(chance.randint(0, 3)):
            one_more = history.send()
            assert one.run(one_more(one.keys)) == two.run(other_way(one_more(two.keys)))
            assert kept(one) == kept(two)
        if chance.random() < 0.2:
            ack = history.settle()
            assert one.run(ack(one.keys)) == two.run(other_way(ack(two.keys)))
            assert kept(one) == kept(two)
        receive = history.receive(f"l{step}")
        batch = one.run(receive(one.keys))
        assert batch == two.run(other_way(receive(two.keys)))
        assert kept(one) == kept(two)
        if batch.items:
            history.leases[batch.lease_id] = batch.indices
            used += len(batch.items)
    assert used > 100


def test_a_send_of_one_member_takes_the_short_way(drive: Drive) -> None:
    """To a group that is new, that waits, or that has run empty; others take the long way."""

    def is_short(group: str, number: int, **options: Any) -> bool:
        message = NewMessage(f"m{number}", tail(b"x", {"g": group}), group=group)
        call = send(drive.keys, [message], lane="a", sequence=number, now_ms=NOW, **options)
        only = load_script("send").source.partition(b"local sent_alone = send_alone()")[0]
        script = Script("send", only + b"return send_alone() or 'no'", frozenset())
        return drive.run(structs.replace(call, script=script, decode=lambda reply: reply)) != b"no"

    put(drive, "a:m")
    drive.redis.hset(drive.keys.meta, "test", 1)
    assert not is_short("a", 1)  # the lane is new
    drive.send("plain", lane="a", sequence=1)
    assert [is_short(group, at) for at, group in enumerate(["a", "b", "=c", "b"], 2)] == [True] * 4
    assert not is_short("p/a", 7)
    assert not is_short("ä", 7)
    assert not is_short("a", 7, delay_ms=5)
    assert not is_short("a", 5)  # a repeated call
    drive.redis.hset(drive.keys.groups, "@number", 2**21)
    assert not is_short("d", 7)  # its number is that of a
    drive.run(set_limit(drive.keys, "*", "m=100"))
    assert not is_short("a", 8)


def test_the_usual_calls_take_the_short_way(drive: Drive) -> None:
    """Of one message and of many, of many groups and few, with whole leases acked in each way; others do not."""

    def kind(lease: str, count: int, *acked: Outcomes) -> str:
        call = settle_receive(
            drive.keys, lease, count, outcomes=acked, visibility_ms=60_000, now_ms=NOW
        )
        return drive.call("settle_receive", call.keys, *call.args)[0]

    drive.redis.hset(drive.keys.meta, "test", 1)
    put(drive, *[f"g{number:02}:m{number:02}" for number in range(40)], "g00:n00")
    put(drive, "=o:o1")
    assert kind("l1", 1) == "TURNS"
    assert drive.redis.hget(drive.keys.groups, "@ms") == str(NOW).encode()
    assert kind("l2", 1, Outcomes("l1", acks=["0"])) == "TURNS"
    assert kind("l3", 10, Outcomes("l2", ack_all=True)) == "TURNS"
    assert kind("l4", 0, Outcomes("l3", acks=[str(number) for number in range(1, 11)])) == "TURNS"
    assert kind("l5", 20) == "TURNS"
    assert kind("l6", 2, Outcomes("l5", acks=["1", "2"])) == "OK"  # a part of a lease
    assert kind("l7", 20, Outcomes("l6", ack_all=True)) == "TURNS"  # all that there is
    assert (
        kind("l8", 2, Outcomes("l7", ack_all=True)) == "OK"
    )  # a message of an ordered group was counted
    assert kind("l9", 2) == "TURNS"  # there is nothing
    put(drive, "=o:o2", "=o:o3")
    assert kind("o2", 1) == "TURNS"
    reply = drive.receive("o3", 2)  # the rest waits for the one that runs
    assert (reply.items, reply.hint_ms, reply.has_groups) == ([], UNKNOWN, True)
    assert kind("o4", 2) == "TURNS"
    drive.settle(Outcomes("o2", ack_all=True))
    assert get(drive, "o5") == ["o3"]
    put(drive, "a:m1", "a:m2")
    assert kind("l10", 1) == "TURNS"
    assert kind("l11", 5) == "TURNS"
    put(drive, "a:m3", "a:m4")
    assert kind("l12", 5) == "OK"  # a second turn
    put(drive, "p/a:m5")
    assert kind("l13", 1) == "OK"
    drive.run(set_limit(drive.keys, "*", "c=1"))
    put(drive, "b:m6")
    assert kind("l14", 1) == "OK"


def test_what_a_body_says_is_not_a_flag(drive: Drive) -> None:
    """A message whose body reads like flags takes the short way, too."""
    bodies = [b" x=5 u=k\n g=h x=1", b"q1 m 1 0 0 0 0 x=1 u=k\n"]
    sent = [
        NewMessage(f"m{at}", tail(body, {"g": f"g{at}"}), group=f"g{at}")
        for at, body in enumerate(bodies)
    ]
    drive.run(send(drive.keys, sent, lane="", sequence=0, now_ms=NOW))
    call = settle_receive(drive.keys, "l1", 5, visibility_ms=60_000, now_ms=NOW)
    assert drive.call("settle_receive", call.keys, *call.args)[0] == "TURNS"


@pytest.mark.parametrize(("groups", "left"), [(15, 29), (16, 31), (17, 17)])
def test_of_few_groups_all_that_may_run_counts(drive: Drive, groups: int, left: int) -> None:
    """Of up to sixteen that stand in line each message may run, so as many consumers are woken; of more one each."""
    names = [f"g{number:02}" for number in range(groups)]
    put(drive, *[f"{name}:{name}-{turn}" for turn in range(2) for name in names])
    assert drive.receive("l1", 1).ready_left == left


def test_a_group_that_waits_for_a_time_comes_back_beside_others(drive: Drive) -> None:
    """It waits because its handler said so, without any limit; calls for others do not take the short way past it."""
    put(drive, "a:a0", "b:b0", "b:b1", "b:b2", "b:b3", "b:b4")
    assert get(drive, "l1", 1) == ["a0"]
    outcome = Outcomes("l1")
    outcome.limit("0", 50)
    drive.settle(outcome)
    early = [get(drive, f"e{number}", 1, at=NOW + number) for number in range(2)]
    assert early == [["b0"], ["b1"]]
    late = [get(drive, f"l{number}", 1, at=NOW + 50 + number) for number in range(2, 4)]
    assert sorted(late) == [["a0"], ["b2"]]


def test_a_send_to_a_group_that_waits_does_not_end_its_wait(drive: Drive) -> None:
    """Of one message, which takes the short way."""
    put(drive, "a:a0")
    assert get(drive, "l1", 1) == ["a0"]
    outcome = Outcomes("l1")
    outcome.limit("0", 50)
    drive.settle(outcome)
    drive.send("plain", lane="a", sequence=1)
    message = NewMessage("a1", tail(b"x", {"g": "a"}), group="a")
    drive.run(send(drive.keys, [message], lane="a", sequence=2, now_ms=NOW))
    assert [get(drive, f"e{number}", 1, at=NOW + number) for number in range(2)] == [["plain"], []]
    assert get(drive, "l2", 1, at=NOW + 50) == ["a0"]


@pytest.mark.parametrize("count", [1, 5])
def test_slots_of_another_type_refuse_a_receive_with_nothing_written(
    drive: Drive, count: int
) -> None:
    """Else the messages were in the new lease, and waited as well."""
    put(drive, "a:a0", "b:b0")
    drive.redis.set(drive.keys.slots, "other")
    before = drive.state()
    with pytest.raises(BrokenQueueError, match="slots"):
        get(drive, "l1", count)
    assert drive.state() == before


def test_messages_without_a_group_owe_no_turn_once_none_waits(drive: Drive) -> None:
    """An empty receive forgets their virtual time, as the next ones begin at that of the queue."""
    put(drive, "a:a0", "m0", "m1")
    assert sorted(get(drive, "l1")) == ["a0", "m0", "m1"]
    assert float(drive.redis.hget(drive.keys.groups, "@plain")) > 0
    assert get(drive, "l2") == []
    assert drive.redis.hget(drive.keys.groups, "@plain") == b"0"


@pytest.mark.parametrize("count", [1, 3])
def test_a_rate_that_is_left_over_is_forgotten(pair: tuple[Drive, Drive], count: int) -> None:
    """Its limit was removed while the group stood in line: both ways leave its record without it."""
    one, two = pair
    for drive in pair:
        put(drive, "a:a0", "a:a1", "b:b0", "c:c0")
        drive.run(set_limit(drive.keys, "a", "r=1/1000 b=5", now_ms=NOW))
        assert get(drive, "l1", 1) == ["a0"]
        drive.settle(Outcomes("l1", ack_all=True))
        drive.run(set_limit(drive.keys, "a", "", now_ms=NOW))
        assert msgspec.msgpack.decode(drive.redis.hget(drive.keys.groups, ":a"))[6] == NOW + 1000
        drive.redis.zadd(drive.keys.turns, {"a": 0})
    mine, other = (
        settle_receive(drive.keys, "l2", count, visibility_ms=60_000, now_ms=NOW + 5)
        for drive in pair
    )
    assert one.run(mine) == two.run(other_way(other))
    assert kept(one) == kept(two)
    assert msgspec.msgpack.decode(one.redis.hget(one.keys.groups, ":a"))[6] == 0


@pytest.mark.parametrize("last", [0, 100, 240, 65_510])
def test_new_groups_leave_the_same_queue(pair: tuple[Drive, Drive], last: int) -> None:
    """Of several sends, with numbers of any length; among them messages that expire, have keys, and are ordered."""
    one, two = pair
    flags = {"b07": {"x": str(NOW - 1)}, "a05": {"u": "k", "l": "1"}, "c04": {"x": str(NOW + 9)}}
    for drive in pair:
        drive.redis.hset(drive.keys.groups, "@number", last)
        drive.redis.hset(drive.keys.unique, "k", f"a05 {NOW + 60_000}")
        for at, part in enumerate("abc"):
            names = [f"{part}{number:02}" for number in range(24)]
            sent = [
                NewMessage(name, tail(b"x", {"g": name, **flags.get(name, {})}), group=name)
                for name in names
            ]
            drive.run(send(drive.keys, sent, lane="", sequence=0, now_ms=NOW + at))
    for lease, count in (("l1", 20), ("l2", 20), ("l3", 12), ("l4", 20)):
        mine, other = (
            settle_receive(drive.keys, lease, count, visibility_ms=60_000, now_ms=NOW + 5)
            for drive in pair
        )
        assert one.run(mine) == two.run(other_way(other))
        assert kept(one) == kept(two)
    assert [each.redis.hlen(each.keys.unique) for each in pair] == [0, 0]


@pytest.mark.parametrize("last", [0, 100, 240, 65_520])
def test_the_usual_way_takes_a_call_per_row_of_seats(drive: Drive, last: int) -> None:
    """Messages that are alone in their groups are read together; one more in a group is not."""
    drive.redis.hset(drive.keys.groups, "@number", last)
    put(drive, *[f"g{number:02}:m{number:02}" for number in range(40)], "h:h1", "h:h2")
    commands = drive.info("commandstats")
    before = commands.get("cmdstat_zrange", {"calls": 0})["calls"]
    assert get(drive, "l1", 40) == [f"m{number:02}" for number in range(40)]
    assert get(drive, "l2") == ["h1", "h2"]
    assert drive.info("commandstats")["cmdstat_zrange"]["calls"] - before < 25
    drive.settle(Outcomes("l1", ack_all=True), Outcomes("l2", ack_all=True))
    assert idle(drive) == EMPTY


def test_the_first_limit_counts_batches_that_share_a_mark(drive: Drive) -> None:
    """As it counts those that were marked one by one; parts of them come free."""
    put(drive, *[f"g{number}:m{number}" for number in range(8)])
    assert len(get(drive, "l1", 4)) == 4
    assert len(get(drive, "l2", 4)) == 4
    assert drive.redis.hget(drive.keys.slots, "l1")[:1] == b"\1"
    drive.settle(Outcomes("l1", acks=["1", "2"]))
    drive.run(set_limit(drive.keys, "*", "c=1"))
    put(drive, *[f"g{number}:n{number}" for number in range(8)])
    assert sorted(get(drive, "l3")) == ["n0", "n1"]
    drive.settle(*[Outcomes(lease, ack_all=True) for lease in ("l1", "l2", "l3")])
    assert sorted(get(drive, "l4")) == [f"n{number}" for number in range(2, 8)]
    drive.settle(Outcomes("l4", ack_all=True))
    assert idle(drive) == EMPTY


def test_an_ordered_group_among_new_ones_is_one(drive: Drive) -> None:
    """It is counted, wherever it stands in line, also if one of it runs already; and its end lets it go on."""
    put(drive, "1:a0", "2:b0", "=3:c0", "=4:d0")
    assert get(drive, "l1", 4) == ["a0", "b0", "c0", "d0"]
    put(drive, "=3:c1", "=4:d1")
    drive.redis.zadd(drive.keys.turns, {"=3": 0})
    assert get(drive, "l2", 1) == []
    drive.settle(Outcomes("l1", ack_all=True))
    assert get(drive, "l3", 2) == ["c1", "d1"]
    drive.settle(Outcomes("l3", ack_all=True))
    assert idle(drive) == EMPTY


@pytest.mark.parametrize(("group", "places"), [(5, -2), (9, 1)], ids=["between", "behind"])
def test_what_is_removed_as_a_range_was_read(drive: Drive, group: int, places: int) -> None:
    """A message on a seat beside those of its group is nobody's turn: it stays, for `fsck` to find."""
    put(drive, *[f"g{number:02}:m{number:02}" for number in range(10)])
    seats = drive.redis.zrange(drive.keys.delayed, 0, -1, withscores=True)
    stray = f"q1 stray 1 0  g=g{group:02}\n"
    drive.redis.zadd(drive.keys.delayed, {stray: seats[group][1] + places})
    assert len(get(drive, "l1", 10)) == 10
    assert drive.redis.zrange(drive.keys.delayed, 0, -1) == [stray.encode()]


def test_without_the_right_to_a_range_each_message_is_removed(drive: Drive) -> None:
    """A user whose rules are of an earlier version receives as before."""
    put(drive, *[f"g{number:02}:m{number:02}" for number in range(10)])
    script = load_script("settle_receive")
    check = b"redis.acl_check_cmd('ZREMRANGEBYSCORE', delayed, 0, 0)"
    assert script.source.count(check) == 1
    earlier = Script(script.name, script.source.replace(check, b"false"), script.roles)
    command = settle_receive(drive.keys, "l1", 10, visibility_ms=60_000, now_ms=NOW)
    assert len(drive.run(structs.replace(command, script=earlier)).items) == 10
    drive.settle(Outcomes("l1", ack_all=True))
    assert idle(drive) == EMPTY
    assert drive.redis.exists(drive.keys.delayed) == 0
