"""Every operation of Disque (antirez/disque), under the name that it has here."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker
from qworker.client.commands.sending import NewMessage, send
from qworker.client.commands.upkeep import reap
from qworker.errors import (
    InvalidOptionError,
    NotReplicatedError,
    QueueFullError,
    QueuePausedError,
    StaleReceiptError,
    TooLateError,
)
from qworker.wire.envelope import tail
from tests import servers
from tests.conformance.conftest import Place
from tests.conformance.rows import row
from tests.consumer.driving import until
from tests.consumer.workers import Lab

HOUR_MS = 3_600_000


@pytest.fixture(params=["sync", "async"])
def pair(request: pytest.FixtureRequest, namespace: str) -> Iterator[tuple[Place, Any]]:
    """A place on a server that has one replica, and a client of the replica."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (
        servers.start("valkey", "--port", str(port), "--repl-diskless-sync-delay", "0") as master,
        servers.start("valkey", "--replicaof", "127.0.0.1", str(port)) as replica,
    ):
        redis = master.redis()
        until(lambda: redis.wait(1, 100) == 1)
        place = Place(master.url, namespace, request.param)
        yield place, replica
        place.close()


@pytest.fixture
def lab(store_url: str, namespace: str, tmp_path: Path) -> Iterator[Lab]:
    """A place for workers in processes of their own."""
    lab = Lab(store_url, namespace, tmp_path)
    yield lab
    lab.close()


@pytest.fixture
def app(place: Place) -> Iterator[QWorker]:
    """An app on the place's server and namespace."""
    app = QWorker(place.namespace, url=place.url)
    yield app
    app.close()


def listed(place: Place, found: Any) -> list[Any]:
    """Read an iterator to its end, whichever kind it is."""
    if not hasattr(found, "__aiter__"):
        return list(found)

    async def read() -> list[Any]:
        return [each async for each in found]

    return place.finish(read())


def reaped(place: Place, name: str = "emails") -> Any:
    """Let every lease of a queue run out, and take back what was in it, as a reaper does."""
    keys = place.keys(name)
    leases = [each.decode() for each in place.ask("ZRANGE", keys.unacked, 0, -1)]
    for lease in leases:
        place.ask("ZADD", keys.unacked, place.now_ms() - 1, lease)
    place.ask("HDEL", keys.stats, "reaped_ms")
    return place.sync_client.execute(reap(keys, leases, 1000))


def ids(messages: Any) -> list[str]:
    """The ids of messages."""
    return [each.id for each in messages]


# -- jobs -----------------------------------------------------------------------------------------


@row("Disque", "ADDJOB")
def test_a_message_is_added_and_its_queue_comes_to_be(place: Place) -> None:
    """A send makes the queue and answers with an id that sorts by time."""
    queue = place.queue()
    first, second = queue.send("one"), queue.send("two")
    third = place.cli("send", "emails", '"three"').strip()
    assert first < second
    assert ids(queue.peek()) == [first, second, third]


@row("Disque", "ADDJOB DELAY")
def test_a_message_waits_for_its_own_delay(place: Place) -> None:
    """A delay of one message says nothing of the others."""
    queue = place.queue()
    late = queue.send("late", delay="10m")
    later = place.cli("send", "emails", '"later"', "--delay", "20m").strip()
    queue.send("now")
    assert [each.body for each in queue.receive(9)] == [b'"now"']
    assert ids(queue.peek(state="delayed")) == [late, later]


@row("Disque", "ADDJOB RETRY")
def test_a_message_has_a_retry_time_of_its_own(place: Place) -> None:
    """`visibility` of a message is what its receiver gets, whatever the queue's; the others keep theirs."""
    queue = place.queue()
    queue.send("quick", visibility="5s")
    queue.send("usual")
    place.cli("send", "emails", '"slow"', "--visibility", "1h")
    quick, usual, slow = queue.receive(3)
    times = [each.deadline_ms - each.received_ms for each in (quick, usual, slow)]
    assert all(
        abs(ms - asked) < 2000 for ms, asked in zip(times, (5000, 30_000, HOUR_MS), strict=True)
    )
    assert queue.ack(quick, usual, slow) == [quick, usual, slow]


