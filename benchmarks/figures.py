"""What a benchmark came to: figures with their range, and the goal beside each; and who gave up."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Figure", "Goal", "at_least", "at_most", "gave_up", "lines", "measured", "ratio"]


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound that a figure has to keep: at least or at most `bound`, in the figure's unit."""

    bound: float
    least: bool

    def __str__(self) -> str:
        return f"{'≥' if self.least else '≤'} {self.bound:,g}"

    def met_by(self, value: float) -> bool:
        """Say whether a value keeps the bound."""
        return value >= self.bound if self.least else value <= self.bound


def at_least(bound: float) -> Goal:
    """Make a goal that is met by `bound` and more."""
    return Goal(bound, least=True)


def at_most(bound: float) -> Goal:
    """Make a goal that is met by `bound` and less."""
    return Goal(bound, least=False)


@dataclass(frozen=True, slots=True)
class Figure:
    """One median with its range, None of a contender that gave up; `name` is the benchmark's."""

    name: str
    measure: str
    value: float | None
    unit: str
    lowest: float | None
    highest: float | None
    goal: Goal | None = None

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without one."""
        if self.goal is None or self.value is None:
            return None
        return self.goal.met_by(self.value)

    def row(self) -> dict[str, object]:
        """Give the figure as a JSON object."""
        return {
            "name": self.name,
            "measure": self.measure,
            "value": _rounded(self.value),
            "unit": self.unit,
            "lowest": _rounded(self.lowest),
            "highest": _rounded(self.highest),
            "goal": None if self.goal is None else str(self.goal),
            "met": self.met,
        }


def measured(
    name: str, measure: str, samples: Sequence[float], unit: str, goal: Goal | None = None
) -> Figure:
    """Make the figure of one value per round."""
    middle = statistics.median(samples)
    return Figure(name, measure, middle, unit, min(samples), max(samples), goal)


def ratio(
    name: str, measure: str, above: Sequence[float], below: Sequence[float], goal: Goal | None
) -> Figure:
    """Make the figure of a ratio of medians; its range is that of the rounds, where both have as many."""
    middle = statistics.median(above) / statistics.median(below)
    each = [one / other for one, other in zip(above, below, strict=False)]
    return Figure(name, measure, middle, "×", min(each), max(each), goal)


def gave_up(name: str, reasons: Mapping[str, str]) -> list[Figure]:
    """Make figures without a value of contenders that gave up, with the reason of each."""
    return [
        Figure(name, f"{contender} gave up: {reason}", None, "", None, None)
        for contender, reason in reasons.items()
    ]


def lines(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Write rows of `Figure.row` as a table of Markdown."""
    written = [
        "| benchmark | measure | median | range | unit | goal | met |",
        "| --- | --- | ---: | ---: | --- | --- | --- |",
    ]
    for row in rows:
        met = {True: "yes", False: "**no**", None: "–"}[row["met"]]  # type: ignore[index]
        written.append(
            f"| {row['name']} | {row['measure']} | {_shown(row)} | {row['unit'] or '–'} | "
            f"{row['goal'] or '–'} | {met} |"
        )
    return written


def _shown(row: Mapping[str, object]) -> str:
    if row["value"] is None:
        return "– | –"
    return f"{row['value']:,} | {row['lowest']:,} – {row['highest']:,}"


def _rounded(value: float | None) -> float | None:
    """Round to three digits that say something."""
    if value is None:
        return None
    for digits, limit in ((0, 1000), (1, 100), (2, 10), (3, 1)):
        if abs(value) >= limit:
            return round(value, digits) if digits else round(value)
    return float(f"{value:.3g}")
