"""How many examples a property gets, under the profile of Hypothesis that is loaded."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["examples"]


def examples(number: int) -> int:
    """Return how many examples to try where the profile `ci` tries `number`."""
    loaded: int = settings().max_examples
    return max(1, number * loaded // settings.get_profile("ci").max_examples)
