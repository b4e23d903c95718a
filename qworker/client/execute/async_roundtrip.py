"""Make calls of async code over open connections: what `qworker.client.execute.roundtrip` does for sync code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import RedisError, ResponseError

from qworker.client.execute.roundtrip import LOADS
from qworker.engine.command import Command
from qworker.store.connections import is_noscript, map_error

if TYPE_CHECKING:
    from qworker.client.execute.settle_replay import RecentSettles
    from qworker.engine.scripts import Script
    from qworker.store.connections import ServerConnection

__all__ = ["acall", "asettle_again", "cancellations", "raise_if_cancelled", "within"]

T = TypeVar("T")


async def acall(
    connection: Any,
    command: Command[Any],
    *,
    asking: bool = False,
    within_s: float | None = None,
) -> Any:
    """Make one call over one connection, as `roundtrip.call` does; `within_s` bounds each of its trips."""
    seconds = None if within_s is None else command.answered_within(within_s)
    try:
        for _ in range(LOADS):
            try:
                return await within(seconds, _ask(connection, command, asking))
            except RedisError as error:
                if not is_noscript(error) or command.script is None:
                    raise
            await within(seconds, _load(connection, command.script))
        return await within(seconds, _ask(connection, command, asking))
    except (RedisError, OSError) as error:
        key = None if command.script else command.key
        raise map_error(error, sent=True, reads=command.only_reads, key=key) from error


async def within(seconds: float | None, trip: Awaitable[T]) -> T:
    """Await one trip, for at most this many seconds; None for the connection's own timeout. Raises `TimeoutError`."""
    if seconds is None:
        return await trip
    try:
        async with asyncio.timeout(seconds):
            return await trip
    except TimeoutError as error:
        raise TimeoutError(f"no reply within {seconds:.3g} s") from error


async def _load(connection: Any, script: Script) -> None:
    await connection.send_packed_command(connection.pack_command("SCRIPT", "LOAD", script.source))
    await connection.read_response()


async def _ask(connection: Any, command: Command[Any], asking: bool) -> Any:
    if asking:
        await connection.send_packed_command(connection.pack_command("ASKING"))
        await connection.read_response()
    before = cancellations()
    await connection.send_packed_command([command.packed()])
    raise_if_cancelled(before)
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


async def asettle_again(recent: RecentSettles, server: ServerConnection) -> None:
    """Repeat recent settles to a server that took over, as `roundtrip.settle_again` does."""
    with recent.repeating(server) as repetition:
        for commands in repetition.trips():
            async for command, reply in _replies(server.connection, commands):
                repetition.answered(command, reply)


async def _replies(
    connection: Any, commands: Sequence[Command[Any]]
) -> AsyncIterator[tuple[Command[Any], Any]]:
    """Make calls in one trip, and yield each with its raw reply; one whose script is missing is made again alone."""
    try:
        before = cancellations()
        await connection.send_packed_command([b"".join([each.packed() for each in commands])])
        raise_if_cancelled(before)
        replies: list[Any] = []
        for _ in commands:
            try:
                replies.append(await connection.read_response())
            except ResponseError as error:
                replies.append(error)
    except (RedisError, OSError) as error:
        raise map_error(error, sent=True) from error
    for command, reply in zip(commands, replies, strict=True):
        if not isinstance(reply, ResponseError):
            yield command, reply
        elif is_noscript(reply):
            yield command, await acall(connection, command)
        else:
            raise map_error(reply, sent=True)


def cancellations() -> int:
    """Count the cancellations of this task, for `raise_if_cancelled`."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def raise_if_cancelled(before: int) -> None:
    """Raise a cancellation that came since `before`: redis-py writes with `wait_for`, which may swallow it (3.11)."""
    if cancellations() > before:
        raise asyncio.CancelledError
