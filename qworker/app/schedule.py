"""Schedules as values; the daemon fires them.

A slot is a moment at which a schedule is due. Slots depend on the schedule alone, so all daemons agree on them.
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

from qworker.config.kinds import DAY_MS
from qworker.durations import Duration, duration_ms, format_ms
from qworker.errors import InvalidOptionError, shown

__all__ = [
    "Cron",
    "Every",
    "Missed",
    "Overlap",
    "Schedule",
    "cron",
    "every",
    "parse_schedule",
    "schedule_of",
]

#: Which slots to fire that passed while no daemon ran: none, the last one, or all.
Missed = Literal["skip", "once", "all"]
#: What a slot does while the message of an earlier one has not ended: it fires beside it, does not fire, waits for its
#: end, or cancels it and waits for its end.
Overlap = Literal["allow", "skip", "queue", "cancel"]

_FIELDS: Final = {
    "minute": "0-59",
    "hour": "0-23",
    "day-of-month": "1-31, L or LW",
    "month": "1-12 or JAN-DEC",
    "day-of-week": "0-7 or SUN-SAT, MON#2, 5L",
}
_FORM: Final = "write 'minute hour day-of-month month day-of-week', each as *, 1,2, 1-5 or */5"
_SPEC: Final = (
    "a spec is 'cron M H D M W tz=ZONE missed=POLICY' or 'every DURATION missed=POLICY', "
    "then perhaps jitter=DURATION and overlap=POLICY"
)
_POLICIES: Final = r" missed=(\S+?)(?: jitter=(\S+))?(?: overlap=(\S+))?"
_CRON_SPEC: Final = re.compile(r"cron (.{1,200}) tz=(\S+)" + _POLICIES)
_EVERY_SPEC: Final = re.compile(r"every (\S+)" + _POLICIES)
_SHORTEST_MS: Final = 100
_LONGEST_JITTER_MS: Final = DAY_MS
_MAX_LENGTH: Final = 200
_HOUR: Final = timedelta(hours=1)
_NO_TIME: Final = timedelta()
#: CronSim searches 50 years.
_SEARCHED_DAYS: Final = 50 * 366
#: Where the trial run of an expression begins.
_TRIED_FROM: Final = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression of five fields in a time zone, with the rules of Debian's cron.

    Daylight saving: a job whose fixed time the clock skips in spring runs right after the gap; one in the repeated
    hour of autumn runs once. With * in minute or hour, a job follows elapsed time. If day-of-month or day-of-week
    begins with *, both must match, otherwise either.
    """

    expression: str
    tz: str = "UTC"
    missed: Missed = "once"
    jitter: Duration = 0
    overlap: Overlap = "allow"
    jitter_ms: int = field(init=False, repr=False, compare=False)
    _zone: tzinfo = field(init=False, repr=False, compare=False)
    _by_day: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_zone", _zone(self.tz))
        object.__setattr__(self, "expression", _checked_expression(self.expression, self._zone))
        minute, hour, *_ = self.expression.split()
        # CronSim advances by whole hours, so a clock change of half an hour takes it past its minutes.
        by_day = _shifts_by_parts_of_hours(self._zone) and "*" in (minute[0], hour[0])
        object.__setattr__(self, "_by_day", by_day)
        _check_policies(self, _LONGEST_JITTER_MS)

    @property
    def spec(self) -> str:
        """The schedule as text for `parse_schedule`."""
        return f"cron {self.expression} tz={self.tz}{_policies(self)}"

    def next_after_ms(self, now_ms: int) -> int:
        """Return the first slot after `now_ms`, in ms since 1970."""
        if self._by_day:
            return next(slot for day in self._days(now_ms, 1) for slot in day if slot > now_ms)
        # In a repeated hour CronSim begins with slots of the first pass, which may be over.
        return next(
            slot for slot in map(_ms, CronSim(self.expression, self._at(now_ms))) if slot > now_ms
        )

    def previous_ms(self, now_ms: int) -> int:
        """Return the last slot at or before `now_ms`, in ms since 1970."""
        if self._by_day:
            days = self._days(now_ms, -1)
            return next(slot for day in days for slot in reversed(day) if slot <= now_ms)
        # CronSim's reverse search misses slots around a clock change: walk forward from its result.
        slot_ms = _ms(next(CronSim(self.expression, self._at(now_ms), reverse=True)))
        while (later_ms := self.next_after_ms(slot_ms)) <= now_ms:
            slot_ms = later_ms
        return slot_ms

    def _days(self, now_ms: int, step: int) -> Iterator[tuple[int, ...]]:
        """Yield the slots of local days, beginning with that of `now_ms`."""
        day = self._at(now_ms).date()
        for number in range(_SEARCHED_DAYS):
            yield _slots_of(self.expression, self._zone, day + timedelta(days=step * number))

    def _at(self, now_ms: int) -> datetime:
        return datetime.fromtimestamp(now_ms // 1000, self._zone)


@dataclass(frozen=True, slots=True)
class Every:
    """A fixed interval of 100 ms to 366 days. Its slots are multiples of the interval since 1970."""

    interval: Duration
    missed: Missed = "once"
    jitter: Duration = 0
    overlap: Overlap = "allow"
    jitter_ms: int = field(init=False, repr=False, compare=False)
    interval_ms: int = field(init=False)

    def __post_init__(self) -> None:
        interval_ms = duration_ms(
            self.interval, "every", minimum_ms=_SHORTEST_MS, maximum_ms=366 * DAY_MS
        )
        object.__setattr__(self, "interval_ms", interval_ms)
        object.__setattr__(self, "interval", format_ms(interval_ms))
        # As long as the interval it would mix up the order of slots.
        _check_policies(self, min(interval_ms, _LONGEST_JITTER_MS))

    @property
    def spec(self) -> str:
        """The schedule as text for `parse_schedule`."""
        return f"every {self.interval}{_policies(self)}"

    def next_after_ms(self, now_ms: int) -> int:
        """Return the first slot after `now_ms`, in ms since 1970."""
        return (now_ms // self.interval_ms + 1) * self.interval_ms

    def previous_ms(self, now_ms: int) -> int:
        """Return the last slot at or before `now_ms`, in ms since 1970."""
        return now_ms // self.interval_ms * self.interval_ms


Schedule = Cron | Every


def cron(
    expression: str,
    tz: str = "UTC",
    *,
    missed: Missed = "once",
    jitter: Duration = 0,
    overlap: Overlap = "allow",
) -> Cron:
    """Make a schedule from a cron expression in a time zone: `cron("*/5 * * * *", tz="Europe/Vienna")`.

    `missed`: which slots to fire that passed while no reaper ran · `jitter`: each message waits a random time up to
    this, at most a day · `overlap`: what a slot does while the message of an earlier one has not ended. Raises
    `InvalidOptionError` for a wrong field, which it names, for an unknown zone, and for an expression that matches no
    day.
    """
    return Cron(expression, tz, missed, jitter, overlap)


def every(
    interval: Duration,
    *,
    missed: Missed = "once",
    jitter: Duration = 0,
    overlap: Overlap = "allow",
) -> Every:
    """Make a schedule with a fixed interval of 100 ms to 366 days: `every("30s")`.

    Policies as those of `cron`; `jitter` is at most the interval. Raises `InvalidOptionError`.
    """
    return Every(interval, missed, jitter, overlap)


def schedule_of(given: object) -> Schedule:
    """Return `cron(…)` and `every(…)` as they are, and the schedule of a cron expression in UTC.

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
    """Read the `spec` of a schedule. Raises `InvalidOptionError`."""
    if match := _CRON_SPEC.fullmatch(spec):
        return Cron(match[1], match[2], *_read_policies(match, 3))
    if match := _EVERY_SPEC.fullmatch(spec):
        return Every(match[1], *_read_policies(match, 2))
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


def _shifts_by_parts_of_hours(zone: tzinfo) -> bool:
    """Whether summer time changes the clock by part of an hour, as on Lord Howe Island."""
    offsets = [datetime(2024, month, 1, tzinfo=zone).utcoffset() for month in (1, 7)]
    return offsets[0] is not None and (offsets[0] - (offsets[1] or offsets[0])) % _HOUR != _NO_TIME


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


def _zone(name: object) -> tzinfo:
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


def _check_policies(schedule: Schedule, longest_jitter_ms: int) -> None:
    if schedule.missed not in get_args(Missed):
        raise InvalidOptionError(
            "missed", f"{shown(schedule.missed)} is not a policy", "it must be skip, once or all"
        )
    if schedule.overlap not in get_args(Overlap):
        raise InvalidOptionError(
            "overlap",
            f"{shown(schedule.overlap)} is not a policy",
            "it must be allow, skip, queue or cancel",
        )
    jitter_ms = duration_ms(schedule.jitter, "jitter", maximum_ms=longest_jitter_ms)
    object.__setattr__(schedule, "jitter_ms", jitter_ms)
    object.__setattr__(schedule, "jitter", format_ms(jitter_ms))


def _policies(schedule: Schedule) -> str:
    """Write the policies of a spec; those at their defaults are left out for daemons that do not know them."""
    jitter = f" jitter={schedule.jitter}" if schedule.jitter_ms else ""
    overlap = f" overlap={schedule.overlap}" if schedule.overlap != "allow" else ""
    return f" missed={schedule.missed}{jitter}{overlap}"


def _read_policies(match: re.Match[str], first: int) -> tuple[Missed, Duration, Overlap]:
    missed, jitter, overlap = match.group(first, first + 1, first + 2)
    return cast(Missed, missed), jitter or 0, cast(Overlap, overlap or "allow")


def _ms(slot: datetime) -> int:
    return int(slot.timestamp()) * 1000