@row("Disque", "ADDJOB RETRY 0")
def test_a_message_at_most_once_is_never_delivered_again(place: Place) -> None:
    """With visibility 0 what is lost, alone or in company, and what fails is dead instead; the rest comes back."""
    queue = place.queue()
    once = queue.send("once", visibility=0)
    other = place.cli("send", "emails", '"once"', "--visibility", "0").strip()
    usual = queue.send("usual")
    assert ids(queue.receive(3)) == [once, other, usual]
    reaped(place)
    assert ids(queue.peek(state="ready")) == [usual]
    assert sorted(ids(queue.peek(state="dead"))) == sorted([once, other])
    failing = queue.send("failing", visibility=0, priority=1)
    queue.nack(queue.receive()[0])
    assert ids(queue.receive(9)) == [usual]
    assert failing in ids(queue.peek(state="dead"))


@row("Disque", "ADDJOB TTL")
def test_a_message_lives_for_its_time_only(place: Place) -> None:
    """What is older than its time to live is never delivered."""
    queue = place.queue()
    queue.send("old", ttl="1ms")
    place.cli("send", "emails", '"old"', "--ttl", "1ms")
    kept = queue.send("kept", ttl="1h")
    time.sleep(0.01)
    assert ids(queue.receive(9)) == [kept]
    assert queue.inspect().stats["expired"] == 2


@row("Disque", "ADDJOB MAXLEN")
def test_a_send_is_refused_over_its_own_maxlen(place: Place) -> None:
    """Each send may say how full the queue may get by it; nothing is trimmed, and others are not concerned."""
    queue = place.queue()
    queue.send_all(["a", "b"], maxlen=2)
    with pytest.raises(QueueFullError) as refused:
        queue.send("c", maxlen=2)
    assert (refused.value.stored, refused.value.maxlen) == (2, 2)
    assert "is full" in place.cli("send", "emails", '"c"', "--maxlen", "2", code=1)
    queue.send("d")
    queue.send("e", maxlen=4)
    assert queue.inspect().ready == 4


@row("Disque", "ADDJOB REPLICATE ms-timeout")
def test_a_send_waits_for_its_replicas(pair: tuple[Place, Any]) -> None:
    """With `replicas` a send answers when so many have the message; where they do not in time it says so.

    The message is stored all the same, its id is told, and the same call on the same lane stores nothing twice.
    """
    place, replica = pair
    queue = place.queue()
    sent = queue.send("safe", replicas=1, within="2s")
    key = place.keys().ready[0]
    assert sent.encode() in replica.redis().lrange(key, 0, -1)[0]
    with pytest.raises(
        NotReplicatedError, match="stored, but on 1 of 2 replicas within 20 ms"
    ) as less:
        queue.send_all([str(n) for n in range(1001)], replicas=2, within="20ms")
    assert ids(queue.peek(1000))[1:3] == less.value.ids[:2]
    assert (less.value.replicas, less.value.wanted, len(less.value.ids)) == (1, 2, 1001)
    assert queue.inspect().ready == 1002
    assert queue.replicated(1, within="2s") == 1
    assert "stored" in place.cli(
        "send", "emails", '"x"', "--replicas", "2", "--within", "10ms", code=1
    )


@row("Disque", "ADDJOB REPLICATE ms-timeout")
def test_a_repeated_send_waits_for_what_it_stored_before(pair: tuple[Place, Any]) -> None:
    """A call whose reply was lost is repeated on its lane: it is known as a duplicate, and waits as the first did."""
    place, _ = pair
    message = NewMessage("m1", tail(b"x"))
    command = send(place.keys(), [message], lane="lane", sequence=1, replicas=1, within_ms=2000)
    first, second = (place.sync_client.execute(command) for _ in range(2))
    assert (first.repeated, second.repeated) == (False, True)
    assert place.queue().inspect().ready == 1


