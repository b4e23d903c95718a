"""Retry policies: how long a failed message waits before its next try."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qworker.config.kinds import MAX_DELAY_MS
from qworker.durations import Duration, duration_ms
from qworker.errors import InvalidOptionError, TimeLimitError, shown

__all__ = ["RetryPolicy"]

#: One exception class or a tuple of them; () is none.
Errors = type[BaseException] | tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The waits after the first, second, … nack of a message. Max receives limits how often it is tried.

    `steps_ms`: the first waits, 0 to about 142,000 years; further ones multiply the last by `factor` (1 to 1000), up to
    `cap_ms`. No steps: the first failure is final. `jitter` (0 to 1): the largest share of a wait that is added at
    random, so that messages that failed together do not return together. A wait is never shorter than asked; with
    jitter 0.2 it is up to a fifth longer, even beyond the cap.

    `on`: the errors to retry, () for all; `give_up_on`: those not to retry, even if `on` has them. A message that is
    not retried is dead at once, with reason `not_retried`. Time limits are retried regardless of `on`, and so is a
    handler's own `Retry`.
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
        """Wait `first` after the first nack, then `factor` times longer each time, up to `cap`."""
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
        """Wait `delay` after every nack; 0: no wait."""
        steps_ms = (_wait_ms(delay, "delay"),)
        return cls(steps_ms=steps_ms, jitter=jitter, on=on, give_up_on=give_up_on)

    @classmethod
    def intervals(
        cls, *delays: Duration, jitter: float = 0.0, on: Errors = (), give_up_on: Errors = ()
    ) -> RetryPolicy:
        """Wait these delays in order, and repeat the last one."""
        if not delays:
            raise InvalidOptionError(
                "retry intervals", "are empty", "give at least one duration, or use Retry.none()"
            )
        steps_ms = tuple(_wait_ms(delay, "intervals") for delay in delays)
        return cls(steps_ms=steps_ms, jitter=jitter, on=on, give_up_on=give_up_on)

    @classmethod
    def none(cls) -> RetryPolicy:
        """Do not retry: the first failure is final."""
        return cls(steps_ms=())

    @property
    def is_final(self) -> bool:
        """Whether the first failure buries the message."""
        return not self.steps_ms

    def gives_up_on(self, error: BaseException) -> bool:
        """Whether `on` and `give_up_on` exclude this error from retries."""
        # Not isinstance: an error can claim any `__class__`.
        kind = type(error)
        if issubclass(kind, self.give_up_on):
            return True
        return self.on != () and not issubclass(kind, (self.on, TimeLimitError))

    def delay_ms(self, nacks: int, random: Callable[[], float]) -> int:
        """Return the wait after the `nacks`-th nack (from 1; less counts as 1); `random` returns 0 ≤ x < 1.

        A policy without retries returns 0: check `is_final` first.
        """
        base_ms = self._base_ms(max(nacks, 1))
        return base_ms + int(base_ms * self.jitter * random())

    def _base_ms(self, nacks: int) -> int:
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
    classes = given if isinstance(given, tuple | list | set | frozenset) else (given,)
    for kind in classes:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise InvalidOptionError(
                f"retry {field}",
                f"{shown(kind)} is not an exception class",
                "give classes: OSError, or (OSError, TimeoutError)",
            )
    return tuple(classes)


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
