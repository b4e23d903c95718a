"""Verbs of a divided queue with a shard that cannot be read: they serve the others, and name it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from qworker.client.execute.aio import AsyncClient
from qworker.client.execute.sync import Client
from qworker.client.queue import AsyncQueue, Queue
from qworker.engine.raw import raw
from qworker.errors import BrokenQueueError, QworkerError, ServerError
from qworker.store.connections import ConnectionFactory

#: Verb → what it returns, as ids of messages.
READS: dict[str, tuple[str, Callable[[Queue], Any]]] = {
    "peek": ("ready", lambda queue: queue.peek(100)),
    "peek newest": ("ready", lambda queue: queue.peek(-100)),
    "scan ready": ("ready", lambda queue: [*queue.scan("ready")]),
    "peek delayed": ("delayed", lambda queue: queue.peek(100, state="delayed")),
    "scan delayed": ("delayed", lambda queue: [*queue.scan("delayed")]),
    "peek unacked": ("unacked", lambda queue: queue.peek(100, state="unacked")),
    "pending": ("unacked", lambda queue: queue.pending(100)),
    "peek dead": ("dead", lambda queue: queue.peek(100, state="dead")),
    "dead": ("dead", lambda queue: [letter.message for letter in queue.dead(100)]),
}


@pytest.fixture
def queue(client: Client, namespace: str) -> Queue:
    """Three shards with messages in all states in each."""
    queue = Queue(client, namespace, "q")
    queue.divide(3, wait="0s")
    shards = [Queue(client, namespace, f"q/{number}") for number in (1, 2)]
    while not all(len(shard.peek(100)) >= 13 for shard in shards):
        queue.send_many(range(20))
    for settle in ("bury", "nack", ""):
        for at in range(3):
            received = (shards[at - 1] if at else queue).receive(2)
            if settle == "bury":
                queue.bury(*received)
            elif settle == "nack":
                queue.nack(*received, delay="1h")
    return queue


def key_of(queue: Queue, state: str, shard: int = 1) -> str:
    """The key of a shard that holds the messages of a state."""
    keys = queue.ref.shard_of(shard).keys
    by_state = {"ready": keys.ready[0], "delayed": keys.delayed}
    return {**by_state, "unacked": keys.unacked, "dead": keys.dead}[state]


def break_(client: Client, key: str) -> None:
    """Put a string where something else belongs."""
    client.execute(raw("DEL", key))
    client.execute(raw("SET", key, "x"))


def ids(messages: list[Any]) -> set[str]:
    """The ids of messages, or of what contains them."""
    return {getattr(message, "message", message).id for message in messages}


@pytest.mark.parametrize("verb", READS)
def test_the_messages_of_the_other_shards_are_read(client: Client, queue: Queue, verb: str) -> None:
    """The broken shard is named in the log, with its key; with all of them broken the error is raised."""
    state, read = READS[verb]
    lost = ids(read(Queue(client, queue.ref.namespace, "q/1")))
    whole = ids(read(queue))
    key = key_of(queue, state)
    break_(client, key)
    with capture_logs() as lines:
        assert ids(read(queue)) == whole - lost
    assert lost
    assert whole - lost
    assert {(line["event"], line["queue"]) for line in lines} == {("shard_unread", "q/1")}
    assert repr(key) in lines[0]["error"]
    for shard in (0, 2):
        break_(client, key_of(queue, state, shard))
    if not verb.startswith("scan"):
        with pytest.raises(QworkerError, match=r"another type|holds a string"):
            read(queue)


def test_figures_cover_the_other_shards(client: Client, queue: Queue) -> None:
    """Of statistics and of dead letters by reason."""
    shard = Queue(client, queue.ref.namespace, "q/1")
    ready = queue.stat().ready - len(shard.peek(100))
    dead = len(queue.dead(100)) - len(shard.dead(100))
    break_(client, key_of(queue, "ready"))
    break_(client, key_of(queue, "dead"))
    with capture_logs() as lines:
        assert queue.stat().ready == ready
        assert queue.tally_dead().reasons == {"rejected": dead}
    assert [line["event"] for line in lines] == ["shard_unread"] * 2


def test_a_message_of_another_shard_is_found_and_deleted(client: Client, queue: Queue) -> None:
    """One that is found nowhere may be in the broken shard: the error says so."""
    there = Queue(client, queue.ref.namespace, "q/2").peek(1)[0].id
    break_(client, key_of(queue, "ready", 0))
    assert (found := queue.show(there)) is not None
    assert found.id == there
    assert (deleted := queue.delete(there)) is not None
    assert not deleted.marked
    with pytest.raises(ServerError, match=r"key '.*\{q\}:ready' holds another type"):
        queue.show("not-there")


def test_a_change_of_all_shards_changes_the_others_first(client: Client, queue: Queue) -> None:
    """Then the error names the rest."""
    break_(client, key_of(queue, "dead"))
    with pytest.raises(ServerError, match=r"\{q/1\}:dead"):
        queue.redrive(everything=True)
    assert queue.dead() == []
    break_(client, key_of(queue, "delayed", 0))
    delayed = Queue(client, queue.ref.namespace, "q/2").peek(100, state="delayed")
    with pytest.raises(BrokenQueueError, match=r"\{q\}:delayed"):
        queue.purge("delayed")
    assert delayed
    assert Queue(client, queue.ref.namespace, "q/2").peek(100, state="delayed") == []


def test_async_reads_do_the_same(client: Client, queue: Queue, store_url: str) -> None:
    """In coroutines."""
    lost = ids(Queue(client, queue.ref.namespace, "q/1").peek(100))
    whole = ids(queue.peek(100))
    break_(client, key_of(queue, "ready"))

    async def work() -> None:
        async with AsyncClient(ConnectionFactory(store_url)) as aclient:
            twin = AsyncQueue(aclient, queue.ref.namespace, "q")
            assert ids(await twin.peek(100)) == whole - lost
            assert ids([message async for message in twin.scan("ready")]) == whole - lost
            with pytest.raises(ServerError, match="holds another type"):
                await twin.show("not-there")

    asyncio.run(work())
