"""Requests to running workers: drain them, change their processes, read the stacks of their handlers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from qworker.errors import InvalidOptionError
from qworker.wire.control import KEPT_MS, Request, read_answer, write
from qworker.wire.ids import new_lane_id
from qworker.wire.keys import answer_key, control_key, leaving_key

if TYPE_CHECKING:
    from qworker.client.namespace.workers import Asks
    from qworker.wire.control import Answer

__all__ = ["ANSWER_S", "ask_workers", "change_of", "drain_workers"]

#: Workers check every 2 s; one that does not answer within this is unreachable, or runs an older version.
ANSWER_S: Final = 6.0
#: Shorter than a command waits for any reply.
_WAIT_S: Final = 0.5


def drain_workers(asks: Asks, names: Sequence[str], now_ms: int) -> None:
    """Ask workers and daemons to take no more messages, and to exit when their handlers have ended."""
    if names:
        fields = [word for name in names for word in (name, now_ms)]
        asks.ask("HSET", leaving_key(asks.namespace), *fields)


def ask_workers(
    asks: Asks,
    workers: Sequence[str],
    verb: str,
    *,
    within_s: float = ANSWER_S,
    **arguments: Any,
) -> Iterator[Answer]:
    """Ask workers for a verb; yields the answers as they come, until all have answered or `within_s` has passed."""
    request = Request(new_lane_id(), verb, asks.now_ms(), arguments)
    for worker in workers:
        key = control_key(asks.namespace, worker)
        asks.ask("RPUSH", key, write(request))
        asks.ask("PEXPIRE", key, KEPT_MS)
    missing = set(workers)
    deadline = time.monotonic() + within_s
    while missing and (left_s := deadline - time.monotonic()) > 0:
        wait_s = f"{min(left_s, _WAIT_S):.2f}"
        popped = asks.ask("BLPOP", answer_key(asks.namespace, request.id), wait_s)
        answer = read_answer(popped[1]) if popped else None
        if answer is not None:
            missing.discard(answer.worker)
            yield answer


def change_of(text: str, field: str) -> dict[str, int]:
    """Read a change of processes, `4`, `+1` or `-1`, as arguments of the verb `scale`. Raises `InvalidOptionError`."""
    digits = text.lstrip("+-")
    if (
        len(text) - len(digits) > 1
        or not (digits.isascii() and digits.isdigit())
        or len(digits) > 6
    ):
        raise InvalidOptionError(field, f"{ascii(text)[:40]} is not a number", "write 4, +1 or -1")
    return {"to": int(digits)} if text == digits else {"by": int(text)}
