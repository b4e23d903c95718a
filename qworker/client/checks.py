"""Checks of common arguments."""

from __future__ import annotations

from typing import Final

from qworker.config.kinds import IntegerKind
from qworker.durations import Duration, duration_ms
from qworker.engine.options import MAX_VISIBILITY_MS, MIN_VISIBILITY_MS
from qworker.engine.send import MAX_PER_CALL
from qworker.errors import InvalidOptionError
from qworker.wire.states import STATES

__all__ = ["check_count", "check_skip", "check_state", "check_visibility_ms"]

_SKIP: Final = IntegerKind("messages left out", maximum=1_000_000)


def check_count(count: object) -> None:
    """Check the number of messages for one call. Raises `InvalidOptionError`."""
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_PER_CALL:
        raise InvalidOptionError(
            "count", f"{ascii(count)[:80]} is out of range", f"a number from 1 to {MAX_PER_CALL}"
        )


def check_skip(skip: object) -> None:
    """Check the number of messages to skip. Raises `InvalidOptionError`."""
    _SKIP.check(skip, "skip")


def check_state(state: object) -> None:
    """Check a state. Raises `InvalidOptionError`."""
    if state not in STATES:
        raise InvalidOptionError(
            "state", f"{ascii(state)[:80]} is not a state", f"one of {', '.join(STATES)}"
        )


def check_visibility_ms(visibility: Duration | None) -> int | None:
    """Read a visibility timeout of 1s to 12h; None stays None. Raises `InvalidOptionError`."""
    if visibility is None:
        return None
    return duration_ms(
        visibility, "visibility", minimum_ms=MIN_VISIBILITY_MS, maximum_ms=MAX_VISIBILITY_MS
    )