@row("Disque", "ADDJOB ASYNC")
def test_a_send_waits_for_nobody_unless_it_says_so(pair: tuple[Place, Any]) -> None:
    """Without `replicas` there is no WAIT: the call ends when the server has the message."""
    place, _ = pair
    place.queue().send("fast")
    place.cli("send", "emails", '"fast"')
    stats = place.ask("INFO", "commandstats")
    assert b"cmdstat_wait:calls" in stats  # the fixture's
    before = stats.partition(b"cmdstat_wait:calls=")[2].partition(b",")[0]
    place.queue().send("fast")
    after = place.ask("INFO", "commandstats").partition(b"cmdstat_wait:calls=")[2]
    assert after.partition(b",")[0] == before


@row("Disque", "GETJOB NOHANG COUNT FROM q1 q2")
def test_several_queues_are_served_left_to_right(place: Place) -> None:
    """One call takes up to `count` messages, fewer where there are fewer, and does not wait."""
    first, second = place.queue("first"), place.queue("second")
    wanted = [first.send("a"), first.send("b"), second.send("c")]
    found = first.receive(9, then=[_bare(second)])
    assert ids(found) == wanted
    assert [each.queue for each in found] == ["first", "first", "second"]
    assert place.cli("message", "receive", "first", "second", "-n", "5") == ""


@row("Disque", "GETJOB TIMEOUT")
def test_a_receiver_waits_for_the_first_message(place: Place) -> None:
    """A waiting receiver gets a message as soon as it is sent."""
    sender = QWorker(place.namespace, url=place.url)
    timer = threading.Timer(0.2, lambda: sender.queue("emails").send("late"))
    timer.start()
    started = time.monotonic()
    assert [each.body for each in place.queue().receive(wait="20s")] == [b'"late"']
    assert time.monotonic() - started < 15
    timer.join()
    sender.close()
    assert place.queue().receive(wait="10ms") == []


@row("Disque", "GETJOB WITHCOUNTERS")
def test_a_message_comes_with_its_counters(place: Place) -> None:
    """Nacks and additional deliveries are counted apart, and known with each delivery."""
    queue = place.queue()
    queue.send("again")
    queue.nack(queue.receive()[0])
    queue.receive()
    reaped(place)
    [message] = queue.receive()
    assert (message.nacks, message.timeouts, message.additional_deliveries) == (1, 1, 2)
    shown = place.cli_json("message", "show", message.id)
    assert (shown["nacks"], shown["additional_deliveries"]) == (1, 2)


@row("Disque", "ACKJOB")
def test_many_messages_are_acked_in_one_call(place: Place) -> None:
    """An ack counts once; what was acked before changes nothing and is not among those returned."""
    queue = place.queue()
    queue.send_all(["a", "b", "c"])
    a, b, c = queue.receive(3)
    assert queue.ack(a, b) == [a, b]
    assert queue.ack(a, b, c) == [c]
    queue.send("d")
    [d] = queue.receive()
    assert place.cli("message", "ack", "emails", str(d.receipt)).strip() == str(d.receipt)
    assert queue.inspect().stored == 0


@row("Disque", "FASTACK")
def test_an_ack_is_fast(place: Place) -> None:
    """There is one ack, in one trip with no gossip to save: it takes one script call, whatever the number."""
    queue = place.queue()
    queue.send_all([str(n) for n in range(100)])
    messages = queue.receive(100)
    before = _scripts(place)
    assert len(queue.ack(*messages)) == 100
    assert _scripts(place) - before == 1


