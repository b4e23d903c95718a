"""Run searches for servers: ask their questions, one search at a time for all tasks of an event loop.

The answer to one task, as the map of a Cluster, mostly serves all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from qworker.errors import ClusterMovingError, ServerError, UnavailableError
from qworker.store.nodes import Address
from qworker.store.topology import Key, Question, Search, Topology

__all__ = ["SharedSearch", "search"]


def search(topology: Topology, key: Key | None, ask: Callable[[Question], Any]) -> Address:
    """Find the server for calls with a key; `ask` asks one question. Raises what `Topology.search` does."""
    questions, answer = topology.search(key), None
    while True:
        try:
            question = questions.send(answer)
        except StopIteration as result:
            return cast(Address, result.value)
        try:
            answer = ask(question)
        except ServerError as error:
            answer = error


class SharedSearch:
    """The searches of the tasks of an event loop in one topology: while one is under way, others wait for its end."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._ended: asyncio.Future[ServerError | None] | None = None

    async def find(
        self,
        key: Key | None,
        ask: Callable[[Question], Awaitable[Any]],
        left_s: Callable[[], float | None],
    ) -> Address:
        """Find the server as `search` does; `left_s` says how long it may take from now on, None for any time."""
        while (node := self._topology.node(key)) is None:
            ended = self._ended
            if ended is None or ended.get_loop() is not asyncio.get_running_loop():
                with self._leading():
                    return await _asearch(self._topology.search(key), ask)
            try:
                async with asyncio.timeout(left_s()):
                    problem = await asyncio.shield(ended)
            except TimeoutError as error:
                raise UnavailableError("the search for the server took too long") from error
            if problem is not None:
                # The map of a Cluster that lacks the other task's server may name this one.
                node = self._topology.last_node(key)
                if node is None or not isinstance(problem, ClusterMovingError):
                    raise problem
                return node
        return node

    @contextmanager
    def _leading(self) -> Iterator[None]:
        """Let other tasks wait for the end of the block, and its error; if it is cancelled they search themselves."""
        ended = self._ended = asyncio.get_running_loop().create_future()
        problem: ServerError | None = None
        try:
            yield
        except ServerError as error:
            problem = error
            raise
        finally:
            if self._ended is ended:
                self._ended = None
            ended.set_result(problem)


async def _asearch(questions: Search, ask: Callable[[Question], Awaitable[Any]]) -> Address:
    answer = None
    while True:
        try:
            question = questions.send(answer)
        except StopIteration as result:
            return cast(Address, result.value)
        try:
            answer = await ask(question)
        except ServerError as error:
            answer = error
