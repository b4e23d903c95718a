"""Every operation of RSMQ (smrchy/rsmq), under the name that it has here."""

from __future__ import annotations

import os
import threading

import pytest

from qworker import QWorker
from qworker.errors import (
    BodyTooLargeError,
    InvalidBodyError,
    InvalidNameError,
    InvalidOptionError,
    QueueExistsError,
    QueueNotFoundError,
    StaleReceiptError,
)
from tests.conformance.conftest import Caller
from tests.conformance.rows import row
from tests.conformance.times import daemon_comes_by, let_leases_run_out, let_pass
from tests.timing import Watch, keep_within


@row("RSMQ", "createQueue")
def test_a_queue_is_created_with_its_attributes(caller: Caller) -> None:
    """vt is `visibility`, maxsize is counted in bytes; a queue may also be created by its first message."""
    queue = caller.queue()
    queue.create(visibility="45s", delay="5s", maxsize="64KiB")
    attributes = queue.attributes()
    assert (attributes.visibility_ms, attributes.delay_ms, attributes.maxsize) == (
        45_000,
        5_000,
        65_536,
    )
    caller.cli("queue", "create", "texts", "visibility=1m")
    assert caller.queue("texts").attributes().visibility_ms == 60_000
    caller.queue("implicit").send("x")
    assert caller.queue("implicit").attributes().visibility_ms == 30_000


@row("RSMQ", "queueExists")
def test_a_queue_that_exists_is_not_created_again(caller: Caller) -> None:
    """Creating refuses a queue that is there; `configure` makes or changes it, as the caller likes."""
    queue = caller.queue()
    queue.create()
    with pytest.raises(QueueExistsError, match="queue 'emails' exists already"):
        queue.create(visibility="5s")
    caller.queue("used").send("x")
    with pytest.raises(QueueExistsError):
        caller.queue("used").create()
    assert "exists already" in caller.cli("queue", "create", "emails", code=1)
    assert queue.attributes().visibility_ms == 30_000


@row("RSMQ", "listQueues")
def test_queues_are_listed(caller: Caller) -> None:
    """All queues of the namespace, sorted: made, or sent to."""
    caller.queue("b").create()
    caller.queue("a").send("x")
    app = QWorker(caller.namespace, url=caller.url)
    names = caller.finish(app.aqueues()) if caller.way == "async" else app.queues()
    assert names == ["a", "b"]
    caller.finish(app.aclose())
    app.close()
    assert [queue["queue"] for queue in caller.cli_json("queue", "ls")["queues"]] == ["a", "b"]


@row("RSMQ", "deleteQueue")
def test_a_queue_is_deleted_with_its_messages(caller: Caller) -> None:
    """Nothing is left of a deleted queue: no key, no entry in the list."""
    for name in ("emails", "texts"):
        queue = caller.queue(name)
        queue.send_many(range(3))
        queue.send("later", delay="1h")
        queue.receive(2)
    caller.queue("emails").remove()
    caller.cli("queue", "rm", "texts", "--yes")
    assert caller.ask("KEYS", f"{caller.namespace}:*") == []


@row("RSMQ", "getQueueAttributes")
def test_attributes_totals_and_counts_are_read(caller: Caller) -> None:
    """vt, delay, maxsize, totals, created, modified, msgs, and hidden messages: delayed and unacked apart."""
    queue = caller.queue()
    before_ms = caller.now_ms()
    queue.create(delay="0s")
    queue.send_many(range(4))
    queue.send("later", delay="1h")
    queue.receive(2)
    seen = queue.inspect()
    assert before_ms <= seen.created_ms <= caller.now_ms()
    assert seen.modified_ms == seen.created_ms
    assert (seen.sent_total, seen.received_total) == (5, 2)
    assert (seen.ready, seen.delayed, seen.unacked, seen.stored) == (2, 1, 2, 5)
    assert queue.attributes().maxsize == 262_144
    shown = caller.cli_json("queue", "show", "emails", "--over", "0")
    assert shown["ready"] == 2


