"""How many examples a property gets, under the profile of Hypothesis that is loaded."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["examples"]


def examples(number: int) -> int:
    """Return how many examples to try of a property that is tried `number` times where others are a hundred times."""
    loaded: int = settings().max_examples
    return max(1, number * loaded // 100)
