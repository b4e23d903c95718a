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
from tests.conformance.conftest import Place
from tests.conformance.rows import row
from tests.conformance.times import daemon_comes_by, let_leases_run_out, let_pass
from tests.timing import Watch, keep_within


@row("RSMQ", "createQueue")
def test_a_queue_is_created_with_its_attributes(place: Place) -> None:
    """vt is `visibility`, maxsize is counted in bytes; a queue may also be created by its first message."""
    queue = place.queue()
    queue.create(visibility="45s", delay="5s", maxsize="64KiB")
    attributes = queue.attributes()
    assert (attributes.visibility_ms, attributes.delay_ms, attributes.maxsize) == (
        45_000,
        5_000,
        65_536,
    )
    place.cli("queue", "create", "texts", "visibility=1m")
    assert place.queue("texts").attributes().visibility_ms == 60_000
    place.queue("implicit").send("x")
    assert place.queue("implicit").attributes().visibility_ms == 30_000


@row("RSMQ", "queueExists")
def test_a_queue_that_exists_is_not_created_again(place: Place) -> None:
    """Creating refuses a queue that is there; `configure` makes or changes it, as the caller likes."""
    queue = place.queue()
    queue.create()
    with pytest.raises(QueueExistsError, match="queue 'emails' exists already"):
        queue.create(visibility="5s")
    place.queue("used").send("x")
    with pytest.raises(QueueExistsError):
        place.queue("used").create()
    assert "exists already" in place.cli("queue", "create", "emails", code=1)
    assert queue.attributes().visibility_ms == 30_000


@row("RSMQ", "listQueues")
def test_queues_are_listed(place: Place) -> None:
    """All queues of the namespace, sorted: made, or sent to."""
    place.queue("b").create()
    place.queue("a").send("x")
    app = QWorker(place.namespace, url=place.url)
    names = place.finish(app.aqueues()) if place.way == "async" else app.queues()
    assert names == ["a", "b"]
    place.finish(app.aclose())
    app.close()
    assert [queue["queue"] for queue in place.cli_json("queue", "ls")["queues"]] == ["a", "b"]


@row("RSMQ", "deleteQueue")
def test_a_queue_is_deleted_with_its_messages(place: Place) -> None:
    """Nothing is left of a deleted queue: no key, no entry in the list."""
    for name in ("emails", "texts"):
        queue = place.queue(name)
        queue.send_many(range(3))
        queue.send("later", delay="1h")
        queue.receive(2)
    place.queue("emails").remove()
    place.cli("queue", "rm", "texts", "--yes")
    assert place.ask("KEYS", f"{place.namespace}:*") == []


@row("RSMQ", "getQueueAttributes")
def test_attributes_totals_and_counts_are_read(place: Place) -> None:
    """vt, delay, maxsize, totals, created, modified, msgs, and hidden messages: delayed and unacked apart."""
    queue = place.queue()
    before_ms = place.now_ms()
    queue.create(delay="0s")
    queue.send_many(range(4))
    queue.send("later", delay="1h")
    queue.receive(2)
    seen = queue.inspect()
    assert before_ms <= seen.created_ms <= place.now_ms()
    assert seen.modified_ms == seen.created_ms
    assert (seen.sent_total, seen.received_total) == (5, 2)
    assert (seen.ready, seen.delayed, seen.unacked, seen.stored) == (2, 1, 2, 5)
    assert queue.attributes().maxsize == 262_144
    shown = place.cli_json("queue", "show", "emails", "--over", "0")
    assert shown["ready"] == 2


@row("RSMQ", "setQueueAttributes")
def test_some_attributes_are_set_and_the_others_stay(place: Place) -> None:
    """At least one is changed, the others stay, `modified` is noted, and all are returned."""
    queue = place.queue()
    queue.create(visibility="45s", maxlen=5)
    created_ms = queue.inspect().modified_ms
    after = queue.change(delay="3s", maxlen=7)
    assert (after.visibility_ms, after.delay_ms, after.maxlen) == (45_000, 3_000, 7)
    assert queue.attributes() == after
    assert queue.inspect().modified_ms >= created_ms
    place.cli("queue", "set", "emails", "delay=4s")
    assert queue.attributes().delay_ms == 4000
    assert queue.attributes().maxlen == 7


@row("RSMQ", "noAttributeSupplied")
def test_setting_no_attribute_is_refused(place: Place) -> None:
    """A call that would change nothing is a mistake."""
    queue = place.queue()
    queue.create()
    with pytest.raises(InvalidOptionError, match="attributes: none is given; give at least one of"):
        queue.change()
    assert "KEY=VALUE" in place.cli("queue", "set", "emails", code=2)


