"""A queue with a key that a stranger has overwritten: what reads messages passes over it, and names it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qworker.client.execute.aio import AsyncClient
from qworker.client.execute.sync import Client
from qworker.client.inspect.pages import END
from qworker.client.queue import AsyncQueue, Queue
from qworker.engine.raw import raw
from qworker.errors import QworkerError, ServerError
from qworker.store.connections import ConnectionFactory

#: Part of the queue → the ids of its messages, or of its two leases.
Parts = dict[str, list[str]]


@pytest.fixture
def queue(client: Client, namespace: str) -> Queue:
    return Queue(client, namespace, "q")


@pytest.fixture
def parts(queue: Queue) -> Parts:
    """Two messages in each part of the queue."""
    for _ in range(2):
        queue.send_many(["taken"], priority=9)
        queue.receive(1)
    queue.send_many(["dead"] * 2, priority=9)
    queue.bury(*queue.receive(2))
    return {
        "unacked": ids(queue.peek(10, state="unacked")),
        "dead": ids(queue.peek(10, state="dead")),
        "delayed": queue.send_many(["later"] * 2, delay="1h"),
        "ready-0": queue.send_many(["low"] * 2),
        "ready-5": queue.send_many(["high"] * 2, priority=5),
    }


def ids(messages: list[Any]) -> list[str]:
    return [message.id for message in messages]


def break_key(queue: Queue, part: str) -> str:
    """Put a string where a part of the queue is; returns the key."""
    keys = queue.keys
    by_part = {"delayed": keys.delayed, "unacked": keys.unacked, "dead": keys.dead}
    key = by_part.get(part) or keys.ready[int(part[-1])]
    queue.client.execute(raw("DEL", key))
    queue.client.execute(raw("SET", key, "x"))
    return key


@pytest.mark.bad_input("server: a key of another type beside those that a scan reads")
@pytest.mark.parametrize("part", ["ready-5", "ready-0", "delayed", "unacked", "dead"])
def test_a_scan_of_all_states_passes_over_a_broken_key(
    client: Client, queue: Queue, parts: Parts, store_url: str, logs: list[Any], part: str
) -> None:
    """The log names the key once; pages name it, too. A scan of its state alone raises its error."""
    left = sorted(each for name, some in parts.items() if name != part for each in some)
    key = break_key(queue, part)
    assert sorted(ids([*queue.scan(count=3)])) == left
    assert {(line["event"], line["queue"]) for line in logs} == {("shard_unread", "q")}
    assert all(repr(key) in line["error"] for line in logs)
    page = queue.scan_page(count=1000)
    assert (page.cursor, [one.queue for one in page.unread]) == (END, ["q"])
    assert str(page.unread[0]).startswith(f"q: key {key!r} holds another type")
    if not part.startswith("ready"):
        with pytest.raises(ServerError, match="holds another type"):
            list(queue.scan(part))

    async def scan() -> list[str]:
        async with AsyncClient(ConnectionFactory(store_url)) as aclient:
            return [
                message.id async for message in AsyncQueue(aclient, queue.ref.namespace, "q").scan()
            ]

    assert sorted(asyncio.run(scan())) == left


def test_a_scan_passes_over_a_broken_lease(queue: Queue, parts: Parts) -> None:
    """The messages of the other lease come."""
    lost = next(message for message in queue.peek(10, state="unacked"))
    assert lost.receipt is not None
    key = queue.keys.lease(lost.receipt.lease_id)
    queue.client.execute(raw("DEL", key))
    queue.client.execute(raw("SET", key, "x"))
    page = queue.scan_page(END, "unacked")
    assert ids(page.items) == [each for each in parts["unacked"] if each != lost.id]
    assert [repr(key) in one.problem for one in page.unread] == [True]


def test_a_peek_passes_over_a_broken_priority(queue: Queue, parts: Parts, logs: list[Any]) -> None:
    """From either end; without any other ready message it raises the error of the key."""
    key = break_key(queue, "ready-5")
    assert ids(queue.peek(10)) == parts["ready-0"]
    assert ids(queue.peek(-10)) == parts["ready-0"][::-1]
    assert [(line["event"], repr(key) in line["error"]) for line in logs] == [
        ("shard_unread", True)
    ] * 2
    queue.client.execute(raw("DEL", queue.keys.ready[0]))
    with pytest.raises(ServerError, match="holds another type"):
        queue.peek(10)


def test_messages_of_the_other_keys_are_found_by_their_ids(queue: Queue, parts: Parts) -> None:
    """One that is found nowhere may be in the broken key: the error says so."""
    key = break_key(queue, "ready-5")
    for part in ("ready-0", "delayed", "unacked", "dead"):
        found = queue.show(parts[part][0])
        assert found is not None
        assert found.id == parts[part][0]
    with pytest.raises(QworkerError, match=key.replace("{", r"\{")):
        queue.show(parts["ready-5"][0])
