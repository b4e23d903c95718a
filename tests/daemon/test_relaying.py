"""Outboxes that were left behind: each queue is asked in its turn."""

from __future__ import annotations

import pytest

from qworker import QWorker
from qworker.client.execute.recurring import RecurringCalls
from qworker.daemon.relaying import Relaying
from qworker.wire.keys import QueueKeys
from tests.consumer.driving import redis_of


def test_queues_beyond_those_of_a_pass_are_asked_in_the_next_ones(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And then those of the first pass again."""
    monkeypatch.setattr("qworker.daemon.relaying._MOST", 2)
    app = QWorker(namespace, url=store_url)
    queues = [QueueKeys(namespace, f"q{number}") for number in range(5)]
    relaying = Relaying(RecurringCalls(app.client, give_up_s=1.0), namespace)
    with redis_of(app) as redis:
        for keys in queues:
            redis.hset(keys.out, "elsewhere", 1)
    passes = [[keys.queue for keys, _ in relaying.slice(queues)] for _ in range(4)]
    assert passes == [["q0", "q1"], ["q2", "q3"], ["q4", "q0"], ["q1", "q2"]]
    app.close()
