"""The low-level queue where it does more than pass a command on."""

from __future__ import annotations

import pytest

from qworker import QueueAttributes, QWorker
from qworker.client.commands.command import Command
from qworker.client.queue import Queue
from qworker.client.sync import Client
from qworker.store.connection import ConnectionFactory


def test_attributes_at_their_defaults_are_not_stored(store_url: str, namespace: str) -> None:
    """`configure` stores what differs from the defaults and forgets the rest: nothing looks set that nobody set."""
    app = QWorker(namespace, url=store_url)
    queue = app.queue("emails")
    queue.configure(QueueAttributes(maxlen=5, visibility="1m"))
    queue.configure(QueueAttributes(maxlen=7))
    connection = ConnectionFactory(store_url).connect()
    connection.send_command("HKEYS", f"{namespace}:{{emails}}:meta")
    assert sorted(connection.read_response()) == [b"created_ms", b"maxlen", b"modified_ms"]
    connection.disconnect()


@pytest.mark.parametrize(
    ("ttl", "held_ms"), [(None, 24 * 3_600_000), ("1h", 3_600_000), ("2d", 2 * 24 * 3_600_000)]
)
def test_a_unique_key_is_held_for_the_time_to_live(
    store_url: str, namespace: str, ttl: str | None, held_ms: int
) -> None:
    """The key is free when the message has expired; without a time to live after a day."""
    with Client(ConnectionFactory(store_url)) as client:
        queue = Queue(client, namespace, "q")
        message_id = queue.send("x", unique="k", ttl=ttl)
        words = ("HGET", queue.keys.unique, "k")
        held: bytes = client.execute(Command(None, (), words, bytes))
        holder, until_ms = held.decode().split()
        sent_ms = queue.peek()[0].sent_ms
        assert sent_ms is not None
        assert (holder, int(until_ms) - sent_ms) == (message_id, held_ms)
