"""Rates of several contenders over interleaved rounds. Machines are shared and noisy: compare ratios of one run."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Contender", "environment", "run_rounds", "table"]


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
    floor = next(each.median for each in contenders if each.name == base)
    return [
        {
            "name": each.name,
            "guarantee": each.guarantee,
            "messages_per_s": round(each.median),
            "lowest": round(min(each.rates)),
            "highest": round(max(each.rates)),
            "ratio": round(each.median / floor, 3),
        }
        for each in contenders
    ]
