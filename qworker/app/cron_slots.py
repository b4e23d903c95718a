"""Slots of a cron expression in a time zone, by CronSim.

Imported when the first expression is read: most processes of an app have none.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from datetime import time as clock_time
from difflib import get_close_matches
from functools import lru_cache
from itertools import product
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from qworker.errors import InvalidOptionError, shown

__all__ = ["checked_expression", "next_after_ms", "previous_ms", "zone_of"]

_FIELDS: Final = {
    "minute": "0-59",
    "hour": "0-23",
    "day-of-month": "1-31, L or LW",
    "month": "1-12 or JAN-DEC",
    "day-of-week": "0-7 or SUN-SAT, MON#2, 5L",
}
_FORM: Final = "write 'minute hour day-of-month month day-of-week', each as *, 1,2, 1-5 or */5"
_MAX_LENGTH: Final = 200
_HOUR: Final = timedelta(hours=1)
_NO_TIME: Final = timedelta()
#: CronSim searches 50 years.
_SEARCHED_DAYS: Final = 50 * 366
#: Where the trial run of an expression begins.
_TRIED_FROM: Final = datetime(2024, 1, 1, tzinfo=UTC)


def zone_of(name: object) -> tzinfo:
    """Return the time zone of a name. Raises `InvalidOptionError`."""
    if name == "UTC":
        return UTC  # without the time zone database
    if not isinstance(name, str):
        raise InvalidOptionError(
            "tz", f"{shown(name)} is not a str", "name a zone such as 'Europe/Vienna'"
        )
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        close = get_close_matches(name[:64], available_timezones(), 1)
        limit = f"did you mean {close[0]!r}?" if close else "name a zone such as 'Europe/Vienna'"
        raise InvalidOptionError("tz", f"{shown(name)} is not a time zone", limit) from None


def checked_expression(expression: object, zone: tzinfo) -> str:
    """Return an expression with single spaces. Raises `InvalidOptionError` if it is wrong or matches no day."""
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
        # Alone: for a date that does not exist, such as 30 2, CronSim blames a valid field.
        if not _has_slot(" ".join(value if field == name else "*" for field in _FIELDS), UTC):
            problem = f"{name} {shown(value)} of {shown(text)} is wrong"
            raise InvalidOptionError(
                "cron", problem, f"it takes {accepted}, *, lists, ranges and steps (*/5)"
            )
    if not _has_slot(text, zone):
        raise InvalidOptionError(
            "cron", f"{shown(text)} matches no day", "choose a day that the month has"
        )
    return text


def next_after_ms(expression: str, zone: tzinfo, now_ms: int) -> int:
    """Return the first slot after `now_ms`, in ms since 1970."""
    if _goes_by_days(expression, zone):
        days = _days(expression, zone, now_ms, 1)
        return next(slot for day in days for slot in day if slot > now_ms)
    # In a repeated hour CronSim begins with slots of the first pass, which may be over.
    slots = map(_ms, CronSim(expression, _local(now_ms, zone)))
    return next(slot for slot in slots if slot > now_ms)


def previous_ms(expression: str, zone: tzinfo, now_ms: int) -> int:
    """Return the last slot at or before `now_ms`, in ms since 1970."""
    if _goes_by_days(expression, zone):
        days = _days(expression, zone, now_ms, -1)
        return next(slot for day in days for slot in reversed(day) if slot <= now_ms)
    # CronSim's reverse search misses slots around a clock change: walk forward from its result.
    slot_ms = _ms(next(CronSim(expression, _local(now_ms, zone), reverse=True)))
    while (later_ms := next_after_ms(expression, zone, slot_ms)) <= now_ms:
        slot_ms = later_ms
    return slot_ms


@lru_cache(maxsize=256)
def _goes_by_days(expression: str, zone: tzinfo) -> bool:
    """Whether slots are looked up day by day.

    CronSim advances by whole hours, so a clock change of half an hour takes it past its minutes.
    """
    minute, hour, *_ = expression.split()
    return _shifts_by_parts_of_hours(zone) and "*" in (minute[0], hour[0])


def _days(expression: str, zone: tzinfo, now_ms: int, step: int) -> Iterator[tuple[int, ...]]:
    """Yield the slots of local days, beginning with that of `now_ms`."""
    day = _local(now_ms, zone).date()
    for number in range(_SEARCHED_DAYS):
        yield _slots_of(expression, zone, day + timedelta(days=step * number))


@lru_cache(maxsize=256)
def _slots_of(expression: str, zone: tzinfo, day: date) -> tuple[int, ...]:
    """Return the slots of a local day by elapsed time: both of a repeated hour."""
    parsed = CronSim(expression, _TRIED_FROM)
    if day.month not in parsed.months or not parsed.match_day(day):
        return ()
    slots = set()
    for hour, minute, fold in product(parsed.hours, parsed.minutes, (0, 1)):
        local = datetime.combine(day, clock_time(hour, minute, fold=fold), zone)
        # A time that the clock skips is another one after a round trip through UTC.
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


def _shifts_by_parts_of_hours(zone: tzinfo) -> bool:
    """Whether summer time changes the clock by part of an hour, as on Lord Howe Island."""
    offsets = [datetime(2024, month, 1, tzinfo=zone).utcoffset() for month in (1, 7)]
    return offsets[0] is not None and (offsets[0] - (offsets[1] or offsets[0])) % _HOUR != _NO_TIME


def _local(now_ms: int, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(now_ms // 1000, zone)


def _ms(slot: datetime) -> int:
    return int(slot.timestamp()) * 1000
