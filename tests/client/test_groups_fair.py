"""How long one waits beside many: counted in messages received before it, not in time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.engine.receive import settle_receive
from qworker.engine.settle import Outcomes
from qworker.store.connections import ConnectionFactory
from qworker.wire.envelope import Envelope

FLOOD = 3000


@pytest.fixture
def queue(store_url: str, namespace: str) -> Iterator[Queue]:
    """A queue of its own."""
    client = Client(ConnectionFactory(store_url))
    yield Queue(client, namespace, "q")
    client.close()


@contextmanager
def worker(queue: Queue, count: int) -> Iterator[list[str]]:
    """Receive all, a batch at a time, each acked with the next receive; gives the bodies in order of their receive."""
    seen: list[str] = []
    yield seen
    outcomes: list[Outcomes] = []
    for number in range(10**6):
        lease = f"w-{number}"
        batch = queue.client.execute(
            settle_receive(queue.keys, lease, count, outcomes=outcomes, visibility_ms=60_000)
        )
        if not batch.items:
            return
        found = [Envelope.parse(item) for item in batch.items]
        seen += [envelope.body.decode() for envelope in found if envelope is not None]
        outcomes = [Outcomes(lease, ack_all=True)]


def flood(queue: Queue, kind: str) -> None:
    """A backlog: of one tenant, of a tenant over 1,000 groups, without a group, or of 1,000 tenants."""
    for first in range(0, FLOOD, 1000):
        if kind == "tenant":
            queue.send_many([b"flood"] * 1000, group="big")
        elif kind == "plain":
            queue.send_many([b"flood"] * 1000)
        else:
            for number in range(1000):
                name = f"big/{number}" if kind == "split" else f"t{number}"
                queue.send(b"flood", group=name)
        if kind in ("split", "tenants") and first == 0 and FLOOD > 1000:
            return


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "others"),
    [
        ("tenant", 1),
        *(
            pytest.param(
                kind, others, marks=pytest.mark.nightly("test_a_flood_lets_others_through")
            )
            for kind, others in (("split", 1), ("plain", 1), ("tenants", 1000))
        ),
    ],
)
def test_a_flood_lets_others_through(queue: Queue, kind: str, others: int) -> None:
    """A tenant that comes late waits for as many messages as others take turns, twice at most, for each of its own."""
    flood(queue, kind)
    with worker(queue, 7) as seen:
        queue.send_many([b"mine%d" % number for number in range(10)], group="small")
    at = [seen.index(f"mine{number}") for number in range(10)]
    assert at == sorted(at)
    for number, position in enumerate(at):
        assert position <= 2 * (others + 1) * (number + 1)
    assert len(seen) == queue.inspect().sent_total


def test_no_slot_is_idle_while_a_message_may_run(queue: Queue) -> None:
    """Groups at their limits do not keep a batch from being filled with others."""
    queue.set_limit("*", concurrency=1)
    for number in range(50):
        queue.send_many([f"{number}.{each}" for each in range(3)], group=f"g{number}")
    queue.send_many(["plain"] * 20)
    held = 0
    for number in range(10):
        batch = queue.client.execute(settle_receive(queue.keys, f"l{number}", 7))
        assert len(batch.items) == min(7, 70 - held)
        held += len(batch.items)
    assert queue.client.execute(settle_receive(queue.keys, "more", 7)).items == []
