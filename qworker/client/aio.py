"""The async client: executes the same command values as `qworker.client.sync`, on one event loop.

Concurrent calls take connections of their own, up to `MAX_CONNECTIONS`; further calls wait for one. Settles have some
more for themselves, and so have waits at doorbells: an ack waits neither for those who wait nor for those who receive.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog
from redis.exceptions import RedisError, ResponseError

from qworker.client.away import AwayServers
from qworker.client.calling import LOADS
from qworker.client.commands.command import (
    GIVE_UP_S,
    LEAST_S,
    Apart,
    Attempt,
    Brief,
    Command,
    Pause,
    Soon,
)
from qworker.client.commands.sending import SendCall, Sent
from qworker.client.commands.settling import Settled, settle
from qworker.client.plan import Plan
from qworker.client.quiet import WITHIN_S, Quiet
from qworker.client.recent import RecentSettles
from qworker.client.shared_waits import SharedWaits
from qworker.client.unreturned import Unreturned
from qworker.errors import InDoubtError, QworkerError, RefusedError, ServerError
from qworker.store.connection import ConnectionFactory, is_noscript, map_error
from qworker.store.lines import AsyncLines, Line
from qworker.store.nodes import Address
from qworker.wire.ids import IdSource, new_lane_id
from qworker.wire.keyring import NO_KEYS, Keyring

if TYPE_CHECKING:
    from qworker.store.scripts import Script

__all__ = ["MAX_CONNECTIONS", "MAX_SETTLING", "AsyncClient", "acall"]

T = TypeVar("T")

_log = structlog.get_logger(__name__)

#: Connections that the calls of one client take at most; its settles take `MAX_SETTLING` others.
MAX_CONNECTIONS: Final = 32
MAX_SETTLING: Final = 8
#: Seconds that a cancelled call takes to give back what it has received.
_GIVE_BACK_S: Final = 0.5


class _Lane:
    """One ordered stream of sends, with at most one line to each server; see `lua/send.lua`."""

    __slots__ = ("id", "lines", "sequence")

    def __init__(self, lines: AsyncLines) -> None:
        self.id = new_lane_id()
        self.sequence = 0
        self.lines = lines


async def acall(
    connection: Any,
    command: Command[Any],
    *,
    asking: bool = False,
    within_s: float | None = None,
) -> Any:
    """Make one call over one connection, as `qworker.client.calling.call` does; `within_s` is for each trip of it."""
    seconds = None if within_s is None else command.answered_within(within_s)
    try:
        for _ in range(LOADS):
            try:
                return await _within(seconds, _ask(connection, command, asking))
            except RedisError as error:
                if not is_noscript(error) or command.script is None:
                    raise
            await _within(seconds, _load(connection, command.script))
        return await _within(seconds, _ask(connection, command, asking))
    except (RedisError, OSError) as error:
        raise map_error(error, sent=True) from error


async def _within(seconds: float | None, trip: Awaitable[T]) -> T:
    if seconds is None:
        return await trip
    try:
        async with asyncio.timeout(seconds):
            return await trip
    except TimeoutError as error:
        raise TimeoutError(f"nothing came within {seconds:.3g} s") from error


async def _load(connection: Any, script: Script) -> None:
    await connection.send_packed_command(connection.pack_command("SCRIPT", "LOAD", script.source))
    await connection.read_response()


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
        self.give_up_s = give_up_s
        #: Leases that hold messages which no caller has seen.
        self.unreturned = Unreturned()
        self._away = AwayServers()
        self._free: list[_Lane] = []
        self._recent = RecentSettles(factory)
        self._quiet = Quiet()
        self._loop = asyncio.get_running_loop()
        self._calls = asyncio.Semaphore(MAX_CONNECTIONS)
        self._settles = asyncio.Semaphore(MAX_SETTLING)
        self._giving_back: set[asyncio.Task[None]] = set()

        self._waits = SharedWaits(self._wait, clustered=factory.clustered)

    async def execute(self, command: Command[T], *, give_up_s: float | None = None) -> T:
        """Execute a command until it succeeds, is refused, or `give_up_s` is over; see `Client.execute`."""
        bounded = give_up_s is None
        return await self._execute(
            command, self.give_up_s if bounded else give_up_s or 0.0, bounded
        )

    async def _execute(self, command: Command[T], limit_s: float, bounded: bool) -> T:
        if command.script is None and command.args[0] == "BLPOP":
            if command.apart is not None and self.factory.clustered:
                return command.apart().merge([])
            return await self._waits.wait(command, limit_s)  # type: ignore[arg-type, return-value]
        async with self._calls if command.settled is None else self._settles:
            return await self._over_lane(command, limit_s, bounded)

    async def _wait(self, command: Command[T], limit_s: float) -> T:
        return await self._over_lane(command, limit_s, bounded=True)

    async def _over_lane(self, command: Command[T], limit_s: float, bounded: bool) -> T:
        lane = self._free.pop() if self._free else self._new_lane()
        try:
            if command.apart is not None and self.factory.clustered:
                return await self._apart(lane, command.apart(), limit_s, bounded)
            return await self._attempt(lane, command, limit_s, bounded)
        finally:
            self._free.append(lane)

    async def send(
        self,
        make: Callable[..., Command[Sent]],
        *,
        give_up_s: float | None = None,
        elsewhere: bool = False,
    ) -> Sent:
        """Execute a send once, whatever happens to its replies; see `Client.send`."""
        limit_s = self.give_up_s if give_up_s is None else give_up_s
        async with self._calls:
            lane = self._free.pop() if self._free else self._new_lane()
            lane.sequence += 1
            try:
                return await self._attempt(
                    lane,
                    make(lane=lane.id, sequence=lane.sequence),
                    limit_s,
                    bounded=True,
                    elsewhere=elsewhere,
                )
            except BaseException as error:
                if isinstance(error, InDoubtError) or not isinstance(error, QworkerError):
                    await lane.lines.close()
                    lane = self._new_lane()
                raise
            finally:
                self._free.append(lane)

    async def run(self, plan: Plan[T], *, give_up_s: float | None = None) -> T:
        """Execute the commands and sends of a plan one after the other, and return its result; see `Client.run`.

        What a cancelled plan has received is given back by a task of its own, which `close` waits for.
        """
        limit_s = self.give_up_s if give_up_s is None else give_up_s
        failing_s = 0.0
        try:
            step = next(plan)
            while True:
                began = time.monotonic()
                try:
                    result = await self._step(step, limit_s, failing_s)
                except QworkerError as error:
                    if isinstance(error, ServerError) and not isinstance(step, Soon):
                        failing_s += time.monotonic() - began
                    step = plan.throw(error)
                else:
                    failing_s = 0.0
                    step = plan.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        except QworkerError:
            raise
        except BaseException:
            plan.close()
            if self.unreturned:
                task = asyncio.create_task(self._give_back_unreturned())
                self._giving_back.add(task)
                task.add_done_callback(self._giving_back.discard)
            raise

    async def _step(
        self,
        step: Command[Any] | Brief[Any] | Soon[Any] | SendCall | Pause,
        limit_s: float,
        failing_s: float,
    ) -> Any:
        left_s = limit_s if not failing_s else max(LEAST_S, limit_s - failing_s)
        if isinstance(step, Command):
            return await self._execute(step, left_s, bounded=True)
        if isinstance(step, SendCall):
            return await self.send(step.make, give_up_s=left_s, elsewhere=step.elsewhere)
        if isinstance(step, Pause):
            return await asyncio.sleep(step.seconds)
        if isinstance(step, Brief):
            return await self.briefly(step)
        return await self._soon(step)

    async def briefly(self, step: Brief[T]) -> T | None:
        """Execute what may fail, for a fraction of a second; returns None where it did."""
        if step.quiet and self._quiet.now:
            return None
        try:
            result = await self._execute(step.command, WITHIN_S, bounded=True)
        except QworkerError as error:
            if step.quiet:
                self._quiet.failed(error)
            return None
        if step.quiet:
            self._quiet.succeeded()
        return result

    async def _soon(self, step: Soon[T]) -> T:
        address = self.factory.place(step.command.key)
        self._away.check(address, step.since)
        try:
            result = await self._execute(step.command, step.within_s, bounded=True)
        except ServerError as error:
            self._away.failed(address, error)
            raise
        self._away.served(address)
        return result

    async def _give_back_unreturned(self) -> None:
        """Release what was received for a caller that is gone. What cannot be now goes with the next receive."""
        for keys in self.unreturned.queues():
            outcomes = self.unreturned.outcomes(keys)
            try:
                settled: Settled = await self._execute(
                    settle(keys, outcomes), _GIVE_BACK_S, bounded=True
                )
            except QworkerError as error:
                _log.warning("messages_not_given_back", queue=keys.queue, error=str(error))
            else:
                self.unreturned.settled(keys, outcomes, settled.per_lease)

    def loop_closed(self) -> bool:
        """Whether the event loop that made the client is closed: its connections are of no use then."""
        return self._loop.is_closed()

    async def close(self) -> None:
        """Close the idle connections. The client may be used again."""
        await asyncio.gather(*self._giving_back, return_exceptions=True)
        await self._waits.close()
        while self._free:
            await self._free.pop().lines.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _attempt(
        self,
        lane: _Lane,
        command: Command[T],
        give_up_s: float,
        bounded: bool,
        *,
        elsewhere: bool = False,
    ) -> T:
        attempt = Attempt(command, give_up_s, elsewhere=elsewhere)
        while True:
            address = attempt.detour or command.node
            within_s = attempt.within_s(self.factory.reply_timeout_s) if bounded else None
            try:
                if address is None:
                    address = await self.factory.alocate(command.key, within_s)
                line = await lane.lines.to(address, within_s)
                reply = await acall(
                    line.connection,
                    attempt.command,
                    asking=attempt.detour is not None,
                    within_s=within_s,
                )
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

    async def _apart(self, lane: _Lane, apart: Apart[T], give_up_s: float, bounded: bool) -> T:
        """Make one call per queue, one after the other: an event loop looks at queues seldom, and others wait."""
        results: list[Any] = []
        dead: set[Address | None] = set()
        for number, each in enumerate(apart.commands):
            try:
                results.append(await self._attempt(lane, each, give_up_s, bounded))
            except ServerError as error:
                dead.add(self.factory.place(each.key))
                if apart.unserved is None or len(dead) >= len(await self.factory.amasters()):
                    raise
                results.append(apart.unserved(number, error))
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
