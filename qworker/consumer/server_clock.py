"""The server's clock, as a child knows it from the replies to its receives."""

from __future__ import annotations

__all__ = ["ServerClock"]


class ServerClock:
    """Knows when, in seconds of `boot_time`, the server's clock had a time, without asking the server.

    A reply says what the server's time was at some moment between the call and the reply. Where a reply waited to be
    read (the next batch is fetched while one runs), or the server waited before it ran the call (at a doorbell), this
    is a wide window; so each one only corrects what the last ones said, as far as it contradicts them.
    """

    __slots__ = ("_offset_ms",)

    def __init__(self) -> None:
        self._offset_ms: float | None = None

    def note(self, now_ms: int, called: float, answered: float) -> float:
        """Take what a reply says: `now_ms` was between `called` and `answered`; returns when, as far as it is known."""
        # The server cuts its time down to whole ms.
        most_ms = now_ms + 1 - called * 1000
        least_ms = now_ms - answered * 1000
        known_ms = least_ms if self._offset_ms is None else self._offset_ms
        self._offset_ms = max(least_ms, min(known_ms, most_ms))
        return min(answered, (now_ms - self._offset_ms) / 1000)
