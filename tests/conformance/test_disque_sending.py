"""Disque's operations that add jobs, get and show them, under the names that they have here."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from qworker import QWorker
from qworker.engine.send import NewMessage, send
from qworker.errors import (
    NotReplicatedError,
    QueueFullError,
)
from qworker.wire.envelope import tail
from tests.conformance.conftest import Caller
from tests.conformance.driving import HOUR_MS, bare, ids, reaped
from tests.conformance.rows import row


@row("Disque", "ADDJOB")
def test_a_message_is_added_and_creates_its_queue(caller: Caller) -> None:
    """A send makes the queue and answers with an id that sorts by time."""
    queue = caller.queue()
    first, second = queue.send("one"), queue.send("two")
    third = caller.cli("send", "emails", '"three"').strip()
    assert first < second
    assert ids(queue.peek()) == [first, second, third]


@row("Disque", "ADDJOB DELAY")
def test_a_message_waits_for_its_own_delay(caller: Caller) -> None:
    """A delay of one message says nothing of the others."""
    queue = caller.queue()
    late = queue.send("late", delay="10m")
    later = caller.cli("send", "emails", '"later"', "--delay", "20m").strip()
    queue.send("now")
    assert [message.body for message in queue.receive(9)] == [b'"now"']
    assert ids(queue.peek(state="delayed")) == [late, later]


@row("Disque", "ADDJOB RETRY")
def test_a_message_has_its_own_retry_time(caller: Caller) -> None:
    """`visibility` of a message is what its receiver gets, whatever the queue's; the others keep theirs."""
    queue = caller.queue()
    queue.send("quick", visibility="5s")
    queue.send("usual")
    caller.cli("send", "emails", '"slow"', "--visibility", "1h")
    quick, usual, slow = queue.receive(3)
    times = [message.deadline_ms - message.received_ms for message in (quick, usual, slow)]
    assert all(
        abs(ms - asked) < 2000 for ms, asked in zip(times, (5000, 30_000, HOUR_MS), strict=True)
    )
    assert queue.ack(quick, usual, slow) == [quick, usual, slow]


@row("Disque", "ADDJOB RETRY 0")
def test_a_message_at_most_once_is_never_delivered_again(caller: Caller) -> None:
    """With visibility 0 what is lost, alone or in company, and what fails is dead instead; the rest comes back."""
    queue = caller.queue()
    once = queue.send("once", visibility=0)
    other = caller.cli("send", "emails", '"once"', "--visibility", "0").strip()
    usual = queue.send("usual")
    assert ids(queue.receive(3)) == [once, other, usual]
    reaped(caller)
    assert ids(queue.peek(state="ready")) == [usual]
    assert sorted(ids(queue.peek(state="dead"))) == sorted([once, other])
    failing = queue.send("failing", visibility=0, priority=1)
    queue.nack(queue.receive()[0])
    assert ids(queue.receive(9)) == [usual]
    assert failing in ids(queue.peek(state="dead"))


@row("Disque", "ADDJOB TTL")
def test_a_message_lives_for_its_time_only(caller: Caller) -> None:
    """What is older than its time to live is never delivered."""
    queue = caller.queue()
    queue.send("old", ttl="1ms")
    caller.cli("send", "emails", '"old"', "--ttl", "1ms")
    kept = queue.send("kept", ttl="1h")
    time.sleep(0.01)
    assert ids(queue.receive(9)) == [kept]
    assert queue.inspect().stats["expired"] == 2


@row("Disque", "ADDJOB MAXLEN")
def test_a_send_is_refused_over_its_own_maxlen(caller: Caller) -> None:
    """Each send may say how full the queue may get by it; nothing is trimmed, and others are not concerned."""
    queue = caller.queue()
    queue.send_many(["a", "b"], maxlen=2)
    with pytest.raises(QueueFullError) as refused:
        queue.send("c", maxlen=2)
    assert (refused.value.stored, refused.value.maxlen) == (2, 2)
    assert "is full" in caller.cli("send", "emails", '"c"', "--maxlen", "2", code=1)
    queue.send("d")
    queue.send("e", maxlen=4)
    assert queue.inspect().ready == 4


@pytest.mark.slow
@row("Disque", "ADDJOB REPLICATE ms-timeout")
def test_a_send_waits_for_its_replicas(pair: tuple[Caller, Any]) -> None:
    """With `replicas` a send answers when this many have the message; where they do not in time it says so.

    The message is stored anyway, its id is reported, and the same call on the same lane stores nothing twice.
    """
    caller, replica = pair
    queue = caller.queue()
    sent = queue.send("safe", replicas=1, within="2s")
    key = caller.keys().ready[0]
    assert sent.encode() in replica.redis().lrange(key, 0, -1)[0]
    with pytest.raises(
        NotReplicatedError, match="stored, but on 1 of 2 replicas within 20 ms"
    ) as less:
        queue.send_many([str(n) for n in range(1001)], replicas=2, within="20ms")
    assert ids(queue.peek(1000))[1:3] == less.value.ids[:2]
    assert (less.value.replicas, less.value.wanted, len(less.value.ids)) == (1, 2, 1001)
    assert queue.inspect().ready == 1002
    assert queue.replicated(1, within="2s") == 1
    assert "stored" in caller.cli(
        "send", "emails", '"x"', "--replicas", "2", "--within", "10ms", code=1
    )


