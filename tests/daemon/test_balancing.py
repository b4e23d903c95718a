"""The reaper's passes over limits of several queues: what it does while their key cannot be used."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.daemon.reaper import Reaper
from qworker.engine.settle import Outcomes, settle
from qworker.store.connections import ConnectionFactory
from qworker.wire.keys import shared_limits_key


@pytest.fixture
def client(store_url: str) -> Iterator[Client]:
    """A client of the shared server."""
    client = Client(ConnectionFactory(store_url))
    yield client
    client.close()


@pytest.mark.bad_input("data found: key of another type")
def test_a_strange_key_stops_no_pass(client: Client, namespace: str) -> None:
    """Queues are reaped, and keep the shares they have."""
    queue = Queue(client, namespace, "a")
    queue.set_limit("api/", with_queues=["b"], concurrency=1)
    with client.factory.redis(shared_limits_key(namespace)) as redis:
        redis.set(shared_limits_key(namespace), "other")
    queue.send_many([b"m"] * 3, group="api/x")
    queue.send(b"late", delay="1ms")
    reaper = Reaper(client, namespace)
    while not reaper.tick().promoted:
        pass
    # A slot that it got at first, and the message without a group.
    assert len(queue.receive(10)) == 2


def test_a_reaper_moves_the_only_slot_to_where_messages_wait(
    client: Client, namespace: str
) -> None:
    """Within the passes that it asks for by itself; what has no limit any more leaves no key behind."""
    queues = [Queue(client, namespace, name) for name in "ab"]
    queues[0].set_limit("api/", with_queues=["b"], concurrency=1)
    queues[1].send(b"m", group="api/x")
    reaper = Reaper(client, namespace)
    received = queues[1].receive(1)
    while not received:
        assert reaper.tick().next_wake_ms is not None
        received = queues[1].receive(1)
    queues[1].ack(received[0])
    for queue in queues:
        queue.remove()
    with client.factory.redis(shared_limits_key(namespace)) as redis:
        while redis.exists(shared_limits_key(namespace)):
            reaper.tick()
        left = {
            key.decode().removeprefix(f"{namespace}:") for key in redis.scan_iter(f"{namespace}:*")
        }
    assert left <= {"reapers"}


@pytest.mark.parametrize("mode", ["out", "all", "limited"])
def test_a_queue_that_receives_nothing_keeps_no_share_from_others(
    client: Client, namespace: str, mode: str
) -> None:
    """It is paused, or rate limited by others: what waits there does not count until it is resumed."""
    queues = [Queue(client, namespace, name) for name in "ab"]
    queues[0].set_limit("api/", with_queues=["b"], concurrency=3)
    for queue in queues:
        queue.send_many([b"m"] * 9, group="api/x")
    if mode == "limited":
        queues[0].send(b"refused", priority=1)
        outcomes = Outcomes(queues[0].receive(1)[0].receipt.lease_id)
        outcomes.limit("0", 60_000)
        client.execute(settle(queues[0].keys, [outcomes]))
    else:
        queues[0].pause(mode)
    reaper = Reaper(client, namespace)
    held = queues[1].receive(3)
    while len(held) < 3:
        reaper.tick()
        held += queues[1].receive(3)
    queues[0].resume()
    queues[1].ack(*held)
    while not queues[0].receive(1):
        reaper.tick()
