"""The low-level queue API, sync and async: send, receive and settle messages without the consumer framework.

`QueueVerbs` names each verb once, with its plan; `Queue` runs plans in the calling thread, `AsyncQueue` on one event
loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import cached_property, update_wrapper
from inspect import Parameter, Signature, signature
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar, overload

from qworker.client import by_id, relay
from qworker.client import calls as call_groups
from qworker.client import cancel as cancelling
from qworker.client import cancel_calls as cancelling_calls
from qworker.client import complete as completing
from qworker.client import extend as extending
from qworker.client import send as sending
from qworker.client import settle as settling
from qworker.client import signal as signalling
from qworker.client import start_run as starting
from qworker.client.dead import edit as editing
from qworker.client.dead import verbs as dead_letters
from qworker.client.execute.aio import AsyncClient
from qworker.client.execute.sync import Client
from qworker.client.inspect import peek as peeking
from qworker.client.inspect import results, stats
from qworker.client.inspect import runs as run_states
from qworker.client.inspect import scan as scanning
from qworker.client.inspect.pages import aiterate, iterate
from qworker.client.manage import attributes as configuring
from qworker.client.manage import journal
from qworker.client.manage import limits as limiting
from qworker.client.manage import remove as removing
from qworker.client.manage import reshard as sharding
from qworker.client.message import Stored
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.client.receive import claim as claiming
from qworker.client.receive import reap as reaping
from qworker.client.receive import receive as receiving

__all__ = ["AsyncQueue", "Queue", "QueueVerbs", "Verb"]

P = ParamSpec("P")
T = TypeVar("T")


class Verb(Generic[P, T]):
    """A method of `Queue` and of `AsyncQueue`, with the parameters of its plan except the queue.

    Each of the two classes replaces the verb by a function that runs the plan.
    """

    def __init__(self, plan: Callable[Concatenate[QueueRef, P], Plan[T]]) -> None:
        self.plan: Final = plan

    @overload
    def __get__(self, queue: Queue, owner: type[object]) -> Callable[P, T]: ...
    @overload
    def __get__(
        self, queue: AsyncQueue, owner: type[object]
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, queue: object, owner: type[object]) -> Any:
        """For type checkers: never called, since the classes replace their verbs."""
        return self

    @cached_property
    def signature(self) -> Signature:
        """The parameters and the result of the method."""
        plan = signature(self.plan)
        queue, *others = plan.parameters.values()
        return plan.replace(
            parameters=[queue.replace(name="self", annotation=Parameter.empty), *others],
            return_annotation=plan.return_annotation.removeprefix("Plan[").removesuffix("]"),
        )

    def described(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Give a method the name, docstring and signature that `help` shows."""
        update_wrapper(method, self.plan).__signature__ = self.signature  # type: ignore[attr-defined]
        return method


