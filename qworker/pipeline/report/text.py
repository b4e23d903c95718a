"""Numbers and times as the page writes them."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["count", "decimal", "moment", "percent", "span", "span_ms"]


def count(number: int, noun: str = "") -> str:
    """Write 1234567 as '1,234,567', with its noun: '1 queue', '2 queues'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}" if noun else f"{number:,}"


def decimal(number: float | None) -> str:
    """Write a number with three digits: '0.0123', '1.5', '1,235'; '–' for None."""
    if number is None:
        return "–"
    if number and abs(number) < 1000:
        return f"{number:.3g}"
    return f"{number:,.0f}"


def percent(share: float | None) -> str:
    """Write a share of 1 as '12.3 %'; '–' for None."""
    return "–" if share is None else f"{100 * share:.3g} %"


def span_ms(milliseconds: float | None) -> str:
    """Write ms as `span` does; '–' for None."""
    return "–" if milliseconds is None else span(milliseconds / 1000)


def span(seconds: float | None) -> str:
    """Write a duration with its two largest units: '0.4 ms', '120 ms', '4.2 s', '3 m 12 s'; '–' for None."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms" if seconds else "0 s"
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    for size, large, small, part in (
        (86_400, "d", "h", 3600),
        (3600, "h", "m", 60),
        (60, "m", "s", 1),
    ):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {large}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def moment(instant_ms: int) -> str:
    """Write an instant in UTC: '2031-05-04 10:22:33'."""
    return datetime.fromtimestamp(instant_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
