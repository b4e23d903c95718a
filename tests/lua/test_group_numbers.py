"""Random histories in which numbers of groups go round: no two groups get one, whatever becomes of messages."""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from msgspec import structs

from qworker.engine.command import Command
from qworker.engine.dead import redrive
from qworker.engine.groups import set_limit
from qworker.engine.message import delete, enqueue, hold
from qworker.engine.reap import promote, reap
from qworker.engine.receive import Suspects
from qworker.engine.remove import purge, revoke
from qworker.engine.run import signal_run
from qworker.engine.scripts import Script
from qworker.engine.send import NewMessage, send
from qworker.engine.settle import Outcomes
from qworker.wire.envelope import tail
from qworker.wire.ids import EntryId
from tests.lua.drive import NOW, Drive
from tests.lua.group_calls import found, ids, in_small_pages

_FEW = {
    b"local NUMBERS, FIRST_SEAT, SEATS = 2097152,": b"local NUMBERS, FIRST_SEAT, SEATS = 16,",
    b"local AHEAD, MAX_TAKEN = 1048576, 16": b"local AHEAD, MAX_TAKEN = 8, 2",
}
_FIRST_SEAT, _SEATS, _HELD = 2**52, 2**31, 2**53
_GROUPS = ["=o1", "=o2", "=p/o", "p/a", "g1", "g2", ""]


def with_few_numbers(command: Command[Any]) -> Command[Any]:
    """The same call of a script that knows 16 numbers of groups."""
    assert command.script is not None
    name, source = command.script.name, command.script.source
    for number, fewer in _FEW.items():
        source = source.replace(number, fewer)
    return structs.replace(command, script=Script(name, source, command.script.roles))