@row("Disque", "WORKING")
def test_who_works_on_a_message_gets_its_retry_time_again(place: Place) -> None:
    """The deadline moves to the message's own visibility from now, and is told; the old receipt is stale."""
    queue = place.queue()
    queue.send("long", visibility="10m", ttl="1d")
    queue.send("usual")
    held, usual = queue.receive(2)
    place.ask("ZADD", place.keys().unacked, place.now_ms() + 500, held.receipt.lease_id)
    again = queue.working(held)
    assert abs(again.deadline_ms - place.now_ms() - 600_000) < 5000
    with pytest.raises(StaleReceiptError):
        queue.working(held)
    assert abs(queue.working(usual).deadline_ms - place.now_ms() - 30_000) < 5000
    assert abs(queue.working(again, "1m").deadline_ms - place.now_ms() - 60_000) < 5000
    receipt = str(queue.peek(state="unacked", newest=True)[0].receipt)
    shown = place.cli_json("message", "working", "emails", receipt)
    assert shown["deadline_ms"] > place.now_ms()


@row("Disque", "WORKING after half of the TTL")
def test_nobody_works_on_a_message_past_half_of_its_life(place: Place) -> None:
    """More time is refused when half of the time to live is over: the deadline stands, and others get their turn."""
    queue = place.queue()
    queue.send("brief", ttl="200ms")
    [message] = queue.receive(visibility="10s")
    message = queue.working(message)
    time.sleep(0.15)
    with pytest.raises(TooLateError, match="half of its time to live was over") as late:
        queue.working(message)
    assert late.value.message_id == message.id
    assert late.value.half_ms == message.sent_ms + 100
    refused = place.cli("message", "working", "emails", str(message.receipt), code=1)
    assert "half of its time to live" in refused
    assert queue.ack(message) == [message]


@row("Disque", "NACK")
def test_a_nack_puts_a_message_back_at_once_and_is_counted(place: Place) -> None:
    """A nack counts apart from timeouts, and at max receives the message is dead."""
    queue = place.queue()
    queue.send("bad", max_receives=2)
    queue.nack(queue.receive()[0])
    [again] = queue.receive()
    assert (again.nacks, again.timeouts) == (1, 0)
    place.cli("message", "nack", "emails", str(again.receipt))
    assert ids(queue.peek(state="dead")) == [again.id]


@row("Disque", "DELJOB")
def test_a_message_is_deleted_anywhere_in_its_life(place: Place) -> None:
    """Delete finds a message in every state and says in which; what is in hand is dropped if it comes back."""
    queue = place.queue()
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
    assert place.cli("message", "delete", "emails", unacked, "--yes").split() == [
        unacked,
        "unacked",
    ]
    assert queue.delete("nobody") is None
    assert "could not be deleted" in place.cli("message", "delete", "emails", "x1", "--yes", code=1)
    reaped(place)
    assert listed(place, queue.scan()) == []
    assert queue.inspect().stored == 0
    queue.send("again", unique="key")
    assert queue.inspect().ready == 1


@row("Disque", "SHOW")
def test_a_message_is_shown_with_all_its_fields(place: Place) -> None:
    """Id, queue, state, creation, TTL, delay, retry, counters, next requeue, next awake and body; what the cluster's
    nodes hold has no counterpart.
    """
    queue = place.queue()
    late = queue.send({"a": 1}, delay="10m", ttl="1h", visibility="5m")
    found = queue.details(late)
    assert (found.message.id, found.message.queue, found.message.state) == (
        late,
        "emails",
        "delayed",
    )
    assert found.message.body == b'{"a":1}'
    assert abs(found.message.sent_ms - found.now_ms) < 10_000
    assert 3_590_000 < found.ttl_ms <= HOUR_MS
    assert (found.delay_ms, found.visibility_ms, found.requeue_in_ms) == (600_000, 300_000, None)
    assert 590_000 < found.due_in_ms <= 600_000
    queue.enqueue(late)
    queue.receive()
    shown = place.cli_json("message", "show", late, "--queue", "emails")
    assert shown["state"] == "unacked"
    assert 290 < shown["requeue_in_seconds"] <= 300
    assert (shown["nacks"], shown["additional_deliveries"], shown["body"]) == (0, 0, '{"a":1}')
    assert queue.details("nobody") is None


