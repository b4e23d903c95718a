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

from msgspec import Raw

from qworker.app.arguments.failures import Failure, takes_failures
from qworker.app.composition import Composed, ComposedThen, Start, first_steps, next_step, step_of
from qworker.app.composition_checks import check_id, check_members, check_part
from qworker.app.sender import Call, Sender, Then
from qworker.app.work import Following, Work
from qworker.client.steps import Fan, Step
from qworker.errors import InvalidOptionError, shown
from qworker.wire.calls import MAX_MEMBERS, Policy

if TYPE_CHECKING:
    from qworker.app.definition import TaskApp
    from qworker.app.handle import Handle

__all__ = ["Group", "GroupCall", "GroupThen", "ThenGroup", "group"]

A = TypeVar("A")
V = TypeVar("V")
T = TypeVar("T")
Q = ParamSpec("Q")
R_co = TypeVar("R_co", covariant=True)

_POLICIES: Final = get_args(Policy)


class _Calls:
    """Members of a group, their policy and callback."""

    def __init__(
        self,
        members: tuple[Any, ...],
        policy: Policy,
        sender: Sender[Any, Any],
        args: list[Raw],
        kwargs: dict[str, Raw],
    ) -> None:
        self.members, self.policy = members, policy
        self.sender, self.args, self.kwargs = sender, args, kwargs
        self.app: TaskApp = sender.task.app
        self.depth = check_members(members, self.app.namespace)
        where = f"the callback {sender.task.name!r}"
        check_part(sender, where, self.app.namespace)
        if sender.options_of_sends.visibility_ms == 0 or sender.task.task_options.at_most_once:
            raise InvalidOptionError(
                where, "runs at most once", "its values go when it starts; leave at_most_once out"
            )
        first = sender.task.signature.first()
        if policy == "all" and first is not None and not takes_failures(first.annotation):
            raise InvalidOptionError(
                f"{sender.task.name}({first.name})",
                "does not take the failures of calls",
                "declare it as list[T | Failure], or give the group policy='successes'",
            )

    def step(self, message_id: str, steps: list[list[Step]], *, keeps: bool) -> Step:
        callback = step_of(
            self.sender,
            self.args,
            self.kwargs,
            message_id,
            keeps=keeps,
            group=self.sender.group_of((), {}),
        )
        return Step(fan=Fan(self.policy, steps, callback))


class GroupCall(Composed[R_co]):
    """A group of calls and its callback: send or start it, chain it, or make it a member of another group."""

    def __init__(self, calls: _Calls) -> None:
        self._calls = calls
        self.app = calls.app
        self.depth = calls.depth

    @property
    def last(self) -> Sender[Any, Any]:
        """What sends the callback."""
        return self._calls.sender

    def first_steps(self, message_id: str, *, keeps: bool) -> list[Step]:
        """Make it one step, whose callback has this id; its members have ids that begin with it."""
        steps = [
            first_steps(member, f"{message_id}.{number}")
            for number, member in enumerate(self._calls.members)
        ]
        return [self._calls.step(message_id, steps, keeps=keeps)]

    def send(self, *, id: str | None = None) -> str:  # noqa: A002 - as users would write it
        """Send the calls, and return the id of the group, which is that of the callback's message.

        `id`: one of your own, which is started once: a second start with the same calls sends nothing. Raises
        `GroupStartedError` for other calls, and all that `Queue.send` raises, before anything is sent.
        """
        start = self._start(id, keeps=False)
        start.run()
        return start.id

    async def asend(self, *, id: str | None = None) -> str:  # noqa: A002
        """Send the calls from async code, as `send` does."""
        start = self._start(id, keeps=False)
        await start.arun()
        return start.id

    def start(self, *, id: str | None = None) -> Handle[R_co]:  # noqa: A002
        """Send the calls, and return a handle to the result of the callback; otherwise as `send`.

        If the callback cannot run, the wait raises `TaskFailedError` or `TaskEndedError`, which name the call. Raises
        `NoResultError` if the callback keeps no results.
        """
        start = self._start(id, keeps=True)
        start.run()
        return start.handle()

    async def astart(self, *, id: str | None = None) -> Handle[R_co]:  # noqa: A002
        """Send the calls from async code, as `start` does."""
        start = self._start(id, keeps=True)
        await start.arun()
        return start.handle()

    def _start(self, group_id: str | None, *, keeps: bool) -> Start:
        if keeps:
            self.last.check_keeps()
        if group_id is None:
            message_id = self.app.queue(self.last.task.queue).ref.ids.message_id()
        else:
            message_id = check_id(group_id, self.depth)
        return Start(self.first_steps(message_id, keeps=keeps), self.app, self.last, group_id)