class History:
    """A queue to which anything happens, and what is known of it."""

    def __init__(self, drive: Drive, seed: int) -> None:
        self.drive, self.chance = drive, random.Random(seed)
        self.at, self.number = NOW, 0
        self.group_of: dict[str, str] = {}
        #: Those that an operator moved, or that were sent for later: they leave the order of their group.
        self.moved: set[str] = set()
        self.started: list[str] = []
        self.leases: dict[str, dict[str, str]] = {}

    def run(self, command: Command[Any]) -> Any:
        """Execute a call."""
        return self.drive.run(command)

    def send(self) -> None:
        """Send a few messages, some later, or one the short way."""
        chance, made = self.chance, []
        alone = chance.random() < 0.5
        delay_ms = 0 if alone or chance.random() < 0.8 else chance.randint(1, 300)
        for _ in range(1 if alone else chance.randint(1, 5)):
            self.number += 1
            group = chance.choice(_GROUPS)
            flags = {"g": group, "r": "60000", "c": "1"} if group else {}
            if group[:1] == "=":
                flags["o"] = str(self.at)
            if chance.random() < 0.05:
                flags["x"] = str(self.at + chance.randint(50, 3000))
            message = f"m{self.number}"
            made.append(NewMessage(message, tail(b"x", flags), group=group))
            self.group_of[message] = group
            if delay_ms:
                self.moved.add(message)
        how = {"lane": "a", "sequence": self.number} if alone else {"lane": "", "sequence": 0}
        self.run(send(self.drive.keys, made, now_ms=self.at, delay_ms=delay_ms, **how))

    def outcome(self, lease: str) -> Outcomes:
        """Whatever may become of a delivery."""
        chance, outcome, acks = self.chance, Outcomes(lease), []
        for index in self.leases.pop(lease):
            what = chance.choice(
                ["ack"] * 6 + ["nack", "delay", "release", "crash", "park", "bury"]
            )
            if what == "ack":
                acks.append(index)
            elif what == "nack":
                outcome.nack(index, 0)
            elif what == "delay":
                outcome.nack(index, chance.randint(1, 500))
            elif what == "release":
                outcome.release(index)
            elif what == "crash":
                outcome.crash(index)
            elif what == "park":
                outcome.park(index, chance.choice([None, 50]), "~wait:go", "!go", keep_ms=60_000)
            else:
                outcome.bury(index, "broken")
        outcome.acks = acks
        return outcome

    def receive(self, count: int) -> None:
        """Receive, and settle some leases before."""
        self.number += 1
        chance = self.chance
        acked = [self.outcome(each) for each in list(self.leases) if chance.random() < 0.6]
        suspects = chance.choice([Suspects.FIRST, Suspects.IF_NOTHING_ELSE])
        lease = f"l{self.number}"
        batch = self.drive.receive(lease, count, *acked, at=self.at, suspects=suspects)
        if batch.items:
            self.leases[lease] = dict(zip(batch.indices, ids(batch.items), strict=True))
        self.started += [message for message in ids(batch.items) if message not in self.started]

    def operate(self) -> None:
        """Take a few messages out of turn, or let others come back."""
        drive, chance = self.drive, self.chance
        waiting = drive.redis.zrange(drive.keys.delayed, 0, -1)
        some = chance.sample(waiting, min(len(waiting), chance.randint(1, 4)))
        what = chance.choice(["delete", "hold", "enqueue", "purge", "redrive", "signal", "limit"])
        if what in ("delete", "hold", "enqueue") and some:
            call = {"delete": delete, "hold": hold, "enqueue": enqueue}[what]
            self.run(call(drive.keys, some, now_ms=self.at))
            self.moved.update(ids(some))
        elif what == "purge":
            self.run(purge(drive.keys, "ready", chance.randint(1, 3), now_ms=self.at))
        elif what == "redrive" and (dead := drive.redis.xrange(drive.keys.dead, count=2)):
            self.run(
                redrive(
                    drive.keys, [EntryId.parse(entry.decode()) for entry, _ in dead], now_ms=self.at
                )
            )
        elif what == "signal":
            for item in waiting:
                self.run(signal_run(drive.keys, *ids([item]), "!go", b"\n1", known=True))
        elif what == "limit":
            words = chance.choice(["", "", "c=1", "r=1/200"])
            self.run(in_small_pages(set_limit(drive.keys, "g1", words, now_ms=self.at)))

    def upkeep(self) -> None:
        """Promote what is due, and take back what is late."""
        drive = self.drive
        self.run(promote(drive.keys, 100, now_ms=self.at))
        known = [name.decode() for name in drive.redis.zrange(drive.keys.unacked, 0, -1)]
        self.run(reap(drive.keys, known, tick_ms=1000, now_ms=self.at))
        if known and self.chance.random() < 0.02:
            self.run(revoke(drive.keys, [known[0].encode()]))

    def check(self) -> None:
        """Each number is of one group, whose last seat is taken, and all members are on seats of their group."""
        drive = self.drive
        records = {
            field[1:].decode(): msgspec.msgpack.decode(value)
            for field, value in drive.redis.hgetall(drive.keys.groups).items()
            if field[:1] == b":"
        }
        numbered = {name: one for name, one in records.items() if one[0] >= 0}
        seats: dict[str, list[int]] = {name: [] for name in numbered}
        seen: list[str] = []
        for item, score in drive.redis.zrange(drive.keys.delayed, 0, -1, withscores=True):
            seen += ids([item])
            if _FIRST_SEAT <= score < _HELD:
                name = self.group_of[seen[-1]]
                seats[name].append(int(score))
        for name, one in numbered.items():
            number, first, last = one[:3]
            places = [
                first + (seat - _FIRST_SEAT - number * _SEATS - first) % _SEATS
                for seat in seats[name]
            ]
            assert {(seat - _FIRST_SEAT) // _SEATS for seat in seats[name]} == {number}
            assert max(places) == last
        assert len({one[0] for one in numbered.values()}) == len(numbered)
        assert found(drive, repair=False) == []

    def check_all(self) -> None:
        """Each message is in one place or has ended; ordered groups begin one after the other, in their order."""
        drive, there, flying = self.drive, [], Counter[str]()
        for key in (*drive.keys.ready, drive.keys.suspect):
            there += ids(drive.redis.lrange(key, 0, -1))
        there += ids(drive.redis.zrange(drive.keys.delayed, 0, -1))
        there += ids([entry[b"envelope"] for _, entry in drive.redis.xrange(drive.keys.dead)])
        for lease in drive.redis.zrange(drive.keys.unacked, 0, -1):
            held = ids(list(drive.held(drive.keys.lease(lease.decode())).values()))
            flying.update(self.group_of[message] for message in held)
            there += held
        assert max(Counter(there).values(), default=0) <= 1
        ended = drive.stats("acked", "cancelled", "purged", "expired")
        assert len(there) + sum(ended.values()) == len(self.group_of)
        for group in filter(lambda name: name[:1] == "=", _GROUPS):
            assert flying[group] <= 1
            begun = [
                int(message[1:])
                for message in self.started
                if self.group_of[message] == group and message not in self.moved
            ]
            assert begun == sorted(begun)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [
        0,
        *(
            pytest.param(seed, marks=pytest.mark.nightly("test_numbers_of_groups_are_their_own"))
            for seed in range(1, int(os.environ.get("QWORKER_HISTORIES") or 2))
        ),
    ],
)
def test_numbers_of_groups_are_their_own(
    drive: Drive, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While messages are deleted, held, purged, woken, taken back and sent again."""
    history = History(drive, seed)
    run = drive.run
    monkeypatch.setattr(drive, "run", lambda command: run(with_few_numbers(command)))
    drive.send("first", lane="a", sequence=0)
    history.group_of["first"] = ""
    chance = history.chance
    if seed % 3 == 0:
        drive.redis.hset(drive.keys.meta, "journal", "all")
    for _ in range(150):
        history.at += chance.randint(0, 100) if chance.random() < 0.98 else 40_000
        action = chance.random()
        if action < 0.35:
            history.send()
        elif action < 0.7:
            history.receive(chance.choice([0, 1, 1, 2, 5, 20]))
        elif action < 0.9:
            history.operate()
        else:
            history.upkeep()
        history.check()
        history.check_all()
