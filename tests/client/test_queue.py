"""The low-level queue: attributes, unique keys, deletes, inspections."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from qworker import QueueAttributes, QWorker
from qworker.cli.main import cli
from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.engine.raw import raw
from qworker.store.connections import ConnectionFactory


def test_attributes_at_their_defaults_are_not_stored(store_url: str, namespace: str) -> None:
    """`configure` stores what differs from the defaults and deletes the rest: only attributes that are set look set."""
    app = QWorker(namespace, url=store_url)
    queue = app.queue("emails")
    queue.configure(QueueAttributes(maxlen=5, visibility="1m"))
    queue.configure(QueueAttributes(maxlen=7))
    connection = ConnectionFactory(store_url).connect()
    connection.send_command("HKEYS", f"{namespace}:{{emails}}:meta")
    assert sorted(connection.read_response()) == [b"created_ms", b"maxlen", b"modified_ms"]
    connection.disconnect()
    app.close()


@pytest.mark.parametrize(
    ("ttl", "held_ms"), [(None, None), ("1h", 3_600_000), ("2d", 2 * 24 * 3_600_000)]
)
def test_a_unique_key_is_held_for_the_time_to_live(
    store_url: str, namespace: str, ttl: str | None, held_ms: int | None
) -> None:
    """The key of a waiting message is free when it has expired; without a time to live only its end frees it."""
    with Client(ConnectionFactory(store_url)) as client:
        queue = Queue(client, namespace, "q")
        message_id = queue.send("x", unique="k", ttl=ttl)
        words = ("HGET", queue.keys.unique, "k")
        held: bytes = client.execute(raw(*words, decode=bytes))
        holder, until_ms = held.decode().split()
        sent_ms = queue.peek()[0].sent_ms
        assert sent_ms is not None
        expected = 2**53 if held_ms is None else sent_ms + held_ms
        assert (holder, int(until_ms)) == (message_id, expected)


def test_a_deleted_message_is_gone_or_marked(store_url: str, namespace: str) -> None:
    """A waiting message is gone; a received one is marked, and dropped when it comes back."""
    with Client(ConnectionFactory(store_url)) as client:
        queue = Queue(client, namespace, "q")
        held_id, waiting_id, delayed_id = (
            queue.send(number, delay=delay) for number, delay in enumerate(("0s", "0s", "1h"))
        )
        (held,) = queue.receive()
        deleted = [queue.delete(message_id) for message_id in (held_id, waiting_id, delayed_id)]
        assert [(message.state, message.marked) for message in deleted if message is not None] == [
            ("unacked", True),
            ("ready", False),
            ("delayed", False),
        ]
        queue.release(held)
        assert queue.receive() == []
        assert queue.inspect().stored == 0
        assert queue.delete(held_id) is None


def test_the_command_line_reports_marked_messages(store_url: str, namespace: str) -> None:
    """In words, and in JSON under `marked`."""
    with Client(ConnectionFactory(store_url)) as client:
        queue = Queue(client, namespace, "q")
        held_id, waiting_id = queue.send_many(range(2))
        queue.receive()
        words = ["--url", store_url, "--namespace", namespace, "message", "delete", "q", "--yes"]
        ran = CliRunner().invoke(cli, [*words, held_id])
        assert (ran.exit_code, ran.stdout) == (0, f"{held_id}  unacked\n")
        assert "only marked" in ran.stderr
        ran = CliRunner().invoke(cli, [*words, "--json", held_id, waiting_id])
        document = json.loads(ran.stdout)
        assert (document["deleted"], document["marked"]) == ([held_id, waiting_id], [held_id])


def test_an_inspection_has_the_attributes(store_url: str, namespace: str) -> None:
    """Counts and attributes of one instant, in one call."""
    with Client(ConnectionFactory(store_url)) as client:
        queue = Queue(client, namespace, "q")
        queue.create(visibility="1m", maxlen=7)
        assert queue.inspect().attributes == queue.attributes()
        assert Queue(client, namespace, "other").inspect().attributes == QueueAttributes()
