"""Limits of groups: how many run at a time, how many start in a time, whose turn it is how often."""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.config.fields import Options, kinds_of, unknown_option
from qworker.config.kinds import IntegerKind, Kind
from qworker.durations import duration_ms, format_ms
from qworker.engine import groups as commands
from qworker.engine.groups import GroupState
from qworker.errors import InvalidOptionError
from qworker.formats import span
from qworker.wire.groups import ORDERED, is_limit, parent_of

__all__ = [
    "GroupState",
    "Limit",
    "groups",
    "limit_of",
    "limits",
    "remove_limit",
    "set_limit",
    "waits_for",
]

_RATE: Final = re.compile(r"([1-9][0-9]{0,6})/([0-9.]*(?:ms|s|m|h|d))", re.ASCII)
_DAY_MS: Final = 86_400_000
_MOST: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class RateKind(Kind):
    """A number of starts in a time: `100/s`, `5/10m`."""

    @property
    def limit(self) -> str:
        """How to write one."""
        return "write starts per time, such as 100/s or 5/10m: 1 to 9999999, per 1ms to 1d"

    def _checked(self, value: object, field: str) -> str:
        if not isinstance(value, str) or (match := _RATE.fullmatch(value)) is None:
            raise self._refused(value, field, "is not a rate")
        period_ms = _period_ms(match[2], field)
        return f"{match[1]}/{format_ms(period_ms)}"


def _period_ms(text: str, field: str) -> int:
    return duration_ms(
        text if text[0].isdigit() else f"1{text}", field, minimum_ms=1, maximum_ms=_DAY_MS
    )


@dataclass(frozen=True, slots=True)
class WeightKind(Kind):
    """A share of the turns."""

    @property
    def limit(self) -> str:
        """The range."""
        return "it must be a number from 0.01 to 100"

    def _checked(self, value: object, field: str) -> float:
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0.01 <= value <= 100
        ):
            raise self._refused(value, field, "is out of range")
        return float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit(Options):
    """Limits of a name; None leaves one to a more general name, or is no limit."""

    concurrency: Annotated[
        int | None,
        IntegerKind("messages that run at a time", minimum=1, maximum=_MOST, none="no limit"),
    ] = None
    rate: Annotated[str | None, RateKind("messages that start in a time", none="no limit")] = None
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
        number, _, period = self.rate.partition("/")
        return 1000 * int(number) / _period_ms(period, "rate")

    @property
    def _usual_burst(self) -> int:
        """What the rate allows in 100 ms: a worker that comes so late does not lower it."""
        return max(1, math.ceil((self.per_s or 1.0) / 10))

    @property
    def words(self) -> str:
        """The limits as they are stored; '' without any."""
        parts = []
        if self.concurrency is not None:
            parts.append(f"c={self.concurrency}")
        if self.rate is not None:
            number, _, period = self.rate.partition("/")
            parts.append(f"r={number}/{_period_ms(period, 'rate')}")
            parts.append(f"b={self.burst or self._usual_burst}")
        if self.weight is not None:
            parts.append(f"w={self.weight:g}")
        if self.max_waiting is not None:
            parts.append(f"m={self.max_waiting}")
        return " ".join(parts)

    @classmethod
    def of_words(cls, words: str) -> Self:
        """Read stored limits; what cannot be read is left out."""
        found = dict(part.split("=", 1) for part in words.split() if "=" in part)

        def number(letter: str) -> int | None:
            text = found.get(letter, "")
            return int(text) if text.isascii() and text.isdigit() and int(text) else None

        count, _, period = found.get("r", "").partition("/")
        rate = f"{count}/{format_ms(int(period))}" if count.isdigit() and period.isdigit() else None
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


def set_limit(queue: QueueRef, name: str, /, **given: object) -> Plan[Limit]:
    """Set limits: of a group (`acme/ann`), a parent (`acme/`), each of its groups (`acme/*`), or each group (`*`).

    Options: concurrency, rate, burst, weight, max_waiting; those that are not given stay, None removes one. They hold
    at once, for messages that start from now on. Returns the limits of the name. Raises `InvalidOptionError` and
    `TooManyLimitsError`.
    """
    _check(name)
    if not given:
        raise InvalidOptionError(
            "limit", "none is given", "give at least one of concurrency, rate, weight, max_waiting"
        )
    for option in given:
        if option not in kinds_of(Limit):
            raise unknown_option(ascii(option)[1:-1], option, kinds_of(Limit))
    before = (yield from limits(queue)).get(name, Limit())
    kept: dict[str, Any] = {option: getattr(before, option) for option in kinds_of(Limit)}
    if "rate" in given and "burst" not in given:
        kept["burst"] = None
    after = Limit(**{**kept, **given})
    yield from queue.announce()
    yield from _write(queue, name, after.words)
    return after


def remove_limit(queue: QueueRef, name: str, /) -> Plan[bool]:
    """Remove the limits of a name; returns whether there were any."""
    _check(name)
    known = yield from limits(queue)
    yield from _write(queue, name, "")
    return name in known


def limits(queue: QueueRef) -> Plan[dict[str, Limit]]:
    """Read the limits of the queue by name."""
    stored: dict[str, str] = yield commands.limits(queue.keys)
    return {name: Limit.of_words(words) for name, words in sorted(stored.items())}


def groups(
    queue: QueueRef, *, most: int = 10, most_read: int | None = None
) -> Plan[list[GroupState]]:
    """Return the groups with the most waiting and running messages. O(groups), in calls of 500.

    `most_read`: only those among about this many groups of each shard; None for all.
    """
    found: list[GroupState] = []
    for shard in (yield from queue.every_shard(refresh=True)):
        cursor, read = "0", 0
        while True:
            cursor, _, page = yield commands.group_page(shard.keys, cursor)
            found = heapq.nlargest(most, [*found, *page], key=_size)
            read += len(page)
            if cursor == "0" or (most_read is not None and read >= most_read):
                break
    return found


def limit_of(known: Mapping[str, Limit], name: str) -> Limit:
    """Return what holds for a stored name of a group or parent: its own limits go before those of its kind."""
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


def waits_for(group: GroupState, now_ms: int) -> str:
    """Say for people what the messages of a group wait for; '' if none wait."""
    if group.until_ms is not None and group.reason:
        whose = "the rate of its parent" if group.by_parent else "its rate"
        return f"{whose}, {span(max(group.until_ms - now_ms, 0) / 1000)} more"
    if group.reason == "concurrency of its parent":
        return "one running of its parent"
    if group.reason == "concurrency":
        return f"one of its {group.running:,} running"
    return "its turn" if group.reason == "turn" else ""


def _size(group: GroupState) -> tuple[int, str]:
    return group.waiting + group.running, group.name


def _write(queue: QueueRef, name: str, words: str) -> Plan[None]:
    for shard in (yield from queue.every_shard(refresh=True)):
        cursor = yield commands.set_limit(shard.keys, name, words)
        while cursor != "0":
            cursor = yield commands.set_limit(shard.keys, "", "", cursor)


def _check(name: str) -> None:
    if not isinstance(name, str) or not is_limit(name):
        raise InvalidOptionError(
            "limit",
            f"{ascii(name)[:80]} cannot have limits",
            "write a group such as acme/ann, a parent such as acme/, acme/* for each of its groups, or *",
        )