@row("RSMQ", "queueNotFound")
def test_a_missing_queue_is_reported(place: Place) -> None:
    """Asking for the attributes of a queue that is not there, or setting them, is an error."""
    queue = place.queue("typo")
    with pytest.raises(QueueNotFoundError, match="queue 'typo' does not exist"):
        queue.attributes()
    with pytest.raises(QueueNotFoundError):
        queue.change(delay="1s")
    place.queue("type").send("x")
    for words in (("queue", "show"), ("queue", "set"), ("queue", "rm"), ("message", "receive")):
        more = ("delay=1s",) if words[1] == "set" else ()
        assert "did you mean 'type'" in place.cli(*words, "typo", *more, code=2)


@row("RSMQ", "sendMessage")
def test_a_message_is_sent_with_a_delay(place: Place) -> None:
    """A sent message has a sortable id, and its own delay over the queue's."""
    queue = place.queue()
    first, second = queue.send("one"), queue.send("two", delay="1h")
    assert first < second
    assert [message.id for message in queue.peek()] == [first]
    assert [message.id for message in queue.peek(state="delayed")] == [second]
    queue.change(delay="1h")
    third = queue.send("three")
    assert [message.id for message in queue.peek(state="delayed")] == [second, third]
    shown = place.cli_json("send", "emails", '"four"', "--delay", "0")
    assert shown["ids"] == [message.id for message in queue.peek()][1:]


@row("RSMQ", "receiveMessage")
def test_a_message_is_received_with_a_visibility(place: Place) -> None:
    """A received message has id, body, sent, first received and count; its own vt over the queue's."""
    queue = place.queue()
    queue.create(visibility="45s")
    sent = queue.send_many(["one", "two"])
    (first,) = queue.receive()
    (second,) = queue.receive(visibility="5s")
    assert (first.id, first.json(), second.id) == (sent[0], "one", sent[1])
    assert first.deadline_ms - first.received_ms == 45_000
    assert second.deadline_ms - second.received_ms == 5_000
    assert queue.receive() == []
    queue.send("three")
    shown = place.cli_json("message", "receive", "emails", "--visibility", "7s")["messages"][0]
    assert shown["body"] == '"three"'
    assert shown["deadline_ms"] - shown["received_ms"] == 7000


@row("RSMQ", "sent, first received and receive count")
def test_a_message_has_the_time_of_its_first_receive(place: Place) -> None:
    """Over a failure and over a lost receiver the first time stays, and every delivery counts."""
    queue = place.queue()
    queue.send("x")
    (first,) = queue.receive()
    assert first.receive_count == 1
    assert first.sent_ms <= first.first_received_ms == first.received_ms
    queue.nack(first)
    (second,) = queue.receive()
    assert (second.receive_count, second.first_received_ms) == (2, first.received_ms)
    let_leases_run_out(place)
    daemon_comes_by(place)
    (third,) = queue.receive()
    assert (third.receive_count, third.first_received_ms) == (3, first.received_ms)
    assert third.sent_ms == first.sent_ms
    queue.ack(third)
    queue.send("y")
    (lost,) = queue.receive(visibility="1m")
    let_pass(place, 61)
    daemon_comes_by(place)
    (message,) = queue.receive()
    assert message.receive_count == 2
    assert message.first_received_ms == lost.received_ms - 61_000


@row("RSMQ", "deleteMessage")
def test_a_message_is_deleted_with_its_receipt(place: Place) -> None:
    """A receipt acks its own delivery only: a receiver whose time is over cannot delete another one's message."""
    queue = place.queue()
    queue.send_many(range(3))
    (late,) = queue.receive()
    let_leases_run_out(place)
    daemon_comes_by(place)
    (held,) = queue.receive()
    assert held.id != late.id or held.receipt != late.receipt
    assert queue.ack(late) == []
    assert queue.ack(held) == [held]
    assert queue.ack(held) == []
    (more,) = queue.receive()
    assert place.cli("message", "ack", "emails", str(more.receipt)).strip() == str(more.receipt)
    assert "stale" in place.cli("message", "ack", "emails", str(more.receipt), code=1)


@row("RSMQ", "popMessage")
def test_a_message_is_received_and_deleted_at_once(place: Place) -> None:
    """A popped message is gone: nothing is unacked, nothing comes back."""
    queue = place.queue()
    ids = queue.send_many(range(4))
    assert [each.id for each in queue.pop()] == ids[:1]
    assert [each.id for each in queue.pop(2)] == ids[1:3]
    shown = place.cli_json("message", "pop", "emails", "-n", "5")
    assert [message["id"] for message in shown["messages"]] == ids[3:]
    assert queue.pop() == []
    assert queue.inspect().stored == 0


