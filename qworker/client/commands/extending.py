"""Commands that give received messages more time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qworker.client.commands.arguments import given
from qworker.client.commands.command import Command
from qworker.client.commands.replies import accepted
from qworker.store.scripts import load_script
from qworker.wire.keys import QueueKeys

__all__ = ["extend", "split"]


def extend(
    keys: QueueKeys, lease_ids: Sequence[str], visibility_ms: int, *, now_ms: int | None = None
) -> Command[dict[str, int]]:
    """Move deadlines to `visibility_ms` from now, never nearer. Returns lease id → deadline ms, 0 for a lease
    that is gone.
    """

    def decode(reply: Any) -> dict[str, int]:
        answer = accepted(reply, keys.queue)
        return dict(zip(lease_ids, (int(each) for each in answer[2:]), strict=True))

    return Command(
        load_script("extend"),
        (keys.unacked, keys.meta),
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
    """Give one message a lease of its own. Returns its deadline ms; 0 where the receipt is stale.

    `visibility_ms` None takes the message's own, else the queue's. With `half` the reply raises `TooLateError` where
    half of its time to live is over.
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
