"""Numbers and times that cannot be accepted, each with its error, and nothing written."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest

from qworker import Retry
from qworker.daemon.options import check_tick
from qworker.errors import InvalidOptionError
from tests.bad_input.conftest import Bench
from tests.bad_input.refusals import Refused, attribute, check, option, task

pytestmark = pytest.mark.bad_input

FORMS = "write a duration such as '250ms'"
YEARS = "it must be a duration from 0s to about 142,000 years"
VISIBILITY = "1s to 12h"
RECEIVES = "it must be an integer from 1 to 999999"

TABLE: dict[str, Refused] = {
    "delay NaN": option("delay", math.nan, "nan is not a duration", FORMS),
    "delay infinite": option("delay", math.inf, "inf is not a duration", FORMS),
    "delay minus infinity": option("delay", -math.inf, "-inf is not a duration", FORMS),
    "delay -1": option("delay", -1, "-1 is out of range", YEARS),
    "delay of a negative timedelta": option(
        "delay", timedelta(seconds=-1), "is out of range", YEARS
    ),
    "delay True": option("delay", True, "True is not a duration", FORMS),
    "delay of text without a unit": option(
        "delay", "5", "'5' is not a duration", "add a unit: '5s'"
    ),
    "delay of another unit": option("delay", "5y", "'5y' is not a duration", FORMS),
    "delay in Arabic digits": option("delay", "٥s", "is not a duration", FORMS),
    "delay beyond a due time of 2^52 ms": option("delay", 2.0**52 / 1000, "out of range", YEARS),
    "delay without end": option("delay", "9" * 5000 + "d", "is out of range", FORMS),
    "delay of send_later": Refused(
        lambda bench: bench.greet.send_later(-1, "a"), InvalidOptionError, "delay", "-1", YEARS
    ),
    "delay of a nack": Refused(
        lambda bench: bench.queue.nack(bench.message, delay=math.nan),
        InvalidOptionError,
        "delay",
        "nan is not a duration",
        FORMS,
    ),
    "delay of a release": Refused(
        lambda bench: bench.queue.release(bench.message, delay=-1),
        InvalidOptionError,
        "delay",
        "-1 is out of range",
        "0s or more",
    ),
    "wait NaN": Refused(
        lambda bench: bench.queue.receive(wait=math.nan),
        InvalidOptionError,
        "wait",
        "nan is not a duration",
        FORMS,
    ),
    "ttl -1": option("ttl", -1, "-1 is out of range", YEARS),
    "naive eta": option("eta", datetime(2031, 1, 1), "has no time zone", "with a time zone"),
    "eta of text": option("eta", "2031-01-01", "is not a datetime", "with a time zone"),
    "eta together with a delay": Refused(
        lambda bench: bench.queue.send({}, delay=1, eta=datetime(2031, 1, 1, tzinfo=UTC)),
        InvalidOptionError,
        "eta",
        "together with a delay",
        "give one of the two",
    ),
    "priority 10": option("priority", 10, "10 is out of range", "from 0 to 9"),
    "priority True": option("priority", True, "True is not an integer", "from 0 to 9"),
    "option that is none": option("priorty", 5, "is unknown", "did you mean priority?"),
    "visibility 0": attribute("visibility", 0, "0 is out of range", VISIBILITY),
    "visibility under a second": attribute("visibility", 0.5, "0.5 is out of range", VISIBILITY),
    "visibility over 12 h": attribute("visibility", "13h", "'13h' is out of range", VISIBILITY),
    "visibility of a receive": Refused(
        lambda bench: bench.queue.receive(visibility=0),
        InvalidOptionError,
        "visibility",
        "0 is out of range",
        VISIBILITY,
    ),
    "visibility of an extension": Refused(
        lambda bench: bench.queue.extend(bench.message, "13h"),
        InvalidOptionError,
        "visibility",
        "'13h' is out of range",
        "12h",
    ),
    "tick of half the visibility": Refused(
        lambda _: check_tick(15_000, 30_000, "emails"),
        InvalidOptionError,
        "tick",
        "15s is too long for the visibility 30s of queue 'emails'",
        "choose a tick under 15s, or a longer visibility",
    ),
    "max receives 0": attribute("max_receives", 0, "0 is out of range", RECEIVES),
    "max receives -1": option("max_receives", -1, "-1 is out of range", RECEIVES),
    "max receives a billion": task("max_receives", 10**9, "1000000000 is out of range", RECEIVES),
    "max receives of text": task("max_receives", "5", "'5' is not an integer", RECEIVES),
    "maxlen -1": attribute("maxlen", -1, "-1 is out of range", "from 0 to"),
    "maxsize of a wrong unit": attribute("maxsize", "1KB", "is not a size", "from 1KiB to 64MiB"),
    "time limit 0": task("time_limit", 0, "0 is out of range", "from 10ms to 12h"),
    "time limit over 12 h": task("time_limit", "13h", "'13h' is out of range", "12h"),
    "batch -1": task("batch", -1, "-1 is out of range", "from 1 to 1000, or None"),
    "batch 0": task("batch", 0, "0 is out of range", "or None for a handler of one message"),
    "batch over a thousand": task("batch", 1001, "1001 is out of range", "to 1000"),
    "retry that is none": task("retry", 5, "5 is not a retry policy", "write Retry.exponential"),
    "retry NaN": Refused(
        lambda _: Retry.exponential(math.nan), InvalidOptionError, "retry first", "nan", FORMS
    ),
    "option of a task that is none": Refused(
        lambda bench: bench.app.task(max_receive=3)(lambda: None),
        InvalidOptionError,
        "task option",
        "is unknown",
        "did you mean max_receives?",
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_a_number_that_cannot_be_accepted_is_refused(bench: Bench, case: str) -> None:
    """Wherever it is given: to a send, an outcome, a queue or a task."""
    check(bench, TABLE[case])