@row("RSMQ", "changeMessageVisibility")
def test_a_visibility_is_changed_with_the_receipt(place: Place) -> None:
    """The new visibility counts from now; 0 makes the message visible; a stale receipt changes nothing."""
    queue = place.queue()
    queue.send_many(range(2))
    first, second = queue.receive(2)
    longer = queue.extend(first, "2h")
    assert longer.deadline_ms - place.now_ms() > 7_000_000
    with pytest.raises(StaleReceiptError):
        queue.extend(first, "5s")
    new = place.cli("message", "extend", "emails", str(longer.receipt), "1h").strip()
    assert new != str(longer.receipt)
    queue.extend(second, 0)
    assert [message.id for message in queue.receive(5)] == [second.id]
    for visibility in ("13h", "-1s", "x"):
        with pytest.raises(InvalidOptionError, match="visibility"):
            queue.extend(second, visibility)


@row("RSMQ", "realtime")
def test_a_waiting_receiver_is_woken_by_a_send(place: Place) -> None:
    """The doorbell is a hint: it starts a receive at once, and the receive is what counts."""
    queue = place.queue()
    queue.send("first")
    queue.pop()
    sender = Place(place.url, place.namespace, "sync")

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
    assert place.ask("LLEN", place.keys().wake) == 0


@row("RSMQ", "ns: namespaces")
def test_namespaces_keep_apart(place: Place) -> None:
    """The same queue name in two namespaces is two queues."""
    other = Place(place.url, place.namespace + "b", place.way)
    place.queue().send("here")
    other.queue().send("there")
    assert [message.json() for message in place.queue().receive(5)] == ["here"]
    assert [message.json() for message in other.queue().receive(5)] == ["there"]
    other.queue().remove()
    assert place.queue().inspect().unacked == 1
    other.close()


@row("RSMQ", "quit")
def test_a_client_is_closed(place: Place) -> None:
    """Closing gives up the connections, and the client may be used again."""
    queue = place.queue()
    queue.send("x")
    place.finish(place.client.close()) if place.way == "async" else place.client.close()
    assert len(queue.receive()) == 1


@row("RSMQ", "…Async twins of all methods")
def test_every_method_has_an_async_twin(place: Place) -> None:
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
def test_names_have_rules(place: Place) -> None:
    """A queue's name is checked before anything is sent."""
    for name in ("", "a b", "a{b", "ü", "x" * 200, "a\n"):
        with pytest.raises(InvalidNameError):
            place.queue(name)
        assert "queue" in place.cli("queue", "create", name, code=2)
    place.queue("a-z_0.9").send("x")


@row("RSMQ", "invalidValue of vt, delay and maxsize")
def test_numbers_have_ranges(place: Place) -> None:
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
            place.queue().create(**given)
        assert refused.value.field == next(iter(given))
    assert "visibility" in place.cli("queue", "create", "emails", "visibility=13h", code=2)
    assert place.ask("KEYS", f"{place.namespace}:*") == []


@row("RSMQ", "invalidValue of an unknown attribute")
def test_an_unknown_attribute_is_refused(place: Place) -> None:
    """A typo is reported with the attribute that may be meant."""
    with pytest.raises(InvalidOptionError, match="did you mean visibility"):
        place.queue().create(visibilty="5s")
    assert "did you mean" in place.cli("queue", "create", "emails", "visibilty=5s", code=2)


@row("RSMQ", "messageTooLong")
def test_a_message_over_maxsize_is_refused(place: Place) -> None:
    """maxsize counts bytes, not characters, and holds for every sender."""
    queue = place.queue()
    queue.create(maxsize="1KiB")
    queue.send("ü" * 500)
    with pytest.raises(BodyTooLargeError):
        queue.send("ü" * 600)
    assert "1024" in place.cli("send", "emails", '"' + "ü" * 600 + '"', code=2)
    assert queue.inspect().ready == 1


@row("RSMQ", "messageNotString")
def test_a_message_is_json_or_bytes(place: Place) -> None:
    """Any JSON value is a body, and bytes are sent as they are; what is neither is refused with its path."""
    queue = place.queue()
    queue.send_many(["text", 5, {"a": [1]}, b"raw \x00 bytes"])
    bodies = [message.body for message in queue.receive(4)]
    assert bodies == [b'"text"', b"5", b'{"a":[1]}', b"raw \x00 bytes"]
    with pytest.raises(InvalidBodyError, match="price"):
        queue.send({"price": object()})
