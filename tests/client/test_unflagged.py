"""Batches of first deliveries without flags are read at once, to the same messages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qworker.client.execute.sync import Client
from qworker.client.message import deliver, deliver_unflagged
from qworker.client.queue import Queue
from qworker.client.receive.receive import pop
from qworker.engine.receive import Batch
from qworker.store.connections import ConnectionFactory
from qworker.wire.keys import QueueKeys
from tests.tables import each

KEYS = QueueKeys("ns", "emails/2")


def batch(*items: bytes) -> Batch:
    """A batch of these items."""
    indices = [str(index) for index in range(1, len(items) + 1)]
    return Batch("L", list(items), indices, 2_000, 32_000, 0, -2, False, False, ())


def test_they_are_the_same_messages() -> None:
    """As those read one by one; bodies may be empty, or hold lines and signs of a header."""
    bodies = [b'{"a": 1}', b"", b"\n", b"a=b\nq1 x 1 0 0 0 0\n", b"\xff"]
    taken = batch(
        *(b"q1 m-%d 17%02d 0 0 0 0\n" % (at, at) + body for at, body in enumerate(bodies))
    )
    messages = deliver_unflagged(KEYS, taken)
    assert messages == [deliver(KEYS, taken, position) for position in range(len(bodies))]
    assert messages is not None
    assert [message.body for message in messages] == bodies


@each(
    "other",
    [
        b"q1 m 1 1 0 0 0\nb",
        b"q1 m 1 0 1 0 0\nb",
        b"q1 m 1 0 0 1 0\nb",
        b"q1 m 1 0 0 0 1\nb",
        b"q1 m 1 0 0 0 0 u=k\nb",
        b"q1 m 1 0 0 0 0",
        b"q1 m 1 0 0 0 0 \nb",
        b"q2 m 1 0 0 0 0\nb",
        b"q1 m,n 1 0 0 0 0\nb",
        b"q1 %b 1 0 0 0 0\nb" % (b"m" * 65),
        b"q1 m 12345678901234567 0 0 0 0\nb",
        b'{"plain": true}',
        b"foreign",
        b"",
    ],
)
def test_with_any_other_item_they_are_read_one_by_one(other: bytes) -> None:
    """Wherever it stands in the batch."""
    own = b"q1 m 1 0 0 0 0\nb"
    assert deliver_unflagged(KEYS, batch(own, other)) is None
    assert deliver_unflagged(KEYS, batch(other, own)) is None


@pytest.fixture
def queue(store_url: str, namespace: str) -> Iterator[Queue]:
    """A queue."""
    with Client(ConnectionFactory(store_url)) as client:
        yield Queue(client, namespace, "emails")


def test_a_pop_returns_what_it_has_acked(queue: Queue) -> None:
    """With and without a message that has flags, in order."""
    queue.send_many(["one", "two"])
    queue.send("three", unique="key")
    queue.send("four")
    assert [message.json() for message in queue.pop(2)] == ["one", "two"]
    assert [message.json() for message in queue.pop(9)] == ["three", "four"]
    stats = queue.inspect().stats
    assert (stats["acked"], stats["stored"], stats["unacked"]) == (4, 0, 0)


def test_a_pop_returns_no_message_whose_ack_did_not_count(queue: Queue) -> None:
    """Another receiver may have it: here one of three has left the lease before the ack."""
    queue.send_many(["one", "two", "three"])
    plan, reply = pop(queue.ref, 3), None
    messages = None
    while messages is None:
        try:
            command = plan.send(reply)
        except StopIteration as end:
            messages = end.value
            break
        reply = queue.client.execute(command)
        if isinstance(reply, Batch):
            key = queue.ref.keys.lease(reply.lease_id)
            queue.client.ask("DEL", key)
            queue.client.ask("HSET", key, "1", reply.items[0], "3", reply.items[2])
    assert [message.json() for message in messages] == ["one", "three"]
