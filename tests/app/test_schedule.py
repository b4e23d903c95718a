"""Schedules: their slots, also around clock changes, and schedules that are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qworker import QWorker
from qworker.app.schedule import Cron, Every, cron, every, parse_schedule
from qworker.errors import InvalidOptionError
from tests.tables import each

VIENNA = "Europe/Vienna"
HOUR_MS = 3_600_000


def ms(text: str) -> int:
    """Return the milliseconds of an ISO time with an offset."""
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def slots(schedule: Cron | Every, first: str, last: str) -> list[str]:
    """Return the slots after `first` up to `last`, in UTC."""
    times, now = [], ms(first)
    while (now := schedule.next_after_ms(now)) <= ms(last):
        times.append(datetime.fromtimestamp(now / 1000, UTC).strftime("%d %H:%M"))
    return times


class TestCron:
    def test_slots_are_strictly_after_and_at_or_before_now(self):
        """The next slot is after now, the previous one at or before it."""
        schedule = cron("*/5 * * * *")
        noon = ms("2024-05-01T12:00:00Z")
        assert schedule.next_after_ms(noon) == noon + 300_000
        assert schedule.next_after_ms(noon - 1) == noon
        assert schedule.previous_ms(noon) == noon
        assert schedule.previous_ms(noon - 1) == noon - 300_000

    def test_a_time_of_day_is_in_the_zone(self):
        """A time of day is in the schedule's zone."""
        assert slots(
            cron("30 9 * * MON", tz=VIENNA), "2024-05-01T00:00:00Z", "2024-05-14T00:00:00Z"
        ) == [
            "06 07:30",
            "13 07:30",
        ]
        assert slots(cron("30 9 * * MON"), "2024-05-01T00:00:00Z", "2024-05-07T00:00:00Z") == [
            "06 09:30"
        ]

    def test_a_time_that_spring_skips_runs_right_after_the_gap(self):
        """A time that spring skips runs once, right after the gap."""
        schedule = cron("30 2 * * *", tz=VIENNA)
        assert slots(schedule, "2024-03-30T00:00:00Z", "2024-04-01T12:00:00Z") == [
            "30 01:30",
            "31 01:00",
            "01 00:30",
        ]
        assert schedule.previous_ms(ms("2024-03-31T12:00:00Z")) == ms("2024-03-31T01:00:00Z")

    def test_a_time_that_autumn_repeats_runs_once(self):
        """A time that autumn repeats runs once, in the first pass."""
        schedule = cron("30 2 * * *", tz=VIENNA)
        assert slots(schedule, "2024-10-26T12:00:00Z", "2024-10-28T12:00:00Z") == [
            "27 00:30",
            "28 01:30",
        ]

    def test_in_the_second_pass_of_an_hour_the_slot_of_the_first_is_past(self):
        """In the second pass of an hour the slot of the first is past, not next."""
        schedule = cron("30 2 * * *", tz=VIENNA)
        second_pass = ms("2024-10-27T02:10:00+01:00")
        assert schedule.previous_ms(second_pass) == ms("2024-10-27T02:30:00+02:00")
        assert schedule.next_after_ms(second_pass) == ms("2024-10-28T02:30:00+01:00")

    def test_intervals_follow_elapsed_time(self):
        """With a star in minute or hour, a clock change neither skips nor repeats a slot."""
        half_hours = cron("*/30 * * * *", tz=VIENNA)
        assert len(slots(half_hours, "2024-03-30T23:00:00Z", "2024-03-31T22:00:00Z")) == 46
        assert len(slots(half_hours, "2024-10-26T22:00:00Z", "2024-10-27T23:00:00Z")) == 50

    @pytest.mark.parametrize(
        ("expression", "times"),
        [
            ("0 */2 * * *", ["04 13:00", "04 15:30", "04 17:30"]),
            (
                "40 * * * *",
                ["04 12:40", "04 13:40", "04 14:40", "04 15:10", "04 16:10", "04 17:10"],
            ),
            ("*/30 1,2 * * *", ["04 14:00", "04 14:30", "04 15:00", "04 15:30", "04 16:00"]),
        ],
    )
    def test_a_clock_change_of_half_an_hour_skips_nothing(self, expression, times):
        """On Lord Howe 01:30 to 02:00 comes twice: slots of both passes and at 02:00 exist, in both directions."""
        schedule = cron(expression, tz="Australia/Lord_Howe")
        first, last = "2026-04-04T12:30:00+00:00", "2026-04-04T17:30:00+00:00"
        assert slots(schedule, first, last) == times
        for now in range(ms(first), ms(last), 600_000):
            assert schedule.next_after_ms(schedule.previous_ms(now)) > now
            assert schedule.previous_ms(schedule.next_after_ms(now) - 1) <= now

    def test_leap_days_are_slots(self):
        """A schedule for 29 February has slots in leap years."""
        assert cron("0 0 29 2 *").next_after_ms(ms("2024-03-01T00:00:00Z")) == ms(
            "2028-02-29T00:00:00Z"
        )

    @given(
        expression=st.sampled_from(
            [
                "*/5 * * * *",
                "30 2 * * *",
                "0 * * * *",
                "15 2,3 * * *",
                "10,50 2 * * *",
                "0 3 * * *",
                "30 2 * * 0",
                "5 */2 * * *",
                "0 */2 * * *",
                "40 * * * *",
                "0-59 2 * * *",
                "0 0 1 * *",
            ]
        ),
        zone=st.sampled_from([VIENNA, "UTC", "America/New_York", "Australia/Lord_Howe"]),
        day=st.sampled_from(
            ["2024-03-31", "2024-10-27", "2024-03-10", "2024-11-03", "2024-04-07", "2024-10-06"]
        ),
        offset_ms=st.integers(-30 * HOUR_MS, 30 * HOUR_MS),
    )
    @example("30 2 * * *", VIENNA, "2024-10-27", int(1.4 * HOUR_MS))
    def test_slots_are_one_chain_in_both_directions(self, expression, zone, day, offset_ms):
        """From any moment the slots are one chain: none is skipped or repeated."""
        schedule = cron(expression, tz=zone)
        now = ms(f"{day}T00:00:00Z") + offset_ms
        before, after = schedule.previous_ms(now), schedule.next_after_ms(now)
        assert before <= now < after
        assert schedule.next_after_ms(before) == after
        assert schedule.next_after_ms(before - 1) == before
        assert schedule.previous_ms(after) == after
        assert schedule.previous_ms(after - 1) == before

    @each(
        "expression, problem",
        [
            pytest.param("61 * * * *", "minute '61' of '61 * * * *' is wrong", id="minute"),
            pytest.param("* 24 * * *", "hour '24'", id="hour"),
            pytest.param("* * 0 * *", "day-of-month '0'", id="day of month"),
            pytest.param("* * * 13 *", "month '13'", id="month"),
            pytest.param("* * * * 8", "day-of-week '8'", id="day of week"),
            pytest.param("5-1 * * * *", "minute '5-1'", id="range backwards"),
            pytest.param("*/0 * * * *", "minute '*/0'", id="step zero"),
            pytest.param("1,,2 * * * *", "minute '1,,2'", id="empty item"),
            pytest.param("-1 * * * *", "minute '-1'", id="negative"),
            pytest.param("٥ * * * *", "minute '\\u0665'", id="Arabic digit"),
            pytest.param("* * ? * *", "day-of-month '?'", id="question mark"),
            pytest.param("* * 30 2 *", "'* * 30 2 *' matches no day", id="30 February"),
            pytest.param("0 0 31 4,6 *", "matches no day", id="31 April"),
            pytest.param("* * * *", "has 4 fields", id="four fields"),
            pytest.param("0 * * * * *", "has 6 fields", id="six fields"),
            pytest.param("", "has 0 fields", id="empty"),
            pytest.param("@daily", "has 1 fields", id="nickname"),
            pytest.param("*/" + "9" * 5000 + " * * * *", "in 5010 characters", id="5000 digits"),
            pytest.param(5, "5 is not a str", id="number"),
            pytest.param(None, "None is not a str", id="None"),
        ],
    )
    def test_the_error_of_a_wrong_expression_names_the_problem(self, expression, problem):
        """The error of a wrong expression names the problem, and is short."""
        with pytest.raises(InvalidOptionError) as caught:
            cron(expression)
        assert caught.value.field == "cron"
        assert problem in caught.value.problem
        assert len(str(caught.value)) < 400

    @each(
        "tz, text",
        [
            pytest.param("Europe/Wien", "did you mean 'Europe/Vienna'?", id="near"),
            pytest.param("../etc/passwd", "is not a time zone", id="path"),
            pytest.param("/etc/passwd", "is not a time zone", id="absolute path"),
            pytest.param("Europe", "is not a time zone", id="folder"),
            pytest.param("", "is not a time zone", id="empty"),
            pytest.param("a\0b", "is not a time zone", id="NUL"),
            pytest.param("x" * 5000, "is not a time zone", id="long"),
            pytest.param(None, "None is not a str", id="None"),
            pytest.param(UTC, "is not a str", id="tzinfo"),
        ],
    )
    def test_an_unknown_zone_is_refused(self, tz, text):
        """An unknown zone is refused, and the nearest one suggested."""
        with pytest.raises(InvalidOptionError) as caught:
            cron("* * * * *", tz=tz)
        assert caught.value.field == "tz"
        assert text in str(caught.value)