@row("RSMQ", "setQueueAttributes")
def test_some_attributes_are_set_and_the_others_stay(caller: Caller) -> None:
    """At least one is changed, the others stay, `modified` is noted, and all are returned."""
    queue = caller.queue()
    queue.create(visibility="45s", maxlen=5)
    created_ms = queue.inspect().modified_ms
    after = queue.change(delay="3s", maxlen=7)
    assert (after.visibility_ms, after.delay_ms, after.maxlen) == (45_000, 3_000, 7)
    assert queue.attributes() == after
    assert queue.inspect().modified_ms >= created_ms
    caller.cli("queue", "set", "emails", "delay=4s")
    assert queue.attributes().delay_ms == 4000
    assert queue.attributes().maxlen == 7


@row("RSMQ", "noAttributeSupplied")
def test_setting_no_attribute_is_refused(caller: Caller) -> None:
    """A call that would change nothing is a mistake."""
    queue = caller.queue()
    queue.create()
    with pytest.raises(InvalidOptionError, match="attributes: none is given; give at least one of"):
        queue.change()
    assert "KEY=VALUE" in caller.cli("queue", "set", "emails", code=2)


@row("RSMQ", "queueNotFound")
def test_a_missing_queue_is_reported(caller: Caller) -> None:
    """Asking for the attributes of a queue that is not there, or setting them, is an error."""
    queue = caller.queue("typo")
    with pytest.raises(QueueNotFoundError, match="queue 'typo' does not exist"):
        queue.attributes()
    with pytest.raises(QueueNotFoundError):
        queue.change(delay="1s")
    caller.queue("type").send("x")
    for words in (("queue", "show"), ("queue", "set"), ("queue", "rm"), ("message", "receive")):
        more = ("delay=1s",) if words[1] == "set" else ()
        assert "did you mean 'type'" in caller.cli(*words, "typo", *more, code=2)


@row("RSMQ", "sendMessage")
def test_a_message_is_sent_with_a_delay(caller: Caller) -> None:
    """A sent message has a sortable id, and its own delay over the queue's."""
    queue = caller.queue()
    first, second = queue.send("one"), queue.send("two", delay="1h")
    assert first < second
    assert [message.id for message in queue.peek()] == [first]
    assert [message.id for message in queue.peek(state="delayed")] == [second]
    queue.change(delay="1h")
    third = queue.send("three")
    assert [message.id for message in queue.peek(state="delayed")] == [second, third]
    shown = caller.cli_json("send", "emails", '"four"', "--delay", "0")
    assert shown["ids"] == [message.id for message in queue.peek()][1:]


@row("RSMQ", "receiveMessage")
def test_a_message_is_received_with_a_visibility(caller: Caller) -> None:
    """A received message has id, body, sent, first received and count; its own vt over the queue's."""
    queue = caller.queue()
    queue.create(visibility="45s")
    sent = queue.send_many(["one", "two"])
    (first,) = queue.receive()
    (second,) = queue.receive(visibility="5s")
    assert (first.id, first.json(), second.id) == (sent[0], "one", sent[1])
    assert first.deadline_ms - first.received_ms == 45_000
    assert second.deadline_ms - second.received_ms == 5_000
    assert queue.receive() == []
    queue.send("three")
    shown = caller.cli_json("message", "receive", "emails", "--visibility", "7s")["messages"][0]
    assert shown["body"] == '"three"'
    assert shown["deadline_ms"] - shown["received_ms"] == 7000


