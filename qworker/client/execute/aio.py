"""The async client: executes the same commands as `qworker.client.execute.sync`, on one event loop.

Concurrent calls take their own connections, up to `MAX_CONNECTIONS` to a server; further calls wait for one, see
`turns`. Settles and waits at doorbells have extra connections, so that an ack never waits for a receive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from qworker.client.execute.alistener import AsyncListener
from qworker.client.execute.async_many_calls import acall_each
from qworker.client.execute.async_roundtrip import (
    acall,
    asettle_again,
    cancellations,
    raise_if_cancelled,
)
from qworker.client.execute.base import BaseClient, Calls
from qworker.client.execute.base import Lane as BaseLane
from qworker.client.execute.shared_waits import SharedWaits
from qworker.client.execute.turns import Failures, Turns
from qworker.client.plan import Plan
from qworker.engine.attempt import GIVE_UP_S, Attempt
from qworker.engine.command import Brief, Command, PerQueue, Together
from qworker.engine.send import SendCall, Sent
from qworker.errors import InDoubtError, QworkerError, ServerError, is_of_server, of_one_slot
from qworker.store.connection_set import AsyncConnectionSet
from qworker.store.connections import ConnectionFactory
from qworker.store.nodes import Address
from qworker.store.topology import Key
from qworker.wire.keyring import NO_KEYS, Keyring

__all__ = ["MAX_CONNECTIONS", "MAX_SETTLING", "AsyncClient"]

T = TypeVar("T")
Lane = BaseLane[AsyncConnectionSet]

#: Connections for the calls of one client; its settles have `MAX_SETTLING` more.
MAX_CONNECTIONS: Final = 32
MAX_SETTLING: Final = 8


class AsyncClient(BaseClient):
    """Executes commands; repeats sends safely on their lane. Belongs to the event loop that makes it.

    A call that is cancelled between sending and reply may have run: its connection and lane are dropped.
    """

    def __init__(
        self,
        factory: ConnectionFactory,
        *,
        give_up_s: float = GIVE_UP_S,
        keyring: Keyring = NO_KEYS,
    ) -> None:
        super().__init__(factory, give_up_s=give_up_s, keyring=keyring)
        self._free: list[Lane] = []
        self._loop = asyncio.get_running_loop()
        self._failures = Failures(factory)
        self._calls = Turns(MAX_CONNECTIONS, self._failures)
        self._settles = Turns(MAX_SETTLING, self._failures)
        self._giving_back: asyncio.Task[None] | None = None
        self._to_give_back = False
        self._waits = SharedWaits(self._wait, clustered=factory.clustered)
        #: Hears when results can be read.
        self.listener = AsyncListener(factory)

    async def execute(self, command: Command[T], *, give_up_s: float | None = None) -> T:
        """Execute a command until it succeeds, is refused, or `give_up_s` is over; see `Client.execute`."""
        bounded = give_up_s is None
        return await self._execute(
            command, self.give_up_s if bounded else give_up_s or 0.0, bounded
        )

    async def _execute(self, command: Command[T], limit_s: float, bounded: bool) -> T:
        if command.script is None and command.args[0] == "BLPOP":
            if command.per_queue is not None and self.factory.clustered:
                return command.per_queue().merge([])
            return await self._waits.wait(command, limit_s)  # type: ignore[arg-type, return-value]
        turns = self._calls if command.settled is None else self._settles
        async with turns.of(command.key, limit_s) as turn:
            return await self._over_lane(command, turn.left_s, bounded)

    async def _wait(self, command: Command[T], limit_s: float) -> T:
        return await self._over_lane(command, limit_s, bounded=True)

    async def _over_lane(self, command: Command[T], limit_s: float, bounded: bool) -> T:
        lane = self._free.pop() if self._free else self._new_lane()
        try:
            if command.per_queue is not None and self.factory.clustered:
                return await self._per_queue(lane, command.per_queue(), limit_s, bounded)
            return await self._attempt(lane, command, limit_s, bounded)
        finally:
            self._free.append(lane)

    async def send(
        self,
        make: Callable[..., Command[Sent]],
        *,
        give_up_s: float | None = None,
        elsewhere: bool = False,
        key: Key | None = None,
    ) -> Sent:
        """Execute a send once, even if replies are lost; see `Client.send`. `key`: one of the queue's."""
        limit_s = self.give_up_s if give_up_s is None else give_up_s
        async with self._calls.of(key, limit_s) as turn:
            lane = self._free.pop() if self._free else self._new_lane()
            lane.sequence += 1
            try:
                return await self._attempt(
                    lane,
                    make(lane=lane.id, sequence=lane.sequence),
                    turn.left_s,
                    bounded=True,
                    elsewhere=elsewhere,
                )
            except BaseException as error:
                if isinstance(error, InDoubtError) or not isinstance(error, QworkerError):
                    await lane.connections.close()
                    lane = self._new_lane()
                raise
            finally:
                self._free.append(lane)

    async def _trip(
        self, commands: Sequence[Command[Any]], limit_s: float
    ) -> list[Any | QworkerError]:
        """Execute commands in one trip per server, as `Client.execute_each` does."""
        async with self._calls.of(None, limit_s) as turn:
            lane = self._free.pop() if self._free else self._new_lane()
            try:
                return await acall_each(
                    self.factory,
                    lane.connections,
                    commands,
                    turn.left_s,
                    lambda command, left_s: self._attempt(lane, command, left_s, bounded=True),
                )
            finally:
                self._free.append(lane)

    async def run(self, plan: Plan[T], *, give_up_s: float | None = None) -> T:
        """Run the steps of a plan one after the other, and return its result; see `Client.run`.

        A separate task gives back what a cancelled plan has received; `close` waits for it.
        """
        limit_s = self.give_up_s if give_up_s is None else give_up_s
        try:
            return await self._perform(self._calls_of(plan, limit_s))
        except QworkerError:
            raise
        except BaseException:
            self._to_give_back = bool(self.unreturned)
            if self._to_give_back and (self._giving_back is None or self._giving_back.done()):
                self._giving_back = asyncio.create_task(self._give_back())
            raise

    async def _give_back(self) -> None:
        # One task for all cancelled plans: each pass covers the leases of all that were cancelled before it.
        while self._to_give_back:
            self._to_give_back = False
            await self._perform(self._release_unreturned())

    async def briefly(self, step: Brief[T]) -> T | None:
        """Execute what may fail, for a fraction of a second; returns None if it did."""
        calls = self._try_briefly(step)
        return await self._perform(calls)

    async def _perform(self, calls: Calls[T]) -> T:
        try:
            step, limit_s = next(calls)
            while True:
                try:
                    result: Any = None
                    if isinstance(step, Command):
                        result = await self._execute(step, limit_s, bounded=True)
                    elif isinstance(step, SendCall):
                        result = await self.send(
                            step.make, give_up_s=limit_s, elsewhere=step.elsewhere, key=step.key
                        )
                    elif isinstance(step, Together):
                        result = await self._trip(step.commands, limit_s)
                    else:
                        await asyncio.sleep(step.seconds)
                except QworkerError as error:
                    step, limit_s = calls.throw(error)
                else:
                    step, limit_s = calls.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            calls.close()

    def loop_closed(self) -> bool:
        """Say whether the event loop that made the client is closed, and its connections with it."""
        return self._loop.is_closed()

    async def close(self) -> None:
        """Close the idle connections. The client may be used again."""
        if self._giving_back is not None:
            await asyncio.gather(self._giving_back, return_exceptions=True)
        await self._waits.close()
        await self.listener.close()
        while self._free:
            await self._free.pop().connections.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _attempt(
        self,
        lane: Lane,
        command: Command[T],
        give_up_s: float,
        bounded: bool,
        *,
        elsewhere: bool = False,
    ) -> T:
        attempt, before = Attempt(command, give_up_s, elsewhere=elsewhere), cancellations()
        while True:
            address = attempt.detour or command.node
            within_s = attempt.within_s(self.factory.reply_timeout_s) if bounded else None
            try:
                if address is None:
                    address = await self.factory.alocate(command.key, within_s)
                server = await lane.connections.idle(address, within_s)
                raise_if_cancelled(before)
                reply = await acall(
                    server.connection,
                    attempt.command,
                    asking=attempt.detour is not None,
                    within_s=within_s,
                )
                result = attempt.command.decode(reply)
            except QworkerError as error:
                self._failures.note(address, error)
                if isinstance(error, ServerError) and address is not None:
                    await self._failed(lane, error, address)
                await asyncio.sleep(attempt.failed(error))
            except BaseException:
                await lane.connections.close()
                raise
            else:
                self._failures.served(address)
                self._recent.note(command, server)
                return result

    async def _per_queue(
        self, lane: Lane, per_queue: PerQueue[T], give_up_s: float, bounded: bool
    ) -> T:
        """Make one call per queue, one after the other: async code seldom inspects many queues.

        Waits once for a node that does not serve, and once for slots that no node serves.
        """
        slot_unserved = False
        results: list[Any] = []
        failed: dict[Address | None, ServerError] = {}
        unserved: dict[int, QworkerError] = {}
        for index, command in enumerate(per_queue.commands):
            node = self.factory.last_node(command.key)
            try:
                if node in failed:
                    raise failed[node]
                asked = command.at_once() if slot_unserved else command
                results.append(await self._attempt(lane, asked, give_up_s, bounded))
            except ServerError as error:
                if per_queue.unserved is None:
                    raise
                slot_unserved = slot_unserved or of_one_slot(error)
                if is_of_server(error) and self.factory.last_node(command.key) == node:
                    failed[node] = error
                unserved[index] = error
                results.append(per_queue.unserved(index, error))
        if unserved:
            self._check_served(per_queue, unserved, len(await self.factory.amasters()))
        return per_queue.merge(results)

    async def _failed(self, lane: Lane, error: ServerError, address: Address) -> None:
        if self.factory.failed(error, address):
            await lane.connections.drop(address)

    def _new_lane(self) -> Lane:
        return Lane(
            AsyncConnectionSet(self.factory, lambda server: asettle_again(self._recent, server))
        )
