"""Every command of RedisMQ (RedisRQ), under the name that it has here."""

from __future__ import annotations

import os
import threading
import time

import pytest

from qworker.errors import InvalidOptionError
from tests.conformance.conftest import Caller
from tests.conformance.rows import row
from tests.conformance.times import let_pass
from tests.timing import Watch, keep_within


@row("RedisMQ", "MQ.PUSH of many, with ids")
def test_many_are_pushed_at_once(caller: Caller) -> None:
    """Up to 1,000 messages are stored whole or not at all, and the ids come in order."""
    queue = caller.queue()
    ids = queue.send_many(["a", "b", "c"])
    assert ids == sorted(set(ids))
    assert [message.id for message in queue.peek()] == ids
    shown = caller.cli_json("send", "texts", "--lines", "-", stdin='"a"\n"b"\n')
    assert shown["ids"] == [message.id for message in caller.queue("texts").peek()]


@row("RedisMQ", "MQ.POP count")
def test_a_number_is_popped(caller: Caller) -> None:
    """Up to `count` come, each with queue, id and body, and stay in the store until acked."""
    queue = caller.queue()
    ids = queue.send_many(range(5))
    messages = queue.receive(3)
    assert [(message.queue, message.id, message.json()) for message in messages] == [
        ("emails", ids[n], n) for n in range(3)
    ]
    assert queue.inspect().unacked == 3


@row("RedisMQ", "MQ.POP over several queues, left to right")
def test_queues_are_drained_left_to_right(caller: Caller) -> None:
    """The first queue gives what it has, the next ones the rest: a simple priority."""
    high, middle, low = (caller.queue(name) for name in ("high", "middle", "low"))
    low.send_many([7, 8, 9])
    high.send_many([1, 2])
    then = [_own(middle), _own(low)]
    messages = high.receive(4, then=then)
    assert [(message.queue, message.json()) for message in messages] == [
        ("high", 1),
        ("high", 2),
        ("low", 7),
        ("low", 8),
    ]
    assert len(high.ack(*messages[:2])) == 2
    assert len(low.ack(*messages[2:])) == 2
    middle.send(5)
    shown = caller.cli_json("message", "pop", "high", "middle", "low", "-n", "9")
    assert [message["queue"] for message in shown["messages"]] == ["middle", "low"]


@row("RedisMQ", "MQ.POP BLOCK on several queues")
def test_a_receiver_waits_at_several_queues(caller: Caller) -> None:
    """A message in any of them ends the wait, and is what comes."""
    high, low = caller.queue("high"), caller.queue("low")
    low.send("before")
    low.pop()
    sender = Caller(caller.url, caller.namespace, "sync")

    def woken_s() -> float:
        timer = threading.Timer(0.1, lambda: sender.queue("low").send("now"))
        watch = Watch(os.getpid())
        timer.start()
        messages = high.receive(5, wait="20s", then=[_own(low)])
        passed_s = watch.passed_s()
        assert [(message.queue, message.json()) for message in messages] == [("low", "now")]
        timer.join()
        return passed_s

    keep_within(1.5, woken_s)  # without a bell it looks every two seconds
    sender.close()


@row("RedisMQ", "MQ.POP BLOCK: nothing on timeout")
def test_a_wait_that_is_over_gives_nothing(caller: Caller) -> None:
    """After `wait` the answer is an empty list."""
    started = time.monotonic()
    assert caller.queue("a").receive(5, wait="200ms", then=[_own(caller.queue("b"))]) == []
    assert time.monotonic() - started > 0.15


@row("RedisMQ", "MQ.ACK returns the ids that counted")
def test_an_ack_returns_the_messages_that_counted(caller: Caller) -> None:
    """Those that another consumer has settled are missing from the answer."""
    queue = caller.queue()
    queue.send_many(range(4))
    messages = queue.receive(4)
    assert queue.ack(messages[1]) == [messages[1]]
    assert queue.ack(*messages[:3]) == [messages[0], messages[2]]
    receipts = [str(message.receipt) for message in messages[2:]]
    printed = caller.cli("message", "ack", "emails", *receipts, code=1)
    assert receipts[1] in printed.splitlines()
    assert queue.inspect().unacked == 0


@row("RedisMQ", "MQ.RECOVER by elapsed and count")
def test_messages_are_claimed_by_elapsed_and_count(caller: Caller) -> None:
    """At most `count` that are unacked for `elapsed` go to the caller; the deliveries count, the clock starts again."""
    queue = caller.queue()
    ids = queue.send_many(range(5))
    lost = queue.receive(4)
    let_pass(caller, 20)
    fresh = queue.receive(1)
    messages = queue.claim(3, elapsed="10s")
    assert [each.id for each in messages] == ids[:3]
    assert {message.receive_count for message in messages} == {2}
    assert queue.ack(*lost) == [lost[3]]
    assert queue.claim(10, elapsed="10s") == []
    assert len(queue.ack(*messages, *fresh)) == 4
    assert queue.inspect().stored == 0


@row("RedisMQ", "MQ.RECOVER from several receivers")
def test_lone_messages_are_claimed_each_in_a_lease(caller: Caller) -> None:
    """A message that was alone with its receiver may have cost its life: it is claimed alone."""
    queue = caller.queue()
    queue.send_many(range(3))
    for _ in range(3):
        queue.receive(1, visibility="1m")
    let_pass(caller, 20)
    messages = queue.claim(10, elapsed="10s", visibility="5s")
    assert len({message.receipt.lease_id for message in messages}) == len(messages) >= 1
    assert {message.deadline_ms - message.received_ms for message in messages} == {5000}
    rest = queue.receive(1)
    while rest:
        messages += rest
        rest = queue.receive(1)
    assert sorted(message.json() for message in messages) == [0, 1, 2]


