"""Commands that extend leases, and give messages their own leases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from qworker.engine.arguments import given
from qworker.engine.command import Command
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.wire.keys import QueueKeys

__all__ = ["Extended", "extend", "split", "split_all"]


class Extended(msgspec.Struct, frozen=True):
    """Extended leases: lease id → deadline ms, 0 if it is gone; and lease ids and indices of cancelled messages."""

    deadlines: dict[str, int]
    cancelled: list[tuple[str, str]]


def extend(
    keys: QueueKeys, lease_ids: Sequence[str], visibility_ms: int, *, now_ms: int | None = None
) -> Command[Extended]:
    """Move deadlines to `visibility_ms` from now, never earlier, and learn which of the messages were cancelled."""

    def decode(reply: Any) -> Extended:
        answer = accepted(reply, keys.queue)[2:]
        number = len(lease_ids)
        named = (word.decode("ascii").split(" ") for word in answer[number:])
        return Extended(
            dict(zip(lease_ids, map(int, answer[:number]), strict=True)),
            [(lease_ids[int(at) - 1], index) for at, index in named],
        )

    return Command(
        load_script("extend"),
        (keys.unacked, keys.meta, keys.cancelled),
        (given(now_ms), visibility_ms, *lease_ids),
        decode,
    )


def split(
    keys: QueueKeys,
    lease_id: str,
    index: int | str,
    new_lease_id: str,
    visibility_ms: int | None,
    *,
    half: bool = False,
    now_ms: int | None = None,
) -> Command[int]:
    """Give one message its own lease. Returns its deadline ms; 0 if the receipt is stale.

    `visibility_ms` None takes the message's own, else the queue's. With `half` the reply raises `TooLateError` if half
    of its time to live is over.
    """

    def decode(reply: Any) -> int:
        return int(accepted(reply, keys.queue)[2])

    return Command(
        load_script("split"),
        (keys.unacked, keys.meta, keys.lease(lease_id), keys.lease(new_lease_id)),
        (
            given(now_ms),
            index,
            given(visibility_ms),
            *([1] if half else []),
        ),
        decode,
    )


def split_all(
    keys: QueueKeys,
    leases: Mapping[str, tuple[str, Sequence[int | str]]],
    visibility_ms: int,
    *,
    now_ms: int | None = None,
) -> Command[list[int]]:
    """Give messages of 1-64 leases, up to 1,000 in all, `visibility_ms` from now; all of them or none.

    `leases`: lease id → the id of a new lease, and the indices of the messages that move there. Returns the deadline ms
    of each message, in order; 0 if its receipt is stale.
    """

    def decode(reply: Any) -> list[int]:
        return [int(deadline_ms) for deadline_ms in accepted(reply, keys.queue)[2:]]

    names: list[str] = []
    words: list[int | str] = []
    for lease_id, (new_lease_id, indices) in leases.items():
        names += (keys.lease(lease_id), keys.lease(new_lease_id))
        words += (len(indices), *indices)
    return Command(
        load_script("split_all"),
        (keys.unacked, keys.meta, *names),
        (given(now_ms), visibility_ms, *words),
        decode,
    )
