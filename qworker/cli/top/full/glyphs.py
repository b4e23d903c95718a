"""Characters that a terminal can show: blocks and arrows, or plain ASCII where its font or encoding has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from qworker.monitor.history import Series

__all__ = ["ASCII", "UNICODE", "Glyphs", "bars", "glyphs_for", "sparkline"]

#: Terminals whose fonts lack most block elements.
_PLAIN_TERMS: Final = ("linux", "vt", "ansi", "cons25", "sun")
#: A series that lasts less than this is drawn over this long: two points are not an hour.
_SHORTEST_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters by what they stand for. `levels`: bars, from the lowest."""

    levels: str
    descending: str
    ascending: str
    cut: str
    left: str
    right: str


UNICODE: Final = Glyphs("▁▂▃▄▅▆▇█", "▼", "▲", "…", "←", "→")
ASCII: Final = Glyphs("_.:-=+*#", "v", "^", "~", "<", ">")


def glyphs_for(environ: Mapping[str, str], encoding: str) -> Glyphs:
    """Choose the characters for a terminal, by TERM and the encoding of its output."""
    term = environ.get("TERM", "")
    plain = "utf" not in encoding.lower() or term.startswith(_PLAIN_TERMS)
    return ASCII if plain else UNICODE


def sparkline(series: Series | None, width: int, glyphs: Glyphs) -> str:
    """Draw the last hour of a figure, or what there is of it, in `width` characters; the latest at the right."""
    points = series.points() if series is not None else []
    if len(points) < 2 or width <= 0:
        return " " * width
    lasts_s = max(-points[0][0], _SHORTEST_S)
    highest: list[float | None] = [None] * width
    for time_s, value in points:
        at = min(width - 1, int(width * (1 + time_s / lasts_s)))
        before = highest[at]
        highest[at] = value if before is None else max(before, value)
    return bars(highest, glyphs)


def bars(values: Sequence[float | None], glyphs: Glyphs) -> str:
    """Draw values as bars of up to one line; None repeats the value before, and is blank at the start."""
    known = [value for value in values if value is not None]
    top, steps = max(known, default=0.0), len(glyphs.levels) - 1
    drawn, last = "", " "
    for value in values:
        if value is not None:
            # What is not zero is seen not to be.
            step = 0 if value <= 0 else max(1, round(steps * value / top))
            last = glyphs.levels[step]
        drawn += last
    return drawn
