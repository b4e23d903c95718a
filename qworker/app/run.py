"""Runs: functions whose steps are recorded, so that another worker can resume them.

An async workflow gets a `Run`, a plain one a `SyncRun`; `Steps` is their common part, without I/O.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Protocol, TypeVar, overload
from weakref import WeakKeyDictionary

import msgspec

from qworker.app.arguments.results import ResultType
from qworker.app.control import Parked
from qworker.app.functions import default_name, is_async
from qworker.app.handle import HandleApp
from qworker.config.kinds import MAX_DELAY_MS
from qworker.durations import Duration, duration_ms
from qworker.engine.run import Step, recall_steps, record_step
from qworker.errors import (
    InvalidNameError,
    InvalidOptionError,
    InvalidResultError,
    SignalTimeoutError,
    shown,
)
from qworker.wire.memo import read_memo, write_memo

if TYPE_CHECKING:
    from qworker.engine.command import Command
    from qworker.engine.run import Recalled
    from qworker.wire.envelope import Envelope
    from qworker.wire.keyring import Keyring
    from qworker.wire.keys import QueueKeys

__all__ = ["Run", "RunApp", "RunDelivery", "Steps", "SyncRun"]

P = ParamSpec("P")
T = TypeVar("T")

_NAME: Final = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.:/-]{0,99}", re.ASCII)
#: Of a repeated step, this many values are read with the one that is needed.
_AHEAD: Final = 50
#: By function, the type of what it returns.
_TYPES: Final[WeakKeyDictionary[Any, ResultType]] = WeakKeyDictionary()


class RunApp(HandleApp, Protocol):
    """The part of an app that runs use."""

    @property
    def keyring(self) -> Keyring:
        """The keys that sign and encrypt."""


class RunDelivery(Protocol):
    """The delivery of a run's message."""

    lease: Any
    index: str

    def envelope(self) -> Envelope | None:
        """The parsed envelope."""

    def unblame(self, flags: Mapping[str, str]) -> None:
        """Forget the failures before this delivery, and add flags, as the server does."""


class Steps:
    """The steps of one activation of a run: numbers them, and keeps the recorded ones that were read."""

    def __init__(self, app: RunApp, delivery: RunDelivery, keep_ms: int) -> None:
        envelope = delivery.envelope()
        assert envelope is not None
        flags = envelope.flags if envelope.has_flags else {}
        self.keys: QueueKeys = delivery.lease.queue.keys
        self.id = envelope.id
        self._app = app
        self._delivery = delivery
        self._keep_ms = keep_ms
        self._numbers: Counter[str] = Counter()
        self._read: dict[str, bytes | None] = {}
        #: Everything was read: at the first delivery nothing is recorded.
        self._whole = envelope.receives == 0 and "t" not in flags
        self._marked = "c" in flags
        self._now_ms: int = delivery.lease.now_ms
        self._began = time.monotonic()
        #: Set once the run is parked: nothing that the function does afterwards counts.
        self.parked: Parked | None = None
        self._blamed = envelope.nacks + envelope.timeouts > 0

    def begin(self, name: str) -> str:
        """Return the name under which the next step of this name is recorded."""
        if self.parked is not None:
            raise self.parked
        self._numbers[name] += 1
        number = self._numbers[name]
        return name if number == 1 else f"{name}#{number}"

    def unread(self, step: str) -> Command[Recalled] | None:
        """Return the command that reads a step, if it was not read yet."""
        if self._whole or step in self._read:
            return None
        name, _, number = step.partition("#")
        first = int(number or 1)
        ahead = [f"{name}#{later}" for later in range(first + 1, first + _AHEAD)]
        return recall_steps(self.keys, self.id, [step, *ahead])

    def learn(self, recalled: Recalled) -> None:
        """Keep recorded steps that were read."""
        self._read.update(recalled.values)
        self._whole = recalled.whole

    def take(self, step: str) -> bytes | None:
        """Return the JSON of a recorded step; None if it is not recorded. Raises `ProtectionError`."""
        stored = self._read.pop(step, None)
        return None if stored is None else self.opened(step, stored)

    def record(self, step: str, value: bytes) -> Command[bytes]:
        """Return the command that records the JSON of a step."""
        names = self._app.namespace, self.keys.name, self.id, step
        return record_step(
            self.keys,
            Step(
                self.id,
                self._delivery.lease.id,
                self._delivery.index,
                step,
                write_memo(value, self._app.keyring, *names),
                None if self._marked else self._keep_ms,
                self._blamed,
            ),
        )

    def recorded(self, step: str, stored: bytes) -> bytes:
        """Note that a step is recorded, and return its JSON. Raises `ProtectionError`."""
        if self._blamed or not self._marked:
            self._delivery.unblame({"c": "1", "r": str(self._keep_ms)})
            self._blamed, self._marked = False, True
        return self.opened(step, stored)

    def sleep(self, name: str, delay_ms: int | None, signal: str = "") -> None:
        """Return once the time recorded under a name is over; until then park the run, first for `delay_ms`."""
        stored = self._read.get(name)
        left_ms = delay_ms
        if stored is not None:
            left_ms = int(stored) - self.now_ms()
            if left_ms <= 0:
                return
        self.parked = Parked(left_ms, name, signal, None if self._marked else self._keep_ms)
        raise self.parked

    def now_ms(self) -> int:
        """The server's time, as far as this delivery knows; never ahead of it."""
        return self._now_ms + int((time.monotonic() - self._began) * 1000)

    def begin_wait(self, signal: type[T], name: str | None, timeout: Duration | None) -> _Wait[T]:
        """Name a wait. Raises `InvalidOptionError` for a second one of this name."""
        name = _checked(signal.__name__ if name is None else name)
        delay_ms = None if timeout is None else duration_ms(timeout, "timeout")
        if self.begin(f"!{name}") != f"!{name}":
            raise InvalidOptionError(
                f"signal {name!r}", "is waited for twice", "give each wait a name= of its own"
            )
        decoder = msgspec.json.Decoder(signal)
        return _Wait(name, f"!{name}", f"~wait:{name}", delay_ms, decoder)

    def opened(self, step: str, stored: bytes) -> bytes:
        """Return the JSON of a stored value."""
        names = self._app.namespace, self.keys.name, self.id, step
        return read_memo(stored, self._app.keyring, *names)