@row("RSMQ", "sent, first received and receive count")
def test_a_message_has_the_time_of_its_first_receive(caller: Caller) -> None:
    """Over a failure and over a lost receiver the first time stays, and every delivery counts."""
    queue = caller.queue()
    queue.send("x")
    (first,) = queue.receive()
    assert first.receive_count == 1
    assert first.sent_ms <= first.first_received_ms == first.received_ms
    queue.nack(first)
    (second,) = queue.receive()
    assert (second.receive_count, second.first_received_ms) == (2, first.received_ms)
    let_leases_run_out(caller)
    daemon_comes_by(caller)
    (third,) = queue.receive()
    assert (third.receive_count, third.first_received_ms) == (3, first.received_ms)
    assert third.sent_ms == first.sent_ms
    queue.ack(third)
    queue.send("y")
    (lost,) = queue.receive(visibility="1m")
    let_pass(caller, 61)
    daemon_comes_by(caller)
    (message,) = queue.receive()
    assert message.receive_count == 2
    assert message.first_received_ms == lost.received_ms - 61_000


@row("RSMQ", "deleteMessage")
def test_a_message_is_deleted_with_its_receipt(caller: Caller) -> None:
    """A receipt acks its own delivery only: a receiver whose time is over cannot delete another one's message."""
    queue = caller.queue()
    queue.send_many(range(3))
    (late,) = queue.receive()
    let_leases_run_out(caller)
    daemon_comes_by(caller)
    (held,) = queue.receive()
    assert held.id != late.id or held.receipt != late.receipt
    assert queue.ack(late) == []
    assert queue.ack(held) == [held]
    assert queue.ack(held) == []
    (more,) = queue.receive()
    assert caller.cli("message", "ack", "emails", str(more.receipt)).strip() == str(more.receipt)
    assert "stale" in caller.cli("message", "ack", "emails", str(more.receipt), code=1)


@row("RSMQ", "popMessage")
def test_a_message_is_received_and_deleted_at_once(caller: Caller) -> None:
    """A popped message is gone: nothing is unacked, nothing comes back."""
    queue = caller.queue()
    ids = queue.send_many(range(4))
    assert [each.id for each in queue.pop()] == ids[:1]
    assert [each.id for each in queue.pop(2)] == ids[1:3]
    shown = caller.cli_json("message", "pop", "emails", "-n", "5")
    assert [message["id"] for message in shown["messages"]] == ids[3:]
    assert queue.pop() == []
    assert queue.inspect().stored == 0


@row("RSMQ", "changeMessageVisibility")
def test_a_visibility_is_changed_with_the_receipt(caller: Caller) -> None:
    """The new visibility counts from now; 0 makes the message visible; a stale receipt changes nothing."""
    queue = caller.queue()
    queue.send_many(range(2))
    first, second = queue.receive(2)
    longer = queue.extend(first, "2h")
    assert longer.deadline_ms - caller.now_ms() > 7_000_000
    with pytest.raises(StaleReceiptError):
        queue.extend(first, "5s")
    new = caller.cli("message", "extend", "emails", str(longer.receipt), "1h").strip()
    assert new != str(longer.receipt)
    queue.extend(second, 0)
    assert [message.id for message in queue.receive(5)] == [second.id]
    for visibility in ("13h", "-1s", "x"):
        with pytest.raises(InvalidOptionError, match="visibility"):
            queue.extend(second, visibility)


@row("RSMQ", "realtime")
def test_a_waiting_receiver_is_woken_by_a_send(caller: Caller) -> None:
    """The doorbell is a hint: it starts a receive at once, and the receive is what counts."""
    queue = caller.queue()
    queue.send("first")
    queue.pop()
    sender = Caller(caller.url, caller.namespace, "sync")

    def woken_s() -> float:
        timer = threading.Timer(0.1, lambda: sender.queue().send("now"))
        watch = Watch(os.getpid())
        timer.start()
        messages = queue.receive(wait="20s")
        passed_s = watch.passed_s()
        assert [message.json() for message in messages] == ["now"]
        timer.join()
        return passed_s

    keep_within(1.5, woken_s)  # without a bell it looks every two seconds
    sender.close()
    assert caller.ask("LLEN", caller.keys().wake) == 0


