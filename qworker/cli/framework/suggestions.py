"""Suggestions for a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["did_you_mean", "nearest"]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is spelt most alike; None if none is."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, [*known], 1)), None)


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Suggest the nearest known name, else say `otherwise`."""
    near = nearest(name, known)
    return otherwise if near is None else f"did you mean {near!r}?"
