"""Groups of calls: calls that run side by side, and a callback that gets their values."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    TypeVar,
    get_args,
    overload,
)

from qworker.app.arguments.failures import Failure
from qworker.app.composition import Composed, ComposedThen
from qworker.app.group_call import GroupCall, GroupMembers, GroupThen
from qworker.app.sender import Call, Sender, Then
from qworker.app.work import Following, Work
from qworker.errors import InvalidOptionError, shown
from qworker.wire.calls import MAX_MEMBERS, Policy

__all__ = ["Group", "ThenGroup", "group"]

A = TypeVar("A")
V = TypeVar("V")
T = TypeVar("T")
Q = ParamSpec("Q")

_POLICIES: Final = get_args(Policy)


class Group(Generic[V]):
    """Calls that run side by side; its callback gets a V. Made by `group`."""

    def __init__(
        self, members: tuple[Any, ...], policy: Policy, *, cancel_rest: bool = False
    ) -> None:
        self._members, self._policy, self._cancel_rest = members, policy, cancel_rest

    if not TYPE_CHECKING:  # type checkers tell it by themselves

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(_without_callback(name), name=name, obj=self)

    @overload
    def then(
        self,
        callback: Callable[Concatenate[V, Q], Coroutine[Any, Any, T]],
        /,
        *args: Q.args,
        **kwargs: Q.kwargs,
    ) -> GroupCall[T]: ...
    @overload
    def then(
        self, callback: Callable[Concatenate[V, Q], T], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> GroupCall[T]: ...
    def then(self, callback: Any, /, *args: Any, **kwargs: Any) -> GroupCall[Any]:
        """Name the task that gets the values as its first argument; `args` come after it.

        Raises `ArgumentsError`, `InvalidBodyError`, `InvalidOptionError` and `NoResultError`.
        """
        return GroupCall(
            _with_callback(
                self._members, self._policy, callback, args, kwargs, cancel_rest=self._cancel_rest
            )
        )


class ThenGroup(Generic[A, V]):
    """Calls that run side by side, each with the value of a step before, an A; its callback gets a V."""

    def __init__(
        self, members: tuple[Any, ...], policy: Policy, *, cancel_rest: bool = False
    ) -> None:
        self._members, self._policy, self._cancel_rest = members, policy, cancel_rest

    @overload
    def then(
        self,
        callback: Callable[Concatenate[V, Q], Coroutine[Any, Any, T]],
        /,
        *args: Q.args,
        **kwargs: Q.kwargs,
    ) -> GroupThen[A, T]: ...
    @overload
    def then(
        self, callback: Callable[Concatenate[V, Q], T], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> GroupThen[A, T]: ...
    def then(self, callback: Any, /, *args: Any, **kwargs: Any) -> GroupThen[Any, Any]:
        """Name the task that gets the values as its first argument, as `Group.then` does."""
        return GroupThen(
            _with_callback(
                self._members, self._policy, callback, args, kwargs, cancel_rest=self._cancel_rest
            )
        )


def _without_callback(name: str) -> str:
    """Say why a group of calls lacks an attribute, which is one of it with its callback."""
    if hasattr(GroupCall, name):
        return (
            f"a group of calls has no {name!r} before it has a callback: write group(…).then(task).{name}(…); "
            "without one, send the calls by task.send_many or task.start_many"
        )
    return f"'Group' object has no attribute {name!r}"


def _with_callback(
    members: tuple[Any, ...],
    policy: Policy,
    callback: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    cancel_rest: bool,
) -> GroupMembers:
    if not isinstance(callback, Sender):
        raise InvalidOptionError("then", f"{shown(callback)} is not a task", "give it a task")
    then = callback.then(*args, **kwargs)
    return GroupMembers(members, policy, callback, then.args, then.kwargs, cancel_rest=cancel_rest)


@overload
def group(
    calls: Iterable[Work[T]], /, *, policy: Literal["all"] = "all"
) -> Group[list[T | Failure]]: ...
@overload
def group(calls: Iterable[Work[T]], /, *, policy: Literal["successes"]) -> Group[list[T]]: ...
@overload
def group(
    calls: Iterable[Work[T]], /, *, policy: Literal["first"], cancel_rest: bool = False
) -> Group[T]: ...
@overload
def group(
    calls: Iterable[Following[A, T]], /, *, policy: Literal["all"] = "all"
) -> ThenGroup[A, list[T | Failure]]: ...
@overload
def group(
    calls: Iterable[Following[A, T]], /, *, policy: Literal["successes"]
) -> ThenGroup[A, list[T]]: ...
@overload
def group(
    calls: Iterable[Following[A, T]], /, *, policy: Literal["first"], cancel_rest: bool = False
) -> ThenGroup[A, T]: ...
def group(
    calls: Iterable[Any], /, *, policy: Policy = "all", cancel_rest: bool = False
) -> Group[Any] | ThenGroup[Any, Any]:
    """Group calls: `group(transcode.call(path, h) for h in (360, 720)).then(publish, path).start()`.

    Up to 10,000 calls, chains and groups. The callback is sent once. With policy "all" that is when all have ended, and
    it gets a list with their values in order, and a `Failure` in the place of each that failed. With "successes" it is
    when all have succeeded: it waits until dead letters are redriven. With "first" it gets the first value;
    `cancel_rest` cancels the calls that have not ended by then.
    Calls made by `then` are a later step of a `chain`: each gets the value of the step before. All tasks of calls keep
    results (`result="1h"`). Raises `InvalidOptionError`.
    """
    if not isinstance(calls, Iterable):
        raise InvalidOptionError(
            "group", f"{shown(calls)} is not a list of calls", "write group([task.call(…), …])"
        )
    members = tuple(calls)
    if policy not in _POLICIES:
        raise InvalidOptionError(
            "policy", f"{shown(policy)} is unknown", f"one of {', '.join(_POLICIES)}"
        )
    if not isinstance(cancel_rest, bool):
        raise InvalidOptionError(
            "cancel_rest", f"{shown(cancel_rest)} is not a bool", "True or False"
        )
    if cancel_rest and policy != "first":
        raise InvalidOptionError(
            "cancel_rest",
            f"has no effect with policy={policy!r}, which needs all calls",
            "write policy='first', or leave it out",
        )
    if not members:
        raise InvalidOptionError("group", "has no calls", "give one or more, or call the callback")
    if len(members) > MAX_MEMBERS:
        raise InvalidOptionError(
            "group",
            f"has {len(members):,} calls",
            f"at most {MAX_MEMBERS:,}; make it a group of groups, or let each call do more",
        )
    if all(isinstance(member, Call | Composed) for member in members):
        return Group(members, policy, cancel_rest=cancel_rest)
    if all(isinstance(member, Then | ComposedThen) for member in members):
        return ThenGroup(members, policy, cancel_rest=cancel_rest)
    number, wrong = (
        next(
            (number, member)
            for number, member in enumerate(members)
            if not isinstance(member, type(members[0]))
        )
        if isinstance(members[0], Call | Composed | Then | ComposedThen)
        else (0, members[0])
    )
    raise InvalidOptionError(
        f"call {number} of the group",
        f"{shown(wrong)} does not fit",
        "write task.call(…) for each, or task.then(…) for each in a later step of a chain",
    )
