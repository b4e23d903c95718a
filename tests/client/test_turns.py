"""Calls that wait for a connection: their time passes only while the server fails calls, and node by node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from qworker.client.execute.turns import Failures, Turns
from qworker.errors import UnavailableError
from qworker.store.connections import ConnectionFactory
from qworker.store.nodes import Address
from qworker.store.topology import Key
from tests.timing import DEADLINE_S

NOWHERE: Address = ("127.0.0.1", 1)


class ByKey(Failures):
    """As in a Cluster that has a node per key."""

    def node(self, key: Key | None) -> Address | None:
        """Return an address that is the key's own."""
        return None if key is None else (str(key), 1)


def run(work: Callable[[Turns, Failures], Awaitable[None]], of: type[Failures] = Failures) -> None:
    """Run a test of the turns of a client with one connection."""

    async def main() -> None:
        failures = of(ConnectionFactory("redis://127.0.0.1:1"))
        await asyncio.wait_for(work(Turns(1, failures), failures), DEADLINE_S)

    asyncio.run(main())


async def waits(turns: Turns, limit_s: float) -> asyncio.Task[float]:
    """Begin to wait for a turn; the task returns what the call has left then."""

    async def wait() -> float:
        async with turns.of(None, limit_s) as turn:
            return turn.left_s

    task = asyncio.create_task(wait())
    await asyncio.sleep(0.02)
    assert not task.done()
    return task


def test_many_calls_only_take_longer_while_the_server_answers() -> None:
    """Also after a failure that was over by then."""

    async def work(turns: Turns, failures: Failures) -> None:
        async with turns.of(None, 1.0) as first:
            assert first.left_s == 1.0
            waiting = await waits(turns, 0.001)
            failures.note(NOWHERE, UnavailableError("it was away"))
            failures.served(NOWHERE)
        assert await waiting == 0.001

    run(work)


def test_the_wait_counts_if_the_server_has_failed_a_call_meanwhile() -> None:
    """A call that has no time left is not sent, and leaves its turn to the next one."""

    async def work(turns: Turns, failures: Failures) -> None:
        async with turns.of(None, 1.0):
            short = await waits(turns, 0.001)
            patient = await waits(turns, 60.0)
            failures.note(NOWHERE, UnavailableError("it is away"))
        with pytest.raises(UnavailableError, match="was not sent"):
            await short
        assert 0 < await patient < 59.99

    run(work)


def test_calls_to_a_node_hold_up_none_to_another() -> None:
    """And the failures of one are not those of the other."""

    async def work(turns: Turns, _: Failures) -> None:
        async with turns.of("near", 1.0), turns.of("far", 1.0) as turn:
            assert turn.left_s == 1.0

    run(work, ByKey)