class GroupThen(ComposedThen[A, R_co]):
    """A group of calls and its callback as a later step of a chain."""

    def __init__(self, calls: _Calls) -> None:
        self._calls = calls
        self.app = calls.app
        self.depth = calls.depth

    @property
    def last(self) -> Sender[Any, Any]:
        """What sends the callback."""
        return self._calls.sender

    def next_step(self, message_id: str, *, keeps: bool) -> Step:
        """Make it a step, whose callback has this id."""
        steps = [
            [next_step(member, f"{message_id}.{number}", keeps=False)]
            for number, member in enumerate(self._calls.members)
        ]
        return self._calls.step(message_id, steps, keeps=keeps)


class Group(Generic[V]):
    """Calls that run side by side; its callback gets a V. Made by `group`."""

    def __init__(self, members: tuple[Any, ...], policy: Policy) -> None:
        self._members, self._policy = members, policy

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
        return GroupCall(_with_callback(self._members, self._policy, callback, args, kwargs))


class ThenGroup(Generic[A, V]):
    """Calls that run side by side, each with the value of a step before, an A; its callback gets a V."""

    def __init__(self, members: tuple[Any, ...], policy: Policy) -> None:
        self._members, self._policy = members, policy

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
        return GroupThen(_with_callback(self._members, self._policy, callback, args, kwargs))


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
) -> _Calls:
    if not isinstance(callback, Sender):
        raise InvalidOptionError("then", f"{shown(callback)} is not a task", "give it a task")
    then = callback.then(*args, **kwargs)
    return _Calls(members, policy, callback, then.args, then.kwargs)


@overload
def group(
    calls: Iterable[Work[T]], /, *, policy: Literal["all"] = "all"
) -> Group[list[T | Failure]]: ...
@overload
def group(calls: Iterable[Work[T]], /, *, policy: Literal["successes"]) -> Group[list[T]]: ...
@overload
def group(calls: Iterable[Work[T]], /, *, policy: Literal["first"]) -> Group[T]: ...
@overload
def group(
    calls: Iterable[Following[A, T]], /, *, policy: Literal["all"] = "all"
) -> ThenGroup[A, list[T | Failure]]: ...
@overload
def group(
    calls: Iterable[Following[A, T]], /, *, policy: Literal["successes"]
) -> ThenGroup[A, list[T]]: ...
@overload
def group(calls: Iterable[Following[A, T]], /, *, policy: Literal["first"]) -> ThenGroup[A, T]: ...
def group(calls: Iterable[Any], /, *, policy: Policy = "all") -> Group[Any] | ThenGroup[Any, Any]:
    """Group calls: `group(transcode.call(path, h) for h in (360, 720)).then(publish, path).start()`.

    Up to 10,000 calls, chains and groups. The callback is sent once. With policy "all" that is when all have ended, and
    it gets a list with their values in order, and a `Failure` in the place of each that failed. With "successes" it is
    when all have succeeded: it waits until dead letters are redriven. With "first" it gets the first value.
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
    if not members:
        raise InvalidOptionError("group", "has no calls", "give one or more, or call the callback")
    if len(members) > MAX_MEMBERS:
        raise InvalidOptionError(
            "group",
            f"has {len(members):,} calls",
            f"at most {MAX_MEMBERS:,}; make it a group of groups, or let each call do more",
        )
    if all(isinstance(member, Call | Composed) for member in members):
        return Group(members, policy)
    if all(isinstance(member, Then | ComposedThen) for member in members):
        return ThenGroup(members, policy)
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
