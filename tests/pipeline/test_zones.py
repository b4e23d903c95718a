"""Windows and days are those of UTC, wherever the audit runs: also in the hour of autumn that comes twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from qworker.cli.spark.reading import instant
from qworker.pipeline.jobs.audit import Window
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.run_audit import audit_all, audit_increment
from tests.pipeline.forging import T0, Journal, at, store

#: Half past one in New York, before and after the clocks go back.
BEFORE, AFTER = datetime(2031, 11, 2, 5, 30, tzinfo=UTC), datetime(2031, 11, 2, 6, 30, tzinfo=UTC)


def ms(moment: datetime) -> float:
    return (moment - T0) / timedelta(milliseconds=1)


ZONES = ("Asia/Kolkata", "America/New_York")


@pytest.fixture(params=ZONES)
def zone(request, monkeypatch) -> Iterator[str]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


def test_a_time_without_a_zone_is_of_utc(zone):
    now = datetime(2031, 11, 2, 7, tzinfo=UTC)
    assert instant("2031-11-02T01:30", "--since", now) == datetime(2031, 11, 2, 1, 30, tzinfo=UTC)
    assert instant("2031-11-02T01:30-05:00", "--since", now) == AFTER
    assert instant("90m", "--since", now) == BEFORE
    assert instant("2031-11-02", "--since", now) == datetime(2031, 11, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    "zone",
    [
        pytest.param(
            ZONES[0],
            marks=pytest.mark.nightly("test_an_audit_judges_the_window_of_utc_in_every_zone"),
        ),
        ZONES[1],
    ],
    indirect=True,
)
def test_an_audit_judges_the_window_of_utc_in_every_zone(spark, tmp_path, zone):
    """And carries the modes of journals with their times: this one is off from the second of the two hours."""
    lake = Lake(tmp_path / "lake")
    emails, runs = Journal("emails"), Journal("runs")
    for name, begun in (("early", BEFORE), ("late", AFTER)):
        emails.write(name, f"sent@{ms(begun)} delivered@{ms(begun) + 1} acked@{ms(begun) + 2}")
    emails.add(event="mode", reason="off", ts=AFTER + timedelta(seconds=1), message_id="-")
    # A day that has a change of mode and no message; between it and the others one without anything.
    runs.add(event="mode", reason="all", ts=at(0), message_id="-")
    runs.write("run", f"sent@{ms(AFTER)}")
    ends = {
        name: {"epoch": each.epoch, "entry": each.number, "event": each.number}
        for name, each in (("emails", emails), ("runs", runs))
    }
    store(lake, emails, runs, offsets=ends)
    assert [(day.queue, str(day.day)) for day in lake.days()] == [
        ("emails", "2031-11-02"), ("runs", "2031-05-04"), ("runs", "2031-11-02"),
    ]  # fmt: skip
    window = Window(datetime(2031, 11, 2, 6, tzinfo=UTC), datetime(2031, 11, 3, tzinfo=UTC))
    result = audit_all(spark, window=window, lake=lake)
    assert (result.messages, result.ended, result.open, result.wrong) == (2, {"acked": 1}, 1, {})
    (hole,) = result.holes
    off = {
        "queue": "emails",
        "why": "journal off",
        "from": "2031-11-02T06:30:01.000+00:00",
        "until": None,
    }
    assert {name: hole[name] for name in off} == off
    assert result.document()["data"]["last"] == "2031-11-02T06:30:00.002+00:00"
    audit_increment(spark, lake=lake)
    then, _ = audit_increment(spark, lake=lake)
    (hole,) = then.holes
    assert {name: hole[name] for name in off} == off
