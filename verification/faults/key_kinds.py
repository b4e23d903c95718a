"""The kinds of unique keys that `key_producer` sends messages of."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["DELAY_S", "FOR_S", "KINDS", "MAX_S", "PRESSED", "STARTED", "TIMED", "TYPED", "UNIQUE"]

#: Kinds of keys: held until the end, until the start, for a time; debounced, and postponed for a time at most.
UNIQUE: Final = "unique"
STARTED: Final = "begun"
TIMED: Final = "timed"
TYPED: Final = "typed"
PRESSED: Final = "pressed"
FOR_S, DELAY_S, MAX_S = 1.0, 0.4, 1.0
#: Kind → options, how many keys there are, and whether all producers have the same ones.
KINDS: Final[dict[str, tuple[dict[str, Any], int, bool]]] = {
    UNIQUE: ({}, 3, True),
    STARTED: ({"unique_until": "started"}, 3, True),
    TIMED: ({"unique_for": f"{FOR_S}s"}, 3, True),
    TYPED: ({"debounce": f"{DELAY_S}s"}, 4, False),
    PRESSED: ({"debounce": f"{DELAY_S}s", "debounce_max": f"{MAX_S}s"}, 2, False),
}
