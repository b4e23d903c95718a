"""One subscription of an event loop for all results that it waits for; see `listener`."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from qworker.client.execute.listener import (
    IDLE_S,
    channel_of,
    end_pauses,
    new_backoff,
    pause_after,
)
from qworker.errors import QworkerError, ServerError
from qworker.store.server_errors import map_error

if TYPE_CHECKING:
    from qworker.store.connections import ConnectionFactory
    from qworker.store.nodes import Address

__all__ = ["AsyncListener", "AsyncWatch"]


class AsyncWatch:
    """A wait for hints at some channels."""

    def __init__(self) -> None:
        self.hint = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Wait for a hint, for at most `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.hint.wait()
        self.hint.clear()


class AsyncListener:
    """The subscriptions of one client, for one event loop; one task, and one more per server."""

    def __init__(self, factory: ConnectionFactory) -> None:
        self._factory = factory
        self._watches: dict[str, set[AsyncWatch]] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def watch(self, channels: Sequence[str]) -> AsyncIterator[AsyncWatch]:
        """Watch channels. The first hint comes as soon as a channel is heard."""
        watch = AsyncWatch()
        for channel in channels:
            self._watches.setdefault(channel, set()).add(watch)
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            yield watch
        finally:
            for channel in channels:
                left = self._watches[channel]
                left.discard(watch)
                if not left:
                    del self._watches[channel]
            self._changed.set()

    async def close(self) -> None:
        """Close the connections; a new watch opens them again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        subscriptions = _AsyncSubscriptions(self._factory, self._watches, self._changed)
        try:
            used_at = time.monotonic()
            while self._watches or time.monotonic() - used_at < IDLE_S:
                if self._watches:
                    used_at = time.monotonic()
                await subscriptions.listen()
        finally:
            await subscriptions.close()


class _AsyncSubscriptions:
    """The connections of the task, each read by its own task, and the messages that arrive over them."""

    def __init__(
        self,
        factory: ConnectionFactory,
        watches: dict[str, set[AsyncWatch]],
        changed: asyncio.Event,
    ) -> None:
        self._factory = factory
        self._watches = watches
        self._changed = changed
        self._servers: dict[Address, tuple[Any, asyncio.Task[None]]] = {}
        self._subscribed: dict[str, Address] = {}
        self._ending: Counter[str] = Counter()
        self._backoff = new_backoff()

    async def listen(self) -> None:
        """Subscribe to exactly the watched channels, and return when these have changed, or after a second."""
        self._changed.clear()
        if not self._backoff.left_s(time.monotonic()):
            try:
                await self._subscribe()
            except (RedisError, OSError, QworkerError) as error:
                pause_after(error, self._backoff)
        left_s = self._backoff.left_s(time.monotonic())
        with suppress(TimeoutError):
            async with asyncio.timeout(min(1.0, left_s or 1.0)):
                await self._changed.wait()

    async def close(self) -> None:
        """Close the connections."""
        for address in [*self._servers]:
            await self._drop(address)

    async def _subscribe(self) -> None:
        for channel in [*self._subscribed.keys() - self._watches.keys()]:
            self._ending[channel] += 1
            await self._send("SUNSUBSCRIBE", channel, self._subscribed.pop(channel))
        for channel in self._watches.keys() - self._subscribed.keys():
            address = await self._factory.alocate(channel)
            self._subscribed[channel] = address
            await self._send("SSUBSCRIBE", channel, address)

    async def _send(self, verb: str, channel: str, address: Address) -> None:
        try:
            if address not in self._servers:
                opened = (await self._factory.aopen(address)).connection
                # It is polled all the time; mostly nothing is there.
                opened.socket_timeout = None
                reader = asyncio.create_task(self._read_all(address, opened))
                self._servers[address] = opened, reader
            connection, _ = self._servers[address]
            await connection.send_packed_command(connection.pack_command(verb, channel))
        except (RedisError, OSError, QworkerError) as error:
            await self._lose(address, error)
            raise

    async def _read_all(self, address: Address, connection: Any) -> None:
        try:
            while True:
                reply = await connection.read_response()
                channel = channel_of(reply)
                if reply[0] == b"sunsubscribe":
                    if not self._ending[channel]:
                        raise OSError("the channel has moved to another node")
                    self._ending[channel] -= 1
                    continue
                self._tell(channel)
                end_pauses(self._backoff)
        except (RedisError, OSError) as error:
            pause_after(error, self._backoff)
            await self._lose(address, error)

    def _tell(self, channel: str) -> None:
        for watch in self._watches.get(channel, ()):
            watch.hint.set()

    async def _lose(self, address: Address, error: Exception) -> None:
        """Forget a connection, and wake every wait that listened over it."""
        mapped = error if isinstance(error, ServerError) else map_error(error, sent=True)
        self._factory.failed(mapped, address)
        self._ending.clear()
        for channel in [channel for channel, at in self._subscribed.items() if at == address]:
            del self._subscribed[channel]
            self._tell(channel)
        await self._drop(address)
        self._changed.set()

    async def _drop(self, address: Address) -> None:
        connection, reader = self._servers.pop(address, (None, None))
        if reader is not None and reader is not asyncio.current_task():
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        if connection is not None:
            await connection.disconnect(nowait=True)
