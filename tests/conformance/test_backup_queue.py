"""The Lua backup queue: pushed to by any client, kept in a backup until acknowledged."""

from __future__ import annotations

import json

import pytest

from tests.conformance.conftest import Caller
from tests.conformance.rows import row
from tests.conformance.times import daemon_comes_by, let_leases_run_out


@row("backup queue", "RPUSH by any client")
def test_rpush_appends_a_message(caller: Caller) -> None:
    """Bare JSON that any client pushes is a message, behind those that are there."""
    queue = caller.queue()
    queue.send("first")
    caller.ask("RPUSH", caller.keys().ready[0], '{"n":2}', "[3]")
    assert [message.json() for message in queue.receive(5)] == ["first", {"n": 2}, [3]]


@row("backup queue", "LPUSH by any client")
def test_lpush_puts_a_message_in_front(caller: Caller) -> None:
    """What is pushed to the other end comes first."""
    queue = caller.queue()
    queue.send("last")
    caller.ask("LPUSH", caller.keys().ready[0], '{"n":1}')
    assert [message.json() for message in queue.receive(5)] == [{"n": 1}, "last"]
    caller.ask("LPUSH", caller.keys().ready[0], '{"n":2}')
    shown = caller.cli_json("message", "receive", "emails")
    assert [each["body"] for each in shown["messages"]] == ['{"n":2}']


@row("backup queue", "JSON without an id")
def test_json_without_an_id_gets_one(caller: Caller) -> None:
    """Equal bodies are different messages: each is named by its delivery, and keeps that name."""
    queue = caller.queue()
    caller.ask("RPUSH", caller.keys().ready[0], '{"n":1}', '{"n":1}')
    first, second = queue.receive(2)
    assert first.id != second.id
    assert first.plain
    queue.nack(first)
    queue.nack(second)
    assert {message.id for message in queue.receive(2)} == {first.id, second.id}


@row("backup queue", "JSON with an id")
def test_json_with_an_id_keeps_it_as_its_own(caller: Caller) -> None:
    """An id in the body is the sender's and stays there; it never stands for the message's."""
    queue = caller.queue()
    bodies = ['{"id":"7","n":1}', '{"id":"7","n":2}', '{"id":{},"n":3}', '{"id":']
    caller.ask("RPUSH", caller.keys().ready[0], *bodies)
    messages = queue.receive(5)
    assert [message.body.decode() for message in messages] == bodies
    assert len({message.id for message in messages}) == 4
    assert len(queue.ack(*messages)) == 4


@row("backup queue", "pop moves to the backup")
def test_a_received_message_stays_in_the_store(caller: Caller) -> None:
    """In hand a message is still in Redis, under the name of its receiver's lease."""
    queue = caller.queue()
    caller.ask("RPUSH", caller.keys().ready[0], '{"n":1}')
    (message,) = queue.receive()
    assert queue.inspect().unacked == 1
    (held,) = queue.pending()
    assert (held.body, held.receipt) == (b'{"n":1}', message.receipt)
    queue.ack(message)
    assert queue.inspect().unacked == 0


@row("backup queue", "restore from the backup")
def test_what_was_not_acked_is_restored(caller: Caller) -> None:
    """A receiver that dies loses nothing: its messages are in front again, in their order."""
    queue = caller.queue()
    caller.ask("RPUSH", caller.keys().ready[0], *(json.dumps({"n": n}) for n in range(4)))
    queue.receive(2)
    let_leases_run_out(caller)
    daemon_comes_by(caller)
    assert [message.json()["n"] for message in queue.receive(10)] == [0, 1, 2, 3]


@row("backup queue", "the time is the server's")
def test_no_caller_passes_the_time(caller: Caller) -> None:
    """Effects are replicated, so scripts ask the server's clock; a time that a caller gives is refused."""
    from qworker.engine.receive import settle_receive
    from qworker.errors import InvalidOptionError

    queue = caller.queue()
    caller.ask("RPUSH", caller.keys().ready[0], '{"n":1}')
    with pytest.raises(InvalidOptionError, match="was refused by the script"):
        caller.sync_client.execute(settle_receive(caller.keys(), "L", 1, now_ms=1))
    before_ms = caller.now_ms()
    (message,) = queue.receive()
    assert before_ms <= message.received_ms <= caller.now_ms()
    assert message.deadline_ms == message.received_ms + 30_000


@row("backup queue", "what is no message is set aside")
def test_foreign_items_stop_no_consumer(caller: Caller) -> None:
    """Text that is neither ours nor JSON goes to the dead letters with its bytes."""
    queue = caller.queue()
    caller.ask("RPUSH", caller.keys().ready[0], "hello", '{"n":1}')
    assert [message.json() for message in queue.receive(5)] == [{"n": 1}]
    (dead_letter,) = queue.dead()
    assert (dead_letter.reason, dead_letter.message.body) == ("foreign", b"hello")
