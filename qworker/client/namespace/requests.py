"""Requests to running workers: drain them, change their processes, read the stacks of their handlers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from qworker.errors import InDoubtError, InvalidOptionError, LoadingError, UnavailableError
from qworker.wire.control import (
    KEPT_MS,
    Answer,
    ControlRequest,
    check_processes,
    read_answer,
    write,
)
from qworker.wire.ids import new_lane_id
from qworker.wire.keys import answer_key, control_key, leaving_key

if TYPE_CHECKING:
    from qworker.client.namespace.workers import Asks

__all__ = ["ANSWER_S", "ask_workers", "change_of", "drain_workers"]

#: Workers check every 2 s; one that does not answer within this is unreachable, or runs an older version.
ANSWER_S: Final = 6.0
#: Shorter than a command waits for any reply.
_WAIT_S: Final = 0.5
#: Nodes that are tried for the answers.
_TRIES: Final = 5
_NODE_AWAY: Final = (UnavailableError, InDoubtError, LoadingError)


def drain_workers(asks: Asks, names: Sequence[str], now_ms: int) -> None:
    """Ask workers and daemons to take no more messages, and to exit when their handlers have ended."""
    if names:
        fields = [word for name in names for word in (name, now_ms)]
        asks.note("HSET", leaving_key(asks.namespace), *fields)


def ask_workers(
    asks: Asks,
    workers: Sequence[str],
    verb: str,
    *,
    within_s: float = ANSWER_S,
    **arguments: Any,
) -> Iterator[Answer]:
    """Ask workers for a verb; yields the answers as they come, until all have answered or `within_s` has passed.

    A worker whose node of a Cluster does not serve is not asked: its answer is not `done`, and says why. If it is the
    only one, raises the error.
    """
    request = ControlRequest(_served_id(asks), verb, asks.now_ms(), arguments)
    missing = set(workers)
    for worker in workers:
        key = control_key(asks.namespace, worker)
        try:
            asks.note("RPUSH", key, write(request))
            asks.ask("PEXPIRE", key, KEPT_MS)
        except _NODE_AWAY as error:
            if len(workers) == 1:
                raise
            missing.discard(worker)
            yield Answer(worker, done=False, text=f"was not asked: {error}")
    deadline = time.monotonic() + within_s
    while missing and (left_s := deadline - time.monotonic()) > 0:
        wait_s = f"{min(left_s, _WAIT_S):.2f}"
        popped = asks.ask("BLPOP", answer_key(asks.namespace, request.id), wait_s)
        answer = read_answer(popped[1]) if popped else None
        if answer is not None:
            missing.discard(answer.worker)
            yield answer


def _served_id(asks: Asks) -> str:
    """Return the id of a request whose answers a node keeps that serves: in a Cluster ids are spread over the nodes."""
    for tries_left in reversed(range(_TRIES)):
        request_id = new_lane_id()
        try:
            asks.ask("EXISTS", answer_key(asks.namespace, request_id))
        except _NODE_AWAY:
            if not tries_left:
                raise
        else:
            break
    return request_id


def change_of(text: str, field: str) -> dict[str, int]:
    """Read a change of processes, `4`, `+1` or `-1`, as arguments of the verb `scale`. Raises `InvalidOptionError`."""
    digits = text.lstrip("+-")
    if (
        len(text) - len(digits) > 1
        or not (digits.isascii() and digits.isdigit())
        or len(digits) > 6
    ):
        raise InvalidOptionError(field, f"{ascii(text)[:40]} is not a number", "write 4, +1 or -1")
    if text != digits:
        return {"by": int(text)}
    return {"to": check_processes(int(digits), field)}
