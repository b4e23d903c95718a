"""Parse rates ("100/s", "6000/m", or a number per second), and keep to one: every `rate` and `--rate`."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from typing import Final

from qworker.config.kinds import Kind
from qworker.errors import InvalidOptionError

__all__ = ["Rate", "Throttle", "ThrottleRateKind", "rate_per_s"]

Rate = str | int | float

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_TEXT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:/([smhd]))?", re.ASCII)
_FORMS: Final = "write a rate such as '100/s', '50/m' or '1000/h', or a number per second"
#: Per second: above `_FASTEST` nothing is slowed down; `_SLOWEST` is one per hour.
_FASTEST: Final = 1e9
_SLOWEST: Final = 1 / 3600
#: Seconds of delay that a throttle makes up for.
_CATCH_UP_S: Final = 1.0
#: Seconds of work per batch, so that the rate also holds over short spans.
_BATCH_S: Final = 0.1


def rate_per_s(value: object, field: str) -> float:
    """Convert a rate to a number per second. Raises `InvalidOptionError` if it is not a rate, or below one per hour."""
    per_s = None
    if isinstance(value, str) and (match := _TEXT.fullmatch(value)):
        per_s = float(match[1]) / _SECONDS[match[2] or "s"]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        per_s = float(value) if abs(value) <= _FASTEST else math.inf
    if per_s is None:
        raise InvalidOptionError(field, f"{ascii(value)[:80]} is not a rate", _FORMS)
    if not _SLOWEST <= per_s <= _FASTEST:
        raise InvalidOptionError(
            field, f"{ascii(value)[:80]} is out of range", "it must be from 1/h to 1000000000/s"
        )
    return per_s


class ThrottleRateKind(Kind):
    """A rate, kept as a number per second."""

    __slots__ = ()

    @property
    def limit(self) -> str:
        """How a rate is written."""
        return _FORMS

    def _checked(self, value: object, field: str) -> float:
        return 0.0 if self.zero and value in (0, "0") else rate_per_s(value, field)


class Throttle:
    """Keep to `per_s` items per second; None: no limit. Makes up for a delay of up to one second."""

    def __init__(self, per_s: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._clock = clock
        self._due = clock()

    def batch(self, most: int) -> int:
        """Return the size of the next batch, from 1 to `most`."""
        if self._per_s is None:
            return most
        return max(1, min(most, int(self._per_s * _BATCH_S)))

    def done(self, number: int) -> float:
        """Count a batch of `number` items; returns the seconds to wait before the next one."""
        if self._per_s is None:
            return 0.0
        now = self._clock()
        self._due = max(self._due, now - _CATCH_UP_S) + number / self._per_s
        return max(0.0, self._due - now)