@row("RSMQ", "ns: namespaces")
def test_namespaces_keep_apart(caller: Caller) -> None:
    """The same queue name in two namespaces is two queues."""
    other = Caller(caller.url, caller.namespace + "b", caller.way)
    caller.queue().send("here")
    other.queue().send("there")
    assert [message.json() for message in caller.queue().receive(5)] == ["here"]
    assert [message.json() for message in other.queue().receive(5)] == ["there"]
    other.queue().remove()
    assert caller.queue().inspect().unacked == 1
    other.close()


@row("RSMQ", "quit")
def test_a_client_is_closed(caller: Caller) -> None:
    """Closing gives up the connections, and the client may be used again."""
    queue = caller.queue()
    queue.send("x")
    caller.finish(caller.client.close()) if caller.way == "async" else caller.client.close()
    assert len(queue.receive()) == 1


@row("RSMQ", "…Async twins of all methods")
def test_every_method_has_an_async_twin(caller: Caller) -> None:
    """What the sync queue can do the async one can, with the same arguments."""
    import inspect

    from qworker.client.queue import AsyncQueue, Queue

    def methods(kind: type) -> dict[str, str]:
        getmembers = inspect.getmembers(kind, inspect.isfunction)
        return {
            name: str(inspect.signature(method)).replace("Async", "")
            for name, method in getmembers
            if not name.startswith("_")
        }

    assert methods(Queue) == methods(AsyncQueue)


@row("RSMQ", "missingParameter, invalidFormat of names")
def test_names_have_rules(caller: Caller) -> None:
    """A queue's name is checked before anything is sent."""
    for name in ("", "a b", "a{b", "ü", "x" * 200, "a\n"):
        with pytest.raises(InvalidNameError):
            caller.queue(name)
        assert "queue" in caller.cli("queue", "create", name, code=2)
    caller.queue("a-z_0.9").send("x")


@row("RSMQ", "invalidValue of vt, delay and maxsize")
def test_numbers_have_ranges(caller: Caller) -> None:
    """A value out of range is refused with the range, and nothing is made."""
    for given in (
        {"visibility": "0s"},
        {"visibility": "13h"},
        {"delay": "-1s"},
        {"delay": "soon"},
        {"maxsize": 1000},
        {"maxsize": "65MiB"},
        {"maxlen": -1},
        {"maxlen": 1.5},
    ):
        with pytest.raises(InvalidOptionError) as refused:
            caller.queue().create(**given)
        assert refused.value.field == next(iter(given))
    assert "visibility" in caller.cli("queue", "create", "emails", "visibility=13h", code=2)
    assert caller.ask("KEYS", f"{caller.namespace}:*") == []


@row("RSMQ", "invalidValue of an unknown attribute")
def test_an_unknown_attribute_is_refused(caller: Caller) -> None:
    """A typo is reported with the attribute that may be meant."""
    with pytest.raises(InvalidOptionError, match="did you mean visibility"):
        caller.queue().create(visibilty="5s")
    assert "did you mean" in caller.cli("queue", "create", "emails", "visibilty=5s", code=2)


@row("RSMQ", "messageTooLong")
def test_a_message_over_maxsize_is_refused(caller: Caller) -> None:
    """maxsize counts bytes, not characters, and holds for every sender."""
    queue = caller.queue()
    queue.create(maxsize="1KiB")
    queue.send("ü" * 500)
    with pytest.raises(BodyTooLargeError):
        queue.send("ü" * 600)
    assert "1024" in caller.cli("send", "emails", '"' + "ü" * 600 + '"', code=2)
    assert queue.inspect().ready == 1


@row("RSMQ", "messageNotString")
def test_a_message_is_json_or_bytes(caller: Caller) -> None:
    """Any JSON value is a body, and bytes are sent as they are; what is neither is refused with its path."""
    queue = caller.queue()
    queue.send_many(["text", 5, {"a": [1]}, b"raw \x00 bytes"])
    bodies = [message.body for message in queue.receive(4)]
    assert bodies == [b'"text"', b"5", b'{"a":[1]}', b"raw \x00 bytes"]
    with pytest.raises(InvalidBodyError, match="price"):
        queue.send({"price": object()})
