"""Commands that receive messages, and settle on the way what the last ones came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from qworker.client.commands.arguments import given, standard_keys
from qworker.client.commands.command import Command, Word
from qworker.client.commands.replies import accepted
from qworker.client.commands.settling import Outcomes
from qworker.store.scripts import load_script
from qworker.wire.keys import QueueKeys

__all__ = ["PAUSED", "UNKNOWN", "Batch", "Suspects", "settle_receive"]

#: Values of `Batch.hint_ms` that are no time.
PAUSED: Final = -1
UNKNOWN: Final = -2


class Suspects(IntEnum):
    """Whether a receive may take a suspect: a message that is delivered alone."""

    NEVER = 0
    IF_NOTHING_ELSE = 1
    FIRST = 2


@dataclass(frozen=True, slots=True)
class Batch:
    """One delivered lease. `items` are the envelopes as stored, `indices` their places in the lease.

    `hint_ms`: 0 more is ready · n the next delayed message is due in n ms · `PAUSED` · `UNKNOWN`.
    `alone`: the one message is a suspect; `suspects` more wait. `settled`: messages settled per lease of the call.
    `journal`: it is written, and takes lines of what is acked.
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


def settle_receive(
    keys: QueueKeys,
    lease_id: str,
    count: int,
    *,
    outcomes: Sequence[Outcomes] = (),
    visibility_ms: int | None = None,
    suspects: Suspects = Suspects.IF_NOTHING_ELSE,
    who: str = "",
    now_ms: int | None = None,
    resume: bool = False,
) -> Command[Batch]:
    """Settle `outcomes`, then receive up to `count` messages into the new lease, in one trip.

    A repetition settles again (idempotent) and returns what the lease holds, without creating it. `who` makes the call,
    `<host>:<pid>`, for the journal.
    """
    args: list[Word] = [
        given(now_ms),
        int(resume),
        count,
        given(visibility_ms),
        int(suspects),
        who,
        len(outcomes),
    ]
    for outcome in outcomes:
        args += outcome.words()

    def decode(reply: Any) -> Batch:
        answer = accepted(reply, keys.queue)
        _, now, deadline, left, hint, alone, degraded, settled, items, indices, suspects, on = (
            answer
        )
        if not indices:
            number = len(items)
            indices = ["0"] if number == 1 else [str(index) for index in range(1, number + 1)]
        else:
            indices = [index.decode() for index in indices]
        return Batch(
            lease_id,
            items,
            indices,
            int(now),
            int(deadline),
            left,
            int(hint),
            alone == 1,
            degraded == 1,
            tuple(settled),
            suspects,
            on == 1,
        )

    return Command(
        load_script("settle_receive"),
        standard_keys(keys, *(outcome.lease_id for outcome in outcomes), lease_id),
        tuple(args),
        decode,
        resume_at=None if resume or count == 0 else 1,
        settled=(lambda: settle_receive(keys, lease_id, 0, outcomes=outcomes, who=who))
        if outcomes
        else None,
    )
