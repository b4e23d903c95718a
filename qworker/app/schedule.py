"""Schedules as values; the daemon fires them.

A slot is a moment at which a schedule is due. Slots depend on the schedule alone, so all daemons agree on them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Final, Literal, cast, get_args

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

_FIELDS: Final = 5  # of a cron expression
_SPEC: Final = (
    "a spec is 'cron M H D M W tz=ZONE missed=POLICY' or 'every DURATION missed=POLICY', "
    "then perhaps jitter=DURATION and overlap=POLICY"
)
_POLICIES: Final = r" missed=(\S+?)(?: jitter=(\S+))?(?: overlap=(\S+))?"
_CRON_SPEC: Final = re.compile(r"cron (.{1,200}) tz=(\S+)" + _POLICIES)
_EVERY_SPEC: Final = re.compile(r"every (\S+)" + _POLICIES)
_SHORTEST_MS: Final = 100
_LONGEST_JITTER_MS: Final = DAY_MS


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

    def __post_init__(self) -> None:
        from qworker.app import cron_slots

        zone = cron_slots.zone_of(self.tz)
        object.__setattr__(self, "_zone", zone)
        object.__setattr__(self, "expression", cron_slots.checked_expression(self.expression, zone))
        _check_policies(self, _LONGEST_JITTER_MS)

    @property
    def spec(self) -> str:
        """The schedule as text for `parse_schedule`."""
        return f"cron {self.expression} tz={self.tz}{_policies(self)}"

    def next_after_ms(self, now_ms: int) -> int:
        """Return the first slot after `now_ms`, in ms since 1970."""
        from qworker.app import cron_slots

        return cron_slots.next_after_ms(self.expression, self._zone, now_ms)

    def previous_ms(self, now_ms: int) -> int:
        """Return the last slot at or before `now_ms`, in ms since 1970."""
        from qworker.app import cron_slots

        return cron_slots.previous_ms(self.expression, self._zone, now_ms)


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

    The policies are those of `cron`; `jitter` is at most the interval. Raises `InvalidOptionError`.
    """
    return Every(interval, missed, jitter, overlap)


def schedule_of(given: object) -> Schedule:
    """Return `cron(…)` and `every(…)` as they are, and the schedule of a cron expression in UTC.

    Raises `InvalidOptionError` for anything else.
    """
    if isinstance(given, Cron | Every):
        return given
    if isinstance(given, str) and len(given.split()) == _FIELDS:
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
