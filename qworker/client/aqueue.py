"""The low-level queue API, async: the verbs of `Queue` on one event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from qworker.client.aio import AsyncClient
from qworker.client.message import Stored
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.client.scanning import aiterate, scan_page
from qworker.client.verbs import QueueVerbs

__all__ = ["AsyncQueue"]

P = ParamSpec("P")
T = TypeVar("T")


def _run(
    plan: Callable[Concatenate[QueueRef, P], Plan[T]],
) -> Callable[Concatenate[AsyncQueue, P], Coroutine[Any, Any, T]]:
    async def method(self: AsyncQueue, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.client.run(plan(self.ref, *args, **kwargs), give_up_s=self.give_up_s)

    return method


class AsyncQueue(QueueVerbs, runs=_run):
    """One queue. For one event loop; makes no connection before its first call.

    Every method is a coroutine function and raises what that of `Queue` does.
    """

    def __init__(
        self, client: AsyncClient, namespace: str, name: str, *, give_up_s: float | None = None
    ) -> None:
        super().__init__(namespace, name, client, give_up_s)
        self.client = client

    def scan(self, *states: str, count: int = 100) -> AsyncIterator[Stored]:
        """Go through all messages in some states, as `Queue.scan` does."""
        return aiterate(
            self.client, lambda cursor: scan_page(self.ref, cursor, *states, count=count)
        )
