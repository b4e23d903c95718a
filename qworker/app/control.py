"""Control flow of handlers: exceptions that say how a message ends.

ControlFlow
├── Retry      nack: ready again after a delay, counted
├── Discard    ack, counted as discarded
├── Cancel     ended as cancelled
├── Bury       dead at once, at any receive count
├── Release    back to the head of the queue, uncounted
├── RateLimited  the same, and its queue waits
└── LetExpire  not settled: back when the visibility timeout runs out

None of them is a failure: no error is logged, and no traceback is stored with a dead letter.
"""

from __future__ import annotations

from typing import Final

from qworker.app.retry import RetryPolicy
from qworker.config.kinds import DAY_MS, MAX_DELAY_MS
from qworker.durations import Duration, duration_ms

__all__ = [
    "NO_END",
    "Bury",
    "Cancel",
    "ControlFlow",
    "Discard",
    "Interrupted",
    "KeyMissing",
    "LetExpire",
    "Parked",
    "RateLimited",
    "Release",
    "Retry",
]


class ControlFlow(Exception):  # noqa: N818  # an instruction, not an error
    """Base of the exceptions by which a handler says how its message ends."""


class Retry(ControlFlow):
    """Nack the message: it counts against max receives and is ready again after `delay`.

    None: the delay of the task's retry policy; 0: at once. `delay_ms` is the delay in ms, or None. Raises
    `InvalidOptionError` for a delay that is not a duration.

    The class also makes policies: `@app.task(retry=Retry.exponential("1s", cap="10m"))`.
    """

    exponential = RetryPolicy.exponential
    fixed = RetryPolicy.fixed
    intervals = RetryPolicy.intervals
    none = RetryPolicy.none

    #: Also for a subclass whose `__init__` does not call this one.
    delay_ms: int | None = None

    def __init__(self, delay: Duration | None = None) -> None:
        super().__init__(delay)
        self.delay_ms = None if delay is None else _delay_ms(delay)


class Discard(ControlFlow):
    """Ack the message without doing its work; `reason` is logged."""

    reason: str = ""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Cancel(ControlFlow):
    """End the message as cancelled; raise it when `current().cancelled` is true and the work is stopped."""


class Bury(ControlFlow):
    """Make the message a dead letter at once, with `reason` (up to 2 KiB)."""

    reason: str = ""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Release(ControlFlow):
    """Put the message back uncounted: at the head of the queue, or delayed by `delay` (0: at once).

    `delay_ms` is the delay in ms. Raises `InvalidOptionError` for a delay that is not a duration.
    """

    delay_ms: int = 0

    def __init__(self, delay: Duration = 0) -> None:
        super().__init__(delay)
        self.delay_ms = _delay_ms(delay)


class RateLimited(ControlFlow):
    """Another system refuses calls for now (a 429): put the message back uncounted, and let others like it wait.

    For `delay` (1 ms to a day) no worker receives messages of the same `limit_key`; without one, of the same group;
    without either, from the queue, or from the message's shard of a divided one. Then the message comes first.
    Messages that workers have already received still run. Raises `InvalidOptionError` for a delay that is not such a
    duration.
    """

    delay_ms: int = 0

    def __init__(self, delay: Duration) -> None:
        super().__init__(delay)
        self.delay_ms = duration_ms(delay, "delay", minimum_ms=1, maximum_ms=DAY_MS)


class Parked(BaseException):
    """A run sleeps or waits: its function ends here, and starts again when the run continues.

    Raised by `run.sleep` and `run.wait`. Not an Exception, so that `except Exception` lets it pass; a function that
    catches it is parked nevertheless.
    """

    def __init__(
        self, delay_ms: int | None, name: str, signal: str = "", keep_ms: int | None = None
    ) -> None:
        super().__init__(name)
        self.delay_ms, self.name, self.signal, self.keep_ms = delay_ms, name, signal, keep_ms


class Interrupted(BaseException):
    """A run is in a loop, and its worker stops: its function ends here, and another worker continues the loop.

    Raised by `run.each` between two items, and by steps that a coroutine begins after the function has failed. Not an
    Exception, like `Parked`.
    """


class KeyMissing(BaseException):
    """A run has read what another worker has recorded, and this process lacks the key: its function ends here.

    The run waits for a worker with the key, uncounted. Not an Exception, like `Parked`.
    """


#: What a run raises that neither ends nor fails: another worker continues it.
NO_END: Final = (Interrupted, KeyMissing)


class LetExpire(ControlFlow):
    """Do not settle the message: it is ready again when its visibility timeout runs out, counted as a timeout."""


def _delay_ms(delay: Duration) -> int:
    return duration_ms(delay, "delay", maximum_ms=MAX_DELAY_MS)
