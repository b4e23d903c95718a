"""Make several calls of async code in one trip per node: what `many_calls` does for sync code."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError, ResponseError

from qworker.client.execute.async_roundtrip import within
from qworker.client.execute.many_calls import by_node
from qworker.engine.attempt import LEAST_S
from qworker.engine.command import Command
from qworker.errors import QworkerError, ServerError, is_of_server, of_one_slot
from qworker.store.connections import ConnectionFactory, map_error

if TYPE_CHECKING:
    from qworker.store.connection_set import AsyncConnectionSet
    from qworker.store.nodes import Address

__all__ = ["acall_each"]


async def acall_each(
    factory: ConnectionFactory,
    connections: AsyncConnectionSet,
    commands: Sequence[Command[Any]],
    limit_s: float,
    attempt: Callable[[Command[Any], float], Awaitable[Any]],
) -> list[Any | QworkerError]:
    """Make calls in one trip per node; returns the result or the error of each.

    `attempt` repeats calls that failed in the trip, for what is left of `limit_s`. Waits once for a node that does not
    serve, and once for slots that no node serves.
    """
    began = time.monotonic()
    if commands and factory.node(commands[0].key) is None:
        with suppress(ServerError):
            await factory.alocate(commands[0].key, limit_s)
    results: dict[int, Any] = {}
    failed: dict[Address | None, ServerError] = {}

    async def ask(address: Address, indices: Sequence[int]) -> None:
        some = [(index, commands[index]) for index in indices]
        left_s = max(LEAST_S, min(limit_s, factory.reply_timeout_s))
        try:
            await within(left_s, _exchange(connections, address, some, results, left_s))
        except (RedisError, OSError, ServerError) as error:
            await connections.drop(address)
            reads = all(command.only_reads for _, command in some)
            mapped = map_error(error, sent=True, reads=reads)
            factory.failed(mapped, address)
            if time.monotonic() - began >= limit_s:
                failed[address] = mapped

    try:
        # Side by side: a node that stands still must not keep the others from being asked.
        await asyncio.gather(*(ask(*node) for node in by_node(factory, commands).items()))
    except BaseException:
        # Cancelled between calls and replies: the next replies on these connections are not ours.
        await connections.close()
        raise
    outcomes: list[Any | QworkerError] = []
    slot_unserved = False
    for index, command in enumerate(commands):
        if index in results:
            outcomes.append(results[index])
            continue
        asked = command.at_once() if slot_unserved else command
        node = factory.last_node(command.key)
        try:
            if node in failed:
                raise failed[node]
            left_s = max(LEAST_S, limit_s - (time.monotonic() - began))
            outcomes.append(await attempt(asked, left_s))
        except QworkerError as error:
            slot_unserved = slot_unserved or of_one_slot(error)
            if is_of_server(error) and factory.last_node(command.key) == node:
                failed[node] = error
            outcomes.append(error)
    return outcomes


async def _exchange(
    connections: AsyncConnectionSet,
    address: Address,
    commands: Sequence[tuple[int, Command[Any]]],
    results: dict[int, Any],
    within_s: float,
) -> None:
    """Make calls to one node; leaves out those that it refuses."""
    server = await connections.idle(address, within_s)
    packed = b"".join([command.packed() for _, command in commands])
    await server.connection.send_packed_command([packed])
    for index, command in commands:
        try:
            results[index] = command.decode(await server.connection.read_response())
        except (ResponseError, QworkerError):
            continue
