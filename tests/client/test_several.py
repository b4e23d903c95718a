"""Receive from several queues, and reap before a receive."""

from __future__ import annotations

import time

import pytest
from structlog.testing import capture_logs

from qworker.client.execute.sync import Client
from qworker.client.message import Message
from qworker.client.queue import Queue
from qworker.client.receive.receive import receive
from qworker.engine.command import Command, Soon
from qworker.engine.raw import raw
from qworker.store.connections import ConnectionFactory
from tests import servers


def ask(client: Client, *words: str | int) -> object:
    return client.execute(raw(*words))


@pytest.mark.bad_input("data found: key of another type")
@pytest.mark.parametrize("verb", ["receive", "pop"])
def test_a_broken_queue_costs_the_others_nothing(client: Client, namespace: str, verb: str) -> None:
    """Messages of the first queue are returned, and a warning names the other."""
    high, low = Queue(client, namespace, "high"), Queue(client, namespace, "low")
    high.send_many(range(3))
    ask(client, "SET", low.keys.ready[0], "x")
    with capture_logs() as lines:
        messages = getattr(high, verb)(5, then=[low])
    assert [message.body for message in messages] == [b"0", b"1", b"2"]
    assert [(line["event"], line["queue"]) for line in lines] == [("receive_failed", "low")]


def test_a_full_batch_reads_no_further_queue(client: Client, namespace: str) -> None:
    """A queue whose turn does not come is not read at all."""
    high, low = Queue(client, namespace, "high"), Queue(client, namespace, "low")
    high.send_many(range(3))
    ask(client, "SET", low.keys.ready[0], "x")
    assert len(high.receive(3, then=[low])) == 3


def test_a_waiter_that_is_served_elsewhere_rings_again(client: Client, namespace: str) -> None:
    """Woken by one queue and served by another, it gives the token of the first back to another consumer."""
    if client.factory.clustered:
        pytest.skip("bells of two slots are not waited for")
    high, low = Queue(client, namespace, "high"), Queue(client, namespace, "low")
    ask(client, "RPUSH", low.keys.wake, "1")
    plan = receive(high.ref, 1, wait="5s", then=[low])
    result: object = None
    received: list[Message] = []
    try:
        while True:
            step = plan.send(result)
            command = step.command if isinstance(step, Soon) else step
            assert isinstance(command, Command)
            result = client.execute(command)
            if command.args[0] == "BLPOP":
                ask(client, "RPUSH", high.keys.ready[0], "[1]")
                ask(client, "RPUSH", low.keys.ready[0], "[2]")
    except StopIteration as end:
        received = end.value
    assert [message.queue for message in received] == ["high"]
    assert ask(client, "LLEN", low.keys.wake) == 1


def test_a_queue_may_be_named_twice(client: Client, namespace: str) -> None:
    """The second time it has nothing more to give."""
    queue = Queue(client, namespace, "q")
    queue.send_many(range(3))
    assert len(queue.receive(5, then=[queue])) == 3


def test_a_paused_queue_is_skipped(client: Client, namespace: str) -> None:
    """The others continue, and the receive does not poll it endlessly."""
    high, low = Queue(client, namespace, "high"), Queue(client, namespace, "low")
    high.send("h")
    high.pause("out")
    low.send("l")
    assert [message.queue for message in high.receive(5, wait="5s", then=[low])] == ["low"]
    assert high.receive(5, wait="50ms", then=[low]) == []


def test_a_lease_in_its_grace_period_is_polled_slowly() -> None:
    """After a gap an overdue lease is left alone for 6 s: a waiting receiver checks ten times a second, no more."""
    with servers.start("valkey") as server, Client(ConnectionFactory(server.url)) as client:
        queue = Queue(client, "n", "q")
        queue.send("x")
        queue.receive()
        now_ms = queue.inspect().now_ms
        (lease,) = client.execute(raw("ZRANGE", queue.keys.unacked, 0, -1))
        ask(client, "ZADD", queue.keys.unacked, now_ms - 1000, lease.decode())
        ask(client, "HSET", queue.keys.stats, "reaped_ms", now_ms - 60_000)
        redis = server.redis()
        redis.config_resetstat()
        started = time.monotonic()
        assert queue.receive(wait="400ms", reap=True) == []
        passed_s = time.monotonic() - started
        assert passed_s >= 0.4
        calls = redis.info("commandstats")["cmdstat_evalsha"]["calls"]
        assert calls <= 3 * (passed_s / 0.1 + 2)  # three per pass, however long the machine took


def test_reaping_removes_expired_messages(client: Client, namespace: str) -> None:
    """Expired messages at the head end although the receive itself takes none."""
    queue = Queue(client, namespace, "q")
    queue.send_many(range(3), ttl="1ms")
    queue.send("fresh")
    queue.pause("out")
    while True:
        assert queue.receive(1, reap=True) == []
        if queue.inspect().ready == 1:
            break
    assert queue.inspect().stats["expired"] == 3


def test_reaping_prunes_as_well(client: Client, namespace: str) -> None:
    """Leftovers beside a queue are pruned without a daemon too: a slice per receive until all are done."""
    queue = Queue(client, namespace, "q")
    queue.send("x")
    keys = queue.keys
    over = [word for n in range(1200) for word in (f"k{n}", "m 1")]
    ask(client, "HSET", keys.unique, *over, "held", f"m {2**53 - 1}")
    ask(client, "HSET", keys.rows, "over", "m 1")
    ask(client, "HSET", keys.producers, "idle", "7 1")
    passes = 0
    while ask(client, "HKEYS", keys.unique) != [b"held"]:
        queue.receive(reap=True)
        passes += 1
    assert passes > 2
    assert ask(client, "EXISTS", keys.rows) == 0
    assert ask(client, "HEXISTS", keys.producers, "idle") == 0
    ask(client, "HSET", keys.rows, "over", "m 1")
    queue.receive(reap=True)
    assert ask(client, "EXISTS", keys.rows) == 1, "the next round comes five minutes later"
    queue.ref.prune_at_s = time.monotonic()
    queue.receive(reap=True)
    assert ask(client, "EXISTS", keys.rows) == 0, "it begins with the first slice"


def test_a_reap_without_anything_due_names_no_time(client: Client, namespace: str) -> None:
    """A held message, among the delayed ones, becomes ready at no time at all."""
    queue = Queue(client, namespace, "q")
    held = queue.send("held", delay="1h")
    assert queue.hold(held) == [held]
    queue.send("due", delay="1ms")
    time.sleep(0.005)
    reaped = queue.reap()
    assert (reaped.promoted, reaped.again_ms) == (1, None)
