"""Whole numbers stored in Redis as text, read by the rule of `lua/lib/envelope.lua`."""

from __future__ import annotations

from typing import Final

__all__ = ["score_ms", "whole"]

_MAX_DIGITS: Final = 16
#: The largest number that Lua and a score represent exactly.
_MAX_MS: Final = 2**53


def whole(text: str | bytes | None) -> int | None:
    """Read 1 to 16 ASCII digits, up to 2^53; None for anything else."""
    if text is None or len(text) > _MAX_DIGITS or not text.isdigit() or not text.isascii():
        return None
    number = int(text)
    return number if number <= _MAX_MS else None


def score_ms(score: bytes) -> int:
    """Read a score that is a time in ms, clamped to ±2^53."""
    return int(max(-_MAX_MS, min(float(score), _MAX_MS)))