@dataclass(frozen=True, slots=True)
class _Wait(Generic[T]):
    """A wait for a signal: the fields of its value and its end."""

    name: str
    signal: str
    end: str
    delay_ms: int | None
    decoder: msgspec.json.Decoder[T]

    def value(self, stored: bytes) -> T:
        """Convert the value that was given. Raises `SignalTimeoutError` if none was given in time."""
        if not stored:
            raise SignalTimeoutError(self.name)
        try:
            return self.decoder.decode(stored)
        except msgspec.MsgspecError as error:
            raise InvalidResultError(
                f"signal {self.name!r}",
                f"is not of the declared type: {error}",
                "send it with that type",
            ) from error


class _Base:
    """Base of both kinds of runs."""

    def __init__(self, app: RunApp, steps: Steps) -> None:
        self._app = app
        self._steps = steps

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._steps.keys.name!r}, {self.id!r})"

    @property
    def id(self) -> str:
        """The id of the run, which is that of its message."""
        return self._steps.id

    def key(self, name: str) -> str:
        """Return a key for one call of another system, such as a payment: the same each time that the run asks for it.

        Give it to systems that do a call with a known key once: a worker may die after the call, before its step was
        recorded.
        """
        return f"{self._app.namespace}/{self._steps.keys.name}/{self.id}/{_checked(name)}"

    def _begin(
        self, called: Callable[..., Any] | str, args: tuple[Any, ...]
    ) -> tuple[str, Callable[..., Any], tuple[Any, ...], ResultType]:
        """Name and number a step; returns its name, function, arguments, and the type of its value."""
        name, function = None, called
        if isinstance(called, str):
            if not args:
                raise InvalidOptionError(
                    "step", "has no function", "write run.step(name, function)"
                )
            name, function, args = _checked(called), args[0], args[1:]
        if not callable(function):
            raise InvalidOptionError(
                "step",
                f"{shown(function)} is not a function",
                "write run.step(function, *arguments)",
            )
        if name is None:
            name = _name_of(function)
        return self._steps.begin(name), function, args, _type_of(function, name)


