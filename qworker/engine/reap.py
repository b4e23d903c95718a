"""Commands of the reaper: sweep queues, then promote, reap, trim, prune, recount and shed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import structs

from qworker.engine.arguments import given, maybe, standard_keys
from qworker.engine.command import Command, PerQueue
from qworker.engine.raw import raw
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.errors import ServerError
from qworker.wire.keys import QueueKeys

__all__ = [
    "MAX_SWEPT",
    "START",
    "Cursors",
    "Promoted",
    "Pruned",
    "QueueSweep",
    "Reaped",
    "Trimmed",
    "holds_times",
    "promote",
    "prune",
    "reap",
    "recount",
    "shed",
    "sweep",
    "trim",
]

#: Queues per sweep.
MAX_SWEPT: Final = 500


class QueueSweep(msgspec.Struct, frozen=True):
    """The result of a sweep of one queue.

    `broken` describes a key of another type, `unserved` why it was not swept: its node is away, or refuses the user.
    """

    queue: str
    next_due_ms: int | None = None
    next_deadline_ms: int | None = None
    expired_at_head: bool = False
    overdue: tuple[str, ...] = ()
    broken: str | None = None
    unserved: str | None = None

    @property
    def quiet(self) -> bool:
        """Whether there is nothing to do, now or later."""
        return not (
            self.expired_at_head
            or self.next_due_ms is not None
            or self.next_deadline_ms is not None
            or self.broken is not None
            or self.unserved is not None
        )


class Promoted(msgspec.Struct, frozen=True):
    """Delayed messages `moved` to ready, or `ended` (expired or cancelled)."""

    moved: int
    ended: int
    next_due_ms: int | None
    lateness_ms: int


class Reaped(msgspec.Struct, frozen=True):
    """Leases reaped, and what became of their messages; `left` are still overdue, `skipped` of another kind."""

    leases: int
    messages: int
    dead: int
    suspects: int
    set_aside: int
    lateness_ms: int
    left: int
    skipped: tuple[str, ...] = ()


class Trimmed(msgspec.Struct, frozen=True):
    """Expired messages removed from the head; `full`: there may be more."""

    expired: int
    full: bool


#: Where the slices of lanes, unique keys and row ids continue; '' for a hash that is done.
Cursors = tuple[str, str, str]
#: The first slice of each.
START: Final[Cursors] = ("0", "0", "0")


class Pruned(msgspec.Struct, frozen=True):
    """One slice of pruning: where the next begins, and how many entries went.

    `until_ms`: the expiry up to which tombstones are to be forgotten, after a walk through the queue; None if none
    expires soon.
    """

    cursors: Cursors
    until_ms: int | None
    forgotten: int

    @property
    def done(self) -> bool:
        """Whether all slices are done."""
        return not any(self.cursors)


def holds_times(queues: Sequence[QueueKeys]) -> Command[int]:
    """Count the sets of delayed messages and of leases of some queues; in a Cluster of one queue.

    A plain command: cheaper than a sweep, which reads each queue.
    """
    names = [name for keys in queues for name in (keys.delayed, keys.unacked)]
    return raw("EXISTS", *names, decode=int)


def sweep(
    queues: Sequence[QueueKeys],
    tick_ms: int,
    *,
    leases: int = 10,
    newest: bool = False,
    skip: int = 0,
    now_ms: int | None = None,
) -> Command[tuple[int, list[QueueSweep]]]:
    """Check up to `MAX_SWEPT` queues. Returns the server's time in ms and the state of the first ones, at least one.

    A call ends after 1 MiB of messages read; check the remaining queues with another call.

    Names up to `leases` overdue leases of each in the order of their deadlines: the earliest, or with `newest` the
    latest, without the first `skip`.

    In a Cluster that is the time of one node; times of others are shifted by the difference of their clocks. A queue
    whose node does not serve is `unserved`.
    """
    names = [keys.meta for keys in queues[:1]]
    for keys in queues:
        names += (keys.delayed, keys.unacked, keys.ready[0], keys.stats)

    def decode(reply: Any) -> tuple[int, list[QueueSweep]]:
        _, now, *swept = accepted(reply, "")
        return int(now), [
            _queue_sweep(keys.queue, fields, newest=newest)
            for keys, fields in zip(queues, swept, strict=False)
        ]

    def per_queue() -> PerQueue[tuple[int, list[QueueSweep]]]:
        commands = [
            sweep([keys], tick_ms, leases=leases, newest=newest, skip=skip, now_ms=now_ms)
            for keys in queues
        ]
        return PerQueue(commands, _one_clock, unserved)

    def unserved(index: int, error: ServerError) -> tuple[int, list[QueueSweep]]:
        return 0, [QueueSweep(queues[index].queue, unserved=str(error))]

    return Command(
        load_script("sweep"),
        tuple(names),
        (given(now_ms), tick_ms, leases, int(newest), skip),
        decode,
        per_queue=per_queue if len(queues) > 1 else None,
    )


def _one_clock(parts: list[tuple[int, list[QueueSweep]]]) -> tuple[int, list[QueueSweep]]:
    """Shift the times of several servers to the clock of the first."""
    first_ms = next((now_ms for now_ms, _ in parts if now_ms), 0)
    shifted = []
    for now_ms, (swept,) in parts:
        ahead_ms = now_ms - first_ms
        shifted.append(
            structs.replace(
                swept,
                next_due_ms=swept.next_due_ms and swept.next_due_ms - ahead_ms,
                next_deadline_ms=swept.next_deadline_ms and swept.next_deadline_ms - ahead_ms,
            )
        )
    return first_ms, shifted


def _queue_sweep(queue: str, fields: Any, *, newest: bool) -> QueueSweep:
    if isinstance(fields, bytes):
        return QueueSweep(queue, broken=fields.decode("utf-8", "replace"))
    if fields == 0:
        return QueueSweep(queue)
    due, deadline, expired, *overdue = fields
    if newest:
        overdue.reverse()
    return QueueSweep(
        queue,
        maybe(due),
        maybe(deadline),
        expired == 1,
        tuple(lease_id.decode("utf-8", "replace") for lease_id in overdue),
    )


def promote(keys: QueueKeys, limit: int = 500, *, now_ms: int | None = None) -> Command[Promoted]:
    """Move up to `limit` delayed messages that are due to ready."""

    def decode(reply: Any) -> Promoted:
        _, _, moved, ended, next_due, lateness, _ = accepted(reply, keys.queue)
        return Promoted(moved, ended, maybe(next_due), int(lateness))

    return Command(load_script("promote"), standard_keys(keys), (given(now_ms), limit), decode)


def reap(
    keys: QueueKeys,
    lease_ids: Sequence[str],
    tick_ms: int,
    *,
    only: Literal["", "lone", "several"] = "",
    now_ms: int | None = None,
) -> Command[Reaped]:
    """Take back the messages of overdue leases, given in the order of their delivery.

    `only`: only leases of messages that were delivered alone, or only the others.
    """

    def decode(reply: Any) -> Reaped:
        _, _, leases, messages, dead, suspects, aside, lateness, left, skipped, _ = accepted(
            reply, keys.queue
        )
        names = tuple(name.decode() for name in skipped)
        return Reaped(leases, messages, dead, suspects, aside, int(lateness), left, names)

    return Command(
        load_script("reap"), standard_keys(keys, *lease_ids), (given(now_ms), tick_ms, only), decode
    )


def trim(keys: QueueKeys, limit: int = 1000, *, now_ms: int | None = None) -> Command[Trimmed]:
    """Remove up to `limit` expired messages from the head of each level of ready."""

    def decode(reply: Any) -> Trimmed:
        _, _, expired, full, _ = accepted(reply, keys.queue)
        return Trimmed(expired, full == 1)

    return Command(load_script("trim"), standard_keys(keys), (given(now_ms), limit), decode)


def prune(
    keys: QueueKeys,
    idle_ms: int = 900_000,
    cursors: Cursors = START,
    *,
    now_ms: int | None = None,
) -> Command[Pruned]:
    """Forget one slice of idle lanes (without a send for `idle_ms`), expired unique keys and row ids."""

    def decode(reply: Any) -> Pruned:
        _, _, lanes, uniques, rows, until, forgotten = accepted(reply, keys.queue)
        cursors = (lanes.decode(), uniques.decode(), rows.decode())
        return Pruned(cursors, maybe(until), forgotten)

    return Command(
        load_script("prune"),
        (keys.producers, keys.unique, keys.rows, keys.cancelled, keys.meta, keys.stats),
        (given(now_ms), idle_ms, *cursors),
        decode,
    )


def recount(keys: QueueKeys, *, now_ms: int | None = None) -> Command[int]:
    """Bring the counter of stored messages back between its bounds; returns by how much it changed."""

    def decode(reply: Any) -> int:
        return int(accepted(reply, keys.queue)[2])

    return Command(load_script("recount"), standard_keys(keys), (given(now_ms),), decode)


def shed(queues: Sequence[QueueKeys], *, on: bool, now_ms: int | None = None) -> Command[int]:
    """Stop writing the journals of up to `MAX_SWEPT` queues, or resume; returns how many changed."""

    def decode(reply: Any) -> int:
        return int(accepted(reply, "")[2])

    def per_queue() -> PerQueue[int]:
        # Queues of a node that does not serve have their turn later: a daemon sheds every 10 s.
        commands = [shed([keys], on=on, now_ms=now_ms) for keys in queues]
        return PerQueue(commands, sum, lambda index, error: 0)

    return Command(
        load_script("shed"),
        tuple(keys.meta for keys in queues),
        (given(now_ms), int(on)),
        decode,
        per_queue=per_queue if len(queues) > 1 else None,
    )
