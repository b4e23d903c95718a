"""Chains: calls that follow each other, each with the value of the one before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from qworker.app.composition import Composed, ComposedThen, Start, first_steps, next_step
from qworker.app.composition_checks import check_namespace, check_part
from qworker.app.handle import Handle
from qworker.app.sender import Call, Then
from qworker.app.work import Following, Work
from qworker.client.steps import ChainStep, end_flag, groups_of, queues_of, with_steps
from qworker.errors import InvalidOptionError, shown

if TYPE_CHECKING:
    from qworker.app.sender import Sender
    from qworker.client.queue_ref import QueueRef
    from qworker.engine.send import NewMessage

__all__ = ["Chain", "chain"]

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
R_co = TypeVar("R_co", covariant=True)


class Chain(Composed[R_co]):
    """Calls to be made one after the other; its result is that of the last one. Made by `chain`."""

    def __init__(self, first: Work[Any], *steps: Following[Any, Any]) -> None:
        if not steps:
            raise InvalidOptionError("chain", "has one step", "give two or more, or send the call")
        if isinstance(first, Chain):
            raise InvalidOptionError(
                "chain", "begins with a chain", "give its steps, then the others"
            )
        for later in steps:
            if not isinstance(later, Then | ComposedThen):
                raise _not_a_step(later, "task.then(…)")
        if not isinstance(first, Call | Composed):
            raise _not_a_step(first, "task.call(…)")
        self._first, self._steps = first, steps
        self.app = first.app if isinstance(first, Composed) else first.sender.task.app
        self.depth = max(getattr(step, "depth", 0) for step in (first, *steps))
        for number, step in enumerate((first, *steps), 1):
            where = f"step {number} of the chain"
            is_last = number > len(steps)
            if not isinstance(step, Call | Then):
                assert isinstance(step, Composed | ComposedThen)
                check_namespace(where, step.app.namespace, self.app.namespace)
                if not is_last:
                    step.last.check_keeps()
                continue
            sender = step.sender
            where = f"{where}, {sender.task.name!r}"
            check_part(sender, where, self.app.namespace, first=number == 1)
            if not is_last:
                sender.check_keeps()

    @property
    def length(self) -> int:
        """How many steps it has."""
        return 1 + len(self._steps)

    @property
    def last(self) -> Sender[Any, Any]:
        """The sender of the last call."""
        last = self._steps[-1]
        if isinstance(last, ComposedThen):
            return last.last
        assert isinstance(last, Then)
        return last.sender

    def first_steps(self, message_id: str, *, keeps: bool) -> list[ChainStep]:
        """List its steps, the first with this id; the ids of the others begin with it."""
        return [*first_steps(self._first, message_id), *self._later(message_id, keeps=keeps)]

    def send(self) -> str:
        """Send the first call and return its message id. Each worker sends the next one when it acks.

        Raises all that `Queue.send` raises, before anything is sent.
        """
        first = self._first
        if not isinstance(first, Call):
            start, _ = self._start(keeps=False)
            start.run()
            return start.id
        queue = self.app.queue(first.sender.task.queue)
        for name, group in self._groups():
            queue.client.run(self.app.queue(name).ref.check_undivided(group))
        message, _ = self._message(first, queue.ref, keeps=False)
        return queue.store([message], first.sender.options_of_sends, named="calls")[0]

    async def asend(self) -> str:
        """Send the first call from async code, as `send` does."""
        first = self._first
        if not isinstance(first, Call):
            start, _ = self._start(keeps=False)
            await start.arun()
            return start.id
        queue = self.app.aqueue(first.sender.task.queue)
        for name, group in self._groups():
            await queue.client.run(self.app.aqueue(name).ref.check_undivided(group))
        message, _ = self._message(first, queue.ref, keeps=False)
        sent = await queue.store([message], first.sender.options_of_sends, named="calls")
        return sent[0]

    def start(self) -> Handle[R_co]:
        """Send the first call and return a handle to the result of the last one.

        A step that dies ends the wait with `TaskFailedError`, which names it; if you redrive it, the chain continues.
        Raises `NoResultError` if the last task keeps no results, and all that `Queue.send` raises.
        """
        first = self._first
        if not isinstance(first, Call):
            start, handle = self._start(keeps=True)
            start.run()
            return handle
        queue = self.app.queue(first.sender.task.queue)
        for name, group in self._groups():
            queue.client.run(self.app.queue(name).ref.check_undivided(group))
        message, handle = self._message(first, queue.ref, keeps=True)
        queue.store([message], first.sender.options_of_sends, named="calls")
        return handle

    async def astart(self) -> Handle[R_co]:
        """Send the first call from async code, as `start` does."""
        first = self._first
        if not isinstance(first, Call):
            start, handle = self._start(keeps=True)
            await start.arun()
            return handle
        queue = self.app.aqueue(first.sender.task.queue)
        for name, group in self._groups():
            await queue.client.run(self.app.aqueue(name).ref.check_undivided(group))
        message, handle = self._message(first, queue.ref, keeps=True)
        await queue.store([message], first.sender.options_of_sends, named="calls")
        return handle

    def _groups(self) -> list[tuple[str, str]]:
        """Queue and group of the later steps that have one; they must not be divided."""
        return groups_of(self._later("-", keeps=False))

    def _later(self, message_id: str, *, keeps: bool) -> list[ChainStep]:
        count = len(self._steps)
        return [
            next_step(step, f"{message_id}-{number}", keeps=keeps and number == count)
            for number, step in enumerate(self._steps, 1)
        ]

    def _start(self, *, keeps: bool) -> tuple[Start, Handle[Any]]:
        """Prepare the start of a chain that begins with a group, and a handle to the result of the last one."""
        if keeps:
            self.last.check_keeps()
        message_id = self.app.queue(self.last.task.queue).ref.ids.message_id()
        start = Start(self.first_steps(message_id, keeps=keeps), self.app, self.last, None)
        return start, start.handle()

    def _message(
        self, first: Call[Any], queue: QueueRef, *, keeps: bool
    ) -> tuple[NewMessage, Handle[Any]]:
        """Make the first message, and a handle to the result of the last one."""
        if keeps:
            self.last.check_keeps()
        message_id = queue.ids.message_id()
        steps = self._later(message_id, keeps=keeps)
        sender, end = first.sender, steps[-1].fan.callback if steps[-1].fan else steps[-1]
        body, flag = with_steps(first.body, steps), end_flag(sender.task.name, steps)
        message = sender.first_message(body, queue, flag, first.group, message_id)
        queues = (sender.task.queue, *queues_of(steps))
        last = self.last.task
        return message, Handle(self.app, end.queue, end.id, last, chain=queues, sent=True)


def _not_a_step(step: object, written: str) -> InvalidOptionError:
    return InvalidOptionError("chain", f"{shown(step)} does not fit", f"write {written} there")


@overload
def chain(first: Work[A], second: Following[A, B], /) -> Chain[B]: ...
@overload
def chain(first: Work[A], second: Following[A, B], third: Following[B, C], /) -> Chain[C]: ...
@overload
def chain(
    first: Work[A], second: Following[A, B], third: Following[B, C], fourth: Following[C, D], /
) -> Chain[D]: ...
@overload
def chain(
    first: Work[A],
    second: Following[A, B],
    third: Following[B, C],
    fourth: Following[C, D],
    fifth: Following[D, E],
    /,
) -> Chain[E]: ...
@overload
def chain(
    first: Work[Any],
    second: Following[Any, Any],
    third: Following[Any, Any],
    fourth: Following[Any, Any],
    fifth: Following[Any, Any],
    sixth: Following[Any, Any],
    /,
    *steps: Following[Any, Any],
) -> Chain[Any]: ...
def chain(first: Work[Any], /, *steps: Following[Any, Any]) -> Chain[Any]:
    """Chain calls: `chain(fetch.call(url), parse.then(), store.then(bucket="b")).start()`.

    Each step gets the value of the one before as its first argument. All tasks but the last, and for `start` the last
    too, must keep results (`result="1h"`). Type checkers check values and arguments of up to five steps. Raises
    `InvalidOptionError` and `NoResultError`.
    """
    return Chain(first, *steps)
