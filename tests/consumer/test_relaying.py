"""Acks of workers that send to other queues: relayed at once, and by a reaper what a worker left behind."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from qworker.client.execute.sync import Client
from qworker.client.plan import run_plan
from qworker.client.queue import Queue
from qworker.client.relay import relay
from qworker.consumer.child.settle.relaying import ChildRelay
from qworker.engine.effects import out_effect
from qworker.engine.options import SendOptions
from qworker.engine.raw import raw
from qworker.engine.send import NewMessage
from qworker.engine.settle import Outcomes, settle
from qworker.store.connections import ConnectionFactory
from qworker.wire.envelope import tail
from qworker.wire.keys import QueueKeys, queues_key
from tests.chaos import ChaosProxy
from tests.consumer.driving import until


@pytest.fixture
def source(client: Client, namespace: str) -> Queue:
    """The queue whose acks send."""
    return Queue(client, namespace, "source")


def ack(source: Queue, number: int, destination: str = "other") -> None:
    """Ack a message; its ack sends another one."""
    source.send({"n": number})
    [message] = source.receive(1)
    outcomes = Outcomes(message.receipt.lease_id)
    sent = NewMessage(f"m{number}", tail(b"{}"))
    outcomes.ack_with(message.receipt.index, [out_effect(destination, sent, SendOptions())])
    assert outcomes.relayed
    source.client.execute(settle(source.keys, [outcomes]))


@pytest.fixture
def child(client: Client, namespace: str) -> Iterator[ChildRelay]:
    """The relay of a child."""
    relay = ChildRelay(client, namespace)
    yield relay
    relay.close()


def test_a_child_relays_when_it_is_told(client: Client, source: Queue, child: ChildRelay) -> None:
    """Each time, in order; then nothing waits."""
    other = Queue(client, source.ref.namespace, "other")
    for number in range(3):
        ack(source, number)
        child.tell(source.keys)
    until(lambda: len(other.peek(10)) == 3)
    assert [message.id for message in other.peek(10)] == ["m0", "m1", "m2"]
    until(lambda: not source.outboxes())


def test_a_destination_is_announced(client: Client, source: Queue, child: ChildRelay) -> None:
    """Nobody else may have sent to it, and reapers find queues by their index."""
    index = queues_key(source.ref.namespace)
    ack(source, 1)
    child.tell(source.keys)
    until(lambda: client.execute(raw("HEXISTS", index, "other", decode=bool)))


def test_a_child_that_ends_relays_what_it_was_told(
    client: Client, source: Queue, child: ChildRelay
) -> None:
    """It waits for it."""
    ack(source, 1)
    child.tell(source.keys)
    child.close()
    assert len(Queue(client, source.ref.namespace, "other").peek(10)) == 1


def test_a_repeated_relay_after_a_lost_reply_stores_once(store_url: str, namespace: str) -> None:
    """The reply of each of its calls is lost in turn."""
    with ChaosProxy(store_url) as proxy:
        client = Client(ConnectionFactory(proxy.url), give_up_s=30)
        source = Queue(client, namespace, "source")
        for number in range(3):
            ack(source, number)
        for _ in range(4):
            proxy.cut_next_reply()
            run_plan(client.execute, relay(namespace, QueueKeys(namespace, "source")))
        other = Queue(client, namespace, "other")
        assert [message.id for message in other.peek(10)] == ["m0", "m1", "m2"]
        assert other.inspect().stats["sent"] == 3
        client.close()


def test_an_outbox_that_waits_is_said(source: Queue) -> None:
    """How many entries, for which queue, and for how long."""
    ack(source, 1)
    ack(source, 2)
    time.sleep(0.01)
    [outbox] = source.outboxes()
    assert (outbox.destination, outbox.entries) == ("other", 2)
    assert outbox.age_s > 0


def test_removing_a_queue_relays_first(client: Client, source: Queue) -> None:
    """Its acks have counted."""
    ack(source, 1)
    source.remove()
    assert len(Queue(client, source.ref.namespace, "other").peek(10)) == 1
    assert not client.ask("EXISTS", source.keys.out, source.keys.outbox("other"))
