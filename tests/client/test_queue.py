"""The low-level queue where it does more than pass a command on."""

from __future__ import annotations

from qworker import QueueAttributes, QWorker
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
