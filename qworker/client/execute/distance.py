"""How long calls keep servers busy, as far as a client can tell: the time of their trips without the network's part."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from qworker.store.nodes import Address

__all__ = ["Distances"]

#: The distance of a node is its shortest trip of the last 50 to 100.
_RECENT: Final = 50
#: How much longer than that a trip may be without an effect of the server's: networks are not that even.
_EVEN: Final = 1.25


class _Shortest:
    """The shortest of the last trips to a node, in seconds."""

    __slots__ = ("_earlier_s", "_latest_s", "_trips")

    def __init__(self) -> None:
        self._earlier_s = self._latest_s = math.inf
        self._trips = 0

    def note(self, seconds: float) -> None:
        if self._trips == _RECENT:
            self._earlier_s, self._latest_s, self._trips = self._latest_s, math.inf, 0
        self._latest_s = min(self._latest_s, seconds)
        self._trips += 1

    @property
    def seconds(self) -> float:
        return min(self._earlier_s, self._latest_s)


class Distances:
    """How far away nodes are, and how long the calls of each thread have kept them busy. Used from many threads.

    The shortest trip is all network. Whatever makes another one more than a quarter longer, such as a long reply,
    counts as the server's time.
    """

    def __init__(self) -> None:
        self._shortest: dict[Address, _Shortest] = {}
        self._lock = threading.Lock()
        self._thread = threading.local()

    def note(self, nodes: Iterable[Address], seconds: float) -> None:
        """Note how long a trip of this thread took; calls to several nodes are answered side by side."""
        with self._lock:
            known = [self._shortest.setdefault(node, _Shortest()) for node in nodes]
            if len(known) == 1:
                known[0].note(seconds)
            away_s = max((one.seconds for one in known), default=math.inf)
        if away_s < math.inf:
            self._thread.busy_s = self.busy_s + max(0.0, seconds - _EVEN * away_s)

    @property
    def busy_s(self) -> float:
        """Seconds for which calls of this thread have kept servers busy so far."""
        return getattr(self._thread, "busy_s", 0.0)
