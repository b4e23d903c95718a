"""Send a request to running workers, and wait for their answers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session
    from qworker.wire.control import Answer

__all__ = ["ANSWER_S", "ask_workers"]

#: Workers check every 2 s; one that does not answer within this is unreachable, or runs an older version.
ANSWER_S: Final = 6.0
#: Shorter than a session waits for any reply.
_WAIT_S: Final = 0.5


def ask_workers(
    session: Session,
    workers: Sequence[str],
    verb: str,
    *,
    within_s: float = ANSWER_S,
    **arguments: Any,
) -> Iterator[Answer]:
    """Ask workers for a verb; yields the answers as they come, until all have answered or `within_s` has passed."""
    from qworker.wire.control import KEPT_MS, Request, read_answer, write
    from qworker.wire.ids import new_lane_id
    from qworker.wire.keys import answer_key, control_key

    request = Request(new_lane_id(), verb, session.now_ms(), arguments)
    for worker in workers:
        key = control_key(session.namespace, worker)
        session.ask("RPUSH", key, write(request))
        session.ask("PEXPIRE", key, KEPT_MS)
    missing = set(workers)
    deadline = time.monotonic() + within_s
    while missing and (left_s := deadline - time.monotonic()) > 0:
        wait_s = f"{min(left_s, _WAIT_S):.2f}"
        popped = session.ask("BLPOP", answer_key(session.namespace, request.id), wait_s)
        answer = read_answer(popped[1]) if popped else None
        if answer is not None:
            missing.discard(answer.worker)
            yield answer
