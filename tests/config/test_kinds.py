"""Kinds of option values: text of the environment and the command line, and how values are shown."""

from __future__ import annotations

import pytest

from qworker.config.kinds import (
    ChoiceKind,
    DurationKind,
    FlagKind,
    IntegerKind,
    SizeKind,
)
from qworker.config.name_kinds import NameKind, NamesKind, WeightsKind
from qworker.errors import InvalidError, InvalidOptionError
from qworker.wire.names import check_queue
from tests.tables import each

DURATION = DurationKind("tick", minimum_ms=10, maximum_ms=3_600_000)
OR_ZERO = DurationKind("watchdog", minimum_ms=5000, maximum_ms=3_600_000, zero="never")
INTEGER = IntegerKind("procs", minimum=1, maximum=1000, none="one per core")
SIZE = SizeKind("memory", minimum=1024, maximum=2**40, zero="no limit")
FLAG = FlagKind("burst")
CHOICE = ChoiceKind("durability", choices=("strict", "warn", "off"))
NAMES = NamesKind("queues", rule=check_queue)
WEIGHTS = WeightsKind("weights", rule=check_queue)


@each(
    "kind, text, value",
    [
        (DURATION, "250ms", "250ms"),
        (DURATION, "120s", "2m"),
        (DURATION, "5", "5s"),
        (DURATION, "0.5", "500ms"),
        (OR_ZERO, "0", "0s"),
        (INTEGER, "8", 8),
        (INTEGER, "008", 8),
        (SIZE, "500MiB", 500 * 2**20),
        (SIZE, "2048", 2048),
        (SIZE, "0", 0),
        (FLAG, "true", True),
        (FLAG, "Off", False),
        (FLAG, "1", True),
        (CHOICE, "warn", "warn"),
        (NAMES, "a,b", ("a", "b")),
        (WEIGHTS, "a=3,b=1", {"a": 3, "b": 1}),
    ],
)
def test_text_is_parsed_to_the_canonical_value(kind, text, value):
    """Text is parsed to the canonical value."""
    assert kind.parse(text, "QWORKER_X") == value


BAD_TEXT = [
    "abc",  # letters
    "1e999",  # overflow
    " 5 ",  # spaces
    "٥",  # Arabic digit
    "5\n",  # line feed
    "",  # empty
    "nan",  # NaN
    "-5",  # negative
    "+5",  # plus
    "0x10",  # hexadecimal
    "1_000",  # underscore
    "9" * 5000,  # 5000 digits
    "\x1b[31m",  # escape sequence
    "\udcff",  # byte that is not UTF-8
]


@each("text", BAD_TEXT)
@each("kind", [DURATION, OR_ZERO, INTEGER, SIZE, FLAG, CHOICE, NAMES, WEIGHTS])
def test_the_error_of_other_text_names_its_source(kind, text):
    """The error of other text names its source, and never shows it raw or at full length."""
    if kind is NAMES and text in ("abc", "1e999", "nan", "0x10", "1_000"):
        return
    with pytest.raises(InvalidError) as caught:
        kind.parse(text, "QWORKER_X")
    assert caught.value.field.startswith("QWORKER_X")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


@each(
    "kind, value",
    [
        pytest.param(DURATION, "5", id="duration without unit"),
        pytest.param(DURATION, None, id="None without a meaning"),
        pytest.param(INTEGER, "8", id="text for an integer"),
        pytest.param(INTEGER, 8.0, id="float for an integer"),
        pytest.param(INTEGER, True, id="True for an integer"),
        pytest.param(SIZE, 1.5, id="float for a size"),
        pytest.param(SIZE, False, id="False for a size"),
        pytest.param(FLAG, 1, id="1 for a flag"),
        pytest.param(FLAG, "true", id="text for a flag"),
        pytest.param(CHOICE, ["warn"], id="list for a choice"),
        pytest.param(NAMES, "a,b", id="text for names"),
        pytest.param(NAMES, 5, id="number for names"),
        pytest.param(NAMES, ["a", "a"], id="name twice"),
        pytest.param(NAMES, ["A"], id="invalid name"),
        pytest.param(NAMES, [5], id="number in names"),
        pytest.param(WEIGHTS, ["a"], id="list for weights"),
        pytest.param(WEIGHTS, {"a": 0}, id="weight zero"),
        pytest.param(WEIGHTS, {"a": 1001}, id="weight over 1000"),
        pytest.param(WEIGHTS, {"a": True}, id="weight True"),
        pytest.param(WEIGHTS, {"A": 1}, id="weight of an invalid name"),
    ],
)
def test_values_of_the_wrong_type_are_refused(kind, value):
    """Values of the wrong type are refused: `check` does not parse text."""
    with pytest.raises(InvalidError) as caught:
        kind.check(value, "x")
    assert caught.value.field in ("x", "x.a")


@each("text", ["a=3,a=1", "a", "a=", "=3", "a=3,", "a=3,b=x"])
def test_text_without_valid_weights_is_refused(text):
    """Text without valid weights is refused."""
    with pytest.raises(InvalidError):
        WEIGHTS.parse(text, "weights")


def test_zero_and_none_are_accepted_if_they_have_a_meaning():
    """Zero and None are accepted if they have a meaning; the limit says what zero means."""
    assert OR_ZERO.check(0, "x") == "0s"
    assert INTEGER.check(None, "x") is None
    assert OR_ZERO.limit == "it must be a duration from 5s to 1h, or 0 (never)"
    with pytest.raises(InvalidOptionError):
        INTEGER.check(0, "x")


def test_a_name_is_checked_by_its_rule():
    """A name is checked by its rule."""
    kind = NameKind("queue", rule=check_queue)
    assert kind.parse("mail", "x") == "mail"
    with pytest.raises(InvalidError):
        kind.parse("Mail", "x")


@each(
    "kind, value, text",
    [
        (DURATION, "30s", "30s"),
        (INTEGER, None, ""),
        (INTEGER, 8, "8"),
        (SIZE, 500 * 2**20, "500MiB"),
        (SIZE, 1025, "1025B"),
        (SIZE, 0, "0B"),
        (FLAG, False, "false"),
        (NAMES, ("a", "b"), "a,b"),
        (WEIGHTS, {"a": 3, "b": 1}, "a=3,b=1"),
    ],
)
def test_values_are_shown_as_they_are_written(kind, value, text):
    """Values are shown as they are written."""
    assert kind.show(value) == text
