"""How many handlers a queue needs, computed from its past: no model, and no assumption that the data does not show.

**Load** is arrivals per second times handler seconds per message, retries included (Little's law: the mean number of
busy handlers). A queue *needs* its load in the busiest minute divided by `UTILISATION`, since waiting times grow beyond
all bounds near 100 %. It *had* the sum of run times in its busiest minute over 60 s: a burst of one second says little
about handlers. Buckets longer than a minute count whole. The **trend** is the median of the slopes between all pairs of
days (Theil and Sen: one odd day does not turn it), from three whole days on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

__all__ = ["METHOD", "Capacity", "forecast", "theil_sen"]

UTILISATION: Final = 0.7
_LEAST_DAYS: Final = 3
_MINUTE_S: Final = 60
METHOD: Final = (
    "Load = arrivals per second × handler seconds per message, retries included (Little's law). "
    f"Handlers needed = load in the busiest minute (interval, if longer) ÷ {UTILISATION:g}. "
    "Trend = median slope between days (Theil-Sen), from three whole days on. Nothing is assumed about "
    "effects that the data does not show: seasons, launches, slower handlers."
)


@dataclass(frozen=True, slots=True)
class Capacity:
    """One queue. Rates per second, loads in busy handlers; None if the data does not show it."""

    queue: str
    arrivals_per_s: float
    busiest_per_s: float
    run_s: float | None
    load: float
    busiest_load: float | None
    had: float
    needed: int | None
    backlog: int
    drained_in_s: float | None
    growth_per_day: float | None
    days_left: float | None

    def document(self) -> dict[str, Any]:
        """Return it as JSON takes it, numbers with four digits."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {
            name: float(f"{value:.4g}") if isinstance(value, float) else value
            for name, value in values.items()
        }


def forecast(
    queue: str,
    *,
    arrivals: Sequence[int],
    ended: Sequence[int],
    busy_s: Sequence[float],
    backlog: int,
    bucket_s: int,
) -> Capacity:
    """Compute the capacity of a queue. The sequences have one value per bucket."""
    span_s = max(1, len(arrivals)) * bucket_s
    done, run_total_s = sum(ended), sum(busy_s)
    run_s = run_total_s / done if done and run_total_s else None
    mean = sum(arrivals) / span_s
    busiest, had, best_out = (_busiest(values, bucket_s) for values in (arrivals, busy_s, ended))
    busiest_load = busiest * run_s if run_s is not None else None
    spare = best_out - mean
    growth = _growth(arrivals, bucket_s)
    return Capacity(
        queue=queue,
        arrivals_per_s=mean,
        busiest_per_s=busiest,
        run_s=run_s,
        load=run_total_s / span_s,
        busiest_load=busiest_load,
        had=had,
        needed=max(1, math.ceil(busiest_load / UTILISATION)) if busiest_load is not None else None,
        backlog=backlog,
        drained_in_s=0.0 if not backlog else backlog / spare if spare > 0 else None,
        growth_per_day=growth,
        days_left=(best_out - busiest) / growth
        if growth and growth > 0 and best_out > busiest
        else None,
    )


def _busiest(values: Sequence[float], bucket_s: int) -> float:
    """Return the mean per second of the busiest minute, or of the busiest bucket if that is longer."""
    width = min(max(1, _MINUTE_S // bucket_s), max(1, len(values)))
    starts = range(max(1, len(values) - width + 1))
    sums = [sum(values[start : start + width]) for start in starts]
    return max(sums) / (width * bucket_s)


def _growth(arrivals: Sequence[int], bucket_s: int) -> float | None:
    """Growth of the mean arrivals per second, per day; None for less than three whole days."""
    per_day = 86_400 // bucket_s if bucket_s <= 86_400 else 0
    whole = len(arrivals) // per_day if per_day else 0
    if whole < _LEAST_DAYS:
        return None
    days = [sum(arrivals[day * per_day : (day + 1) * per_day]) / 86_400 for day in range(whole)]
    return theil_sen(days)


def theil_sen(values: Sequence[float]) -> float:
    """Return the median slope per step between all pairs; 0 for fewer than two values."""
    slopes = [
        (values[late] - values[early]) / (late - early)
        for early in range(len(values))
        for late in range(early + 1, len(values))
    ]
    return median(slopes) if slopes else 0.0
