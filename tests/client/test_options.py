"""Options of queues and sends: defaults, copies, stored form, and refused values."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta, timezone

import pytest

from qworker.engine.options import QueueAttributes, SendOptions
from qworker.errors import InvalidOptionError
from tests.tables import each

NAN = float("nan")
INFINITY = float("inf")

NO_DURATIONS = [
    pytest.param(NAN, id="NaN"),
    pytest.param(INFINITY, id="infinite"),
    pytest.param(-INFINITY, id="minus infinite"),
    pytest.param(-1, id="negative"),
    pytest.param("-1s", id="negative text"),
    pytest.param(True, id="True"),
    pytest.param("5", id="text without unit"),
    pytest.param(" 5s", id="space"),
    pytest.param("٥s", id="Arabic digit"),
    pytest.param("1e3s", id="exponent"),
    pytest.param("", id="empty"),
    pytest.param(b"5s", id="bytes"),
    pytest.param([5], id="list"),
    pytest.param(2**53, id="beyond every due time"),
]


def refused(make, **given) -> InvalidOptionError:
    with pytest.raises(InvalidOptionError) as caught:
        make(**given)
    return caught.value


class TestQueueAttributes:
    def test_defaults_are_those_of_a_queue_without_attributes(self):
        """Defaults are those of a queue without attributes."""
        assert QueueAttributes().meta() == {
            "visibility_ms": "30000",
            "delay_ms": "0",
            "ttl_ms": "0",
            "maxsize": "262144",
            "maxlen": "0",
            "max_receives": "5",
            "journal": "off",
            "journal_cap": "67108864",
        }
        assert QueueAttributes.of_meta({}) == QueueAttributes()

    def test_durations_are_kept_as_text_and_in_ms(self):
        """Durations are kept as canonical text and in ms, so equal ones are equal."""
        attributes = QueueAttributes(visibility=90, delay="1.5m", ttl=timedelta(days=2))
        assert (attributes.visibility, attributes.delay, attributes.ttl) == ("90s", "90s", "2d")
        assert (attributes.visibility_ms, attributes.delay_ms, attributes.ttl_ms) == (
            90_000,
            90_000,
            172_800_000,
        )
        assert attributes == QueueAttributes(visibility="90s", delay=90.0, ttl="48h")

    def test_attributes_are_copied_with_changes(self):
        """Attributes are copied with changes, the original stays."""
        attributes = QueueAttributes(delay="1m", maxlen=7)
        copy = dataclasses.replace(attributes, delay="2m")
        assert (copy.delay_ms, copy.maxlen, attributes.delay_ms) == (120_000, 7, 60_000)
        with pytest.raises(dataclasses.FrozenInstanceError):
            attributes.maxlen = 8  # type: ignore[misc]

    def test_stored_attributes_are_read_back(self):
        """Stored attributes are read back, other fields of the hash are ignored."""
        attributes = QueueAttributes(
            visibility="1234ms", maxsize="1MiB", maxlen=10**12, max_receives=999_999
        )
        assert (
            QueueAttributes.of_meta({**attributes.meta(), "paused": "in", "levels": "0"})
            == attributes
        )

    @pytest.mark.bad_input("data found: nonsense in meta")
    @each("stored", ["abc", "", "1.5", "-1", "9" * 5000])
    def test_an_invalid_stored_value_is_refused(self, stored):
        """An invalid stored value is refused under its stored name."""
        assert refused(QueueAttributes.of_meta, meta={"delay_ms": stored}).field == "delay_ms"

    @pytest.mark.parametrize(
        "given",
        [
            {"visibility": "1s"},
            {"visibility": "12h"},
            {"delay": 0},
            {"delay": "100000d"},
            {"maxsize": 1024},
            {"maxsize": "64MiB"},
            {"maxlen": 0},
            {"max_receives": 1},
            {"max_receives": 999_999},
        ],
        ids=str,
    )
    def test_the_ends_of_ranges_are_accepted(self, given):
        """The ends of ranges are accepted."""
        QueueAttributes(**given)

    @each(
        "given, text",
        [
            pytest.param(
                {"visibility": 0},
                "visibility: 0 is out of range; it must be a duration from 1s to 12h",
                id="visibility zero",
            ),
            pytest.param({"visibility": "999ms"}, "from 1s to 12h", id="visibility under a second"),
            pytest.param({"visibility": "12.1h"}, "from 1s to 12h", id="visibility over 12 hours"),
            pytest.param({"visibility": None}, "None is not a duration", id="visibility None"),
            pytest.param(
                {"max_receives": 0}, "an integer from 1 to 999999", id="max receives zero"
            ),
            pytest.param({"max_receives": -1}, "is out of range", id="max receives negative"),
            pytest.param({"max_receives": 10**9}, "is out of range", id="max receives a billion"),
            pytest.param({"max_receives": "5"}, "'5' is not an integer", id="max receives text"),
            pytest.param({"max_receives": True}, "True is not an integer", id="max receives True"),
            pytest.param({"max_receives": 5.0}, "5.0 is not an integer", id="max receives float"),
            pytest.param({"maxlen": -1}, "from 0 to 1000000000000", id="maxlen negative"),
            pytest.param({"maxsize": 0}, "a size from 1KiB to 64MiB", id="maxsize zero"),
            pytest.param({"maxsize": "65MiB"}, "is out of range", id="maxsize over 64 MiB"),
            pytest.param(
                {"maxsize": "256kb"}, "a number with B, KiB, MiB or GiB", id="unknown unit"
            ),
            pytest.param({"maxsize": "9" * 5000 + "B"}, "is not a size", id="size of 5000 digits"),
        ],
    )
    def test_values_out_of_range_are_refused(self, given, text):
        """Values out of range are refused with field, value and limit."""
        error = refused(QueueAttributes, **given)
        assert error.field == next(iter(given))
        assert text in str(error)
        assert len(str(error)) < 300

    @each("value", NO_DURATIONS)
    @each("name", ["delay", "ttl"])
    def test_other_values_than_durations_are_refused(self, name, value):
        """Other values than durations are refused."""
        assert refused(QueueAttributes, **{name: value}).field == name


class TestSendOptions:
    def test_missing_options_are_left_to_the_queue(self):
        """Missing options are left to the queue."""
        options = SendOptions()
        assert (options.delay_ms, options.ttl_ms, options.max_receives, options.unique) == (
            None,
        ) * 4
        assert options.priority == 0

    def test_zero_is_a_value(self):
        """A delay or ttl of 0 is a value: at once, forever."""
        options = SendOptions(delay=0, ttl="0s")
        assert (options.delay_ms, options.ttl_ms) == (0, 0)

    @each("value", NO_DURATIONS)
    @each("name", ["delay", "ttl"])
    def test_other_values_than_durations_are_refused(self, name, value):
        """Other values than durations are refused."""
        assert refused(SendOptions, **{name: value}).field == name

    def test_a_delay_may_be_as_far_as_a_due_time_of_2_52_ms(self):
        """A delay may be as far as a due time of 2^52 ms, counted from any day before 2109."""
        longest_ms = 2**52 - 2**42
        assert SendOptions(delay=timedelta(milliseconds=longest_ms)).delay_ms == longest_ms
        error = refused(SendOptions, delay=timedelta(milliseconds=longest_ms + 1))
        assert "from 0s to about 142,000 years" in error.limit

    @each(
        "given, problem",
        [
            pytest.param({"priority": 10}, "is out of range", id="priority 10"),
            pytest.param({"priority": -1}, "is out of range", id="priority negative"),
            pytest.param({"priority": None}, "is not an integer", id="priority None"),
            pytest.param({"unique": ""}, "is 0 bytes", id="unique empty"),
            pytest.param({"unique": "ä" * 129}, "is 258 bytes", id="unique over 256 bytes"),
            pytest.param({"unique": "\ud800"}, "lone surrogate", id="unique with a lone surrogate"),
            pytest.param({"unique": 5}, "is not a str", id="unique a number"),
            pytest.param({"max_receives": 0}, "is out of range", id="max receives zero"),
            pytest.param({"eta": datetime(2030, 1, 1)}, "has no time zone", id="eta naive"),
            pytest.param({"eta": "2030-01-01T00:00:00Z"}, "is not a datetime", id="eta text"),
            pytest.param({"eta": 1.9e9}, "is not a datetime", id="eta a number"),
        ],
    )
    def test_values_out_of_range_are_refused(self, given, problem):
        """Values out of range are refused."""
        error = refused(SendOptions, **given)
        assert error.field == next(iter(given))
        assert problem in error.problem

    @each(
        "given, field, problem",
        [
            ({"unique_until": "started"}, "unique_until", "is set without unique"),
            ({"unique_for": "1m"}, "unique_for", "is set without unique"),
            ({"debounce": "1m"}, "debounce", "is set without unique"),
            ({"unique": "k", "unique_until": "ever"}, "unique_until", "is not accepted"),
            ({"unique": "k", "unique_for": 0}, "unique_for", "is out of range"),
            (
                {"unique": "k", "unique_until": "started", "unique_for": "1m"},
                "unique_for",
                "together with unique_until",
            ),
            ({"unique": "k", "debounce": 0}, "debounce", "is out of range"),
            ({"unique": "k", "debounce": "1m", "delay": 1}, "delay", "together with debounce"),
            ({"unique": "k", "debounce": "1m", "unique_for": 1}, "unique_for", "with debounce"),
            ({"unique": "k", "debounce_max": "1m"}, "debounce_max", "without debounce"),
            ({"unique": "k", "debounce": "1m", "debounce_max": 5}, "debounce_max", "is shorter"),
        ],
    )
    def test_options_of_a_unique_key_that_do_not_fit_are_refused(self, given, field, problem):
        """Without a key, against each other, or out of range."""
        error = refused(SendOptions, **given)
        assert error.field == field
        assert problem in error.problem

    def test_a_naive_eta_asks_for_a_time_zone(self):
        """A naive eta asks for a time zone."""
        assert "datetime with a time zone" in refused(SendOptions, eta=datetime(2030, 1, 1)).limit

    def test_an_eta_is_a_due_time(self):
        """An eta is a due time in ms, whatever its time zone; a fraction of a ms counts as one."""
        eta = datetime(2030, 1, 1, 2, microsecond=1, tzinfo=timezone(timedelta(hours=2)))
        midnight_ms = int(datetime(2030, 1, 1, tzinfo=UTC).timestamp()) * 1000
        assert SendOptions(eta=eta).eta_ms == midnight_ms + 1
        assert SendOptions().eta_ms is None

    def test_an_eta_in_the_past_is_accepted(self):
        """An eta in the past is accepted, the message is ready at once; before 1970 it is 0."""
        assert SendOptions(eta=datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC)).eta_ms == 10**12
        assert SendOptions(eta=datetime(1, 1, 1, tzinfo=UTC)).eta_ms == 0

    def test_delay_and_eta_exclude_each_other(self):
        """Delay and eta exclude each other."""
        eta = datetime(2030, 1, 1, tzinfo=UTC)
        assert "together with a delay" in refused(SendOptions, delay="1s", eta=eta).problem

    def test_options_of_a_task_are_copied_with_those_of_a_send(self):
        """Options of a task are copied with those of a send; a delay replaces an eta and an eta a delay."""
        task = SendOptions(delay="1m", priority=5)
        eta = datetime(2030, 1, 1, tzinfo=UTC)
        later = SendOptions.of(task, {"eta": eta, "ttl": "1h"})
        assert (later.delay, later.eta, later.priority, later.ttl_ms) == (None, eta, 5, 3_600_000)
        assert SendOptions.of(later, {"delay": 0}).delay_ms == 0
        assert SendOptions.of(task, {}) is task
        assert SendOptions.of(None, {}) == SendOptions()

    def test_an_unknown_option_is_answered_with_the_nearest(self):
        """An unknown option is answered with the nearest one."""
        error = refused(SendOptions.of, options=None, given={"priorty": 5})
        assert str(error) == "priorty: is unknown; did you mean priority?"
        assert (
            "known are delay, eta, ttl"
            in refused(SendOptions.of, options=None, given={"countdown": 5}).limit
        )


class TestJournalAttributes:
    def test_a_journal_is_one_of_three_words(self):
        """The mode of the journal is one of three words, and stored as such."""
        for mode in ("off", "outcomes", "all"):
            attributes = QueueAttributes(journal=mode, journal_cap="2MiB")
            assert (
                attributes.meta() | {"journal": mode, "journal_cap": "2097152"} == attributes.meta()
            )
            assert QueueAttributes.of_meta(attributes.meta()) == attributes

    @each(
        "given, text",
        [
            ({"journal": "on"}, "journal: 'on' is not accepted; it must be one of off, outcomes, all"),
            ({"journal": True}, "journal: True is not accepted; it must be one of off, outcomes, all"),
            ({"journal_cap": "1KiB"}, "journal_cap: '1KiB' is out of range; it must be a size from 1MiB to 1024GiB"),
            ({"journal_cap": 0}, "journal_cap: 0 is out of range; it must be a size from 1MiB to 1024GiB"),
        ],
    )  # fmt: skip
    def test_invalid_journal_options_are_refused(self, given, text):
        """The error names the attribute, the value and the accepted ones."""
        with pytest.raises(InvalidOptionError) as caught:
            QueueAttributes(**given)
        assert str(caught.value) == text
