"""The common part of both kinds of runs: ids, keys, and the beginning of steps, loops and gathers."""

from __future__ import annotations

from collections.abc import (
    Callable,
    Iterable,
)
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakKeyDictionary

from qworker.app.arguments.results import ResultType
from qworker.app.functions import default_name
from qworker.app.runs.each import check_source
from qworker.app.runs.gather import Gather, GatherPolicy
from qworker.app.runs.loops import Loop
from qworker.app.runs.steps import Steps
from qworker.config.kinds import MAX_DELAY_MS
from qworker.durations import Duration, duration_ms
from qworker.errors import InvalidNameError, InvalidOptionError, shown
from qworker.wire.names import check_step_name

if TYPE_CHECKING:
    from qworker.app.app_parts import RunApp
    from qworker.app.definition import TaskApp

__all__ = ["RunBase"]

#: By function, the type of what it returns.
_TYPES: Final[WeakKeyDictionary[Any, ResultType]] = WeakKeyDictionary()


class RunBase:
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

        Give it to systems that carry out calls with one key only once: a worker may die after the call, before its step
        is recorded.
        """
        return f"{self._app.namespace}/{self._steps.keys.name}/{self.id}/{check_step_name(name)}"

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
            name, function, args = check_step_name(called), args[0], args[1:]
        if not callable(function):
            raise InvalidOptionError(
                "step",
                f"{shown(function)} is not a function",
                "write run.step(function, *arguments)",
            )
        if name is None:
            name = _name_of(function)
        return self._steps.begin(name), function, args, _type_of(function, name)

    def _loop(
        self, items: Any, key: Any, name: str | None, every: int, interval: Duration
    ) -> Loop[Any]:
        check_source(items, key)
        if name is None:
            try:
                name = default_name(items) if callable(items) else "each"
                check_step_name(name)
            except InvalidNameError:
                name = "each"  # a lambda
        source = items if key is not None else None
        return Loop(self._steps, check_step_name(name, "loop"), every, interval, source, key)

    def _gathering(
        self, calls: Iterable[Any], name: str, policy: GatherPolicy, timeout: Duration | None
    ) -> Gather:
        app = cast("TaskApp", self._app)
        timeout_ms = None
        if timeout is not None:
            timeout_ms = duration_ms(timeout, "timeout", maximum_ms=MAX_DELAY_MS)
        return Gather(self._steps, app, calls, check_step_name(name, "gather"), policy, timeout_ms)


def _name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "name", None)  # a task's
    if isinstance(name, str):
        return check_step_name(name)
    try:
        return check_step_name(default_name(function))
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
