"""Control flow of handlers, by exception: what a handler raises to say how its message ends.

ControlFlow
├── Retry      nack: counted, ready again after a delay
├── Discard    ack: the message is done with, and counted as discarded
├── Bury       dead at once, whatever the receive count
├── Release    back at the head of the queue, uncounted
└── LetExpire  leave it: it returns when its visibility timeout runs out

None of them is a failure: they are not logged as errors and carry no traceback into the dead letters.
"""

from __future__ import annotations

from qworker.app.retry import RetryPolicy
from qworker.config.kinds import MAX_DELAY_MS
from qworker.durations import Duration, duration_ms

__all__ = ["Bury", "ControlFlow", "Discard", "LetExpire", "Release", "Retry"]


class ControlFlow(Exception):  # noqa: N818  # an instruction, not an error
    """Base of what a handler raises to end its message another way than by returning."""


class Retry(ControlFlow):
    """Nack the message: it is counted against max receives and ready again after `delay`.

    Without a delay the retry policy of the task says how long; 0 is at once. `delay_ms` is the delay in ms, or None.
    Raises `InvalidOptionError` for a delay that is no duration.

    The class is also where policies come from: `@app.task(retry=Retry.exponential("1s", cap="10m"))`.
    """

    exponential = RetryPolicy.exponential
    fixed = RetryPolicy.fixed
    intervals = RetryPolicy.intervals
    none = RetryPolicy.none

    #: Of a subclass as well whose `__init__` does not come this far.
    delay_ms: int | None = None

    def __init__(self, delay: Duration | None = None) -> None:
        super().__init__(delay)
        self.delay_ms = None if delay is None else _delay_ms(delay)


class Discard(ControlFlow):
    """Ack the message although its work was not done; `reason` is logged."""

    reason: str = ""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Bury(ControlFlow):
    """Move the message to the dead letters at once; `reason` stands there (at most 2 KiB of it)."""

    reason: str = ""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Release(ControlFlow):
    """Put the message back uncounted: at the head of the queue, or delayed if `delay` is given (0 is at once).

    `delay_ms` is the delay in ms. Raises `InvalidOptionError` for a delay that is no duration.
    """

    delay_ms: int = 0

    def __init__(self, delay: Duration = 0) -> None:
        super().__init__(delay)
        self.delay_ms = _delay_ms(delay)


class LetExpire(ControlFlow):
    """Settle nothing: the message comes back when its visibility timeout runs out, counted as a timeout."""


def _delay_ms(delay: Duration) -> int:
    return duration_ms(delay, "delay", maximum_ms=MAX_DELAY_MS)