class QueueVerbs:
    """The verbs of a queue. `runs`: how a class makes a method that runs a plan."""

    def __init__(
        self,
        namespace: str,
        name: str,
        client: Client | AsyncClient,
        give_up_s: float | None = None,
    ) -> None:
        self.name = name
        self.give_up_s = client.give_up_s if give_up_s is None else give_up_s
        self.ref = QueueRef(
            namespace,
            name,
            client.ids,
            keyring=client.keyring,
            unreturned=client.unreturned,
            give_up_s=self.give_up_s,
        )
        self.keys = self.ref.keys

    def __init_subclass__(cls, *, runs: Callable[[Any], Callable[..., Any]] | None = None) -> None:
        if runs is not None:
            for name, verb in vars(QueueVerbs).items():
                if isinstance(verb, Verb):
                    setattr(cls, name, verb.described(runs(verb.plan)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    send = Verb(sending.send)
    send_many = Verb(sending.send_many)
    store = Verb(sending.store)
    replicated = Verb(sending.replicated)
    start_run = Verb(starting.start_run)

    receive = Verb(receiving.receive)
    pop = Verb(receiving.pop)
    received = Verb(claiming.received)
    claim = Verb(claiming.claim)
    reap = Verb(reaping.reap)

    ack = Verb(settling.ack)
    complete = Verb(completing.complete)
    outcome = Verb(results.outcome)
    nack = Verb(settling.nack)
    release = Verb(settling.release)
    bury = Verb(settling.bury)
    extend = Verb(extending.extend)
    extend_all = Verb(extending.extend_all)
    working = Verb(extending.working)

    runs = Verb(run_states.runs)
    run_status = Verb(run_states.run_status)
    run_steps = Verb(run_states.run_steps)

    calls = Verb(call_groups.calls)
    call_group = Verb(call_groups.call_group)
    abandon_calls = Verb(call_groups.abandon_calls)

    inspect = Verb(peeking.inspect)
    peek = Verb(peeking.peek)
    show = Verb(peeking.show)
    pending = Verb(claiming.pending)
    details = Verb(by_id.details)
    stat = Verb(stats.stat)
    outboxes = Verb(relay.outboxes)
    scan_page = Verb(scanning.scan_page)

    cancel = Verb(cancelling.cancel)
    cancel_calls = Verb(cancelling_calls.cancel_calls)
    hold = Verb(by_id.hold)
    enqueue = Verb(by_id.enqueue)
    delete = Verb(by_id.delete)
    signal = Verb(signalling.signal)

    dead = Verb(dead_letters.dead)
    tally_dead = Verb(dead_letters.tally_dead)
    redrive = Verb(dead_letters.redrive)
    edit_dead = Verb(editing.edit_dead)
    drop_dead = Verb(dead_letters.drop_dead)

    create = Verb(configuring.create)
    attributes = Verb(configuring.attributes)
    change = Verb(configuring.change)
    configure = Verb(configuring.configure)
    pause = Verb(configuring.pause)
    resume = Verb(configuring.resume)
    limits = Verb(limiting.limits)
    shared_limits = Verb(limiting.shared_limits)
    set_limit = Verb(limiting.set_limit)
    remove_limit = Verb(limiting.remove_limit)
    resume_group = Verb(limiting.resume_group)
    groups = Verb(limiting.groups)
    divide = Verb(sharding.divide)
    division = Verb(sharding.division)
    purge = Verb(removing.purge)
    remove = Verb(removing.remove)

    register_reader = Verb(journal.register_reader)
    advance_reader = Verb(journal.advance_reader)
    forget_reader = Verb(journal.forget_reader)
    readers = Verb(journal.readers)
    reader_lags = Verb(journal.reader_lags)


def _run(plan: Callable[Concatenate[QueueRef, P], Plan[T]]) -> Callable[Concatenate[Queue, P], T]:
    def method(self: Queue, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.client.run(plan(self.ref, *args, **kwargs), give_up_s=self.give_up_s)

    return method


class Queue(QueueVerbs, runs=_run):
    """One queue. Thread-safe; makes no connection before its first call.

    Every method raises `ServerError` if Redis cannot serve it, `RefusedError` if the queue refuses it, and
    `InvalidError` for bad input, before anything is written. Calls are retried for `give_up_s` seconds; None takes the
    client's limit.
    """

    def __init__(
        self, client: Client, namespace: str, name: str, *, give_up_s: float | None = None
    ) -> None:
        super().__init__(namespace, name, client, give_up_s)
        self.client = client

    def scan(self, *states: str, count: int = 100) -> Iterator[Stored]:
        """Iterate over all messages in some states (ready, delayed, held, unacked, dead; none given: all).

        Each call reads about `count` (1-1,000) messages. Ready ones come newest first; a message that moves during the
        scan may come twice, a message that stays comes once or more.
        """
        return iterate(
            self.client, lambda cursor: scanning.scan_page(self.ref, cursor, *states, count=count)
        )


def _arun(
    plan: Callable[Concatenate[QueueRef, P], Plan[T]],
) -> Callable[Concatenate[AsyncQueue, P], Coroutine[Any, Any, T]]:
    async def method(self: AsyncQueue, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.client.run(plan(self.ref, *args, **kwargs), give_up_s=self.give_up_s)

    return method


class AsyncQueue(QueueVerbs, runs=_arun):
    """One queue. For one event loop; makes no connection before its first call.

    Every method is a coroutine function and raises what that of `Queue` does.
    """

    def __init__(
        self, client: AsyncClient, namespace: str, name: str, *, give_up_s: float | None = None
    ) -> None:
        super().__init__(namespace, name, client, give_up_s)
        self.client = client

    def scan(self, *states: str, count: int = 100) -> AsyncIterator[Stored]:
        """Iterate over all messages in some states, as `Queue.scan` does."""
        return aiterate(
            self.client, lambda cursor: scanning.scan_page(self.ref, cursor, *states, count=count)
        )
