"""The server's clock, estimated from the replies to receives."""

from __future__ import annotations

__all__ = ["ServerClock"]


class ServerClock:
    """Converts times of the server's clock to seconds of `boot_time`.

    A reply says what the server's time was at some moment between the call and the reply. If the reply waited to be
    read (the next batch is fetched while one runs), or the server waited before it ran the call (at a doorbell), this
    is a wide window; so a reply corrects the estimate only as far as it contradicts it.
    """

    __slots__ = ("_offset_ms",)

    def __init__(self) -> None:
        self._offset_ms: float | None = None

    def note(self, now_ms: int, called: float, answered: float) -> float:
        """Note that `now_ms` was between `called` and `answered`; returns the best estimate of when."""
        # The server rounds its time down to whole ms.
        most_ms = now_ms + 1 - called * 1000
        least_ms = now_ms - answered * 1000
        known_ms = least_ms if self._offset_ms is None else self._offset_ms
        self._offset_ms = max(least_ms, min(known_ms, most_ms))
        return min(answered, (now_ms - self._offset_ms) / 1000)
