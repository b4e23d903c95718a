"""Rates: what operators write ("100/s", "6000/m", or a number per second), and keeping to one."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from typing import Final

from qworker.errors import InvalidOptionError

__all__ = ["Pace", "Rate", "rate_per_s"]

Rate = str | int | float

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_TEXT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:/([smhd]))?", re.ASCII)
_FORMS: Final = "write a rate such as '100/s', '50/m' or '1000/h', or a number per second"
#: Per second; above it nothing is slowed down, below it an hour holds less than one.
_FASTEST: Final = 1e9
_SLOWEST: Final = 1 / 3600
#: Seconds that a pace which fell behind may catch up.
_CATCH_UP_S: Final = 1.0
#: A share of a second that one go takes at most, so that the rate holds over short spans too.
_GO_S: Final = 0.1


def rate_per_s(value: object, field: str) -> float:
    """Convert a rate to a number per second. Raises `InvalidOptionError` for no rate, and for one per hour or less."""
    per_s = None
    if isinstance(value, str) and (match := _TEXT.fullmatch(value)):
        per_s = float(match[1]) / _SECONDS[match[2] or "s"]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        per_s = float(value) if abs(value) <= _FASTEST else math.inf
    if per_s is None:
        raise InvalidOptionError(field, f"{ascii(value)[:80]} is no rate", _FORMS)
    if not _SLOWEST <= per_s <= _FASTEST:
        raise InvalidOptionError(
            field, f"{ascii(value)[:80]} is out of range", "it must be from 1/h to 1000000000/s"
        )
    return per_s


class Pace:
    """Keeps to `per_s` things per second; None: as fast as it goes. What it was late for is not all made up at once."""

    def __init__(self, per_s: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._clock = clock
        self._due = clock()

    def go(self, most: int) -> int:
        """Say how many to do in one go: at least 1, at most `most`."""
        if self._per_s is None:
            return most
        return max(1, min(most, int(self._per_s * _GO_S)))

    def done(self, number: int) -> float:
        """Note that `number` were done; returns the seconds to wait before the next go."""
        if self._per_s is None:
            return 0.0
        now = self._clock()
        self._due = max(self._due, now - _CATCH_UP_S) + number / self._per_s
        return max(0.0, self._due - now)
