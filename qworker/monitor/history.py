"""The last hour of a figure, in memory: what a sparkline draws."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

__all__ = ["HOUR_S", "Series"]

HOUR_S: Final = 3600.0


class Series:
    """Times, in seconds of a clock that never goes back, and values: those of the last hour, at least `apart_s` apart.

    A point in between raises the last one if it is higher: a peak must not fall between points. 12 bytes a point.
    """

    __slots__ = ("_apart_s", "_times", "_values")

    def __init__(self, apart_s: float) -> None:
        self._apart_s = apart_s
        self._times = array("d")
        self._values = array("f")

    def add(self, time_s: float, value: float) -> None:
        """Append a point, and forget those of more than an hour ago."""
        if self._times and time_s - self._times[-1] < self._apart_s:
            self._values[-1] = max(self._values[-1], value)
            return
        self._times.append(time_s)
        self._values.append(value)
        old = sum(1 for _ in self._older_than(time_s - HOUR_S))
        del self._times[:old]
        del self._values[:old]

    def points(self) -> list[tuple[float, float]]:
        """Return the points: seconds before the last one, as a negative number or 0, and the value."""
        if not self._times:
            return []
        last_s = self._times[-1]
        return [
            (time_s - last_s, value)
            for time_s, value in zip(self._times, self._values, strict=True)
        ]

    def _older_than(self, limit_s: float) -> Iterator[float]:
        for time_s in self._times:
            if time_s >= limit_s:
                return
            yield time_s