class Run(_Base):
    """A run of an async workflow: `await run.step(charge, order_id)`.

    What a step returns is recorded, and another worker that resumes the run gets it without calling the function again.
    """

    @overload
    def step(
        self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(
        self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    def step(self, function: Any, /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Call a function and record what it returns; if that is recorded, return it without the call.

        The step has the function's name, or the one given before it: `run.step("charge", lambda: …)`. Repeated names
        are numbered in the order of the calls. The value is JSON of up to 1 MiB, converted by the annotation of what
        the function returns. Plain functions run in a thread. An error of the function is not recorded.

        Raises `LeaseLostError` if the value is not recorded because another worker may have the run, and
        `InvalidResultError`, `RunTooLargeError`, `ProtectionError` and `ServerError`.
        """
        return self._step(*self._begin(function, args), kwargs)

    async def _step(
        self,
        step: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        result_type: ResultType,
        kwargs: dict[str, Any],
    ) -> Any:
        steps, client = self._steps, self._app.aqueue(self._steps.keys.name).client
        if (command := steps.unread(step)) is not None:
            steps.learn(await client.execute(command))
        value = steps.take(step)
        if value is None:
            if is_async(function):
                result = function(*args, **kwargs)
            else:
                loop, context = asyncio.get_running_loop(), copy_context()
                result = await loop.run_in_executor(
                    None, lambda: context.run(function, *args, **kwargs)
                )
            if inspect.isawaitable(result):
                result = await result
            stored = await client.execute(steps.record(step, result_type.encode(result)))
            value = steps.recorded(step, stored)
        return result_type.decode(value)

    async def sleep(self, duration: Duration) -> None:
        """Do nothing for a time, which starts when the run first gets here: without a worker and without a lease.

        The function ends here by a `BaseException`, so `finally` blocks run, and starts again when the time is over.
        """
        delay_ms = duration_ms(duration, "duration", maximum_ms=MAX_DELAY_MS)
        await self._sleep(self._steps.begin("~sleep"), delay_ms)

    async def wait(
        self, signal: type[T], *, timeout: Duration | None = None, name: str | None = None
    ) -> T:
        """Wait for a signal, without a worker and without a lease: `await run.wait(Approval, timeout="7d")`.

        A signal has the name of its type, or another `name`; a run can wait for each name once. A signal that was
        given before the wait is returned at once. Raises `SignalTimeoutError` when the time is over, and
        `InvalidResultError` for a value of another type. The function ends here as in `sleep`.
        """
        wait = self._steps.begin_wait(signal, name, timeout)
        value = await self._recalled(wait.signal)
        if value is None:
            await self._sleep(wait.end, wait.delay_ms, wait.signal)
            client = self._app.aqueue(self._steps.keys.name).client
            stored = await client.execute(self._steps.record(wait.signal, b""))
            value = self._steps.recorded(wait.signal, stored)
        return wait.value(value)

    async def _sleep(self, name: str, delay_ms: int | None, signal: str = "") -> None:
        steps = self._steps
        if (command := steps.unread(name)) is not None:
            steps.learn(await self._app.aqueue(steps.keys.name).client.execute(command))
        steps.sleep(name, delay_ms, signal)

    async def _recalled(self, step: str) -> bytes | None:
        steps = self._steps
        # A signal may have come since the others were read.
        client = self._app.aqueue(steps.keys.name).client
        steps.learn(await client.execute(recall_steps(steps.keys, self.id, [step])))
        return steps.take(step)


class SyncRun(_Base):
    """A run of a plain workflow: `run.step(charge, order_id)`. For one thread; see `Run`."""

    @overload
    def step(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def step(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    def step(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function and record what it returns, as `Run.step` does, in the calling thread."""
        step, called, args, result_type = self._begin(function, args)
        if is_async(called):
            raise InvalidOptionError(
                f"step {step}", "is an async function", "make the workflow an async def to await it"
            )
        steps, client = self._steps, self._app.queue(self._steps.keys.name).client
        if (command := steps.unread(step)) is not None:
            steps.learn(client.execute(command))
        value = steps.take(step)
        if value is None:
            result = result_type.encode(called(*args, **kwargs))
            value = steps.recorded(step, client.execute(steps.record(step, result)))
        return result_type.decode(value)

    def sleep(self, duration: Duration) -> None:
        """Do nothing for a time, as `Run.sleep` does."""
        delay_ms = duration_ms(duration, "duration", maximum_ms=MAX_DELAY_MS)
        self._sleep(self._steps.begin("~sleep"), delay_ms)

    def wait(
        self, signal: type[T], *, timeout: Duration | None = None, name: str | None = None
    ) -> T:
        """Wait for a signal, as `Run.wait` does."""
        steps, client = self._steps, self._app.queue(self._steps.keys.name).client
        wait = steps.begin_wait(signal, name, timeout)
        # A signal may have come since the others were read.
        steps.learn(client.execute(recall_steps(steps.keys, self.id, [wait.signal])))
        value = steps.take(wait.signal)
        if value is None:
            self._sleep(wait.end, wait.delay_ms, wait.signal)
            stored = client.execute(steps.record(wait.signal, b""))
            value = steps.recorded(wait.signal, stored)
        return wait.value(value)

    def _sleep(self, name: str, delay_ms: int | None, signal: str = "") -> None:
        steps = self._steps
        if (command := steps.unread(name)) is not None:
            steps.learn(self._app.queue(steps.keys.name).client.execute(command))
        steps.sleep(name, delay_ms, signal)


def _checked(name: str) -> str:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidNameError(
            "step",
            f"{shown(name)} cannot be a name",
            "1 to 100 of A-Z, a-z, 0-9, '_', '.', ':', '/' and '-', the first not a sign",
        )
    return name


def _name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "name", None)  # a task's
    if isinstance(name, str):
        return _checked(name)
    try:
        return _checked(default_name(function))
    except InvalidNameError as error:
        raise InvalidNameError(
            "step", f"{shown(function)} has no name", 'name the step: run.step("name", function)'
        ) from error


def _type_of(function: Callable[..., Any], name: str) -> ResultType:
    function = getattr(function, "function", function)
    try:
        known = _TYPES.get(function)
        if known is None:
            known = _TYPES[function] = ResultType(function, name)
    except TypeError:  # without a hash, or no weak reference to it
        return ResultType(function, name)
    return known
