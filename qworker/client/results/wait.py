"""Wait for the result of a message: poll once, then after each hint, and slowly without hints."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from qworker.client.inspect.results import outcome as outcome_of
from qworker.client.inspect.results import result_channels
from qworker.client.results.searching import Searches, is_gone

if TYPE_CHECKING:
    from qworker.client.plan import Plan
    from qworker.client.queue import AsyncQueue, Queue
    from qworker.client.queue_ref import QueueRef
    from qworker.wire.result import Outcome

__all__ = ["Awaited", "Gone", "attempt_s", "await_result", "searches", "wait_for_result"]

#: Seconds between reads of the result without a hint: the first one, and the longest.
_FIRST_READ_S: Final = 0.5
_READ_S: Final = 5.0
#: Seconds that a server has to answer the last read: a wait takes no longer beyond its timeout.
_ANSWER_S: Final = 1.0
#: Seconds until the message is searched for: most waits are over by then.
_SEARCH_S: Final = 30.0
#: Seconds until it is searched for briefly, unless this process has sent it in the last `_SEARCH_S`.
_BRIEF_S: Final = 1.0


class Gone:
    """No result is kept, and no such message is in the queue."""


class Awaited(Struct, frozen=True):
    """What is waited for: a message, and the queues of the chain that ends with it, if they are known.

    `sent_at`: when this process has sent it, by the monotonic clock.
    """

    message_id: str
    queues: tuple[str, ...] = ()
    sent_at: float | None = None


def searches() -> Searches:
    """The searches of a wait, or of several one after the other."""
    return Searches(_SEARCH_S)


def wait_for_result(
    queue: Queue, awaited: Awaited, seconds: float | None, shared: Searches | None = None
) -> Outcome | Gone | None:
    """Wait up to `seconds` (None: forever) until a message has ended; None if its end is not known by then.

    `Gone` once the message is known to be gone, of which no result is kept: it would be waited for forever. `shared`:
    searches that waits in turn have in common. Raises `ServerError` if the server does not answer for as long as its
    calls are tried, or until a second after the end of the wait.
    """
    end, ref = _end_of(seconds), queue.ref

    def read(plan: Plan[Outcome | Gone | None]) -> Outcome | Gone | None:
        return queue.client.run(plan, give_up_s=attempt_s(queue, end))

    found = read(outcome_of(ref, awaited.message_id))
    if found is not None or seconds == 0:
        return found
    searching, pause_s = _Searching(ref, awaited, shared), _FIRST_READ_S
    with queue.client.listener.watch(result_channels(ref, awaited.message_id)) as watch:
        while found is None and (left_s := end - time.monotonic()) > 0:
            if (search := searching.due()) is not None:
                found = read(search)
                continue
            watch.wait(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _READ_S)
            found = read(outcome_of(ref, awaited.message_id, merged=False))
    return read(searching.search()) if found is None else found


async def await_result(
    queue: AsyncQueue, awaited: Awaited, seconds: float | None, shared: Searches | None = None
) -> Outcome | Gone | None:
    """Wait as `wait_for_result` does."""
    end, ref = _end_of(seconds), queue.ref

    async def read(plan: Plan[Outcome | Gone | None]) -> Outcome | Gone | None:
        return await queue.client.run(plan, give_up_s=attempt_s(queue, end))

    found = await read(outcome_of(ref, awaited.message_id))
    if found is not None or seconds == 0:
        return found
    searching, pause_s = _Searching(ref, awaited, shared), _FIRST_READ_S
    async with queue.client.listener.watch(result_channels(ref, awaited.message_id)) as watch:
        while found is None and (left_s := end - time.monotonic()) > 0:
            if (search := searching.due()) is not None:
                found = await read(search)
                continue
            await watch.wait(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _READ_S)
            found = await read(outcome_of(ref, awaited.message_id, merged=False))
    return await read(searching.search()) if found is None else found


def attempt_s(queue: Queue | AsyncQueue, end: float) -> float:
    """Return for how many seconds a read is tried, in a wait that ends at `end` by the monotonic clock."""
    return min(queue.give_up_s, max(0.0, end - time.monotonic()) + _ANSWER_S)


class _Searching:
    """Searches of one wait for its message, which may be gone. `shared` with waits before and after it."""

    def __init__(self, queue: QueueRef, awaited: Awaited, shared: Searches | None) -> None:
        self._queue, self._awaited, self._shared = queue, awaited, shared
        self._searches = shared or searches()
        self._searches.begin()
        now, sent_at = time.monotonic(), awaited.sent_at
        is_new = sent_at is not None and now < sent_at + _SEARCH_S
        self._brief_at = math.inf if is_new else now + _BRIEF_S

    def due(self) -> Plan[Outcome | Gone | None] | None:
        """Return the search to make now, if any."""
        if self._searches.due():
            return self.search()
        if time.monotonic() < self._brief_at:
            return None
        self._brief_at = math.inf
        return self.search(brief=True)

    def search(self, *, brief: bool = False) -> Plan[Outcome | Gone | None]:
        """Search for the message; it may have ended meanwhile. None if it may still end."""
        queue, message_id = self._queue, self._awaited.message_id
        if not (yield from is_gone(queue, message_id, self._awaited.queues, brief=brief)):
            return None
        if (found := (yield from outcome_of(queue, message_id))) is not None:
            return found
        if self._shared is not None:
            self._shared.found_gone()
        return Gone()


def _end_of(seconds: float | None) -> float:
    return float("inf") if seconds is None else time.monotonic() + seconds
