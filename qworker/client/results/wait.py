"""Wait for the result of a message: poll once, then after each hint, and slowly without hints."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from qworker.client.inspect.results import look, result_channels
from qworker.client.results.searching import Searches, is_gone

if TYPE_CHECKING:
    from qworker.client.plan import Plan
    from qworker.client.queue import AsyncQueue, Queue
    from qworker.client.queue_ref import QueueRef
    from qworker.wire.result import Outcome

__all__ = ["Gone", "await_result", "wait_for_result"]

#: Seconds between looks without a hint: the first one, and the longest.
_FIRST_LOOK_S: Final = 0.5
_LOOK_S: Final = 5.0
#: Seconds until the message is searched for: most waits are over by then.
_SEARCH_S: Final = 30.0


class Gone:
    """No result is kept, and no such message is in the queue."""


def wait_for_result(queue: Queue, message_id: str, seconds: float | None) -> Outcome | Gone | None:
    """Wait up to `seconds` (None: forever) until a message has ended; None if its end is not known by then.

    `Gone` once the message is known to be gone, of which no result is kept: it would be waited for forever.
    """
    found: Outcome | Gone | None = queue.client.run(look(queue.ref, message_id))
    if found is not None or seconds == 0:
        return found
    end, searches = _end_of(seconds), Searches(_SEARCH_S)
    pause_s = _FIRST_LOOK_S
    with queue.client.listener.watch(result_channels(queue.ref, message_id)) as watch:
        while found is None and (left_s := end - time.monotonic()) > 0:
            watch.wait(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LOOK_S)
            found = queue.client.run(look(queue.ref, message_id, merged=False))
            if found is None and searches.due():
                found = queue.client.run(_gone(queue.ref, message_id))
    return queue.client.run(_gone(queue.ref, message_id)) if found is None else found


async def await_result(
    queue: AsyncQueue, message_id: str, seconds: float | None
) -> Outcome | Gone | None:
    """Wait as `wait_for_result` does."""
    client = queue.client
    found: Outcome | Gone | None = await client.run(look(queue.ref, message_id))
    if found is not None or seconds == 0:
        return found
    end, searches = _end_of(seconds), Searches(_SEARCH_S)
    pause_s = _FIRST_LOOK_S
    async with client.listener.watch(result_channels(queue.ref, message_id)) as watch:
        while found is None and (left_s := end - time.monotonic()) > 0:
            await watch.wait(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LOOK_S)
            found = await client.run(look(queue.ref, message_id, merged=False))
            if found is None and searches.due():
                found = await client.run(_gone(queue.ref, message_id))
    return await client.run(_gone(queue.ref, message_id)) if found is None else found


def _gone(queue: QueueRef, message_id: str) -> Plan[Outcome | Gone | None]:
    """Search for a message without a result; it may have ended meanwhile. None if it may still end."""
    if not (yield from is_gone(queue, message_id)):
        return None
    return (yield from look(queue, message_id)) or Gone()


def _end_of(seconds: float | None) -> float:
    return float("inf") if seconds is None else time.monotonic() + seconds
