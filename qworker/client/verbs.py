"""The verbs of a queue, each with the plan that does it; `Queue` runs them, and `AsyncQueue` does."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import cached_property, update_wrapper
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar, overload

from qworker.client import (
    claiming,
    configuring,
    journal,
    letters,
    looking,
    picking,
    reaping,
    receiving,
    removing,
    scanning,
    sending,
    settling,
    sharding,
    statistics,
)
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef

if TYPE_CHECKING:
    from qworker.client.aio import AsyncClient
    from qworker.client.aqueue import AsyncQueue
    from qworker.client.queue import Queue
    from qworker.client.sync import Client

__all__ = ["QueueVerbs", "Verb"]

P = ParamSpec("P")
T = TypeVar("T")


class Verb(Generic[P, T]):
    """A method of `Queue` and of `AsyncQueue`, with the parameters of its plan but for the queue.

    Each of the two classes gets a function of its own in the place of the verb, which runs the plan.
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
        """Never called: the classes replace their verbs. For type checkers."""
        return self

    @cached_property
    def signature(self) -> Signature:
        """The parameters of a method, and what it returns."""
        plan = signature(self.plan)
        queue, *others = plan.parameters.values()
        return plan.replace(
            parameters=[queue.replace(name="self", annotation=Parameter.empty), *others],
            return_annotation=plan.return_annotation.removeprefix("Plan[").removesuffix("]"),
        )

    def described(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Give a method the name, the text and the signature that `help` shows."""
        update_wrapper(method, self.plan).__signature__ = self.signature  # type: ignore[attr-defined]
        return method


class QueueVerbs:
    """What can be done with a queue. `runs` makes a method of a plan, for the class that knows how to run it."""

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
    send_all = Verb(sending.send_all)
    store = Verb(sending.store)
    replicated = Verb(sending.replicated)

    receive = Verb(receiving.receive)
    pop = Verb(receiving.pop)
    received = Verb(claiming.received)
    claim = Verb(claiming.claim)
    reap = Verb(reaping.reap)

    ack = Verb(settling.ack)
    nack = Verb(settling.nack)
    release = Verb(settling.release)
    bury = Verb(settling.bury)
    extend = Verb(settling.extend)
    extend_all = Verb(settling.extend_all)
    working = Verb(settling.working)

    inspect = Verb(looking.inspect)
    peek = Verb(looking.peek)
    show = Verb(looking.show)
    pending = Verb(claiming.pending)
    details = Verb(picking.details)
    stat = Verb(statistics.stat)
    scan_page = Verb(scanning.scan_page)

    cancel = Verb(picking.cancel)
    hold = Verb(picking.hold)
    enqueue = Verb(picking.enqueue)
    delete = Verb(picking.delete)

    dead = Verb(letters.dead)
    tally_dead = Verb(letters.tally_dead)
    redrive = Verb(letters.redrive)
    edit_dead = Verb(letters.edit_dead)
    drop_dead = Verb(letters.drop_dead)

    create = Verb(configuring.create)
    attributes = Verb(configuring.attributes)
    change = Verb(configuring.change)
    configure = Verb(configuring.configure)
    pause = Verb(configuring.pause)
    resume = Verb(configuring.resume)
    divide = Verb(sharding.divide)
    division = Verb(sharding.division)
    purge = Verb(removing.purge)
    remove = Verb(removing.remove)

    register_reader = Verb(journal.register_reader)
    advance_reader = Verb(journal.advance_reader)
    forget_reader = Verb(journal.forget_reader)
    readers = Verb(journal.readers)
    reader_lags = Verb(journal.reader_lags)
