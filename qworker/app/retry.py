"""Retry policies: how long a failed message waits before it is ready again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qworker.config.kinds import MAX_DELAY_MS, shown
from qworker.durations import Duration, duration_ms
from qworker.errors import InvalidOptionError, TimeLimitError

__all__ = ["RetryPolicy"]

#: Exception classes, one or several; none is ().
Errors = type[BaseException] | tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The waits after the first, second, … nack of a message.

    `steps_ms` holds the first waits; after them the last one is multiplied by `factor` (1 and more) for each further
    nack, up to `cap_ms`. No steps: a failure is final. `jitter` (0 to 1) is the largest share of a wait that is added
    to it by chance, so that what failed together does not come back together: a wait is never shorter than asked,
    and with jitter 0.2 at most a fifth longer, also than the cap.

    `on`: the errors to retry on, any if empty; `give_up_on`: those not to retry on, also where `on` has them. What is
    not retried is dead at once, with reason `not_retried`. A time limit is retried whatever `on` says, and so is a
    handler's own `Retry`.

    How often a message is tried is not said here: max receives is the limit.
    """

    steps_ms: tuple[int, ...]
    factor: float = 1.0
    cap_ms: int = MAX_DELAY_MS
    jitter: float = 0.0
    on: Errors = ()
    give_up_on: Errors = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "on", _classes("on", self.on))
        object.__setattr__(self, "give_up_on", _classes("give_up_on", self.give_up_on))
        for step in self.steps_ms:
            _check_ms("steps_ms", step)
        _check_ms("cap_ms", self.cap_ms)
        _check_number("factor", self.factor, 1.0, 1000.0)
        _check_number("jitter", self.jitter, 0.0, 1.0)

    @classmethod
    def exponential(
        cls,
        first: Duration,
        *,
        cap: Duration = "10m",
        factor: float = 2.0,
        jitter: float = 0.2,
        on: Errors = (),
        give_up_on: Errors = (),
    ) -> RetryPolicy:
        """Wait `first` after the first nack, then `factor` times longer each time, at most `cap`."""
        first_ms = _wait_ms(first, "first", minimum_ms=1)
        cap_ms = _wait_ms(cap, "cap", minimum_ms=first_ms)
        return cls(
            steps_ms=(first_ms,),
            factor=factor,
            cap_ms=cap_ms,
            jitter=jitter,
            on=on,
            give_up_on=give_up_on,
        )

    @classmethod
    def fixed(
        cls, delay: Duration, *, jitter: float = 0.0, on: Errors = (), give_up_on: Errors = ()
    ) -> RetryPolicy:
        """Wait `delay` after every nack; 0 is at once."""
        steps_ms = (_wait_ms(delay, "delay"),)
        return cls(steps_ms=steps_ms, jitter=jitter, on=on, give_up_on=give_up_on)

    @classmethod
    def intervals(
        cls, *delays: Duration, jitter: float = 0.0, on: Errors = (), give_up_on: Errors = ()
    ) -> RetryPolicy:
        """Wait these delays, one after another; the last one is repeated."""
        if not delays:
            raise InvalidOptionError(
                "retry intervals", "are empty", "give one duration or more, or use none()"
            )
        steps_ms = tuple(_wait_ms(each, "intervals") for each in delays)
        return cls(steps_ms=steps_ms, jitter=jitter, on=on, give_up_on=give_up_on)

    @classmethod
    def none(cls) -> RetryPolicy:
        """Do not retry: the first failure is final."""
        return cls(steps_ms=())

    @property
    def is_final(self) -> bool:
        """A failure is not retried; the message is buried."""
        return not self.steps_ms

    def gives_up_on(self, error: BaseException) -> bool:
        """Whether this error is not retried, by `on` and `give_up_on`."""
        # By the type alone: an error may say anything of its `__class__`.
        kind = type(error)
        if issubclass(kind, self.give_up_on):
            return True
        return self.on != () and not issubclass(kind, (self.on, TimeLimitError))

    def delay_ms(self, nacks: int, random: Callable[[], float]) -> int:
        """Return the wait after the `nacks`-th nack (from 1; less counts as 1); `random` yields 0 ≤ x < 1.

        The wait of a policy without retries is 0: ask `is_final` first.
        """
        asked_ms = self._asked_ms(max(nacks, 1))
        return asked_ms + int(asked_ms * self.jitter * random())

    def _asked_ms(self, nacks: int) -> int:
        if not self.steps_ms:
            return 0
        if nacks <= len(self.steps_ms):
            return min(self.steps_ms[nacks - 1], self.cap_ms)
        last_ms, further = self.steps_ms[-1], nacks - len(self.steps_ms)
        try:
            grown_ms = last_ms * self.factor**further
        except OverflowError:
            return self.cap_ms if last_ms else 0
        return self.cap_ms if grown_ms >= self.cap_ms else round(grown_ms)


def _wait_ms(value: object, field: str, *, minimum_ms: int = 0) -> int:
    return duration_ms(value, f"retry {field}", minimum_ms=minimum_ms, maximum_ms=MAX_DELAY_MS)


def _classes(field: str, given: object) -> tuple[type[BaseException], ...]:
    """Check exception classes, one or several."""
    several = given if isinstance(given, tuple | list | set | frozenset) else (given,)
    for each in several:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise InvalidOptionError(
                f"retry {field}",
                f"{shown(each)} is not an exception class",
                "give classes: OSError, or (OSError, TimeoutError)",
            )
    return tuple(several)


def _check_number(field: str, value: object, minimum: float, maximum: float) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not minimum <= value <= maximum
    ):
        problem = f"{value!a} is out of range"
        raise InvalidOptionError(
            f"retry {field}", problem, f"it must be a number from {minimum:g} to {maximum:g}"
        )


def _check_ms(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_DELAY_MS:
        problem = f"{value!a} is out of range"
        raise InvalidOptionError(
            f"retry {field}", problem, f"it must be an int from 0 to {MAX_DELAY_MS}"
        )
