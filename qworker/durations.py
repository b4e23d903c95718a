"""Durations, as public options take them ("30s", a timedelta, seconds), in integer milliseconds.

"250ms"  "30s"  "1.5m"  "10m"  "2h"  "7d"     30 (seconds)     timedelta(minutes=5)
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final

from qworker.errors import InvalidOptionError, shown

__all__ = ["MAX_MS", "Duration", "duration_ms", "format_ms"]

Duration = str | int | float | timedelta

#: The largest integer that Lua and JSON represent exactly.
MAX_MS: Final = 2**53

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TEXT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", re.ASCII)
_TEXTS: Final = "write a duration such as '250ms', '30s', '10m', '2h' or '7d'"
_FORMS: Final = f"{_TEXTS}, a timedelta, or a number of seconds"
#: Digits of a number without a unit that its error repeats.
_LONGEST_NUMBER: Final = 12
_NO_UNIT: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)


def duration_ms(value: object, field: str, *, minimum_ms: int = 0, maximum_ms: int = MAX_MS) -> int:
    """Convert a duration to whole milliseconds, rounded to the nearest.

    Raises `InvalidOptionError` for anything that is not a duration (bool, NaN, infinite, negative, non-ASCII digits)
    or outside `minimum_ms`…`maximum_ms`.
    """
    try:
        milliseconds = _milliseconds(value, field)
    except (OverflowError, ValueError) as error:
        if isinstance(error, InvalidOptionError):
            raise
        # Too many digits for an int that Python converts, or for a float.
        forms = _TEXTS if isinstance(value, str) else _FORMS
        raise InvalidOptionError(field, f"{shown(value)} is out of range", forms) from error
    if not minimum_ms <= milliseconds <= maximum_ms:
        limit = f"from {format_ms(minimum_ms)} to {format_ms(maximum_ms)}"
        if maximum_ms == MAX_MS and milliseconds < minimum_ms:
            limit = f"{format_ms(minimum_ms)} or more"
        raise InvalidOptionError(field, f"{shown(value)} is out of range", f"it must be {limit}")
    return milliseconds


def format_ms(milliseconds: int) -> str:
    """Write milliseconds in the largest unit that keeps them whole: 90000 → '90s', 120000 → '2m'."""
    if milliseconds == 0:
        return "0s"
    for unit in ("d", "h", "m", "s"):
        if milliseconds % _UNITS_MS[unit] == 0:
            return f"{milliseconds // _UNITS_MS[unit]}{unit}"
    return f"{milliseconds}ms"


def _milliseconds(value: object, field: str) -> int:
    if isinstance(value, timedelta):
        # Integer arithmetic: a float loses milliseconds after 285 years.
        return round(value / timedelta(milliseconds=1))
    if isinstance(value, str):
        match = _TEXT.fullmatch(value)
        if match is None:
            # A command line has no numbers and timedeltas: text is answered with text.
            forms = (
                f"add a unit: '{value}s', or ms, m, h, d"
                if _NO_UNIT.fullmatch(value) and len(value) < _LONGEST_NUMBER
                else _TEXTS
            )
            raise InvalidOptionError(field, f"{shown(value)} is not a duration", forms)
        number, unit = match.groups()
        if "." in number:
            return round(float(number) * _UNITS_MS[unit])
        return int(number) * _UNITS_MS[unit]
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise InvalidOptionError(field, f"{value} is not a duration", _FORMS)
        return value * 1000 if isinstance(value, int) else round(value * 1000)
    raise InvalidOptionError(field, f"{shown(value)} is not a duration", _FORMS)
