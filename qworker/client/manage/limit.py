"""Limits of a group: how many messages run at a time, how many start in a time, how often it has its turn."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

from qworker.config.fields import Options, kinds_of, unknown_option
from qworker.config.kinds import IntegerKind, Kind
from qworker.durations import duration_ms, format_ms
from qworker.errors import InvalidOptionError
from qworker.wire.groups import ORDERED, parent_of

__all__ = ["FIRST_VERSION", "Limit", "check_value", "limit_of", "read_value", "share_version"]

_RATE: Final = re.compile(r"([1-9][0-9]{0,6})/([0-9.]*(?:ms|s|m|h|d))", re.ASCII)
_WEIGHT: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?", re.ASCII)
_SHARE: Final = re.compile(r"\bs=([0-9]{1,16})\b", re.ASCII)
_DAY_MS: Final = 86_400_000
#: The version of a share that no pass has given: of a new shard, or the limit that its queue had for itself.
FIRST_VERSION: Final = 1
#: What a 0 could mean, beside that there is no limit, and the pause that does it.
_ZERO: Final = {
    "concurrency": ("nothing may run", "--out"),
    "rate": ("nothing may start", "--out"),
    "max_waiting": ("nothing may wait", "--in"),
}
_MOST: Final = 1_000_000


class RateKind(Kind):
    """A number of starts in a time: `100/s`, `5/10m`."""

    __slots__ = ()

    @property
    def limit(self) -> str:
        """How to write one."""
        return "write starts per time, such as 100/s or 5/10m: 1 to 9999999, per 1ms to 1d"

    def _checked(self, value: object, field: str) -> str:
        if not isinstance(value, str) or (match := _RATE.fullmatch(value)) is None:
            raise self._refused(value, field, "is not a rate")
        period_ms = _period_ms(match[2], field)
        return f"{match[1]}/{_per(period_ms)}"


def _per(period_ms: int) -> str:
    text = format_ms(period_ms)
    return text[1:] if text in ("1ms", "1s", "1m", "1h", "1d") else text


def _period_ms(text: str, field: str) -> int:
    return duration_ms(
        text if text[0].isdigit() else f"1{text}", field, minimum_ms=1, maximum_ms=_DAY_MS
    )


class WeightKind(Kind):
    """A share of the turns."""

    __slots__ = ()

    @property
    def limit(self) -> str:
        """The range."""
        return "it must be a number from 0.01 to 100"

    def _checked(self, value: object, field: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._refused(value, field, "is not a number")
        if not 0.01 <= value <= 100:
            raise self._refused(value, field, "is out of range")
        return float(value)

    def _parsed(self, text: str) -> object:
        return float(text) if _WEIGHT.fullmatch(text) else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit(Options):
    """Limits of a name; None: that of a more general name applies, if there is one."""

    concurrency: Annotated[
        int | None,
        IntegerKind("messages that run at a time", minimum=1, maximum=_MOST, none="no limit"),
    ] = None
    rate: Annotated[
        str | None, RateKind("messages that start per unit of time", none="no limit")
    ] = None
    burst: Annotated[
        int | None,
        IntegerKind(
            "messages of the rate that may start at once",
            minimum=1,
            maximum=_MOST,
            none="those of 100 ms",
        ),
    ] = None
    weight: Annotated[float | None, WeightKind("share of the turns", none="1")] = None
    max_waiting: Annotated[
        int | None,
        IntegerKind(
            "refuse sends of a group with more waiting messages",
            minimum=1,
            maximum=10**9,
            none="no limit",
        ),
    ] = None

    def _check_together(self) -> None:
        if self.burst is not None and self.rate is None:
            raise InvalidOptionError("burst", "is set without rate", "give both")

    @property
    def per_s(self) -> float | None:
        """How many start in a second at most, on average; None without a rate."""
        if self.rate is None:
            return None
        return 1000 * self.starts / self.period_ms

    @property
    def at_once(self) -> int:
        """The burst; by default what the rate allows in 100 ms: a worker that comes so late does not lower it."""
        return self.burst or max(1, math.ceil((self.per_s or 1.0) / 10))

    @property
    def period_ms(self) -> int:
        """The time of the rate, in ms; 0 without one."""
        return 0 if self.rate is None else _period_ms(self.rate.partition("/")[2], "rate")

    @property
    def starts(self) -> int:
        """How many start in that time; 0 without a rate."""
        return 0 if self.rate is None else int(self.rate.partition("/")[0])

    @property
    def words(self) -> str:
        """The limits as they are stored; '' without any."""
        parts = []
        if self.concurrency is not None:
            parts.append(f"c={self.concurrency}")
        if self.rate is not None:
            parts.append(f"r={self.starts}/{self.period_ms}")
            parts.append(f"b={self.at_once}")
        if self.weight is not None:
            parts.append(f"w={self.weight:g}")
        if self.max_waiting is not None:
            parts.append(f"m={self.max_waiting}")
        return " ".join(parts)

    @property
    def text(self) -> str:
        """The limits for people: `concurrency 5, rate 100/s`."""
        given = (
            ("concurrency", self.concurrency),
            ("rate", self.rate),
            ("burst", self.burst),
            ("weight", None if self.weight is None else f"{self.weight:g}"),
            ("max waiting", self.max_waiting),
        )
        return (
            ", ".join(f"{name} {value}" for name, value in given if value is not None)
            or "no limits"
        )

    @classmethod
    def of_words(cls, words: str) -> Self:
        """Read stored limits; what cannot be read is left out."""
        found = dict(part.split("=", 1) for part in words.split() if "=" in part)

        def number(letter: str) -> int | None:
            text = found.get(letter, "")
            return int(text) if text.isascii() and text.isdigit() and int(text) else None

        # The rate of a share is a part of one, in a long period.
        is_part = share_version(words) > FIRST_VERSION
        count, _, period = ("" if is_part else found.get("r", "")).partition("/")
        rate = f"{count}/{_per(int(period))}" if count.isdigit() and period.isdigit() else None
        try:
            return cls(
                concurrency=number("c"),
                rate=rate,
                burst=number("b") if rate else None,
                weight=float(found["w"]) if "w" in found else None,
                max_waiting=number("m"),
            )
        except (InvalidOptionError, ValueError):
            return cls()


def check_value(option: str, value: object) -> Any:
    """Return the canonical value of one limit; None removes it. Raises `InvalidOptionError`."""
    if option not in kinds_of(Limit):
        raise unknown_option(ascii(option)[1:-1], option, kinds_of(Limit))
    if option in _ZERO and not isinstance(value, bool) and value in (0, "0"):
        meaning, direction = _ZERO[option]
        raise InvalidOptionError(
            option,
            f"0 could mean no limit, or that {meaning}",
            f"write none (None in Python) for no limit, or use qworker queue pause QUEUE {direction}",
        )
    return kinds_of(Limit)[option].check(value, option)


def read_value(option: str, text: str) -> Any:
    """Read one limit as people write it: `none` removes it. Raises `InvalidOptionError`."""
    if text == "none":
        return None
    if text == "0" and option in _ZERO:
        return check_value(option, text)
    return kinds_of(Limit)[option].parse(text, option)


def limit_of(known: Mapping[str, Limit], name: str) -> Limit:
    """Return the limits that apply to a stored name of a group or parent: its own override those of its kind."""
    bare = name.removeprefix(ORDERED)
    kinds = ("*/",) if bare.endswith("/") else (f"{parent_of(bare)}/*" if "/" in bare else "*", "*")
    found = Limit()
    for limit in filter(None, map(known.get, (bare, *kinds))):
        with_rate = limit if found.rate is None else found
        found = Limit(
            concurrency=limit.concurrency if found.concurrency is None else found.concurrency,
            rate=with_rate.rate,
            burst=with_rate.burst,
            weight=limit.weight if found.weight is None else found.weight,
            max_waiting=limit.max_waiting if found.max_waiting is None else found.max_waiting,
        )
    return found


def share_version(words: str) -> int:
    """Return the version of stored words if they are a share of a limit over several queues; 0 if not."""
    match = _SHARE.search(words)
    return int(match[1]) if match else 0
