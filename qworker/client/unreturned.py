"""Deliveries that no caller has seen: of a receive that was interrupted, lost its reply, or failed halfway.

A lease that runs out counts as a lost worker: it would blame messages that no handler has seen, and end some of them.
So the client gives these leases back uncounted: with the next receive of the same queue, in the same call, and at once
after a call is cancelled or interrupted.

A call whose reply was lost may reach the server after its lease was given back (a server reads the bytes of a closed
connection in any order). A lease that did not exist is therefore given back again with every receive for a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from qworker.engine.settle import Outcomes
from qworker.wire.keys import QueueKeys

__all__ = ["ALL", "Unreturned"]

#: The index that means all messages of a lease.
ALL: Final = "*"
#: Seconds for which a lease that does not exist yet is given back.
_KEPT_S: Final = 30.0
#: Leases per call, and per queue.
_PER_CALL: Final = 32
_MOST: Final = 1_000


class Unreturned:
    """The leases of one client with messages that no caller has seen. Thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: Per queue or shard, by its lease prefix: its keys, and (lease id, index) → when that was noted.
        self._noted: dict[str, tuple[QueueKeys, dict[tuple[str, str], float]]] = {}

    def __bool__(self) -> bool:
        return bool(self._noted)

    def note(self, keys: QueueKeys, lease_id: str, index: str = ALL) -> None:
        """Remember to give back a lease, or one message of it."""
        with self._lock:
            _, noted = self._noted.setdefault(keys.lease_prefix, (keys, {}))
            noted[lease_id, index] = self._clock()
            while len(noted) > _MOST:
                del noted[next(iter(noted))]

    def queues(self) -> list[QueueKeys]:
        """The queues with such leases."""
        with self._lock:
            return [keys for keys, _ in self._noted.values()]

    def outcomes(self, keys: QueueKeys) -> list[Outcomes]:
        """Return outcomes that release some of the leases of a queue; pass their result to `settled`."""
        if not self._noted:
            return []
        with self._lock:
            noted = list(self._noted.get(keys.lease_prefix, (keys, {}))[1])
        leases: dict[str, Outcomes] = {}
        for lease_id, index in noted:
            if lease_id in leases or len(leases) < _PER_CALL:
                leases.setdefault(lease_id, Outcomes(lease_id)).release(index)
        return list(leases.values())

    def settled(
        self, keys: QueueKeys, outcomes: Sequence[Outcomes], per_lease: Sequence[int]
    ) -> None:
        """Forget the leases that existed, and those that were given back for long enough."""
        existed = {
            released.lease_id
            for released, messages in zip(outcomes, per_lease, strict=True)
            if messages
        }
        tried = {released.lease_id for released in outcomes}
        now = self._clock()
        with self._lock:
            _, noted = self._noted.get(keys.lease_prefix, (keys, {}))
            for (lease_id, index), at in list(noted.items()):
                if lease_id in existed or (lease_id in tried and now - at > _KEPT_S):
                    del noted[lease_id, index]
            if not noted:
                self._noted.pop(keys.lease_prefix, None)
