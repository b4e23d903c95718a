"""The command that receives messages, and settles earlier ones in the same trip."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final

import msgspec
from msgspec import structs

from qworker.engine.arguments import given, standard_keys
from qworker.engine.command import Command, Word
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.engine.settle import Outcomes
from qworker.wire.keys import QueueKeys

__all__ = ["PAUSED", "UNKNOWN", "Batch", "Suspects", "indices_of", "settle_receive"]

#: Values of `Batch.hint_ms` that are not times.
PAUSED: Final = -1
UNKNOWN: Final = -2
#: What short replies begin with: of a queue with a journal, of one with groups, and of any other.
_NOTED: Final = b"NOTED"
_TURNS: Final = b"TURNS"
_SHORT: Final = (b"SHORT", _NOTED, _TURNS)


class Suspects(IntEnum):
    """Whether a receive may take a suspect, a message that is delivered alone."""

    NEVER = 0
    IF_NOTHING_ELSE = 1
    FIRST = 2


class Batch(msgspec.Struct, frozen=True):
    """One delivered lease. `items` are the envelopes as stored, at `indices` of the lease.

    `hint_ms`: 0 more is ready · n the next delayed message is due in n ms · `PAUSED` · `UNKNOWN`.
    `alone`: the one message is a suspect; `suspects` more wait. `settled`: messages settled per lease of the call.
    `journal`: it is on, and takes the events of acks. `has_groups`: the queue has. `wait_ms`: when the next of these
    that waits for a time may run; 0 for none. `resumed`: the call was a repetition, and made no lease; without messages
    its first sending may yet make it.
    """

    lease_id: str
    items: list[bytes]
    indices: list[str]
    now_ms: int
    deadline_ms: int
    ready_left: int
    hint_ms: int
    alone: bool
    degraded: bool
    settled: tuple[int, ...]
    suspects: int = 0
    journal: bool = False
    has_groups: bool = False
    wait_ms: int = 0
    resumed: bool = False


def settle_receive(
    keys: QueueKeys,
    lease_id: str,
    count: int,
    *,
    outcomes: Sequence[Outcomes] = (),
    visibility_ms: int | None = None,
    suspects: Suspects = Suspects.IF_NOTHING_ELSE,
    caller: str = "",
    now_ms: int | None = None,
    resume: bool = False,
    each: bool = False,
) -> Command[Batch]:
    """Settle `outcomes`, then receive up to `count` messages into the new lease, in one trip.

    A repetition settles again (idempotent) and returns what the lease holds, without creating it. `caller`, for the
    journal: `<host>:<pid>`. `each`: the messages will be settled one by one rather than together.
    """
    args: list[Word] = [
        given(now_ms),
        "1" if resume else "each" if each else "",
        count,
        given(visibility_ms),
        int(suspects),
        caller,
        len(outcomes),
    ]
    for outcome in outcomes:
        args += outcome.words()

    def decode(reply: Any) -> Batch:
        if reply[0] in _SHORT:
            return _short_batch(lease_id, reply, len(outcomes))
        return _batch(lease_id, accepted(reply, keys.queue))

    return Command(
        load_script("settle_receive"),
        standard_keys(keys, *(outcome.lease_id for outcome in outcomes), lease_id),
        tuple(args),
        decode,
        resume_at=None if resume or count == 0 else 1,
        decode_resumed=lambda reply: structs.replace(decode(reply), resumed=True),
        settled=(lambda: settle_receive(keys, lease_id, 0, outcomes=outcomes, caller=caller))
        if outcomes
        else None,
    )


def _short_batch(lease_id: str, reply: list[Any], leases: int) -> Batch:
    """Make the batch of a short reply: no message is a suspect, and no message has a history."""
    kind, now, deadline, left, hint, degraded, each, *items = reply
    settled = tuple(map(int, each.split())) or (1,) * leases
    times = (int(now), deadline, left, hint)
    return Batch(
        lease_id,
        items,
        indices_of(items, ()),
        *times,
        False,
        degraded == 1,
        settled,
        journal=kind == _NOTED,
        has_groups=kind == _TURNS,
    )


def _batch(lease_id: str, reply: Sequence[Any]) -> Batch:
    _, now, deadline, left, hint, alone, degraded, settled, items, indices, *more = reply
    suspects, on, *waits = more  # a queue without groups says nothing of waits
    return Batch(
        lease_id,
        items,
        indices_of(items, indices),
        int(now),
        int(deadline),
        left,
        int(hint),
        alone == 1,
        degraded == 1,
        tuple(settled),
        suspects,
        on == 1,
        bool(waits),
        *waits,
    )


def indices_of(items: Sequence[bytes], replied: Sequence[bytes]) -> list[str]:
    """Return the indices of messages in their lease: as replied, or 0 for a lone message and 1, 2 … for several."""
    if replied:
        return [index.decode() for index in replied]
    return ["0"] if len(items) == 1 else [str(index) for index in range(1, len(items) + 1)]
