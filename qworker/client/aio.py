"""The async client: executes the same command values as `qworker.client.sync`, on one event loop.

Concurrent calls take connections of their own, up to `MAX_CONNECTIONS`; further calls wait for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from redis.exceptions import RedisError, ResponseError

from qworker.client.commands.command import GIVE_UP_S, Apart, Attempt, Command, Pause
from qworker.client.commands.sending import SendCall, Sent
from qworker.client.plan import Plan
from qworker.client.recent import RecentSettles
from qworker.errors import InDoubtError, QworkerError, RefusedError, ServerError
from qworker.store.connection import ConnectionFactory, is_noscript, map_error
from qworker.store.lines import AsyncLines, Line
from qworker.store.nodes import Address
from qworker.wire.ids import IdSource, new_lane_id
from qworker.wire.keyring import NO_KEYS, Keyring

__all__ = ["MAX_CONNECTIONS", "AsyncClient", "acall"]

T = TypeVar("T")

#: Connections that one client opens at most.
MAX_CONNECTIONS: Final = 32


class _Lane:
    """One ordered stream of sends, with at most one line to each server; see `lua/send.lua`."""

    __slots__ = ("id", "lines", "sequence")

    def __init__(self, lines: AsyncLines) -> None:
        self.id = new_lane_id()
        self.sequence = 0
        self.lines = lines


async def acall(connection: Any, command: Command[Any], *, asking: bool = False) -> Any:
    """Make one call over one connection, as `qworker.client.calling.call` does."""
    try:
        try:
            return await _ask(connection, command, asking)
        except RedisError as error:
            if not is_noscript(error) or command.script is None:
                raise
        load = connection.pack_command("SCRIPT", "LOAD", command.script.source)
        await connection.send_packed_command(load)
        await connection.read_response()
        return await _ask(connection, command, asking)
    except (RedisError, OSError) as error:
        raise map_error(error, sent=True) from error


async def _ask(connection: Any, command: Command[Any], asking: bool) -> Any:
    if asking:
        await connection.send_packed_command(connection.pack_command("ASKING"))
        await connection.read_response()
    await connection.send_packed_command([command.packed()])
    if not command.then:
        return await connection.read_response()
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

    def __init__(
        self,
        factory: ConnectionFactory,
        *,
        give_up_s: float = GIVE_UP_S,
        keyring: Keyring = NO_KEYS,
    ) -> None:
        self.factory = factory
        self.ids = IdSource()
        #: Signs and encrypts what its queues send, verifies and decrypts what they receive and show.
        self.keyring = keyring
        self._give_up_s = give_up_s
        self._free: list[_Lane] = []
        self._recent = RecentSettles(factory)
        self._loop = asyncio.get_running_loop()
        self._places = asyncio.Semaphore(MAX_CONNECTIONS)

    async def execute(self, command: Command[T], *, give_up_s: float | None = None) -> T:
        """Execute a command until it succeeds, is refused, or `give_up_s` is over; see `Client.execute`."""
        limit_s = self._give_up_s if give_up_s is None else give_up_s
        async with self._places:
            lane = self._free.pop() if self._free else self._new_lane()
            try:
                if command.apart is not None and self.factory.clustered:
                    return await self._apart(lane, command.apart(), limit_s)
                return await self._attempt(lane, command, limit_s)
            finally:
                self._free.append(lane)

    async def send(self, make: Callable[..., Command[Sent]]) -> Sent:
        """Execute a send once, whatever happens to its replies; see `Client.send`."""
        async with self._places:
            lane = self._free.pop() if self._free else self._new_lane()
            lane.sequence += 1
            try:
                return await self._attempt(
                    lane, make(lane=lane.id, sequence=lane.sequence), self._give_up_s
                )
            except BaseException as error:
                if isinstance(error, InDoubtError) or not isinstance(error, QworkerError):
                    await lane.lines.close()
                    lane = self._new_lane()
                raise
            finally:
                self._free.append(lane)

    async def run(self, plan: Plan[T]) -> T:
        """Execute the commands and sends of a plan one after the other, and return its result.

        An error is raised in the plan, which may go on.
        """
        result: Any = None
        try:
            step = next(plan)
            while True:
                try:
                    if isinstance(step, Pause):
                        await asyncio.sleep(step.seconds)
                        result = None
                    elif isinstance(step, SendCall):
                        result = await self.send(step.make)
                    else:
                        result = await self.execute(step)
                except QworkerError as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def loop_closed(self) -> bool:
        """Whether the event loop that made the client is closed: its connections are of no use then."""
        return self._loop.is_closed()

    async def close(self) -> None:
        """Close the idle connections. The client may be used again."""
        while self._free:
            await self._free.pop().lines.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _attempt(self, lane: _Lane, command: Command[T], give_up_s: float) -> T:
        attempt = Attempt(command, give_up_s)
        while True:
            address = attempt.detour or command.node
            try:
                if address is None:
                    address = await self.factory.alocate(command.key)
                line, asking = await lane.lines.to(address), attempt.detour is not None
                reply = await acall(line.connection, attempt.command, asking=asking)
                result = attempt.command.decode(reply)
            except QworkerError as error:
                if isinstance(error, ServerError) and address is not None:
                    await self._failed(lane, error, address)
                await asyncio.sleep(attempt.failed(error))
            except BaseException:
                await lane.lines.close()
                raise
            else:
                self._recent.note(command, line)
                return result

    async def _apart(self, lane: _Lane, apart: Apart[T], give_up_s: float) -> T:
        """Make one call per queue, one after the other: an event loop looks at queues seldom, and others wait."""
        results = [await self._attempt(lane, each, give_up_s) for each in apart.commands]
        return apart.merge(results)

    async def _failed(self, lane: _Lane, error: ServerError, address: Address) -> None:
        if self.factory.failed(error, address):
            await lane.lines.drop(address)

    def _new_lane(self) -> _Lane:
        return _Lane(AsyncLines(self.factory, self._settle_again))

    async def _settle_again(self, line: Line) -> None:
        """Tell a server that took over what was settled lately. Raises `ServerError`."""
        for command in self._recent.lost(line):
            try:
                command.decode(await acall(line.connection, command))
            except RefusedError:
                continue
            self._recent.note(command, line)
