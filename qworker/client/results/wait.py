"""Wait for the result of a message: poll once, then after each hint, and slowly without hints."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from qworker.client.inspect.results import is_gone, look, result_channels

if TYPE_CHECKING:
    from qworker.client.queue import AsyncQueue, Queue
    from qworker.wire.result import Outcome

__all__ = ["Gone", "await_result", "wait_for_result"]

#: Seconds between looks without a hint: the first one, and the longest.
_FIRST_LOOK_S: Final = 0.5
_LOOK_S: Final = 5.0


class Gone:
    """No result is kept, and no such message is in the queue."""


def wait_for_result(queue: Queue, message_id: str, seconds: float | None) -> Outcome | Gone | None:
    """Wait up to `seconds` (None: forever) until a message has ended; None if its end is not known by then."""
    found: Outcome | None = queue.client.run(look(queue.ref, message_id))
    if found is not None or seconds == 0:
        return found
    end = _end_of(seconds)
    pause_s = _FIRST_LOOK_S
    with queue.client.listener.watch(result_channels(queue.ref, message_id)) as watch:
        while found is None and (left_s := end - time.monotonic()) > 0:
            watch.wait(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LOOK_S)
            found = queue.client.run(look(queue.ref, message_id, merged=False))
    if found is None and queue.client.run(is_gone(queue.ref, message_id)):
        # It may have ended between the two.
        return queue.client.run(look(queue.ref, message_id)) or Gone()
    return found


async def await_result(
    queue: AsyncQueue, message_id: str, seconds: float | None
) -> Outcome | Gone | None:
    """Wait as `wait_for_result` does."""
    client = queue.client
    found: Outcome | None = await client.run(look(queue.ref, message_id))
    if found is not None or seconds == 0:
        return found
    end = _end_of(seconds)
    pause_s = _FIRST_LOOK_S
    async with client.listener.watch(result_channels(queue.ref, message_id)) as watch:
        while found is None and (left_s := end - time.monotonic()) > 0:
            await watch.wait(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LOOK_S)
            found = await client.run(look(queue.ref, message_id, merged=False))
    if found is None and await client.run(is_gone(queue.ref, message_id)):
        return await client.run(look(queue.ref, message_id)) or Gone()
    return found


def _end_of(seconds: float | None) -> float:
    return float("inf") if seconds is None else time.monotonic() + seconds