@row("RedisMQ", "MQ.RECOVER in the CLI")
def test_an_operator_claims(caller: Caller) -> None:
    """`qworker message claim` takes over and prints the new receipts."""
    queue = caller.queue()
    queue.send_many(range(2))
    queue.receive(2)
    assert caller.cli_json("message", "claim", "emails", "--elapsed", "10s")["messages"] == []
    let_pass(caller, 20)
    (claimed,) = caller.cli_json("message", "claim", "emails", "--elapsed", "10s")["messages"]
    assert claimed["receive_count"] == 2
    caller.cli("message", "ack", "emails", claimed["receipt"])


@row("RedisMQ", "MQ.INSPECT from the start")
def test_ready_messages_are_inspected_from_the_start(caller: Caller) -> None:
    """Ids and bodies in the order of delivery; nothing is received by it."""
    queue = caller.queue()
    ids = queue.send_many(range(5))
    assert [(message.id, message.body) for message in queue.peek(2)] == [
        (ids[0], b"0"),
        (ids[1], b"1"),
    ]
    shown = caller.cli_json("queue", "peek", "emails", "-n", "2")
    assert [each["id"] for each in shown["messages"]] == ids[:2]
    assert queue.inspect().ready == 5


@row("RedisMQ", "MQ.INSPECT from the end")
def test_ready_messages_are_inspected_from_the_end(caller: Caller) -> None:
    """The newest first."""
    queue = caller.queue()
    ids = queue.send_many(range(5))
    assert [message.id for message in queue.peek(2, newest=True)] == [ids[4], ids[3]]
    shown = caller.cli_json("queue", "peek", "emails", "-n", "2", "--newest")
    assert [each["id"] for each in shown["messages"]] == [ids[4], ids[3]]


@row("RedisMQ", "MQ.INSPECT from a place")
def test_ready_messages_are_inspected_from_a_place(caller: Caller) -> None:
    """The first few left out, from either end, over the boundary of two priorities."""
    queue = caller.queue()
    low = queue.send_many(range(3))
    high = queue.send_many(range(2), priority=5)
    assert [message.id for message in queue.peek(3, skip=1)] == [high[1], *low[:2]]
    assert [message.id for message in queue.peek(-3, skip=1)] == [low[1], low[0], high[1]]
    assert queue.peek(5, skip=5) == []
    shown = caller.cli_json("queue", "peek", "emails", "-n", "1", "--skip", "4")
    assert [each["id"] for each in shown["messages"]] == [low[2]]
    for wrong in (-1, "1", 1.5, True):
        for look in (queue.peek, queue.pending):
            with pytest.raises(InvalidOptionError, match="skip"):
                look(1, skip=wrong)


@row("RedisMQ", "MQ.INSPECT PENDING")
def test_pending_messages_are_inspected(caller: Caller) -> None:
    """Ids, bodies, last delivery, elapsed time and deliveries of unacked messages, the longest first."""
    queue = caller.queue()
    ids = queue.send_many(range(3))
    (first,) = queue.receive()
    queue.nack(first)
    queue.receive(1)
    let_pass(caller, 20)
    before_ms = caller.now_ms()
    queue.receive(2, visibility="2m")
    pending = queue.pending()
    assert [each.id for each in pending] == [ids[1], ids[2], ids[0]]
    assert [each.body for each in pending] == [b"1", b"2", b"0"]
    assert [each.deliveries for each in pending] == [1, 1, 2]
    assert pending[0].elapsed_ms >= 20_000
    assert before_ms <= pending[1].delivered_ms <= caller.now_ms()
    assert pending[1].elapsed_ms < 15_000
    assert [message.id for message in queue.pending(elapsed="10s")] == [ids[1]]
    shown = caller.cli_json("message", "pending", "emails")["messages"]
    assert [each["deliveries"] for each in shown] == [1, 1, 2]
    assert [each["id"] for each in shown] == [ids[1], ids[2], ids[0]]


@row("RedisMQ", "MQ.INSPECT PENDING from the end, and from a place")
def test_pending_messages_are_inspected_from_the_end(caller: Caller) -> None:
    """The latest deadline first, and the first few left out."""
    queue = caller.queue()
    ids = queue.send_many(range(4))
    queue.receive(2)
    queue.receive(2, visibility="1m")
    assert [message.id for message in queue.pending(3, newest=True)] == [ids[3], ids[2], ids[1]]
    assert [message.id for message in queue.pending(2, skip=1)] == ids[1:3]
    shown = caller.cli_json("message", "pending", "emails", "--newest", "--skip", "1", "-n", "2")
    assert [each["id"] for each in shown["messages"]] == [ids[2], ids[1]]


@row("RedisMQ", "MQ.INFO")
def test_the_lengths_are_returned(caller: Caller) -> None:
    """Undelivered and delivered, each alone."""
    queue = caller.queue()
    queue.send_many(range(5))
    queue.receive(2)
    seen = queue.inspect()
    assert (seen.ready, seen.unacked) == (3, 2)
    shown = caller.cli_json("queue", "show", "emails", "--over", "0")
    assert (shown["ready"], shown["unacked"]) == (3, 2)


def _own(queue: object) -> object:
    """The queue itself, of one whose calls are run to their end."""
    return getattr(queue, "_target", queue)
