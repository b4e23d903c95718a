"""Kinds of option values: what they accept, their range, and what 0 and None mean.

A kind *checks* values of Python and TOML, and *parses* text of the environment and the command line; both return the
canonical value. `show` writes it for display.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, Final

from qworker.durations import MAX_MS, duration_ms, format_ms
from qworker.errors import InvalidOptionError, shown

__all__ = [
    "DAY_MS",
    "DIGITS",
    "HOUR_MS",
    "MAX_DELAY_MS",
    "MAX_VISIBILITY_MS",
    "MIN_VISIBILITY_MS",
    "ChoiceKind",
    "DurationKind",
    "FlagKind",
    "IntegerKind",
    "Kind",
    "SizeKind",
]

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
#: The longest delay and time to live: added to now, they are below the seats of groups until the year 2109.
MAX_DELAY_MS: Final = 2**52 - 2**42
MIN_VISIBILITY_MS: Final = 1000
MAX_VISIBILITY_MS: Final = 12 * HOUR_MS

_ANY_MS: Final = 2**63
# Bounded, so that a text of thousands of digits is never converted.
DIGITS: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_SECONDS: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?", re.ASCII)
_SIZE: Final = re.compile(r"([0-9]{1,15})(B|KiB|MiB|GiB)", re.ASCII)
_UNITS: Final = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}
_FLAGS: Final = {
    "true": True,
    "false": False,
    "yes": True,
    "no": False,
    "on": True,
    "off": False,
    "1": True,
    "0": False,
}


@dataclass(frozen=True, slots=True)
class Kind:
    """The values that a field accepts. `zero` and `none` say what 0 and None mean; without `none`, None is refused."""

    help: str
    zero: str = dataclasses.field(default="", kw_only=True)
    none: str = dataclasses.field(default="", kw_only=True)

    @property
    def limit(self) -> str:
        """The accepted values, for error texts."""
        raise NotImplementedError

    def check(self, value: object, field: str) -> Any:
        """Return the canonical value. Raises `InvalidOptionError`, which names `field`."""
        return None if value is None and self.none else self._checked(value, field)

    def parse(self, text: str, field: str) -> Any:
        """Read and check text of the environment or the command line."""
        if not text:
            raise InvalidOptionError(
                field, "is empty", f"{self.limit}; leave it out for the default"
            )
        return self._checked(self._parsed(text), field)

    def show(self, value: object) -> str:
        """Write a checked value for display, without secrets."""
        return "" if value is None else str(value)

    def _checked(self, value: object, field: str) -> Any:
        raise NotImplementedError

    def _parsed(self, text: str) -> object:
        return text

    def _refused(
        self, value: object, field: str, problem: str = "is not accepted"
    ) -> InvalidOptionError:
        return InvalidOptionError(field, f"{shown(value)} {problem}", self.limit)


@dataclass(frozen=True, slots=True)
class DurationKind(Kind):
    """A duration, kept as canonical text. `parse` takes a number without a unit as seconds."""

    minimum_ms: int = dataclasses.field(default=0, kw_only=True)
    maximum_ms: int = dataclasses.field(default=MAX_DELAY_MS, kw_only=True)

    @property
    def limit(self) -> str:
        """The range, and zero if it is outside the range."""
        zero = f", or 0 ({self.zero})" if self.zero and self.minimum_ms else ""
        if self.maximum_ms == MAX_DELAY_MS:
            least = format_ms(self.minimum_ms)
            return f"it must be a duration from {least} to about 142,000 years, such as '30s'{zero}"
        return f"it must be a duration from {format_ms(self.minimum_ms)} to {format_ms(self.maximum_ms)}{zero}"

    def _checked(self, value: object, field: str) -> str:
        value_ms = duration_ms(value, field, minimum_ms=-_ANY_MS, maximum_ms=_ANY_MS)
        if not (self.minimum_ms <= value_ms <= self.maximum_ms or (self.zero and value_ms == 0)):
            raise self._refused(value, field, "is out of range")
        return format_ms(value_ms)

    def _parsed(self, text: str) -> object:
        if not _SECONDS.fullmatch(text):
            return text
        return float(text) if "." in text else int(text)


@dataclass(frozen=True, slots=True)
class IntegerKind(Kind):
    """An integer in a range."""

    minimum: int = dataclasses.field(default=0, kw_only=True)
    maximum: int = dataclasses.field(default=MAX_MS, kw_only=True)

    @property
    def limit(self) -> str:
        """The range, and zero if it is outside the range."""
        zero = f", or 0 ({self.zero})" if self.zero and self.minimum > 0 else ""
        return f"it must be an integer from {self.minimum} to {self.maximum}{zero}"

    def _checked(self, value: object, field: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._refused(value, field, "is not an integer")
        if not (self.minimum <= value <= self.maximum or (self.zero and value == 0)):
            raise self._refused(value, field, "is out of range")
        return value

    def _parsed(self, text: str) -> object:
        return int(text) if DIGITS.fullmatch(text) else text


@dataclass(frozen=True, slots=True)
class SizeKind(Kind):
    """A size in bytes: an integer, or text such as '256KiB'."""

    minimum: int = dataclasses.field(default=0, kw_only=True)
    maximum: int = dataclasses.field(default=MAX_MS, kw_only=True)

    @property
    def limit(self) -> str:
        """The range, and zero if it is outside the range."""
        zero = f", or 0 ({self.zero})" if self.zero and self.minimum else ""
        return (
            f"it must be a size from {_size_text(self.minimum)} to {_size_text(self.maximum)}{zero}"
        )

    def show(self, value: object) -> str:
        """Write the size in its largest whole unit."""
        return _size_text(value) if isinstance(value, int) else ""

    def _checked(self, value: object, field: str) -> int:
        size = value
        if isinstance(value, str) and (match := _SIZE.fullmatch(value)):
            size = int(match[1]) * _UNITS[match[2]]
        if isinstance(size, bool) or not isinstance(size, int):
            raise self._refused(
                value, field, "is not a size (bytes, or a number with B, KiB, MiB or GiB)"
            )
        if not (self.minimum <= size <= self.maximum or (self.zero and size == 0)):
            raise self._refused(value, field, "is out of range")
        return size

    def _parsed(self, text: str) -> object:
        return int(text) if DIGITS.fullmatch(text) else text


class FlagKind(Kind):
    """True or false."""

    __slots__ = ()

    @property
    def limit(self) -> str:
        """The two values."""
        return "it must be true or false"

    def show(self, value: object) -> str:
        """Write the value as TOML does."""
        return "true" if value else "false"

    def _checked(self, value: object, field: str) -> bool:
        if not isinstance(value, bool):
            raise self._refused(value, field, "is neither true nor false")
        return value

    def _parsed(self, text: str) -> object:
        return _FLAGS.get(text.lower(), text)


@dataclass(frozen=True, slots=True)
class ChoiceKind(Kind):
    """One of a few words."""

    choices: tuple[str, ...] = dataclasses.field(kw_only=True)

    @property
    def limit(self) -> str:
        """The words."""
        return f"it must be one of {', '.join(self.choices)}"

    def _checked(self, value: object, field: str) -> str:
        if not isinstance(value, str) or value not in self.choices:
            raise self._refused(value, field)
        return value


def _size_text(size: int) -> str:
    return next(
        f"{size // unit}{name}"
        for name, unit in _UNITS.items()
        if size % unit == 0 and (size or unit == 1)
    )