# -- queues ---------------------------------------------------------------------------------------


@row("Disque", "QLEN")
def test_the_length_of_a_queue_is_what_is_ready(place: Place) -> None:
    """Delayed messages and those in hand are counted apart."""
    queue = place.queue()
    queue.send_all(["a", "b", "c"])
    queue.send("late", delay="1h")
    queue.receive()
    seen = queue.inspect()
    assert (seen.ready, seen.delayed, seen.unacked) == (2, 1, 1)
    assert place.cli_json("queue", "show", "emails", "--over", "0")["ready"] == 2


@row("Disque", "QSTAT")
def test_a_queue_tells_what_it_does(place: Place) -> None:
    """Length, age, idle time, waiting consumers, what came and went with its rates, and the pause."""
    queue = place.queue()
    queue.create(visibility="1m")
    queue.send_all(["a", "b", "c"])
    before = queue.stat()
    queue.ack(*queue.receive(2))
    queue.pause("in", strict=True)
    time.sleep(0.05)
    seen = queue.stat()
    assert (seen.ready, seen.messages_in, seen.messages_out) == (1, 3, 2)
    assert 0 < seen.age_s < 60
    assert 0.05 <= seen.idle_s < 60
    assert (seen.consumers, seen.blocked, seen.paused, seen.strict) == (0, 0, "in", True)
    rate_in, rate_out = seen.rates_since(before)
    assert (rate_in, rate_out > 0) == (0.0, True)
    queue.receive()
    assert queue.stat().idle_s == 0
    told = place.cli_json("queue", "stat", "emails", "--over", "1ms")
    assert (told["messages_in"], told["messages_out"], told["paused"]) == (3, 3, "in")
    assert {"age_seconds", "idle_seconds", "blocked", "in_per_second", "out_per_second"} <= set(
        told
    )


@row("Disque", "QSTAT blocked")
def test_a_queue_tells_who_waits_for_it(lab: Lab) -> None:
    """Processes of workers that take from a queue are consumers; those with nothing in hand wait."""
    lab.app("@app.task\ndef block() -> None:\n    note('started')\n    time.sleep(60)\n")
    lab.start("--procs", "2", "--grace", "1s")
    until(lambda: (stat := lab.queue().stat()).consumers == stat.blocked == 2)
    lab.send("block")
    until(lambda: lab.queue().stat().blocked == 1)


@row("Disque", "QPEEK")
def test_a_queue_is_looked_at_from_both_ends(place: Place) -> None:
    """A negative count looks from the newest on; nothing is received by it."""
    queue = place.queue()
    a, b, c = (queue.send(each) for each in "abc")
    assert ids(queue.peek(2)) == [a, b]
    assert ids(queue.peek(-2)) == [c, b]
    told = place.cli_json("queue", "peek", "emails", "--count", "-2")
    assert [each["id"] for each in told["messages"]] == [c, b]
    assert queue.inspect().ready == 3
    with pytest.raises(InvalidOptionError):
        queue.peek(0)


@row("Disque", "ENQUEUE")
def test_a_delayed_message_is_enqueued_now(place: Place) -> None:
    """What is delayed goes to ready at once, at its priority; what is ready already stays."""
    queue = place.queue()
    ready = queue.send("ready")
    late, urgent = queue.send("late", delay="1h"), queue.send("urgent", delay="1h", priority=7)
    assert queue.enqueue(late, ready, urgent, "nobody") == [late, urgent]
    assert ids(queue.receive(9)) == [urgent, ready, late]
    other = queue.send("other", delay="1h")
    assert place.cli("message", "enqueue", "emails", other).strip() == other
    assert ids(queue.receive(9, wait="5s")) == [other]


