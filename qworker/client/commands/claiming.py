"""Commands that take messages over from receivers that are gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from qworker.client.commands.arguments import given, standard_keys
from qworker.client.commands.command import Command, Word
from qworker.client.commands.receiving import UNKNOWN, Batch
from qworker.client.commands.replies import accepted
from qworker.store.scripts import load_script
from qworker.wire.keys import QueueKeys

__all__ = ["MAX_CANDIDATES", "Claimed", "claim"]

#: Leases that one claim looks at.
MAX_CANDIDATES: Final = 64


@dataclass(frozen=True, slots=True)
class Claimed:
    """The lease that a claim has made, and how many messages were `ended` instead: dead, expired, suspects."""

    batch: Batch
    ended: int


def claim(
    keys: QueueKeys,
    lease_id: str,
    candidates: Sequence[tuple[str, int]],
    count: int,
    *,
    visibility_ms: int | None = None,
    who: str = "",
    now_ms: int | None = None,
) -> Command[Claimed]:
    """Take up to `count` messages over from leases, each given with the deadline ms that the caller has seen.

    A lease that was extended since is left alone. A repetition returns what the new lease holds.
    """

    def decode(reply: Any) -> Claimed:
        _, now, deadline, degraded, items, indices, alone, ended = accepted(reply, keys.queue)
        places = [index.decode() for index in indices]
        if not places:
            places = ["0"] if len(items) == 1 else [str(n) for n in range(1, len(items) + 1)]
        batch = Batch(
            lease_id,
            items,
            places,
            int(now),
            int(deadline),
            ready_left=0,
            hint_ms=UNKNOWN,
            alone=alone == 1,
            degraded=degraded == 1,
            settled=(),
        )
        return Claimed(batch, ended)

    args: tuple[Word, ...] = (
        given(now_ms),
        0,
        count,
        given(visibility_ms),
        who,
        *(deadline_ms for _, deadline_ms in candidates),
    )
    names = standard_keys(keys, *(name for name, _ in candidates), lease_id)
    return Command(load_script("claim"), names, args, decode, resume_at=1)