class TestEvery:
    def test_slots_are_multiples_since_1970(self):
        """Slots are multiples of the interval since 1970, for every daemon."""
        schedule = every("30s")
        assert schedule.next_after_ms(60_000) == 90_000
        assert schedule.next_after_ms(59_999) == 60_000
        assert schedule.previous_ms(60_000) == 60_000
        assert schedule.previous_ms(59_999) == 30_000

    def test_a_clock_change_does_not_affect_intervals(self):
        """A clock change does not affect intervals."""
        assert slots(every("12h"), "2024-03-30T12:00:00Z", "2024-04-01T00:00:00Z") == [
            "31 00:00",
            "31 12:00",
            "01 00:00",
        ]

    def test_equal_intervals_are_equal(self):
        """Equal intervals are equal in any form."""
        assert every(90) == every("90s") == every("1.5m") == every(timedelta(seconds=90))

    @each("interval", ["99ms", 0, -5, "367d", "soon", None, True, float("nan"), float("inf")])
    def test_an_interval_out_of_range_is_refused(self, interval):
        """An interval out of range is refused."""
        with pytest.raises(InvalidOptionError) as caught:
            every(interval)
        assert caught.value.field == "every"


class TestSpec:
    @each(
        "schedule, spec",
        [
            (cron("  */5  * * * * ", tz=VIENNA), "cron */5 * * * * tz=Europe/Vienna missed=once"),
            (cron("0 2 LW * MON#2", missed="all"), "cron 0 2 LW * MON#2 tz=UTC missed=all"),
            (every("120s", missed="skip"), "every 2m missed=skip"),
            (every(0.25, overlap="cancel"), "every 250ms missed=once overlap=cancel"),
            (every("30s", jitter=5), "every 30s missed=once jitter=5s"),
            (
                cron("0 4 * * *", jitter="24h", overlap="queue"),
                "cron 0 4 * * * tz=UTC missed=once jitter=1d overlap=queue",
            ),
        ],
    )
    def test_a_spec_is_read_back(self, schedule, spec):
        """A schedule is written as text and read back from it."""
        assert schedule.spec == spec
        assert parse_schedule(spec) == schedule

    @each(
        "spec",
        [
            "",
            "cron",
            "cron * * * * *",
            "cron * * * * tz=UTC missed=once",
            "cron * * * * * tz=Nowhere missed=once",
            "every 30s",
            "every 30s missed=never",
            "every 30s missed=once jitter=",
            "every 30s missed=once jitter=31s",
            "every 30s missed=once overlap=never",
            "every 30s missed=once overlap=skip jitter=1s",
            "every 30s missed=once overlap=skip overlap=skip",
            "every x missed=once",
            "at 5pm missed=once",
            "every 30s missed=once\n",
            "cron " + "* " * 5000 + "tz=UTC missed=once",
        ],
    )
    def test_other_text_is_refused_as_a_spec(self, spec):
        """Text that is not a spec is refused."""
        with pytest.raises(InvalidOptionError):
            parse_schedule(spec)

    @each("missed", ["never", "", None, 1, ["once"]])
    def test_an_unknown_policy_is_refused(self, missed):
        """An unknown policy for missed runs is refused."""
        for make in (lambda: cron("* * * * *", missed=missed), lambda: every("30s", missed=missed)):
            with pytest.raises(InvalidOptionError) as caught:
                make()
            assert caught.value.field == "missed"

    @each(
        "policy, value",
        [
            *(("overlap", value) for value in ("never", "", None, 1, ["skip"])),
            *(("jitter", value) for value in (-1, "31s", "soon", None, True, float("nan"))),
        ],
    )
    def test_a_wrong_overlap_or_jitter_is_refused(self, policy, value):
        """So is a jitter as long as would mix up the order of slots, or over a day."""
        with pytest.raises(InvalidOptionError) as caught:
            every("30s", **{policy: value})
        assert caught.value.field == policy
        with pytest.raises(InvalidOptionError):
            cron("* * * * *", **{policy: "25h" if value == "31s" else value})


