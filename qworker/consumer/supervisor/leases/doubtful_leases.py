"""Gives back leases that children have left in doubt, see `board/doubts.py`.

Their messages are held by a lease that no child works on. Left alone it runs out, and its end would be blamed on
messages that no handler has seen. The server may create it late, so it is given back again for half a minute.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Final

import structlog

from qworker.consumer.board.clock import boot_time
from qworker.engine.settle import Outcomes, settle
from qworker.errors import QworkerError, concerns_the_call
from qworker.telemetry.throttle import LogThrottle

if TYPE_CHECKING:
    from qworker.client.execute.recurring import RecurringCalls
    from qworker.consumer.board.board import Board
    from qworker.wire.keys import QueueKeys

__all__ = ["DoubtfulLeases"]

_log = structlog.get_logger(__name__)

#: Seconds after a lease was noted at which it is given back, until it is found. First the child has a chance to.
_AFTER_S: Final = (1.5, 3.0, 5.0, 10.0, 20.0, 30.0)
#: A server that does not answer is asked again after this time, for a minute.
_AGAIN_S: Final = 1.0
_LONGEST_S: Final = 60.0
#: Leases of one settle.
_AT_ONCE: Final = 32


class DoubtfulLeases:
    """The leases in doubt of all children. Not thread-safe. `caller` goes into the journal."""

    def __init__(self, calls: RecurringCalls, *, caller: str) -> None:
        self._calls = calls
        self._caller = caller
        self._number = count()
        #: A heap: when to give back, a number, when it was noted, how often it was not found, the lease and its queue.
        self._due: list[tuple[float, int, float, int, str, QueueKeys]] = []

        self._throttle = LogThrottle()

    def note(self, board: Board, queues: Sequence[QueueKeys]) -> None:
        """Note what a child has put on its board since the last call."""
        now = boot_time()
        for lease_id, queue in board.doubts.unread():
            if queue < len(queues):
                self._push(now + _AFTER_S[0], now, 0, lease_id, queues[queue])

    def give_back(self) -> int:
        """Give back leases whose time has come, uncounted; returns the number of their messages. Raises nothing."""
        now, given_back = boot_time(), 0
        due: dict[QueueKeys, list[tuple[str, float, int]]] = {}
        while self._due and self._due[0][0] <= now:
            _, _, noted, tried, lease_id, keys = heapq.heappop(self._due)
            due.setdefault(keys, []).append((lease_id, noted, tried))
        for keys, leases in due.items():
            for first in range(0, len(leases), _AT_ONCE):
                given_back += self._give_back(keys, leases[first : first + _AT_ONCE])
        return given_back

    def _give_back(self, keys: QueueKeys, leases: Sequence[tuple[str, float, int]]) -> int:
        outcomes = [Outcomes(lease_id) for lease_id, _, _ in leases]
        for one in outcomes:
            one.release("*")
        try:
            settled = self._calls.execute(settle(keys, outcomes, caller=self._caller))
        except QworkerError as error:
            now = boot_time()
            for lease_id, noted, tried in leases:
                if not concerns_the_call(error) and now - noted < _LONGEST_S:
                    self._push(now + _AGAIN_S, noted, tried, lease_id, keys)
            if (suppressed := self._throttle.admit(keys.queue)) is not None:
                _log.warning(
                    "release_refused", queue=keys.queue, error=str(error), held_back=suppressed
                )
            return 0
        for (lease_id, noted, tried), messages in zip(leases, settled.per_lease, strict=True):
            if messages:
                _log.warning(
                    "lost_reply_given_back",
                    queue=keys.queue,
                    lease_id=lease_id,
                    messages=messages,
                )
            elif tried + 1 < len(_AFTER_S):
                again = max(noted + _AFTER_S[tried + 1], boot_time() + _AGAIN_S)
                self._push(again, noted, tried + 1, lease_id, keys)
        return sum(settled.per_lease)

    def _push(self, at: float, noted: float, tried: int, lease_id: str, keys: QueueKeys) -> None:
        heapq.heappush(self._due, (at, next(self._number), noted, tried, lease_id, keys))