@row("Disque", "DEQUEUE")
def test_a_message_is_taken_out_without_being_lost(place: Place) -> None:
    """Held messages wait without a due time, are listed as held, count as stored, and are enqueued again."""
    queue = place.queue()
    a, b, late = queue.send("a"), queue.send("b", priority=3), queue.send("c", delay="1h")
    assert queue.hold(b, late, "nobody") == [b, late]
    assert place.cli("message", "hold", "emails", a).strip() == a
    seen = queue.inspect()
    assert (seen.ready, seen.delayed, seen.held, seen.stored, seen.next_due_ms) == (
        0,
        3,
        3,
        3,
        None,
    )
    assert sorted(ids(queue.peek(state="held"))) == sorted([a, b, late])
    assert queue.show(a).state == "held"
    assert queue.hold(a) == []
    assert queue.receive(9) == []
    assert queue.enqueue(a, b, late) == [a, b, late]
    assert ids(queue.receive(9)) == [b, a, late]


@row("Disque", "QSCAN COUNT MINLEN MAXLEN")
def test_queues_are_scanned_by_length(place: Place, app: QWorker) -> None:
    """A scan goes through the queues in bounded pages, and takes those of a length."""
    for length in range(5):
        queue = place.queue(f"q{length}")
        queue.send_all([str(n) for n in range(length)])
        queue.pause("none")  # an empty queue is known once it is made
    assert _lengths(place, app) == {f"q{n}": n for n in range(5)}
    assert _lengths(place, app, minlen=2, maxlen=3, count=1) == {"q2": 2, "q3": 3}
    told = place.cli("queue", "scan", "--minlen", "4")
    assert told.split() == ["q4", "4"]
    page = place.cli_json("queue", "scan", "--cursor", "0", "--count", "1000")
    assert (page["cursor"], len(page["queues"])) == ("0", 5)
    place.ask("SET", place.keys("q1").ready[0], "other")
    assert _lengths(place, app)["q1"] is None


@row("Disque", "JSCAN COUNT QUEUE STATE REPLY")
def test_messages_are_scanned_by_queue_and_state(place: Place) -> None:
    """A scan goes through the messages of some states in bounded pages; ids or all of them."""
    queue = place.queue()
    queue.send_all([str(n) for n in range(25)], priority=2)
    ready = ids(queue.peek(1000))
    late, held = queue.send("late", delay="1h"), queue.send("held", priority=9)
    queue.hold(held)
    queue.bury(queue.receive()[0])
    dead, ready = ready[:1], ready[1:]
    for _ in range(10):
        queue.receive()
    unacked, ready = ready[:10], ready[10:]
    assert ids(listed(place, queue.scan("ready", count=3))) == ready[::-1]
    assert sorted(ids(listed(place, queue.scan("unacked", count=2)))) == unacked
    assert ids(listed(place, queue.scan("held"))) == [held]
    assert sorted(ids(listed(place, queue.scan("delayed", "dead")))) == sorted([late, *dead])
    everything = sorted([*ready, *unacked, *dead, late, held])
    assert sorted(ids(listed(place, queue.scan(count=1)))) == everything
    page = queue.scan_page("0", "ready", count=5)
    assert (ids(page.items), page.cursor) == (ready[:-6:-1], "ready-2/5")
    assert ids(queue.scan_page(page.cursor, "ready", count=5).items) == ready[-6:-11:-1]
    told = place.cli("message", "scan", "emails", "--state", "dead", "--reply", "id")
    assert told.split() == dead
    document = place.cli_json("message", "scan", "emails", "--cursor", "0", "--state", "held")
    assert (document["cursor"], document["messages"][0]["state"]) == ("0", "held")
    for bad in ("x", "ready-2/x", "dead/1"):
        with pytest.raises(InvalidOptionError, match="cursor"):
            queue.scan_page(bad, "ready")
    with pytest.raises(InvalidOptionError, match="no state"):
        queue.scan_page("0", "acked")


