"""Waits of many coroutines at doorbells, over a few separate connections.

Each of the first `MAX_WAITS` waits has a connection. The others share one: it waits for all of their bells together, a
tenth of a second at a time, so that a new wait joins the next turn. In a Cluster one wait cannot cover several slots:
further waits return at once, and their callers receive again after a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from qworker.engine.command import Command
from qworker.engine.doorbells import listen_at, ring_at
from qworker.errors import QworkerError
from qworker.telemetry.logger import logger

__all__ = ["MAX_WAITS", "SharedWaits"]

_log = logger(__name__)

#: Waits with their own connection.
MAX_WAITS: Final = 16
#: Seconds of one turn of the shared wait, and the most bells it covers.
_TURN_S: Final = 0.1
_MAX_BELLS: Final = 1_000
#: Seconds after which a failing shared wait ends: its callers receive without it.
_GIVE_UP_S: Final = 0.5


@dataclass(eq=False, slots=True)
class _Waiter:
    bells: tuple[str, ...]
    rung: asyncio.Future[bytes]


class SharedWaits:
    """The waits of one client. `call` makes a call over its own connection, with a time limit in seconds."""

    def __init__(
        self, call: Callable[[Command[Any], float], Awaitable[Any]], *, clustered: bool
    ) -> None:
        self._call, self._clustered = call, clustered
        self._alone = 0
        self._waiters: list[_Waiter] = []
        self._turns: asyncio.Task[None] | None = None

    async def wait(self, command: Command[bytes], give_up_s: float) -> bytes:
        """Execute a wait made by `listen`; returns the bell that rang, or b''. Raises `QworkerError`."""
        if self._alone < MAX_WAITS:
            self._alone += 1
            try:
                rung: bytes = await self._call(command, give_up_s)
            finally:
                self._alone -= 1
            return rung
        if self._clustered:
            return b""
        return await self._share(tuple(str(word) for word in command.args[1:-1]), command.blocks_s)

    async def close(self) -> None:
        """End the shared wait; no bell rings for those in it."""
        if self._turns is not None:
            self._turns.cancel()
            await asyncio.gather(self._turns, return_exceptions=True)
            self._turns = None

    async def _share(self, bells: tuple[str, ...], block_s: float) -> bytes:
        waiter = _Waiter(bells, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        if self._turns is None or self._turns.done():
            self._turns = asyncio.create_task(self._take_turns())
        try:
            async with asyncio.timeout(block_s):
                return await waiter.rung
        except TimeoutError:
            # It may have rung at the last moment.
            return (
                waiter.rung.result() if waiter.rung.done() and not waiter.rung.cancelled() else b""
            )
        finally:
            self._waiters.remove(waiter)

    async def _take_turns(self) -> None:
        try:
            while self._waiters:
                await self._turn()
        except QworkerError as error:
            # One key of another type fails all: each caller receives without waiting.
            _log.debug("doorbells_not_heard", error=str(error))
        finally:
            for waiter in self._waiters:
                _wake(waiter, b"")

    async def _turn(self) -> None:
        bells = dict.fromkeys(bell for waiter in self._waiters for bell in waiter.bells)
        chosen = list(bells)[:_MAX_BELLS]
        if len(bells) > _MAX_BELLS:
            # The others come first in the next turn.
            self._waiters = [*self._waiters[1:], self._waiters[0]]
        rung: bytes = await self._call(listen_at(chosen, _TURN_S), _GIVE_UP_S)
        if not rung:
            return
        bell = rung.decode()
        for waiter in self._waiters:
            if bell in waiter.bells and _wake(waiter, rung):
                return
        await self._call(ring_at(bell), _GIVE_UP_S)  # the wait for it has ended


def _wake(waiter: _Waiter, rung: bytes) -> bool:
    if waiter.rung.done():
        return False
    waiter.rung.set_result(rung)
    return True
