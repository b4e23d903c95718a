"""Contenders over interleaved rounds. Machines are shared and noisy: compare ratios of one run."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

__all__ = [
    "Contender",
    "ContenderError",
    "Samples",
    "environment",
    "interleave",
    "run_rounds",
    "table",
]


class ContenderError(Exception):
    """A contender that is not ours did not do the work; the others continue without it."""


@dataclass
class Contender:
    """One way to do the work: `run()` returns its rate in messages per second."""

    name: str
    guarantee: str
    run: Callable[[], float]
    rates: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median rate in messages per second."""
        return statistics.median(self.rates)


def run_rounds(contenders: list[Contender], rounds: int, say: Callable[[str], None]) -> None:
    """Run every contender once per round, in turn, so that noise falls on all of them."""
    for number in range(1, rounds + 1):
        for contender in contenders:
            rate = contender.run()
            contender.rates.append(rate)
            say(f"round {number}/{rounds}  {contender.name:<28} {rate:>12,.0f}/s")


class Samples:
    """What contenders measured: for each contender and measure, a value per round."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, list[float]]] = {}
        #: Why contenders are left out, by name.
        self.gave_up: dict[str, str] = {}

    def give_up(self, contender: str, reason: str) -> None:
        """Leave a contender out, with what it has measured."""
        self._values.pop(contender, None)
        self.gave_up[contender] = reason

    def add(self, contender: str, measures: Mapping[str, float]) -> None:
        """Take in a round of a contender."""
        held = self._values.setdefault(contender, {})
        for measure, value in measures.items():
            held.setdefault(measure, []).append(value)

    def of(self, contender: str, measure: str) -> list[float]:
        """Give the values of one measure, in the order of the rounds."""
        return self._values[contender][measure]

    def measures(self, contender: str) -> list[str]:
        """Name the measures of one contender."""
        return [*self._values[contender]]

    def having(self, measure: str) -> list[str]:
        """Name the contenders that have a measure."""
        return [name for name, measures in self._values.items() if measure in measures]


def interleave(
    contenders: Mapping[str, Callable[[], Mapping[str, float]]],
    rounds: int,
    say: Callable[[str], None],
) -> Samples:
    """Run every contender once per round, in turn; each returns its measures by name.

    One that raises `ContenderError` is named, and left out with all that it has measured.
    """
    samples, left = Samples(), dict(contenders)
    for number in range(1, rounds + 1):
        for name, run in list(left.items()):
            try:
                measures = run()
            except ContenderError as error:
                say(f"round {number}/{rounds}  {name:<28} gives up: {error}")
                samples.give_up(name, str(error).partition("\n")[0])
                del left[name]
                continue
            samples.add(name, measures)
            words = "  ".join(f"{measure} {value:,.4g}" for measure, value in measures.items())
            say(f"round {number}/{rounds}  {name:<28} {words}")
    return samples


def environment() -> dict[str, object]:
    """Say what the figures were measured on."""
    return {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }


def table(contenders: list[Contender], base: str) -> list[dict[str, object]]:
    """One row per contender: median, range and its ratio to the median of `base`."""
    floor = next(contender.median for contender in contenders if contender.name == base)
    return [
        {
            "name": contender.name,
            "guarantee": contender.guarantee,
            "messages_per_s": round(contender.median),
            "lowest": round(min(contender.rates)),
            "highest": round(max(contender.rates)),
            "ratio": round(contender.median / floor, 3),
        }
        for contender in contenders
    ]
