"""Deliveries that no caller has seen: of a receive that was interrupted, lost its reply, or failed on the way.

Their messages are nobody's fault. Left to its deadline, a lease counts as a lost worker: it would blame messages that
were never shown to anyone, and end some of them. So the client gives them back uncounted: with the next receive of the
same queue, in the same call, and at once when a call is cancelled or interrupted.

A call whose reply was lost may still reach the server after it was given back (the bytes of a closed connection are
read in any order). A lease that was not there is therefore given back again with every receive for a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from qworker.client.commands.settling import Outcomes
from qworker.wire.keys import QueueKeys

__all__ = ["ALL", "Unreturned"]

#: The index that means all messages of a lease.
ALL: Final = "*"
#: Seconds for which a lease is given back that has not been found yet.
_KEPT_S: Final = 30.0
#: Leases that one call gives back, and that are remembered of one queue.
_PER_CALL: Final = 32
_MOST: Final = 1_000


class Unreturned:
    """The leases of one client that hold messages no caller has seen. Thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: Per queue or shard, by its lease prefix: its keys, and (lease id, index) → when that was noted.
        self._noted: dict[str, tuple[QueueKeys, dict[tuple[str, str], float]]] = {}

    def __bool__(self) -> bool:
        return bool(self._noted)

    def note(self, keys: QueueKeys, lease_id: str, index: str = ALL) -> None:
        """Remember a lease, or one message of it, to be given back."""
        with self._lock:
            _, noted = self._noted.setdefault(keys.lease_prefix, (keys, {}))
            noted[lease_id, index] = self._clock()
            while len(noted) > _MOST:
                del noted[next(iter(noted))]

    def queues(self) -> list[QueueKeys]:
        """The queues that have any."""
        with self._lock:
            return [keys for keys, _ in self._noted.values()]

    def outcomes(self, keys: QueueKeys) -> list[Outcomes]:
        """Release some of the leases of a queue, as outcomes for a call; tell `settled` what came of them."""
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
        """Forget the leases that were there, and those that have been looked for long enough."""
        found = {each.lease_id for each, held in zip(outcomes, per_lease, strict=True) if held}
        asked = {each.lease_id for each in outcomes}
        now = self._clock()
        with self._lock:
            _, noted = self._noted.get(keys.lease_prefix, (keys, {}))
            for (lease_id, index), at in list(noted.items()):
                if lease_id in found or (lease_id in asked and now - at > _KEPT_S):
                    del noted[lease_id, index]
            if not noted:
                self._noted.pop(keys.lease_prefix, None)