@pytest.mark.slow
@row("Disque", "ADDJOB REPLICATE ms-timeout")
def test_a_repeated_send_waits_for_its_stored_messages(pair: tuple[Caller, Any]) -> None:
    """A call whose reply was lost is repeated on its lane: it is known as a duplicate, and waits as the first did."""
    caller, _ = pair
    message = NewMessage("m1", tail(b"x"))
    command = send(caller.keys(), [message], lane="lane", sequence=1, replicas=1, within_ms=2000)
    first, second = (caller.sync_client.execute(command) for _ in range(2))
    assert (first.repeated, second.repeated) == (False, True)
    assert caller.queue().inspect().ready == 1


@row("Disque", "ADDJOB ASYNC")
def test_a_send_waits_for_no_replica_by_default(pair: tuple[Caller, Any]) -> None:
    """Without `replicas` there is no WAIT: the call ends when the server has the message."""
    caller, _ = pair
    caller.queue().send("fast")
    caller.cli("send", "emails", '"fast"')
    stats = caller.ask("INFO", "commandstats")
    assert b"cmdstat_wait:calls" in stats  # the fixture's
    before = stats.partition(b"cmdstat_wait:calls=")[2].partition(b",")[0]
    caller.queue().send("fast")
    after = caller.ask("INFO", "commandstats").partition(b"cmdstat_wait:calls=")[2]
    assert after.partition(b",")[0] == before


@row("Disque", "GETJOB NOHANG COUNT FROM q1 q2")
def test_several_queues_are_served_left_to_right(caller: Caller) -> None:
    """One call takes up to `count` messages, fewer where there are fewer, and does not wait."""
    first, second = caller.queue("first"), caller.queue("second")
    wanted = [first.send("a"), first.send("b"), second.send("c")]
    messages = first.receive(9, then=[bare(second)])
    assert ids(messages) == wanted
    assert [message.queue for message in messages] == ["first", "first", "second"]
    assert caller.cli("message", "receive", "first", "second", "-n", "5") == ""


@row("Disque", "GETJOB TIMEOUT")
def test_a_receiver_waits_for_the_first_message(caller: Caller) -> None:
    """A waiting receiver gets a message as soon as it is sent."""
    sender = QWorker(caller.namespace, url=caller.url)
    timer = threading.Timer(0.2, lambda: sender.queue("emails").send("late"))
    timer.start()
    started = time.monotonic()
    assert [message.body for message in caller.queue().receive(wait="20s")] == [b'"late"']
    assert time.monotonic() - started < 15
    timer.join()
    sender.close()
    assert caller.queue().receive(wait="10ms") == []


@row("Disque", "GETJOB WITHCOUNTERS")
def test_a_message_comes_with_its_counters(caller: Caller) -> None:
    """Nacks and additional deliveries are counted apart, and known with each delivery."""
    queue = caller.queue()
    queue.send("again")
    queue.nack(queue.receive()[0])
    queue.receive()
    reaped(caller)
    [message] = queue.receive()
    assert (message.nacks, message.timeouts, message.additional_deliveries) == (1, 1, 2)
    shown = caller.cli_json("message", "show", message.id)
    assert (shown["nacks"], shown["additional_deliveries"]) == (1, 2)


@row("Disque", "SHOW")
def test_a_message_is_shown_with_all_its_fields(caller: Caller) -> None:
    """Id, queue, state, creation, TTL, delay, retry, counters, next requeue, next awake and body; what the cluster's
    nodes hold has no counterpart.
    """
    queue = caller.queue()
    late = queue.send({"a": 1}, delay="10m", ttl="1h", visibility="5m")
    details = queue.details(late)
    assert (details.message.id, details.message.queue, details.message.state) == (
        late,
        "emails",
        "delayed",
    )
    assert details.message.body == b'{"a":1}'
    assert abs(details.message.sent_ms - details.now_ms) < 60_000
    assert 3_500_000 < details.ttl_ms <= HOUR_MS
    assert (details.delay_ms, details.visibility_ms, details.requeue_in_ms) == (
        600_000,
        300_000,
        None,
    )
    assert 500_000 < details.due_in_ms <= 600_000
    queue.enqueue(late)
    queue.receive()
    shown = caller.cli_json("message", "show", late, "--queue", "emails")
    assert shown["state"] == "unacked"
    assert 200 < shown["requeue_in_seconds"] <= 300
    assert (shown["nacks"], shown["additional_deliveries"], shown["body"]) == (0, 0, '{"a":1}')
    assert queue.details("nobody") is None
