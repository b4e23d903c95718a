"""The commands of groups of calls: begin one, count the ends of its members, read their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from qworker.engine.arguments import given, standard_keys
from qworker.engine.command import Command, Word
from qworker.engine.replies import accepted, accepted_id
from qworker.engine.scripts import load_script
from qworker.errors import LeaseLostError
from qworker.wire.keys import QueueKeys
from qworker.wire.numbers import whole

__all__ = [
    "NUMBERS_PER_MS",
    "Begun",
    "End",
    "GroupPart",
    "RelayProgress",
    "Values",
    "WaitingRun",
    "abandon",
    "begin",
    "begin_relayed",
    "count_ends",
    "read_values",
]

#: As in `lua/lib/outbox.lua`.
NUMBERS_PER_MS = 1024


class End(msgspec.Struct, frozen=True):
    """How a member of a group has ended, as `wire/result.py` reads it; empty if it goes on after all."""

    number: int
    group_id: bytes
    member: int
    words: bytes

    @property
    def written_ms(self) -> int:
        """When that happened, by the clock of its server."""
        return self.number // NUMBERS_PER_MS


class GroupPart(msgspec.Struct, frozen=True):
    """A part of a group of calls that begins in another queue."""

    number: int
    group_id: bytes
    spec: bytes

    @property
    def written_ms(self) -> int:
        """When that happened, by the clock of its server."""
        return self.number // NUMBERS_PER_MS


class WaitingRun(msgspec.Struct, frozen=True):
    """A run that follows a group, and the delivery that begins the group for it: the run's index in a lease."""

    run_id: str
    lease_id: str
    index: str


class Begun(msgspec.Struct, frozen=True):
    """The members of a group that are sent so far, and what it first started with; `gone`: it has ended before."""

    sent: int
    start: bytes
    gone: bool = False


def begin(
    keys: QueueKeys,
    group_id: str,
    spec: bytes,
    lane: str,
    number: int,
    *,
    run: WaitingRun | None = None,
    now_ms: int | None = None,
) -> Command[Begun]:
    """Begin a group, or send its next members; a repeated number of the lane does nothing.

    `run` follows the group. Its reply raises `LeaseLostError` if the delivery does not hold the run any more, and
    `IdTakenError`.
    """
    names: tuple[str, ...] = (
        keys.meta,
        keys.stats,
        keys.producers,
        keys.join(group_id),
        keys.joins,
    )
    args: tuple[Word, ...] = (given(now_ms), lane, number, spec)
    if run is not None:
        names += (keys.run(run.run_id), keys.runs, keys.lease(run.lease_id))
        args += (run.index,)

    def decode(reply: Any) -> Begun:
        if reply[0] == b"STALE" and run is not None:
            raise LeaseLostError(keys.queue, run.run_id)
        if reply[0] == b"GONE":
            return Begun(0, b"", gone=True)
        _, _, sent, start = accepted_id(reply, keys.queue, group_id, "run")
        return Begun(int(sent), start)

    return Command(load_script("join"), names, args, decode)


class RelayProgress(msgspec.Struct, frozen=True):
    """The number of the last entry that counts. `follows`: the queue may have outboxes to relay because of it."""

    number: int
    follows: bool


def begin_relayed(keys: QueueKeys, lane: str, opening: GroupPart) -> Command[RelayProgress]:
    """Begin a group that an outbox holds."""
    command = begin(keys, opening.group_id.decode(), opening.spec, lane, opening.number)

    def decode(reply: Any) -> RelayProgress:
        command.decode(reply)
        return RelayProgress(opening.number, follows=True)

    return Command(command.script, command.keys, command.args, decode)


def count_ends(
    keys: QueueKeys, lane: str, ends: Sequence[End], *, now_ms: int | None = None
) -> Command[RelayProgress]:
    """Count the ends of members, in order. `lane` is empty for a repair."""
    args: list[Word] = [given(now_ms), lane, len(ends)]
    for end in ends:
        args += (end.number, end.group_id, end.member, end.words)

    def decode(reply: Any) -> RelayProgress:
        _, _, number, _, _, follows = accepted(reply, keys.queue, lane)
        return RelayProgress(int(number), follows=follows == 1)

    return Command(
        load_script("gather"), (*standard_keys(keys), keys.producers), tuple(args), decode
    )


class Values(msgspec.Struct, frozen=True):
    """How the members of a group have ended, from one on: empty for those that have not. `size` 0: it is unknown.

    `left`: members that it still waits for; `over_ms`: when it was decided.
    """

    size: int
    policy: str
    left: int
    over_ms: int | None
    ends: tuple[bytes, ...]


def read_values(keys: QueueKeys, group_id: str, first: int = 0) -> Command[Values]:
    """Read how members have ended: up to 500 from `first` on, and 1 MiB, but at least one."""

    def decode(reply: Any) -> Values:
        _, size, policy, left, over, *ends = accepted(reply, keys.queue)
        return Values(
            size, policy.decode("utf-8", "replace"), whole(left) or 0, whole(over), tuple(ends)
        )

    return Command(load_script("values"), (keys.join(group_id),), (first,), decode)


def abandon(
    keys: QueueKeys, group_ids: Sequence[str], words: str, *, now_ms: int | None = None
) -> Command[list[bool]]:
    """End up to 100 groups before their members have; returns for each whether it waited for members.

    `words`: purged or cancelled, for waits for the callback's result; empty: these go on. The run of a cancelled group
    continues. A cancel changes nothing of a group that is decided.
    """

    def decode(reply: Any) -> list[bool]:
        _, _, *waited = accepted(reply, keys.queue)
        return [flag == 1 for flag in waited]

    return Command(
        load_script("abandon"), standard_keys(keys), (given(now_ms), words, *group_ids), decode
    )
