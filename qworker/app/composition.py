"""Compositions of calls as data: the steps that a chain or a group of calls consists of, with their ids and checks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import Raw

from qworker.app.handle import Handle
from qworker.app.sender import Call, Then
from qworker.app.trace import outgoing
from qworker.app.work import Following, Work
from qworker.client.calls import begin_group
from qworker.client.follow import Opened, open_fan
from qworker.client.steps import Sending, Step, Writer, groups_of
from qworker.engine.options import SMALLEST_MAXSIZE
from qworker.errors import BodyTooLargeError, GroupStartedError, InvalidOptionError
from qworker.wire.codec import decode_call
from qworker.wire.names import check_message_id

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
    "check_id",
    "check_limits",
    "check_members",
    "check_part",
    "first_steps",
    "next_step",
    "sending_of",
    "step_of",
]

A = TypeVar("A")
R_co = TypeVar("R_co", covariant=True)

#: Options of a send that only make sense when it is sent at once.
_NOT_LATER: Final = ("eta", "maxlen", "replicas", "fsync")
_ARRAY: Final = msgspec.json.Decoder(list[Raw])
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
#: How long a group that was started with an id of its own is known at least, after its end.
_DAY_MS: Final = 86_400_000
#: Groups in groups, and what each level adds to the ids of messages.
MAX_DEPTH: Final = 4
_LEVEL: Final = 9
_MAX_ID: Final = 64


class Composed(Work[R_co], ABC):
    """Calls that are sent together: a chain, or a group with its callback. An R is the value of the last one."""

    app: TaskApp
    #: Groups in groups, at most; 0 without any.
    depth: int

    @abstractmethod
    def first_steps(self, message_id: str, *, keeps: bool) -> list[Step]:
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
    def next_step(self, message_id: str, *, keeps: bool) -> Step:
        """Make the step; `message_id` is that of its callback."""

    @property
    @abstractmethod
    def last(self) -> Sender[Any, Any]:
        """What sends the callback."""


def first_steps(work: Work[Any], message_id: str) -> list[Step]:
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


def next_step(work: Following[Any, Any], message_id: str, *, keeps: bool) -> Step:
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
) -> Step:
    """Make the step of a call. `keeps`: its result is kept."""
    task, options = sender.task, sender.options_of_sends
    return Step(
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


def check_part(
    sender: Sender[Any, Any],
    where: str,
    namespace: str,
    *,
    first: bool = False,
    member: bool = False,
) -> None:
    """Raise `InvalidOptionError` for a call that cannot be a part of a composition.

    `first`: of a chain, which is sent at once; `member`: of a group, which can be a run and can have a group.
    """
    task, options = sender.task, sender.options_of_sends
    if task.app.namespace != namespace:
        raise InvalidOptionError(where, "is of another namespace", "take tasks of one app")
    if task.task_options.batch is not None:
        raise InvalidOptionError(where, "takes batches", "take tasks of one message")
    if task.is_run and not member:
        raise InvalidOptionError(where, "is a run", "call its steps in the run instead")
    if not (first or member) and options.group is None and callable(task.task_options.group):
        raise InvalidOptionError(
            where,
            "has a group that depends on its arguments, of which the first is not known yet",
            'name the group: .options(group="acme").then(…)',
        )
    for name in ("unique", *(() if first else _NOT_LATER)):
        if getattr(options, name):
            raise InvalidOptionError(
                where, f"has the option {name}", "leave it out of compositions"
            )


class Start:
    """The start of a group of calls, perhaps as the first step of a chain: what is sent, and where its result is."""

    def __init__(
        self, steps: Sequence[Step], app: TaskApp, last: Sender[Any, Any], run_id: str | None
    ) -> None:
        first, *rest = steps
        assert first.fan is not None
        callback = first.fan.callback
        self.queue, self.id = callback.queue, callback.id
        self._app, self._last = app, last
        digest = None if run_id is None else _digest(steps, app)
        keep_ms = max(last.task.task_options.result_ms or 0, _DAY_MS)
        writer = Writer(app.namespace, app.keyring, outgoing(), sending_of(app))
        self._opened: Opened = open_fan(
            first.fan, rest, writer, start=digest, start_keep_ms=None if digest is None else keep_ms
        )
        self._digest = digest or b""
        self._groups = groups_of(steps)
        end = steps[-1].fan.callback if steps[-1].fan else steps[-1]
        self._end = end.queue, end.id

    def handle(self) -> Handle[Any]:
        """Make a handle to the result."""
        return Handle(self._app, *self._end, self._last.task, chained=True)

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


def check_limits(
    opened: Opened, groups: Iterable[tuple[str, str]], refs: Iterable[QueueRef]
) -> Plan[None]:
    """Raise what the queues of a group of calls, `refs`, refuse: bodies over maxsize, and groups in divided queues."""
    by_name = {ref.keys.name: ref for ref in refs}
    for name, group in groups:
        if name in by_name:
            yield from by_name[name].check_undivided(group)
    for ref in by_name.values():
        largest = opened.sizes[ref.keys.name]
        if largest > SMALLEST_MAXSIZE:
            maxsize = yield from ref.maxsize()
            if largest > maxsize:
                raise BodyTooLargeError(f"a call of queue {ref.keys.name!r}", largest, maxsize)


def check_members(members: Sequence[Any], namespace: str) -> int:
    """Check the members of a group of calls; returns how deep groups are in it. Raises `InvalidOptionError`."""
    depth = 1 + max(getattr(member, "depth", 0) for member in members)
    if depth > MAX_DEPTH:
        raise InvalidOptionError(
            "group", f"has groups in groups, {depth} deep", f"at most {MAX_DEPTH}"
        )
    for number, member in enumerate(members):
        where = f"call {number} of the group"
        if isinstance(member, Call | Then):
            check_part(
                member.sender,
                f"{where}, {member.sender.task.name!r}",
                namespace,
                member=isinstance(member, Call),
            )
            member.sender.check_keeps()
        elif member.app.namespace != namespace:
            raise InvalidOptionError(where, "is of another namespace", "take tasks of one app")
        elif member.last.task.result_type is None:
            member.last.check_keeps()
    return depth


def check_id(group_id: str, depth: int) -> str:
    """Return the id of a group that the caller has chosen. Raises `InvalidNameError` and `InvalidOptionError`."""
    check_message_id(group_id, "id")
    most = _MAX_ID - _LEVEL * depth
    if len(group_id) > most:
        raise InvalidOptionError(
            "id",
            f"has {len(group_id)} characters",
            f"at most {most} here: the ids of the calls begin with it",
        )
    return group_id


def _digest(steps: Sequence[Step], app: TaskApp) -> bytes:
    """Identify what a group is started with; of an app that encrypts only its tasks: arguments might be guessed."""
    data = msgspec.json.encode(steps)
    if app.keyring.encrypts:
        data = msgspec.json.encode([_tasks(step) for step in steps])
    return blake2b(data, digest_size=16).hexdigest().encode()


def _tasks(step: Step) -> list[Any]:
    if step.fan is None:
        return [step.task]
    return [[_tasks(part) for chain in step.fan.members for part in chain], step.fan.callback.task]


def sending_of(app: TaskApp) -> Sending | None:
    """Return what runs the app's middleware on a message that is sent; None without any."""
    if not app.middleware:
        return None

    def sending(task: str, body: bytes, flags: dict[str, str]) -> None:
        for middleware in app.middleware:
            middleware.sending(task, body, flags)

    return sending
