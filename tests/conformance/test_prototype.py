"""The Redis queue prototype: consume many at once, or later; acknowledge until a deadline; with or without a daemon."""

from __future__ import annotations

from datetime import timedelta

import pytest

from qworker.errors import InvalidOptionError, StaleReceiptError
from tests.conformance.conftest import Caller
from tests.conformance.rows import row
from tests.conformance.times import daemon_comes_by, let_clock_pass, let_leases_run_out, let_pass

#: The longest delay: 139 years from now on its end is still a number that a score keeps.
FARTHEST_MS = 2**52 - 2**42


@row("prototype", "multi-consume of n in one call")
def test_n_messages_come_in_one_call(caller: Caller) -> None:
    """A receive takes up to 1,000 messages into one lease, in their order."""
    queue = caller.queue()
    ids = queue.send_many(range(5))
    messages = queue.receive(3)
    assert [message.id for message in messages] == ids[:3]
    assert len({message.receipt.lease_id for message in messages}) == 1
    shown = caller.cli_json("message", "receive", "emails", "-n", "2")
    assert [each["id"] for each in shown["messages"]] == ids[3:]


@row("prototype", "fewer when there are fewer")
def test_fewer_come_where_there_are_fewer(caller: Caller) -> None:
    """A receive does not wait for its batch to fill up; an empty queue gives nothing."""
    queue = caller.queue()
    queue.send_many(range(2))
    assert len(queue.receive(100)) == 2
    assert queue.receive(100) == []
    for count in (0, 1001, -1, "3", True):
        with pytest.raises(InvalidOptionError, match=r"count: .* a number from 1 to 1000"):
            queue.receive(count)


@row("prototype", "delayed consume, due up to 2^53 ms")
def test_a_message_is_consumed_later(caller: Caller) -> None:
    """A delay counts to the millisecond, and its end up to 2^52 ms since 1970; the message is not delivered before."""
    queue = caller.queue()
    before_ms = caller.now_ms()
    soon = queue.send("soon", delay="1500ms")
    far = queue.send("far", delay=timedelta(milliseconds=FARTHEST_MS))
    assert queue.receive(10) == []
    first, last = queue.peek(state="delayed")
    assert (first.id, last.id) == (soon, far)
    assert before_ms + 1500 <= first.at_ms <= caller.now_ms() + 1500
    assert before_ms + FARTHEST_MS <= last.at_ms <= caller.now_ms() + FARTHEST_MS
    assert last.at_ms < 2**52
    let_pass(caller, 2)
    daemon_comes_by(caller)
    assert [message.id for message in queue.receive(10)] == [soon]
    sent = caller.cli_json("send", "emails", '"x"', "--delay", f"{FARTHEST_MS}ms")
    assert sent["sent"] == 1


@row("prototype", "acknowledge until a deadline")
def test_acked_in_time_a_message_is_done(caller: Caller) -> None:
    """A message that is acked before its deadline never comes back."""
    queue = caller.queue()
    queue.send_many(range(2))
    first, second = queue.receive(2, visibility="5s")
    assert first.deadline_ms == first.received_ms + 5000
    assert queue.ack(first, second) == [first, second]
    let_leases_run_out(caller)
    daemon_comes_by(caller)
    assert queue.receive(10) == []
    assert queue.inspect().stored == 0


@row("prototype", "not acknowledged until the deadline")
def test_not_acked_in_time_a_message_comes_back(caller: Caller) -> None:
    """After its deadline a message comes back, in its order, and the late ack changes nothing."""
    queue = caller.queue()
    ids = queue.send_many(range(3))
    late = queue.receive(2)
    let_leases_run_out(caller)
    daemon_comes_by(caller)
    again = queue.receive(10)
    assert [each.id for each in again] == ids
    assert [message.receive_count for message in again] == [2, 2, 1]
    assert queue.ack(*late) == []
    with pytest.raises(StaleReceiptError):
        queue.nack(late[0])
    assert queue.ack(*again) == again


@row("prototype", "driven by the daemon")
def test_the_daemon_moves_due_messages(caller: Caller) -> None:
    """Receivers move no messages: the daemon promotes and reaps them."""
    queue = caller.queue()
    later = queue.send("later", delay="10s")
    lost = queue.send_many(range(2))
    queue.receive(2)
    let_leases_run_out(caller)
    assert queue.receive(10) == []
    daemon_comes_by(caller)
    assert {message.id for message in queue.receive(10)} == {later, *lost}


@row("prototype", "driven by the consumer on each receive")
def test_without_a_daemon_the_receiver_moves_due_messages(caller: Caller) -> None:
    """`reap=True` does the daemon's work on the queue before each receive, a bounded part of it."""
    queue = caller.queue()
    later = queue.send("later", delay="10s")
    lost = queue.send_many(range(2))
    queue.receive(2)
    expired = queue.send("expired", ttl="1ms")
    let_clock_pass(caller, 1)
    let_leases_run_out(caller)
    messages = queue.receive(10, reap=True)
    assert {each.id for each in messages} == {later, *lost}
    assert expired not in {each.id for each in messages}
    queue.ack(*messages)
    lost = queue.send_many(range(2))
    queue.receive(2)
    let_leases_run_out(caller)
    shown = caller.cli_json("message", "receive", "emails", "-n", "10", "--reap")
    assert [message["id"] for message in shown["messages"]] == lost


@row("prototype", "waiting consumer without a daemon")
def test_without_a_daemon_a_waiting_receiver_is_woken_by_the_time(caller: Caller) -> None:
    """A receiver that waits with `reap=True` gets a delayed message when it is due."""
    queue = caller.queue()
    sent = queue.send("later", delay="50ms")
    assert [message.id for message in queue.receive(wait="10s", reap=True)] == [sent]
