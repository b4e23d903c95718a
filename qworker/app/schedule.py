"""Schedules: when a task is due again and again, as values. Firing them is the daemon's work.

A slot is a moment at which a schedule is due. Slots depend on nothing but the schedule, so any number of daemons
agree on them. `next_after_ms` and `previous_ms` split time at now: the first slot after it, the last one at or before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo
from datetime import time as clock_time
from difflib import get_close_matches
from functools import lru_cache
from itertools import product
from typing import Final, Literal, cast, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from qworker.config.kinds import DAY_MS, shown
from qworker.durations import Duration, duration_ms, format_ms
from qworker.errors import InvalidOptionError

__all__ = ["Cron", "Every", "Missed", "Schedule", "cron", "every", "parse_schedule", "schedule_of"]

#: What becomes of slots that passed while no daemon ran: none is fired, the last one, or all of them.
Missed = Literal["skip", "once", "all"]

_FIELDS: Final = {
    "minute": "0-59",
    "hour": "0-23",
    "day-of-month": "1-31, L or LW",
    "month": "1-12 or JAN-DEC",
    "day-of-week": "0-7 or SUN-SAT, MON#2, 5L",
}
_FORM: Final = "write 'minute hour day-of-month month day-of-week', each as *, 1,2, 1-5 or */5"
_SPEC: Final = "a spec is 'cron M H D M W tz=ZONE missed=POLICY' or 'every DURATION missed=POLICY'"
_CRON_SPEC: Final = re.compile(r"cron (.{1,200}) tz=(\S+) missed=(\S+)")
_EVERY_SPEC: Final = re.compile(r"every (\S+) missed=(\S+)")
_MAX_LENGTH: Final = 200
_HOUR: Final = timedelta(hours=1)
_NO_TIME: Final = timedelta()
#: As far as CronSim searches.
_SEARCHED_DAYS: Final = 50 * 366
# A moment from which every expression is tried out; leap days come within the 50 years that CronSim searches.
_TRIED_FROM: Final = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression of five fields in a time zone, with the rules of Debian's cron, also for daylight saving.

    A job at a fixed time that the clock skips in spring runs right after the gap, one in the hour that comes twice in
    autumn runs once; with a * in minute or hour it runs by the time that really passes. Where day-of-month or
    day-of-week begins with * both must match, else one of them.
    """

    expression: str
    tz: str = "UTC"
    missed: Missed = "once"
    _zone: tzinfo = field(init=False, repr=False, compare=False)
    _by_day: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_zone", _zone(self.tz))
        object.__setattr__(self, "expression", _checked_expression(self.expression, self._zone))
        minute, hour, *_ = self.expression.split()
        # CronSim goes on by whole hours, which a clock that is set by half an hour takes it past its minutes.
        by_day = _shifts_by_parts_of_hours(self._zone) and "*" in (minute[0], hour[0])
        object.__setattr__(self, "_by_day", by_day)
        _check_missed(self.missed)

    @property
    def spec(self) -> str:
        """The schedule as text, see `parse_schedule`."""
        return f"cron {self.expression} tz={self.tz} missed={self.missed}"

    def next_after_ms(self, now_ms: int) -> int:
        """Return the first slot after `now_ms`, in ms since 1970."""
        if self._by_day:
            return next(slot for day in self._days(now_ms, 1) for slot in day if slot > now_ms)
        # In the hour that comes twice CronSim begins with slots of its first pass, which may have gone by.
        return next(
            slot for slot in map(_ms, CronSim(self.expression, self._at(now_ms))) if slot > now_ms
        )

    def previous_ms(self, now_ms: int) -> int:
        """Return the last slot at or before `now_ms`, in ms since 1970."""
        if self._by_day:
            days = self._days(now_ms, -1)
            return next(slot for day in days for slot in reversed(day) if slot <= now_ms)
        # Backwards CronSim leaves slots out around a change of the clock: what it finds is where to walk on from.
        slot_ms = _ms(next(CronSim(self.expression, self._at(now_ms), reverse=True)))
        while (later_ms := self.next_after_ms(slot_ms)) <= now_ms:
            slot_ms = later_ms
        return slot_ms

    def _days(self, now_ms: int, step: int) -> Iterator[tuple[int, ...]]:
        """The slots of one local day after the other, from that of `now_ms` on."""
        day = self._at(now_ms).date()
        for number in range(_SEARCHED_DAYS):
            yield _slots_of(self.expression, self._zone, day + timedelta(days=step * number))

    def _at(self, now_ms: int) -> datetime:
        return datetime.fromtimestamp(now_ms // 1000, self._zone)


@dataclass(frozen=True, slots=True)
class Every:
    """A fixed interval of 1 s to 366 days. Slots are its multiples since 1970, whoever asks and whenever it began."""

    interval: Duration
    missed: Missed = "once"
    interval_ms: int = field(init=False)

    def __post_init__(self) -> None:
        interval_ms = duration_ms(self.interval, "every", minimum_ms=1000, maximum_ms=366 * DAY_MS)
        object.__setattr__(self, "interval_ms", interval_ms)
        object.__setattr__(self, "interval", format_ms(interval_ms))
        _check_missed(self.missed)

    @property
    def spec(self) -> str:
        """The schedule as text, see `parse_schedule`."""
        return f"every {self.interval} missed={self.missed}"

    def next_after_ms(self, now_ms: int) -> int:
        """Return the first slot after `now_ms`, in ms since 1970."""
        return (now_ms // self.interval_ms + 1) * self.interval_ms

    def previous_ms(self, now_ms: int) -> int:
        """Return the last slot at or before `now_ms`, in ms since 1970."""
        return now_ms // self.interval_ms * self.interval_ms


Schedule = Cron | Every


def cron(expression: str, tz: str = "UTC", *, missed: Missed = "once") -> Cron:
    """Be due by a cron expression in a time zone: `cron("*/5 * * * *", tz="Europe/Vienna")`.

    Raises `InvalidOptionError` saying which field is wrong, for an unknown zone, and for an expression that no day
    matches.
    """
    return Cron(expression, tz, missed)


def every(interval: Duration, *, missed: Missed = "once") -> Every:
    """Be due at a fixed interval of 1 s to 366 days: `every("30s")`. Raises `InvalidOptionError` for others."""
    return Every(interval, missed)


def schedule_of(given: object) -> Schedule:
    """Return a schedule as it is declared: `cron(…)`, `every(…)`, or the text of a cron expression in UTC.

    Raises `InvalidOptionError` for anything else.
    """
    if isinstance(given, Cron | Every):
        return given
    if isinstance(given, str) and len(given.split()) == len(_FIELDS):
        return Cron(given)
    raise InvalidOptionError(
        "schedule",
        f"{shown(given)} is not a schedule",
        "write cron('0 4 * * *', tz='Europe/Vienna') or '0 4 * * *' (in UTC), or every('30s')",
    )


def parse_schedule(spec: str) -> Schedule:
    """Read what `spec` of a schedule wrote. Raises `InvalidOptionError`."""
    if match := _CRON_SPEC.fullmatch(spec):
        return Cron(match[1], match[2], cast(Missed, match[3]))
    if match := _EVERY_SPEC.fullmatch(spec):
        return Every(match[1], cast(Missed, match[2]))
    raise InvalidOptionError("schedule", f"{shown(spec)} is not a spec", _SPEC)


def _checked_expression(expression: object, zone: tzinfo) -> str:
    if not isinstance(expression, str):
        raise InvalidOptionError("cron", f"{shown(expression)} is not a str", _FORM)
    fields = expression.split()
    if len(fields) != len(_FIELDS) or len(expression) > _MAX_LENGTH:
        problem = f"{shown(expression)} has {len(fields)} fields in {len(expression)} characters"
        raise InvalidOptionError(
            "cron", problem, f"{_FORM}, five fields in at most {_MAX_LENGTH} characters"
        )
    text = " ".join(fields)
    for (name, accepted), value in zip(_FIELDS.items(), fields, strict=True):
        # Alone, because the five together are refused under the name of a field that is right: 30 2 is no wrong day.
        if not _has_slot(" ".join(value if each == name else "*" for each in _FIELDS), UTC):
            problem = f"{name} {shown(value)} of {shown(text)} is wrong"
            raise InvalidOptionError(
                "cron", problem, f"it takes {accepted}, *, lists, ranges and steps (*/5)"
            )
    if not _has_slot(text, zone):
        raise InvalidOptionError(
            "cron", f"{shown(text)} matches no day", "choose a day that its month has"
        )
    return text


def _shifts_by_parts_of_hours(zone: tzinfo) -> bool:
    """Whether summer time differs from winter time by less than an hour, as on Lord Howe Island."""
    offsets = [datetime(2024, month, 1, tzinfo=zone).utcoffset() for month in (1, 7)]
    return offsets[0] is not None and (offsets[0] - (offsets[1] or offsets[0])) % _HOUR != _NO_TIME


@lru_cache(maxsize=256)
def _slots_of(expression: str, zone: tzinfo, day: date) -> tuple[int, ...]:
    """The moments of a local day that match by the time that really passes: both of an hour that comes twice."""
    parsed = CronSim(expression, _TRIED_FROM)
    if day.month not in parsed.months or not parsed.match_day(day):
        return ()
    slots = set()
    for hour, minute, fold in product(parsed.hours, parsed.minutes, (0, 1)):
        local = datetime.combine(day, clock_time(hour, minute, fold=fold), zone)
        # What the clock skips does not come back from UTC as it was.
        if local.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == local.replace(
            tzinfo=None
        ):
            slots.add(_ms(local))
    return tuple(sorted(slots))


def _has_slot(expression: str, zone: tzinfo) -> bool:
    try:
        next(CronSim(expression, _TRIED_FROM.astimezone(zone)))
    except (CronSimError, StopIteration):
        return False
    return True


def _zone(name: object) -> tzinfo:
    if name == "UTC":
        return UTC  # needs no time zone database
    if not isinstance(name, str):
        raise InvalidOptionError(
            "tz", f"{shown(name)} is not a str", "name a zone such as 'Europe/Vienna'"
        )
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        close = get_close_matches(name[:64], available_timezones(), 1)
        limit = f"did you mean {close[0]!r}?" if close else "name a zone such as 'Europe/Vienna'"
        raise InvalidOptionError("tz", f"{shown(name)} is no time zone", limit) from None


def _check_missed(missed: object) -> None:
    if missed not in get_args(Missed):
        raise InvalidOptionError(
            "missed", f"{shown(missed)} is no policy", "it must be skip, once or all"
        )


def _ms(slot: datetime) -> int:
    return int(slot.timestamp()) * 1000
