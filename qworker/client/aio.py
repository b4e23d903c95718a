"""The async client: executes the same command values as `qworker.client.sync`, on one event loop.

Concurrent calls take connections of their own, up to `MAX_CONNECTIONS`; further calls wait for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from redis.exceptions import RedisError, ResponseError

from qworker.client.commands.command import GIVE_UP_S, Attempt, Command, Pause
from qworker.client.commands.sending import SendCall, Sent
from qworker.errors import InDoubtError, QworkerError, ServerError
from qworker.store.connection import ConnectionFactory, is_noscript, map_error
from qworker.wire.ids import IdSource, new_lane_id

if TYPE_CHECKING:
    from qworker.client.operations import Plan

__all__ = ["MAX_CONNECTIONS", "AsyncClient", "acall"]

T = TypeVar("T")

#: Connections that one client opens at most.
MAX_CONNECTIONS: Final = 32


class _Lane:
    """One ordered stream of sends, bound to one connection at a time; see `lua/send.lua`."""

    __slots__ = ("connection", "id", "sequence")

    def __init__(self) -> None:
        self.id = new_lane_id()
        self.sequence = 0
        self.connection: Any = None


async def acall(connection: Any, command: Command[Any]) -> Any:
    """Make one call over one connection, as `qworker.client.sync.call` does."""
    try:
        try:
            return await _ask(connection, command)
        except RedisError as error:
            if not is_noscript(error) or command.script is None:
                raise
        load = connection.pack_command("SCRIPT", "LOAD", command.script.source)
        await connection.send_packed_command(load)
        await connection.read_response()
        return await _ask(connection, command)
    except (RedisError, OSError) as error:
        raise map_error(error, sent=True) from error


async def _ask(connection: Any, command: Command[Any]) -> Any:
    if not command.then:
        await connection.send_packed_command(connection.pack_command(*command.words()))
        return await connection.read_response()
    await connection.send_packed_command(connection.pack_commands([command.words(), command.then]))
    replies: list[Any] = []
    for _ in range(2):
        try:
            replies.append(await connection.read_response())
        except ResponseError as error:
            replies.append(error)
    if isinstance(replies[0], ResponseError):
        raise replies[0]
    return replies


class AsyncClient:
    """Executes commands; sends are repeated safely on their lane. Belongs to the event loop that makes it.

    A call that is cancelled between sending and reply may have run: its connection and lane are dropped.
    """

    def __init__(self, factory: ConnectionFactory, *, give_up_s: float = GIVE_UP_S) -> None:
        self.factory = factory
        self.ids = IdSource()
        self._give_up_s = give_up_s
        self._free: list[_Lane] = []
        self._loop = asyncio.get_running_loop()
        self._places = asyncio.Semaphore(MAX_CONNECTIONS)

    async def execute(self, command: Command[T], *, give_up_s: float | None = None) -> T:
        """Execute a command until it succeeds, is refused, or `give_up_s` is over; see `Client.execute`."""
        async with self._places:
            lane = self._free.pop() if self._free else _Lane()
            try:
                limit_s = self._give_up_s if give_up_s is None else give_up_s
                return await self._attempt(lane, command, limit_s)
            finally:
                self._free.append(lane)

    async def send(self, make: Callable[..., Command[Sent]]) -> Sent:
        """Execute a send once, whatever happens to its replies; see `Client.send`."""
        async with self._places:
            lane = self._free.pop() if self._free else _Lane()
            lane.sequence += 1
            try:
                return await self._attempt(
                    lane, make(lane=lane.id, sequence=lane.sequence), self._give_up_s
                )
            except BaseException as error:
                if isinstance(error, InDoubtError) or not isinstance(error, QworkerError):
                    await self._drop(lane)
                    lane = _Lane()
                raise
            finally:
                self._free.append(lane)

    async def run(self, plan: Plan[T]) -> T:
        """Execute the commands and sends of a plan one after the other, and return its result."""
        result: Any = None
        try:
            while True:
                step = plan.send(result)
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    result = None
                elif isinstance(step, SendCall):
                    result = await self.send(step.make)
                else:
                    result = await self.execute(step)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def loop_closed(self) -> bool:
        """Whether the event loop that made the client is closed: its connections are of no use then."""
        return self._loop.is_closed()

    async def close(self) -> None:
        """Close the idle connections. The client may be used again."""
        while self._free:
            await self._drop(self._free.pop())

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _attempt(self, lane: _Lane, command: Command[T], give_up_s: float) -> T:
        attempt = Attempt(command, give_up_s)
        while True:
            try:
                if lane.connection is None:
                    lane.connection = await self.factory.aconnect()
                return attempt.command.decode(await acall(lane.connection, attempt.command))
            except QworkerError as error:
                if isinstance(error, ServerError):
                    await self._drop(lane)
                await asyncio.sleep(attempt.failed(error))
            except BaseException:
                await self._drop(lane)
                raise

    async def _drop(self, lane: _Lane) -> None:
        connection, lane.connection = lane.connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)
