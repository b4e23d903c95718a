"""What does not change in any world: the queue, the time of every call, how long things are kept."""

from __future__ import annotations

from typing import Any, Final

from qworker.wire.keys import QueueKeys

__all__ = ["HELD_MS", "KEYS", "NOW", "TICK_MS", "Call"]

#: `(verb, argument, …)`, of strings, numbers and tuples alone.
Call = tuple[Any, ...]

KEYS: Final = QueueKeys("i", "q")
#: The time of every call, in ms; a step of the clock moves all times of the queue instead.
NOW: Final = 1_000_000_000
TICK_MS: Final = 1000
#: For how long a unique key keeps others out, a tombstone is kept, and results are.
HELD_MS: Final = 4000