class TestDeclared:
    def test_text_is_a_cron_expression_in_utc(self):
        """`@app.schedule("*/5 * * * *")` takes a cron expression."""
        app = QWorker("text")
        app.schedule("*/5 * * * *")(handle)
        assert app.schedules["handle"].schedule == cron("*/5 * * * *")

    @each("given", ["5m", "", "@hourly", "* * * *", 300, None, timedelta(1), print])
    def test_anything_but_a_schedule_is_refused_on_decoration(self, given):
        """Anything but a schedule is refused on decoration, and nothing is registered."""
        app = QWorker("refused")
        with pytest.raises(InvalidOptionError, match=r"schedule: .* is not a schedule; write cron"):
            app.schedule(given)(handle)
        assert (app.tasks, app.schedules) == ({}, {})

    def test_a_wrong_field_of_text_is_named(self):
        """Text is checked like the argument of `cron`."""
        with pytest.raises(InvalidOptionError, match="minute '61'"):
            QWorker("refused").schedule("61 * * * *")

    @pytest.mark.parametrize(
        ("option", "said"),
        [
            (
                {"queue": "mail"},
                r"schedule option queue: is an option of the task; write @app.task\(queue=…\)",
            ),
            ({"tz": "UTC"}, "schedule option tz: is unknown; known are name"),
        ],
    )
    def test_options_of_a_task_are_refused_by_name(self, option, said):
        """The error of an option that a schedule does not have says where it belongs."""
        with pytest.raises(InvalidOptionError, match=said):
            QWorker("refused").schedule("0 4 * * *", **option)


def handle() -> None:
    """Do nothing."""
