"""Whole numbers that stand in Redis as text: one rule for whoever reads them, as in `lua/lib/envelope.lua`."""

from __future__ import annotations

from typing import Final

__all__ = ["score_ms", "whole"]

_MAX_DIGITS: Final = 16
#: The largest number that Lua and a score keep exactly.
_MAX_MS: Final = 2**53


def whole(text: str | bytes | None) -> int | None:
    """Read 1 to 16 digits of ASCII, at most 2^53; None for anything else that somebody wrote there."""
    if text is None or len(text) > _MAX_DIGITS or not text.isdigit() or not text.isascii():
        return None
    number = int(text)
    return number if number <= _MAX_MS else None


def score_ms(score: bytes) -> int:
    """Read a score that stands for a time in ms, as scripts write it: at most 2^53 from 0 on either side."""
    return int(max(-_MAX_MS, min(float(score), _MAX_MS)))
