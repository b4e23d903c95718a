"""Compositions of calls as data: the steps that a chain or a group of calls consists of, with their ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import Raw

from qworker.app.composition_checks import check_limits
from qworker.app.handle import Handle
from qworker.app.sender import Call, Then
from qworker.app.trace import outgoing
from qworker.app.work import Following, Work
from qworker.client.calls import begin_group
from qworker.client.follow import NewGroup, open_fan
from qworker.client.steps import ChainStep, MessageWriter, Sending, groups_of, queues_of
from qworker.errors import GroupStartedError
from qworker.wire.codec import decode_call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qworker.app.definition import TaskApp
    from qworker.app.sender import Sender
    from qworker.client.plan import Plan
    from qworker.client.queue_ref import QueueRef

__all__ = [
    "Composed",
    "ComposedThen",
    "Start",
    "first_steps",
    "next_step",
    "sending_of",
    "step_of",
]

A = TypeVar("A")
R_co = TypeVar("R_co", covariant=True)

_ARRAY: Final = msgspec.json.Decoder(list[Raw])
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
#: The least time for which a group that was started under a chosen id is known after its end.
_DAY_MS: Final = 86_400_000


class Composed(Work[R_co], ABC):
    """Calls that are sent together: a chain, or a group with its callback. An R is the value of the last one."""

    app: TaskApp
    #: Groups in groups, at most; 0 without any.
    depth: int

    @abstractmethod
    def first_steps(self, message_id: str, *, keeps: bool) -> list[ChainStep]:
        """List its steps; `message_id` is that of the first one, or of its callback."""

    @property
    @abstractmethod
    def last(self) -> Sender[Any, Any]:
        """What sends the last call."""


class ComposedThen(Following[A, R_co], ABC):
    """A group of calls as a later step of a chain: each call gets the value of the step before, an A."""

    app: TaskApp
    depth: int

    @abstractmethod
    def next_step(self, message_id: str, *, keeps: bool) -> ChainStep:
        """Make the step; `message_id` is that of its callback."""

    @property
    @abstractmethod
    def last(self) -> Sender[Any, Any]:
        """What sends the callback."""


def first_steps(work: Work[Any], message_id: str) -> list[ChainStep]:
    """List the steps of a call, a chain or a group, which is a member of a group."""
    if isinstance(work, Composed):
        return work.first_steps(message_id, keeps=False)
    assert isinstance(work, Call)
    call = decode_call(work.body)
    sender, args, kwargs = work.sender, _ARRAY.decode(call.args), _OBJECT.decode(call.kwargs)
    return [
        step_of(
            sender, args, kwargs, message_id, keeps=sender.task.is_run, group=work.group, whole=True
        )
    ]


def next_step(work: Following[Any, Any], message_id: str, *, keeps: bool) -> ChainStep:
    """Make a later step."""
    if isinstance(work, ComposedThen):
        return work.next_step(message_id, keeps=keeps)
    assert isinstance(work, Then)
    group = work.sender.group_of((), {})
    return step_of(work.sender, work.args, work.kwargs, message_id, keeps=keeps, group=group)


def step_of(
    sender: Sender[Any, Any],
    args: list[Raw],
    kwargs: dict[str, Raw],
    message_id: str,
    *,
    keeps: bool,
    whole: bool = False,
    group: str = "",
) -> ChainStep:
    """Make the step of a call. `keeps`: its result is kept."""
    task, options = sender.task, sender.options_of_sends
    return ChainStep(
        task.name,
        task.queue,
        message_id,
        args,
        kwargs,
        options.priority,
        options.delay_ms,
        options.ttl_ms,
        options.max_receives,
        options.visibility_ms,
        task.task_options.result_ms if keeps else None,
        whole,
        task.is_run,
        group,
    )


class Start:
    """The start of a group of calls, perhaps as the first step of a chain: what to send, and where the result is."""

    def __init__(
        self, steps: Sequence[ChainStep], app: TaskApp, last: Sender[Any, Any], run_id: str | None
    ) -> None:
        first, *rest = steps
        assert first.fan is not None
        callback = first.fan.callback
        self.queue, self.id = callback.queue, callback.id
        self._app, self._last = app, last
        digest = None if run_id is None else _digest(steps, app)
        keep_ms = max(last.task.task_options.result_ms or 0, _DAY_MS)
        writer = MessageWriter(app.namespace, app.keyring, outgoing(), sending_of(app))
        self._opened: NewGroup = open_fan(
            first.fan, rest, writer, start=digest, start_keep_ms=None if digest is None else keep_ms
        )
        self._digest = digest or b""
        self._groups = groups_of(steps)
        end = steps[-1].fan.callback if steps[-1].fan else steps[-1]
        self._end = end.queue, end.id
        self._queues = tuple(queues_of(steps))

    def handle(self) -> Handle[Any]:
        """Make a handle to the result."""
        return Handle(self._app, *self._end, self._last.task, chain=self._queues, sent=True)

    def plan(self, queue: QueueRef, refs: Iterable[QueueRef]) -> Plan[None]:
        """Begin the group in its queue. `refs`: the queues of its messages, whose limits are checked first."""
        yield from check_limits(self._opened, self._groups, refs)
        start = yield from begin_group(queue, self._opened)
        if start != self._digest:
            raise GroupStartedError(self.queue, self.id)

    def run(self) -> None:
        """Begin the group."""
        app = self._app
        queue = app.queue(self.queue)
        queue.client.run(self.plan(queue.ref, [app.queue(name).ref for name in self._opened.sizes]))

    async def arun(self) -> None:
        """Begin the group from async code."""
        app = self._app
        queue = app.aqueue(self.queue)
        refs = [app.aqueue(name).ref for name in self._opened.sizes]
        await queue.client.run(self.plan(queue.ref, refs))


def _digest(steps: Sequence[ChainStep], app: TaskApp) -> bytes:
    """Identify the calls of a start; in an app that encrypts, by their tasks alone: arguments might be guessed."""
    data = msgspec.json.encode(steps)
    if app.keyring.encrypts:
        data = msgspec.json.encode([_tasks(step) for step in steps])
    return blake2b(data, digest_size=16).hexdigest().encode()


def _tasks(step: ChainStep) -> list[Any]:
    if step.fan is None:
        return [step.task]
    return [[_tasks(part) for chain in step.fan.members for part in chain], step.fan.callback.task]


def sending_of(app: TaskApp) -> Sending | None:
    """Return the function that runs the app's middleware on a message before its send; None without middleware."""
    if not app.middleware:
        return None

    def sending(task: str, body: bytes, flags: dict[str, str]) -> None:
        for middleware in app.middleware:
            middleware.sending(task, body, flags)

    return sending
