"""Calls that go in one trip per server: a reply belongs to its own call, whatever ended the trip before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qworker.client.execute.many_calls import call_all
from qworker.engine.command import Command
from qworker.engine.raw import raw
from qworker.store.connection_set import ConnectionSet
from qworker.store.connections import ConnectionFactory
from tests.chaos import ChaosProxy


@pytest.fixture
def proxy(store_url: str) -> Iterator[ChaosProxy]:
    """A proxy in front of the shared server."""
    with ChaosProxy(store_url) as proxy:
        yield proxy


def echoes(*words: str) -> list[Command[bytes]]:
    """Calls that reply their word."""
    return [raw("ECHO", word, decode=bytes) for word in words]


def test_late_replies_are_not_taken_for_those_of_the_next_trip(proxy: ChaosProxy) -> None:
    """Calls without a reply in time are left to their caller, and their connection is not used again."""
    factory = ConnectionFactory(proxy.url)
    connections = ConnectionSet(factory)
    connections.to(factory.locate())
    proxy.blackhole = True
    assert call_all(factory, connections, echoes("late", "later"), within_s=0.1)[0] == {}
    assert connections.known(factory.locate()) is None
    proxy.blackhole = False
    assert call_all(factory, connections, echoes("a", "b"))[0] == {0: b"a", 1: b"b"}
    connections.close()


def test_replies_of_an_interrupted_trip_are_not_taken_for_those_of_the_next(
    proxy: ChaosProxy,
) -> None:
    """An interrupt between two replies closes the connections."""

    def interrupt(reply: object) -> bytes:
        raise KeyboardInterrupt

    factory = ConnectionFactory(proxy.url)
    connections = ConnectionSet(factory)
    first = raw("ECHO", "first", decode=interrupt)
    with pytest.raises(KeyboardInterrupt):
        call_all(factory, connections, [first, *echoes("second")])
    assert connections.known(factory.locate()) is None
    assert call_all(factory, connections, echoes("a", "b"))[0] == {0: b"a", 1: b"b"}
    connections.close()
