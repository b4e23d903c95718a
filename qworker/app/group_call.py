"""A group of calls with its callback: it is sent, chained, or a member of another group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Raw

from qworker.app.arguments.failures import takes_failures
from qworker.app.composition import Composed, ComposedThen, Start, first_steps, next_step, step_of
from qworker.app.composition_checks import check_cancel_rest, check_id, check_members, check_part
from qworker.client.steps import ChainStep, Fan
from qworker.errors import InvalidOptionError

if TYPE_CHECKING:
    from qworker.app.definition import TaskApp
    from qworker.app.handle import Handle
    from qworker.app.sender import Sender
    from qworker.wire.calls import Policy

__all__ = ["GroupCall", "GroupMembers", "GroupThen"]

A = TypeVar("A")
R_co = TypeVar("R_co", covariant=True)


class GroupMembers:
    """Members of a group, their policy and callback."""

    def __init__(
        self,
        members: tuple[Any, ...],
        policy: Policy,
        sender: Sender[Any, Any],
        args: list[Raw],
        kwargs: dict[str, Raw],
        *,
        cancel_rest: bool = False,
    ) -> None:
        self.members, self.policy, self.cancel_rest = members, policy, cancel_rest
        self.sender, self.args, self.kwargs = sender, args, kwargs
        self.app: TaskApp = sender.task.app
        self.depth = check_members(members, self.app.namespace)
        if cancel_rest:
            check_cancel_rest(members)
        where = f"the callback {sender.task.name!r}"
        check_part(sender, where, self.app.namespace)
        if sender.options_of_sends.visibility_ms == 0 or sender.task.task_options.at_most_once:
            raise InvalidOptionError(
                where,
                "runs at most once",
                "its values are deleted when it starts; leave at_most_once out",
            )
        first = sender.task.signature.first()
        if policy == "all" and first is not None and not takes_failures(first.annotation):
            raise InvalidOptionError(
                f"{sender.task.name}({first.name})",
                "does not take the failures of calls",
                "declare it as list[T | Failure], or give the group policy='successes'",
            )

    def step(self, message_id: str, steps: list[list[ChainStep]], *, keeps: bool) -> ChainStep:
        """Make one step of the steps of its members and the callback, whose id is `message_id`."""
        callback = step_of(
            self.sender,
            self.args,
            self.kwargs,
            message_id,
            keeps=keeps,
            group=self.sender.group_of((), {}),
        )
        return ChainStep(fan=Fan(self.policy, steps, callback, self.cancel_rest))


class _WithCallback:
    """What the callback of a group says of the whole."""

    def __init__(self, calls: GroupMembers) -> None:
        self._calls = calls
        self.app = calls.app
        self.depth = calls.depth

    @property
    def last(self) -> Sender[Any, Any]:
        """What sends the callback."""
        return self._calls.sender


class GroupCall(_WithCallback, Composed[R_co]):
    """A group of calls and its callback: send or start it, chain it, or make it a member of another group."""

    def first_steps(self, message_id: str, *, keeps: bool) -> list[ChainStep]:
        """Make it one step, whose callback has this id; its members have ids that begin with it."""
        steps = [
            first_steps(member, f"{message_id}.{number}")
            for number, member in enumerate(self._calls.members)
        ]
        return [self._calls.step(message_id, steps, keeps=keeps)]

    def send(self, *, id: str | None = None) -> str:  # noqa: A002 - as users would write it
        """Send the calls, and return the id of the group, which is that of the callback's message.

        `id`: your own id, which starts once: a second start with the same calls sends nothing. Raises
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


class GroupThen(_WithCallback, ComposedThen[A, R_co]):
    """A group of calls and its callback as a later step of a chain."""

    def next_step(self, message_id: str, *, keeps: bool) -> ChainStep:
        """Make it a step, whose callback has this id."""
        steps = [
            [next_step(member, f"{message_id}.{number}", keeps=False)]
            for number, member in enumerate(self._calls.members)
        ]
        return self._calls.step(message_id, steps, keeps=keeps)
