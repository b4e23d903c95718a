"""The command that takes messages over from receivers that are gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import structs

from qworker.engine.arguments import given, standard_keys
from qworker.engine.command import Command, Word
from qworker.engine.receive import UNKNOWN, Batch, indices_of
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.wire.keys import QueueKeys

__all__ = ["MAX_CANDIDATES", "Claimed", "claim"]

#: Leases per claim.
MAX_CANDIDATES: Final = 64


class Claimed(msgspec.Struct, frozen=True):
    """The lease that a claim has created, and how many messages were `ended` instead: dead, expired, suspects."""

    batch: Batch
    ended: int


def claim(
    keys: QueueKeys,
    lease_id: str,
    candidates: Sequence[tuple[str, int]],
    count: int,
    *,
    visibility_ms: int | None = None,
    caller: str = "",
    now_ms: int | None = None,
) -> Command[Claimed]:
    """Take up to `count` messages over from leases, each with the deadline ms that the caller read.

    Leaves a lease alone that was extended since. A repetition returns what the new lease holds.
    """

    def decode(reply: Any) -> Claimed:
        _, now, deadline, degraded, items, indices, alone, ended = accepted(reply, keys.queue)
        batch = Batch(
            lease_id,
            items,
            indices_of(items, indices),
            int(now),
            int(deadline),
            ready_left=0,
            hint_ms=UNKNOWN,
            alone=alone == 1,
            degraded=degraded == 1,
            settled=(),
        )
        return Claimed(batch, ended)

    def decode_resumed(reply: Any) -> Claimed:
        claimed = decode(reply)
        return structs.replace(claimed, batch=structs.replace(claimed.batch, resumed=True))

    args: tuple[Word, ...] = (
        given(now_ms),
        0,
        count,
        given(visibility_ms),
        caller,
        *(deadline_ms for _, deadline_ms in candidates),
    )
    names = standard_keys(keys, *(name for name, _ in candidates), lease_id)
    return Command(
        load_script("claim"), names, args, decode, resume_at=1, decode_resumed=decode_resumed
    )
