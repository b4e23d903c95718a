"""How long a property is tried: a number of examples that are always the same, or fresh ones for a time."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from tests.effort import examples as scaled

__all__ = ["SECONDS", "explore"]

#: Seconds per property; 0 for the examples that are always the same.
SECONDS = float(os.environ.get("QWORKER_FUZZ_SECONDS") or 0)
#: Examples between two readings of the clock.
_ROUND = 200


def explore(property_: Callable[..., None], *inputs: SearchStrategy[Any], examples: int) -> None:
    """Call a property with generated inputs; the error of a failure shows the simplest one that was found.

    Nothing is shared between runs, and no example has a time limit: the machine may be busy.
    """
    common: dict[str, Any] = {
        "database": None,
        "deadline": None,
        "print_blob": False,
        "suppress_health_check": list(HealthCheck),
    }
    if not SECONDS:
        phases = (Phase.explicit, Phase.generate, Phase.shrink)
        profile = settings(derandomize=True, max_examples=scaled(examples), phases=phases, **common)
        profile(given(*inputs)(property_))()
        return
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        number = random.getrandbits(64)
        profile = settings(max_examples=min(examples, _ROUND), **common)
        profile(seed(number)(given(*inputs)(property_)))()
