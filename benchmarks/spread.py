"""Quantiles of what was measured many times in one round."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["quantile"]


def quantile(values: Sequence[float], share: float) -> float:
    """Give the value that `share` (0-1) of the values do not exceed."""
    if not values:
        raise ValueError("nothing was measured")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
