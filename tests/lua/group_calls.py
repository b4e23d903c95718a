"""Calls of tests of groups in short form, and what an idle queue keeps of its groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from qworker.engine.command import Command
from qworker.engine.repair import repair_groups, repair_seats
from qworker.engine.scripts import Script
from qworker.engine.send import NewMessage, Sent, send
from qworker.engine.settle import Outcomes
from qworker.wire.envelope import Envelope, tail
from tests.lua.drive import NOW, Drive

_PAGES = b"local COUNTS, SEEN, AT_ONCE = 250, 1000, 10"
_SMALL_PAGES = b"local COUNTS, SEEN, AT_ONCE = 3, 4, 1"


def put(drive: Drive, *messages: str, at: int = NOW, size: int = 0, **options: Any) -> Sent:
    """Send messages `<group>:<id>`; one without a colon has no group. `size`: bytes of a body behind its id."""
    made = []
    for message in messages:
        group, _, message_id = message.rpartition(":")
        flags = {"g": group} if group else None
        made.append(
            NewMessage(message_id, tail(message_id.encode() + b"x" * size, flags), group=group)
        )
    return drive.run(send(drive.keys, made, lane="", sequence=0, now_ms=at, **options))


def ids(items: Sequence[bytes]) -> list[str]:
    """The ids of messages."""
    found = [Envelope.parse(item) for item in items]
    return [envelope.id for envelope in found if envelope is not None]


def get(drive: Drive, lease: str, count: int = 100, **options: Any) -> list[str]:
    """Receive; returns ids."""
    return ids(drive.receive(lease, count, **options).items)


def limit(drive: Drive, name: str, words: str) -> None:
    """Set a limit as it is stored."""
    drive.redis.hset(drive.keys.limits, name, words)


def in_small_pages(command: Command[Any]) -> Command[Any]:
    """A change of limits that counts 3 slots a call, of 4 fields of a hash that it reads one by one."""
    assert command.script is not None
    name, source = command.script.name, command.script.source
    assert source.count(_PAGES) == 1
    script = Script(name, source.replace(_PAGES, _SMALL_PAGES), command.script.roles)
    return structs.replace(command, script=script)


def nacked(lease: str, delay_ms: int) -> Outcomes:
    """A nack of the one message of a lease."""
    outcome = Outcomes(lease)
    outcome.nack("0", delay_ms)
    return outcome


def idle(drive: Drive) -> dict[str, Any]:
    """What groups still keep, but for virtual times and numbers."""
    kept = {
        k: v for k, v in drive.redis.hgetall(drive.keys.groups).items() if k[:1] not in (b"@", "@")
    }
    sets = [drive.redis.zcard(key) for key in (drive.keys.turns, drive.keys.children)]
    return {"groups": kept, "sets": sets, "slots": drive.redis.hlen(drive.keys.slots)}


EMPTY = {"groups": {}, "sets": [0, 0], "slots": 0}


def found(drive: Drive, *, repair: bool = True) -> list[str]:
    """The kinds of what is wrong with groups, and ids of messages without a place."""
    _, lost = drive.run(repair_seats(drive.keys, repair=repair))
    _, _, problems = drive.run(repair_groups(drive.keys, repair=repair))
    return [*lost, *(f"{problem.kind} {problem.group}" for problem in problems)]
