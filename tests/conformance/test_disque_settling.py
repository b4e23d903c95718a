"""Disque's operations that end jobs or ask for more time, under the names that they have here."""

from __future__ import annotations

import pytest

from qworker.errors import (
    StaleReceiptError,
    TooLateError,
)
from tests.conformance.conftest import Caller
from tests.conformance.driving import ids, listed, reaped
from tests.conformance.rows import row
from tests.consumer.driving import until


@row("Disque", "ACKJOB")
def test_many_messages_are_acked_in_one_call(caller: Caller) -> None:
    """An ack counts once; what was acked before changes nothing and is not among those returned."""
    queue = caller.queue()
    queue.send_many(["a", "b", "c"])
    a, b, c = queue.receive(3)
    assert queue.ack(a, b) == [a, b]
    assert queue.ack(a, b, c) == [c]
    queue.send("d")
    [d] = queue.receive()
    assert caller.cli("message", "ack", "emails", str(d.receipt)).strip() == str(d.receipt)
    assert queue.inspect().stored == 0


@row("Disque", "FASTACK")
def test_an_ack_is_fast(caller: Caller) -> None:
    """There is one ack, in one trip with no gossip to save: it takes one script call, whatever the number."""
    queue = caller.queue()
    queue.send_many([str(n) for n in range(101)])
    queue.ack(*queue.receive(1))  # from now on the server knows the script
    messages = queue.receive(100)
    before = _scripts(caller)
    assert len(queue.ack(*messages)) == 100
    assert _scripts(caller) - before == 1


@row("Disque", "WORKING")
def test_who_works_on_a_message_gets_its_retry_time_again(caller: Caller) -> None:
    """The deadline moves to the message's own visibility from now, and is reported; the old receipt is stale."""
    queue = caller.queue()
    queue.send("long", visibility="10m", ttl="1d")
    queue.send("usual")
    held, usual = queue.receive(2)
    caller.ask("ZADD", caller.keys().unacked, caller.now_ms() + 500, held.receipt.lease_id)
    again = queue.working(held)
    assert abs(again.deadline_ms - caller.now_ms() - 600_000) < 5000
    with pytest.raises(StaleReceiptError):
        queue.working(held)
    assert abs(queue.working(usual).deadline_ms - caller.now_ms() - 30_000) < 5000
    assert abs(queue.working(again, "1m").deadline_ms - caller.now_ms() - 60_000) < 5000
    receipt = str(queue.peek(state="unacked", newest=True)[0].receipt)
    shown = caller.cli_json("message", "working", "emails", receipt)
    assert shown["deadline_ms"] > caller.now_ms()


@pytest.mark.slow
@row("Disque", "WORKING after half of the TTL")
def test_working_is_refused_past_half_of_the_time_to_live(caller: Caller) -> None:
    """More time is refused when half of the time to live is over: the deadline stands, and others get their turn."""
    queue = caller.queue()
    queue.send("brief", ttl="6s")
    [message] = queue.receive(visibility="30s")
    message = queue.working(message)
    until(lambda: caller.now_ms() > message.sent_ms + 3000)
    with pytest.raises(TooLateError, match="half of its time to live was over") as late:
        queue.working(message)
    assert late.value.message_id == message.id
    assert late.value.half_ms == message.sent_ms + 3000
    refused = caller.cli("message", "working", "emails", str(message.receipt), code=1)
    assert "half of its time to live" in refused
    assert queue.ack(message) == [message]


@row("Disque", "NACK")
def test_a_nack_puts_a_message_back_at_once_and_is_counted(caller: Caller) -> None:
    """A nack counts apart from timeouts, and at max receives the message is dead."""
    queue = caller.queue()
    queue.send("bad", max_receives=2)
    queue.nack(queue.receive()[0])
    [again] = queue.receive()
    assert (again.nacks, again.timeouts) == (1, 0)
    caller.cli("message", "nack", "emails", str(again.receipt))
    assert ids(queue.peek(state="dead")) == [again.id]


@row("Disque", "DELJOB")
def test_a_message_is_deleted_anywhere_in_its_life(caller: Caller) -> None:
    """Delete finds a message in every state and says in which; an unacked one is dropped if it comes back."""
    queue = caller.queue()
    ready, delayed = queue.send("ready"), queue.send("delayed", delay="1h")
    held = queue.send("held", unique="key")
    queue.hold(held)
    assert [queue.delete(each).state for each in (ready, delayed, held)] == [
        "ready",
        "delayed",
        "held",
    ]
    dead, unacked = queue.send("dead"), queue.send("unacked")
    first, _ = queue.receive(2)
    queue.bury(first)
    assert queue.delete(dead).state == "dead"
    assert caller.cli("message", "delete", "emails", unacked, "--yes").split() == [
        unacked,
        "unacked",
    ]
    assert queue.delete("nobody") is None
    assert "could not be deleted" in caller.cli(
        "message", "delete", "emails", "x1", "--yes", code=1
    )
    reaped(caller)
    assert listed(caller, queue.scan()) == []
    assert queue.inspect().stored == 0
    queue.send("again", unique="key")
    assert queue.inspect().ready == 1


def _scripts(caller: Caller) -> int:
    stats = caller.ask("INFO", "commandstats")
    return int(stats.partition(b"cmdstat_evalsha:calls=")[2].partition(b",")[0])
