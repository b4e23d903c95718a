"""The commands of runs: start them once, record and recall their steps and positions, give them signals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from qworker.engine.arguments import given, standard_keys
from qworker.engine.command import Command
from qworker.engine.options import SendOptions
from qworker.engine.replies import accepted, accepted_id
from qworker.engine.scripts import load_script
from qworker.engine.send import Copies, NewMessage
from qworker.errors import LeaseLostError, RunEndedError, RunTooLargeError
from qworker.wire.envelope import head
from qworker.wire.keys import QueueKeys
from qworker.wire.numbers import whole

__all__ = [
    "LoopPosition",
    "Recalled",
    "RunInspection",
    "StepRecord",
    "inspect_runs",
    "keep_position",
    "recall_steps",
    "record_step",
    "signal_run",
    "start_run",
]


class StepRecord(msgspec.Struct, frozen=True):
    """A step of a run, to be recorded by the delivery that holds the message `index` of a lease.

    `keep_ms`: how long the state of a run is kept after its end, of a message that does not say so. `progress`:
    failures before it no longer count.
    """

    message_id: str
    lease_id: str
    index: str
    name: str
    value: bytes
    keep_ms: int | None = None
    progress: bool = False


class LoopPosition(msgspec.Struct, frozen=True):
    """How far a loop of a run has come: the number of items that are `done`, and where to continue, as JSON.

    Its delivery is given as for `StepRecord`. `steps`: up to 1,000 steps of items that are done, which are forgotten.
    """

    message_id: str
    lease_id: str
    index: str
    loop: str
    done: int
    value: bytes
    steps: Sequence[str] = ()
    keep_ms: int | None = None
    progress: bool = False


class Recalled(msgspec.Struct, frozen=True):
    """Recorded values by step, None for those that are not recorded; `whole`: these are all."""

    values: dict[str, bytes | None]
    whole: bool


def record_step(keys: QueueKeys, step: StepRecord, *, now_ms: int | None = None) -> Command[bytes]:
    """Record a step; returns the value that counts, which is the first.

    Raises `LeaseLostError` if the lease does not hold the message any more, and `RunTooLargeError`.
    """

    def decode(reply: Any) -> bytes:
        older: bytes = _recorded(reply, keys, step.message_id)[2]
        return older or step.value

    return Command(
        load_script("step"),
        (
            keys.meta,
            keys.runs,
            keys.run(step.message_id),
            keys.lease(step.lease_id),
            keys.stats,
            keys.journal,
        ),
        (
            given(now_ms),
            step.message_id,
            step.index,
            given(step.keep_ms),
            "1" if step.progress else "",
            step.name,
            step.value,
        ),
        decode,
    )


def keep_position(
    keys: QueueKeys, position: LoopPosition, *, now_ms: int | None = None
) -> Command[int]:
    """Keep how far a loop has come; returns the number of items that counts: a greater one that was kept before.

    Raises `LeaseLostError` if the lease does not hold the message any more, and `RunTooLargeError`.
    """
    return Command(
        load_script("position"),
        (keys.meta, keys.runs, keys.run(position.message_id), keys.lease(position.lease_id)),
        (
            given(now_ms),
            position.message_id,
            position.index,
            given(position.keep_ms),
            "1" if position.progress else "",
            position.loop,
            position.done,
            position.value,
            *position.steps,
        ),
        lambda reply: int(_recorded(reply, keys, position.message_id)[2]),
    )


def _recorded(reply: Any, keys: QueueKeys, message_id: str) -> list[Any]:
    if reply[0] == b"GONE":
        raise LeaseLostError(keys.queue, message_id)
    if reply[0] == b"FULLRUN":
        raise RunTooLargeError(keys.queue, message_id, int(reply[1]))
    return accepted(reply, keys.queue)


def signal_run(
    keys: QueueKeys,
    message_id: str,
    name: str,
    value: bytes,
    *,
    known: bool = False,
    dead_letter: str = "",
    now_ms: int | None = None,
) -> Command[bytes | None]:
    """Give a run a signal, and wake it if it waits for it; returns the value that counts, which is the first.

    While the run has this `dead_letter`, by its entry, the value replaces the one that was given before.
    None for an unknown run, unless it is `known` that its message is there. Raises `RunEndedError`, and
    `RunTooLargeError` for a signal that the run does not wait for.
    """

    def decode(reply: Any) -> bytes | None:
        if reply[0] == b"UNKNOWN":
            return None
        if reply[0] == b"ENDED":
            raise RunEndedError(keys.queue, message_id)
        if reply[0] == b"FULLRUN":
            raise RunTooLargeError(keys.queue, message_id, int(reply[1]), of="signals")
        older: bytes = accepted(reply, keys.queue)[3]
        return older or value

    return Command(
        load_script("signal"),
        (*standard_keys(keys), keys.run(message_id), keys.runs),
        (given(now_ms), message_id, name, value, "1" if known else "", dead_letter),
        decode,
    )


def start_run(
    keys: QueueKeys,
    message: NewMessage,
    start: bytes,
    options: SendOptions,
    *,
    now_ms: int | None = None,
) -> Command[bytes]:
    """Store the message of a run unless a run of its id exists; returns what that one was started with, else `start`.

    b"" of a run whose id was not chosen. Raises what a send raises, and `IdTakenError`.
    """
    copies = Copies(options.replicas, options.within_ms, options.fsync)

    def decode(reply: Any) -> bytes:
        fields = accepted_id(
            reply[0] if copies else reply, keys.queue, message.id, "group of calls"
        )
        if copies:
            copies.check(keys.queue, [message.id], reply[1])
        return start if fields[1] else bytes(fields[4])

    return Command(
        load_script("start"),
        (
            keys.ready[options.priority],
            keys.delayed,
            keys.wake,
            keys.meta,
            keys.stats,
            keys.run(message.id),
            keys.runs,
            keys.cancelled,
            keys.join(message.id),
            keys.journal,
        ),
        (
            given(now_ms),
            given(options.delay_ms) if options.eta_ms is None else f"@{options.eta_ms}",
            given(options.ttl_ms),
            options.priority,
            given(options.maxlen),
            head(message.id),
            message.tail,
            start,
        ),
        decode,
        then=copies.then,
        blocks_s=copies.blocks_s,
    )


class RunInspection(msgspec.Struct, frozen=True):
    """Where a run stands at `now_ms`. `known`: it has a state; `ended`: which expires.

    `item` is its message while it is parked: since `since_ms`, until `due_ms`, for the signal `waits`.
    """

    now_ms: int
    known: bool
    ended: bool
    fields: int
    since_ms: int | None
    waits: str
    due_ms: int | None
    item: bytes


def inspect_runs(
    keys: QueueKeys, message_ids: Sequence[str], *, now_ms: int | None = None
) -> Command[list[RunInspection]]:
    """Read where up to 100 runs stand; those for which the reply has no room are missing at its end."""

    def decode(reply: Any) -> list[RunInspection]:
        _, now, *runs = accepted(reply, keys.queue)
        return [
            RunInspection(
                int(now),
                ttl != -2,
                ttl >= 0,
                fields,
                whole(since),
                waits.decode("utf-8", "replace").removeprefix("!"),
                whole(due),
                item,
            )
            for ttl, fields, since, waits, due, item in runs
        ]

    return Command(
        load_script("inspect_runs"),
        (keys.meta, keys.delayed, *map(keys.run, message_ids)),
        (given(now_ms),),
        decode,
    )


def recall_steps(keys: QueueKeys, message_id: str, names: Sequence[str]) -> Command[Recalled]:
    """Read the recorded steps of a run: all of a short one, of a long one those of `names` that fit a reply."""

    def decode(reply: Any) -> Recalled:
        _, whole, *flat = accepted(reply, keys.queue)
        values: dict[str, bytes | None] = {
            name.decode("utf-8", "replace"): value or None
            for name, value in zip(flat[::2], flat[1::2], strict=True)
        }
        return Recalled(values, whole == 1)

    return Command(load_script("recall"), (keys.run(message_id),), tuple(names), decode)