@row("Disque", "JSCAN while messages move")
def test_a_scan_misses_nothing_that_stays(place: Place) -> None:
    """Messages that are received at the head while a scan goes on make it miss none of the others."""
    queue = place.queue()
    queue.send_all([str(n) for n in range(100)])
    all_ids, found, cursor = ids(queue.peek(1000)), [], "0"
    while True:
        page = queue.scan_page(cursor, "ready", count=10)
        found += ids(page.items)
        queue.ack(*queue.receive(3))
        queue.send("more")
        cursor = page.cursor
        if cursor == "0":
            break
    assert set(ids(queue.peek(1000))) & set(all_ids) <= set(found)


@row("Disque", "PAUSE in")
def test_a_pause_of_the_input_refuses_sends(place: Place) -> None:
    """Sends are refused, receives are not; the state is told."""
    queue = place.queue()
    queue.send("before")
    assert queue.pause("in") == "in"
    with pytest.raises(QueuePausedError):
        queue.send("refused")
    assert len(queue.receive()) == 1
    assert "paused in" in place.cli("queue", "pause", "emails", "--in")


@row("Disque", "PAUSE in, requeueing waits")
def test_a_strict_pause_keeps_expired_messages_away(place: Place) -> None:
    """While input is paused strictly nothing comes back by a timeout: its timer begins anew."""
    queue = place.queue()
    sent = queue.send("slow")
    queue.receive()
    assert "stays away" in place.cli("queue", "pause", "emails", "--in", "--strict")
    reaped(place)
    assert ids(queue.peek(state="unacked")) == [sent]
    [deadline] = place.ask("ZRANGE", place.keys().unacked, 0, -1, "WITHSCORES")[1::2]
    assert abs(float(deadline) - place.now_ms() - 30_000) < 5000
    queue.pause("in")
    reaped(place)
    assert ids(queue.peek()) == [sent]
    with pytest.raises(InvalidOptionError):
        queue.pause("out", strict=True)


@row("Disque", "PAUSE out")
def test_a_pause_of_the_output_hands_out_nothing(place: Place) -> None:
    """Receivers wait as if the queue were empty; sends are stored."""
    queue = place.queue()
    assert queue.pause("out") == "out"
    queue.send("waits")
    assert queue.receive(wait="20ms") == []
    assert "paused out" in place.cli("queue", "pause", "emails", "--out")


@row("Disque", "PAUSE all")
def test_a_pause_of_both(place: Place) -> None:
    """Neither in nor out."""
    queue = place.queue()
    queue.send("before")
    assert queue.pause("all") == "all"
    assert queue.receive() == []
    with pytest.raises(QueuePausedError):
        queue.send("refused")
    place.cli("queue", "resume", "emails")
    assert len(queue.receive()) == 1


@row("Disque", "PAUSE none")
def test_a_pause_is_ended(place: Place) -> None:
    """`none` opens both ways, and wakes who waits."""
    queue = place.queue()
    queue.pause("all", strict=True)
    assert queue.pause("none") == "none"
    queue.send("goes in")
    assert len(queue.receive()) == 1
    assert not queue.stat().strict
    assert "not paused" in place.cli("queue", "resume", "emails")


@row("Disque", "PAUSE state")
def test_a_pause_is_asked_for(place: Place) -> None:
    """`state` changes nothing and tells what is paused."""
    queue = place.queue()
    queue.send("a")
    assert queue.pause("state") == "none"
    queue.pause("out")
    assert queue.pause("state") == "out"
    told = place.cli_json("queue", "pause", "emails", "--state")
    assert told == {"queues": [{"queue": "emails", "paused": "out", "strict": False}]}
    with pytest.raises(InvalidOptionError, match="no direction"):
        queue.pause("sideways")


@row("Disque", "PAUSE bcast")
def test_all_queues_are_paused_at_once(place: Place, app: QWorker) -> None:
    """A pause of the namespace reaches every queue of it."""
    for name in ("one", "two"):
        place.queue(name).send("a")
    paused = place.finish(_apause(app, "in")) if place.way == "async" else app.pause("in")
    assert paused == {"one": "in", "two": "in"}
    told = place.cli_json("queue", "resume", "--all")
    assert [each["paused"] for each in told["queues"]] == ["", ""]
    place.cli("queue", "pause", "--all", "--out")
    assert place.queue("two").pause("state") == "out"
    assert "--all" in place.cli("queue", "pause", code=2)


