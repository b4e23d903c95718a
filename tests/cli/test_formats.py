"""How numbers, times and foreign text are written."""

from __future__ import annotations

import pytest

from qworker.formats import ago, count, moment, rate, safe, shortened, size, span, wrapped
from tests.tables import each


@each(
    "seconds, text",
    [
        (0, "0s"), (0.0004, "0s"), (0.12, "120ms"), (0.9996, "1s"), (1, "1s"), (9.94, "9.9s"), (9.96, "10s"),
        (10, "10s"), (59.9, "59s"), (59.96, "1m00s"), (60, "1m00s"), (192, "3m12s"), (3600, "1h00m"), (7500, "2h05m"),
        (86400, "1d00h"), (273600, "3d04h"),
    ],
)  # fmt: skip
def test_a_span_has_its_two_largest_units(seconds, text):
    """Short enough for a column."""
    assert span(seconds) == text


@each(
    "number, text",
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (52_428_800, "50 MiB"),
     (2**40, "1 TiB"), (2**50, "1024 TiB")],
)  # fmt: skip
def test_a_size_has_the_unit_that_fits(number, text):
    """Powers of 1,024."""
    assert size(number) == text


@each(
    "per_second, text",
    [(0, "0"), (0.004, "0"), (0.25, "0.25"), (1.5, "1.50"), (43.14, "43.1"), (12345.6, "12,346")],
)
def test_a_rate_has_three_digits(per_second, text):
    """Zero is zero."""
    assert rate(per_second) == text


def test_counts_have_their_noun():
    """One message, two messages; a child, children."""
    assert count(1_234_567) == "1,234,567"
    assert count(1, "message") == "1 message"
    assert count(2, "message") == "2 messages"
    assert count(2, "child", "children") == "2 children"


def test_instants_are_distances_from_now():
    """Past and future."""
    assert ago(1000, 193_000) == "3m12s ago"
    assert ago(41_000, 1000) == "in 40s"


def test_a_moment_is_local_with_its_zone(monkeypatch):
    """What stands beside it in the logs of the host; impossible ones are shown as they are."""
    import time

    monkeypatch.setenv("TZ", "Europe/Vienna")
    time.tzset()
    try:
        assert moment(1_700_000_000_000) == "2023-11-14 23:13:20 CET"
    finally:
        monkeypatch.undo()
        time.tzset()
    assert moment(10**16) == f"{10**16} ms"
    assert moment(-5) == "-5 ms"


@pytest.mark.bad_input("data found: foreign push")
@each(
    "text, shown",
    [
        ("plain ünï", "plain ünï"),
        ("a\x1b[31mb", r"a\x1b[31mb"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\x9b2J", r"\x9b2J"),
        ("a\u202eb", r"a\u202eb"),
        ("\ud800", r"\ud800"),
    ],
)
def test_foreign_text_is_shown_and_never_obeyed(text, shown):
    """Control characters, C1, direction marks, lone surrogates."""
    assert safe(text) == shown


def test_cut_text_says_so():
    """The last letter is an ellipsis."""
    assert shortened("abcdef", 4) == "abc…"
    assert shortened("abcd", 4) == "abcd"


@each(
    "text, lines",
    [
        ("", [""]),
        ("one two three four five six", ["one two three four", "five six"]),
        (
            "see /a/very/long/path/that/is/whole here",
            ["see", "/a/very/long/path/that/is/whole", "here"],
        ),
        ("no queue: qworker send QUEUE BODY", ["no queue:", "qworker send QUEUE BODY"]),
        (
            "there are a, b and c (qworker queue ls)",
            ["there are a, b and c", "(qworker queue ls)"],
        ),
        (
            "run qworker dead drop q --id 'a; b to c'; wait",
            ["run", "qworker dead drop q --id 'a; b to c';", "wait"],
        ),
        (
            "x qworker queue ls, then qworker top or wait",
            ["x qworker queue ls,", "then qworker top or", "wait"],
        ),
    ],
)
def test_lines_break_between_words_and_never_in_a_command(text, lines):
    """What people copy stays in one piece, whatever the width."""
    assert wrapped(text, 20) == lines
