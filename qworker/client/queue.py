"""The low-level queue API, sync: send, receive and settle messages without the consumer framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, TypeVar

from qworker.client.message import Stored
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.client.scanning import iterate, scan_page
from qworker.client.sync import Client
from qworker.client.verbs import QueueVerbs

__all__ = ["Queue"]

P = ParamSpec("P")
T = TypeVar("T")


def _run(plan: Callable[Concatenate[QueueRef, P], Plan[T]]) -> Callable[Concatenate[Queue, P], T]:
    def method(self: Queue, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.client.run(plan(self.ref, *args, **kwargs), give_up_s=self.give_up_s)

    return method


class Queue(QueueVerbs, runs=_run):
    """One queue. Thread-safe; makes no connection before its first call.

    Every method raises `ServerError` where Redis cannot serve it, `RefusedError` where the queue refuses it, and
    `InvalidError` for bad input, before anything is written. Calls are tried for `give_up_s` seconds, None for as long
    as its client tries.
    """

    def __init__(
        self, client: Client, namespace: str, name: str, *, give_up_s: float | None = None
    ) -> None:
        super().__init__(namespace, name, client, give_up_s)
        self.client = client

    def scan(self, *states: str, count: int = 100) -> Iterator[Stored]:
        """Go through all messages in some states (ready, delayed, held, unacked, dead; none named: in all).

        Bounded calls that read about `count` (1-1,000) each. Ready ones come newest first; what moves meanwhile may be
        seen twice, what stays is seen.
        """
        return iterate(
            self.client, lambda cursor: scan_page(self.ref, cursor, *states, count=count)
        )
