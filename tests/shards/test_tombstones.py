"""Tombstones of a divided queue that nothing but its receivers reaps."""

from __future__ import annotations

from qworker import QWorker
from qworker.client.queue import Queue
from qworker.wire.keys import QueueKeys


def test_without_a_daemon_a_cancelled_message_never_runs_either(app: QWorker) -> None:
    """Twelve shards: in each the message that outlasts its tombstone goes before it, a step of the walk per pass."""
    app.queue("q").divide(12, wait=0)
    queue = Queue(app.client, app.namespace, "q")
    late = {queue.send(n, delay="3d") for n in range(24)}
    kept = {message.id for message in queue.peek(24, state="delayed")}
    assert kept == late
    stones = [QueueKeys(app.namespace, "q" if n == 0 else f"q/{n}").cancelled for n in range(12)]
    for key in stones:
        app.client.ask("ZADD", key, *[word for name in late for word in (1, name)])
    passes = 0
    while any(app.client.ask("ZCARD", key) for key in stones):
        assert queue.receive(reap=True) == []
        passes += 1
        assert passes < 100
    assert passes > 3
    assert queue.inspect().stored == 0
    assert queue.inspect().stats["cancelled"] == 24
