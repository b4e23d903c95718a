"""Chains: calls that follow each other, each with the value of the one before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from qworker.app.handle import Handle
from qworker.client.steps import Step, end_flag, with_steps
from qworker.errors import InvalidOptionError

if TYPE_CHECKING:
    from qworker.app.task import Call, Then
    from qworker.client.queue_ref import QueueRef
    from qworker.engine.send import NewMessage

__all__ = ["Chain", "chain"]

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
R_co = TypeVar("R_co", covariant=True)

#: Options of a send that only make sense when it is sent at once.
_NOT_LATER: Final = ("eta", "maxlen", "replicas", "fsync")


class Chain(Generic[R_co]):
    """Calls to be made one after the other; its result is that of the last one. Made by `chain`."""

    def __init__(self, first: Call[Any], *steps: Then[Any, Any]) -> None:
        if not steps:
            raise InvalidOptionError("chain", "has one step", "give two or more, or send the call")
        self._first, self._steps = first, steps
        self._app = first.sender.task.app
        senders = (first.sender, *(step.sender for step in steps))
        for number, sender in enumerate(senders, 1):
            task, options = sender.task, sender.options_of_sends
            where = f"step {number} of the chain, {task.name!r}"
            if task.app.namespace != self._app.namespace:
                raise InvalidOptionError(where, "is of another namespace", "chain tasks of one app")
            if task.task_options.batch is not None:
                raise InvalidOptionError(where, "takes batches", "chain tasks of one message")
            if task.is_run:
                raise InvalidOptionError(where, "is a run", "call its steps in the run instead")
            if number <= len(steps):
                sender.check_keeps()
            if number > 1 and options.group is None and callable(task.task_options.group):
                raise InvalidOptionError(
                    where,
                    "has a group that depends on its arguments, of which the first is not known yet",
                    'name the group: .options(group="acme").then(…)',
                )
            names = ("unique", *_NOT_LATER) if number > 1 else ("unique",)
            for name in names:
                if getattr(options, name):
                    raise InvalidOptionError(
                        where, f"has the option {name}", "leave it out of chains"
                    )

    def send(self) -> str:
        """Send the first call and return its message id. Each worker sends the next one when it acks.

        Raises all that `Queue.send` raises, before anything is sent.
        """
        task = self._first.sender.task
        queue = self._app.queue(task.queue)
        message, _ = self._message(queue.ref, keeps=False)
        for name, group in self._groups():
            queue.client.run(self._app.queue(name).ref.check_undivided(group))
        return queue.store([message], self._first.sender.options_of_sends, named="calls")[0]

    async def asend(self) -> str:
        """Send the first call from async code, as `send` does."""
        queue = self._app.aqueue(self._first.sender.task.queue)
        message, _ = self._message(queue.ref, keeps=False)
        for name, group in self._groups():
            await queue.client.run(self._app.aqueue(name).ref.check_undivided(group))
        sent = await queue.store([message], self._first.sender.options_of_sends, named="calls")
        return sent[0]

    def start(self) -> Handle[R_co]:
        """Send the first call and return a handle to the result of the last one.

        A step that dies ends the wait with `TaskFailedError`, which names it; if you redrive it, the chain continues.
        Raises `NoResultError` if the last task keeps no results, and all that `Queue.send` raises.
        """
        queue = self._app.queue(self._first.sender.task.queue)
        message, handle = self._message(queue.ref, keeps=True)
        for name, group in self._groups():
            queue.client.run(self._app.queue(name).ref.check_undivided(group))
        queue.store([message], self._first.sender.options_of_sends, named="calls")
        return handle

    async def astart(self) -> Handle[R_co]:
        """Send the first call from async code, as `start` does."""
        queue = self._app.aqueue(self._first.sender.task.queue)
        message, handle = self._message(queue.ref, keeps=True)
        for name, group in self._groups():
            await queue.client.run(self._app.aqueue(name).ref.check_undivided(group))
        await queue.store([message], self._first.sender.options_of_sends, named="calls")
        return handle

    def _groups(self) -> list[tuple[str, str]]:
        """Queue and group of the later steps that have one; they must not be divided."""
        return [
            (step.sender.task.queue, group) for step in self._steps if (group := _group_of(step))
        ]

    def _message(self, queue: QueueRef, *, keeps: bool) -> tuple[NewMessage, Handle[Any]]:
        """Make the first message, and a handle to the result of the last one."""
        last = self._steps[-1].sender
        if keeps:
            last.check_keeps()
        steps = []
        for number, step in enumerate(self._steps, 1):
            options = step.sender.options_of_sends
            is_last = number == len(self._steps)
            steps.append(
                Step(
                    step.sender.task.name,
                    step.sender.task.queue,
                    queue.ids.message_id(),
                    step.args,
                    step.kwargs,
                    options.priority,
                    options.delay_ms,
                    options.ttl_ms,
                    options.max_receives,
                    options.visibility_ms,
                    last.task.task_options.result_ms if keeps and is_last else None,
                    _group_of(step),
                )
            )
        sender = self._first.sender
        body = with_steps(self._first.body, steps)
        message = sender.first_message(
            body, queue, end_flag(sender.task.name, steps), self._first.group
        )
        return message, Handle(self._app, steps[-1].queue, steps[-1].id, last.task, chained=True)


def _group_of(step: Then[Any, Any]) -> str:
    """Return the stored name of the group of a later step; '' for none."""
    return step.sender.group_of((), {})


@overload
def chain(first: Call[A], second: Then[A, B], /) -> Chain[B]: ...
@overload
def chain(first: Call[A], second: Then[A, B], third: Then[B, C], /) -> Chain[C]: ...
@overload
def chain(
    first: Call[A], second: Then[A, B], third: Then[B, C], fourth: Then[C, D], /
) -> Chain[D]: ...
@overload
def chain(
    first: Call[A],
    second: Then[A, B],
    third: Then[B, C],
    fourth: Then[C, D],
    fifth: Then[D, E],
    /,
) -> Chain[E]: ...
@overload
def chain(
    first: Call[Any],
    second: Then[Any, Any],
    third: Then[Any, Any],
    fourth: Then[Any, Any],
    fifth: Then[Any, Any],
    sixth: Then[Any, Any],
    /,
    *steps: Then[Any, Any],
) -> Chain[Any]: ...
def chain(first: Call[Any], /, *steps: Then[Any, Any]) -> Chain[Any]:
    """Chain calls: `chain(fetch.call(url), parse.then(), store.then(bucket="b")).start()`.

    Each step gets the value of the one before as its first argument. All tasks but the last, and that too for `start`,
    keep results (`result="1h"`). Type checkers know values and arguments of up to five steps. Raises
    `InvalidOptionError` and `NoResultError`.
    """
    return Chain(first, *steps)