# -- the whole ------------------------------------------------------------------------------------


@row("Disque", "CLUSTER LEAVING")
def test_a_worker_leaves_when_it_has_done_what_it_began(lab: Lab) -> None:
    """A drained worker takes nothing new, gives back what it has not started, ends what runs however long, and goes."""
    lab.app(
        "@app.task\ndef brief(n: int) -> None:\n    note('started', n)\n    time.sleep(4)\n    note('ended', n)\n"
    )
    lab.send_all("brief", 5)
    worker = lab.start("--grace", "1s")
    until(lambda: lab.notes("started"))
    place = Place(lab.url, lab.namespace, "sync")
    refused = place.cli("worker", "drain", "nobody", code=2)
    assert "no worker here" in refused
    until(lambda: place.cli_json("worker", "ls")["workers"])
    [told] = place.cli_json("worker", "drain", "--all")["leaving"]
    assert worker.wait() == 0
    started = lab.noted("started")
    assert started == lab.noted("ended")
    assert worker.events("child_cut_off") == []
    seen = lab.queue().inspect()
    assert (seen.stats["acked"], seen.ready, seen.unacked) == (len(started), 5 - len(started), 0)
    assert {each.receives for each in lab.queue().peek(10)} == {0}
    assert place.ask("HEXISTS", f"{lab.namespace}:leaving", told) == 0
    place.close()


@row("Disque", "requeue in creation order")
def test_what_comes_back_stands_in_front_in_its_order(place: Place) -> None:
    """Released and timed-out messages go to the head of the queue, the oldest first, before what came later."""
    queue = place.queue()
    old = [queue.send(each) for each in "abcd"]
    lost = queue.receive(2)
    given_back = queue.receive(2)
    new = queue.send("e")
    for each in reversed(given_back):
        queue.release(each)
    assert ids(queue.peek()) == [*old[2:], new]
    reaped(place)
    assert ids(queue.peek()) == [*ids(lost), *old[2:], new]


@row("Disque", "consumers led to the node with messages")
def test_a_receiver_is_told_where_to_look_next(place: Place) -> None:
    """With one node the answer to a receive leads: whether more is ready now, or when the next message is due."""
    from qworker.client.commands.receiving import PAUSED, UNKNOWN, settle_receive

    def hint(number: int) -> int:
        command = settle_receive(place.keys(), f"L{number}", 1)
        return place.sync_client.execute(command).hint_ms

    queue = place.queue()
    assert hint(1) == UNKNOWN
    queue.send_all(["a", "b"])
    assert [hint(2), hint(3)] == [0, UNKNOWN]
    queue.send("late", delay="1m")
    assert 50_000 < hint(4) <= 60_000
    queue.pause("out")
    assert hint(5) == PAUSED
    place.cli("queue", "resume", "emails")


def _bare(queue: Any) -> Any:
    """The queue behind the one whose calls are run to their end."""
    return getattr(queue, "_target", queue)


def _scripts(place: Place) -> int:
    stats = place.ask("INFO", "commandstats")
    return int(stats.partition(b"cmdstat_evalsha:calls=")[2].partition(b",")[0])


def _lengths(place: Place, app: QWorker, **given: Any) -> dict[str, Any]:
    if place.way == "sync":
        return {each.queue: each.ready for each in app.scan_queues(**given)}

    async def read() -> dict[str, Any]:
        found = {each.queue: each.ready async for each in app.ascan_queues(**given)}
        await app.aclose()
        return found

    return asyncio.run(read())


async def _apause(app: QWorker, direction: str) -> dict[str, str]:
    paused = await app.apause(direction)
    await app.aclose()
    return paused
