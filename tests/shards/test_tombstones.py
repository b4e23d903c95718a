"""Tombstones of a divided queue that nothing but its receivers reaps."""

from __future__ import annotations

import pytest

from qworker import QWorker
from qworker.client.queue import Queue
from qworker.engine.calls import NUMBERS_PER_MS
from qworker.engine.raw import server_time
from qworker.wire.keys import QueueKeys, queues_key


@pytest.mark.slow
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


@pytest.mark.parametrize("source", ["p", "p/2"])
def test_without_a_daemon_a_tombstone_outlasts_its_message_on_its_way(
    app: QWorker, source: str
) -> None:
    """The receiver asks the other queues, and each of their shards, for outboxes."""
    queue, outbox = (
        Queue(app.client, app.namespace, "q"),
        QueueKeys(app.namespace, source).outbox("q"),
    )
    for name in ("p", "q"):
        app.queue(name).send(1)
    if "/" in source:
        app.queue("p").divide(3, wait=0)
        app.client.ask("HDEL", queues_key(app.namespace), source)  # the entry of the queue tells
    now_ms = app.client.execute(server_time())
    entry = ("priority", 0, "delay", "", "ttl", "", "head", "q1 late ", "tail", "\n{}")
    written = (now_ms - 13 * 3_600_000) * NUMBERS_PER_MS
    app.client.ask("XADD", outbox, f"{written}-0", *entry)
    stones = QueueKeys(app.namespace, "q").cancelled
    app.client.ask("ZADD", stones, now_ms, "late", now_ms, "gone")
    for _ in range(100):
        queue.reap()
        if app.client.ask("ZRANGE", stones, 0, -1) == [b"late"]:
            break
    else:
        pytest.fail("nothing was forgotten")
    app.client.ask("ZADD", stones, now_ms, "gone")
    app.client.ask("DEL", outbox)
    for _ in range(100):
        queue.ref.prune_at_s = 0.0
        queue.reap()
        if not app.client.ask("EXISTS", stones):
            break
    else:
        pytest.fail("the tombstones were not forgotten")
