"""Disque's looks at queues and its moves in and out of them, under the names that they have here."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from qworker import QWorker
from qworker.errors import (
    InvalidOptionError,
)
from tests.conformance.conftest import Caller
from tests.conformance.driving import ids, listed
from tests.conformance.rows import row
from tests.consumer.driving import until
from tests.consumer.workers import Lab


@row("Disque", "QLEN")
def test_the_length_of_a_queue_is_its_ready_messages(caller: Caller) -> None:
    """Delayed messages and unacked ones are counted apart."""
    queue = caller.queue()
    queue.send_many(["a", "b", "c"])
    queue.send("late", delay="1h")
    queue.receive()
    seen = queue.inspect()
    assert (seen.ready, seen.delayed, seen.unacked) == (2, 1, 1)
    assert caller.cli_json("queue", "show", "emails", "--over", "0")["ready"] == 2


@row("Disque", "QSTAT")
def test_a_queue_reports_its_activity(caller: Caller) -> None:
    """Length, age, idle time, waiting consumers, what came and went with its rates, and the pause."""
    queue = caller.queue()
    queue.create(visibility="1m")
    queue.send_many(["a", "b", "c"])
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
    document = caller.cli_json("queue", "stat", "emails", "--over", "1ms")
    assert (document["messages_in"], document["messages_out"], document["paused"]) == (3, 3, "in")
    assert {"age_seconds", "idle_seconds", "blocked", "in_per_second", "out_per_second"} <= set(
        document
    )


@pytest.mark.slow
@row("Disque", "QSTAT blocked")
def test_a_queue_reports_its_waiting_consumers(lab: Lab) -> None:
    """Processes of workers that take from a queue are consumers; those without messages wait."""
    lab.app("@app.task\ndef block() -> None:\n    note('started')\n    time.sleep(60)\n")
    lab.start("--procs", "2", "--grace", "1s")
    until(lambda: (stat := lab.queue().stat()).consumers == stat.blocked == 2)
    lab.send("block")
    until(lambda: lab.queue().stat().blocked == 1)


@row("Disque", "QPEEK")
def test_a_queue_is_looked_at_from_both_ends(caller: Caller) -> None:
    """A negative count looks from the newest on; nothing is received by it."""
    queue = caller.queue()
    a, b, c = (queue.send(name) for name in "abc")
    assert ids(queue.peek(2)) == [a, b]
    assert ids(queue.peek(-2)) == [c, b]
    document = caller.cli_json("queue", "peek", "emails", "--count", "-2")
    assert [message["id"] for message in document["messages"]] == [c, b]
    assert queue.inspect().ready == 3
    with pytest.raises(InvalidOptionError):
        queue.peek(0)


@row("Disque", "ENQUEUE")
def test_a_delayed_message_is_enqueued_now(caller: Caller) -> None:
    """What is delayed goes to ready at once, at its priority; what is ready already stays."""
    queue = caller.queue()
    ready = queue.send("ready")
    late, urgent = queue.send("late", delay="1h"), queue.send("urgent", delay="1h", priority=7)
    assert queue.enqueue(late, ready, urgent, "nobody") == [late, urgent]
    assert ids(queue.receive(9)) == [urgent, ready, late]
    other = queue.send("other", delay="1h")
    assert caller.cli("message", "enqueue", "emails", other).split() == [other, "enqueued"]
    assert ids(queue.receive(9, wait="5s")) == [other]


@row("Disque", "DEQUEUE")
def test_a_message_is_taken_out_without_being_lost(caller: Caller) -> None:
    """Held messages wait without a due time, are listed as held, count as stored, and are enqueued again."""
    queue = caller.queue()
    a, b, late = queue.send("a"), queue.send("b", priority=3), queue.send("c", delay="1h")
    assert queue.hold(b, late, "nobody") == [b, late]
    assert caller.cli("message", "hold", "emails", a).split() == [a, "held"]
    seen = queue.inspect()
    assert (seen.ready, seen.delayed, seen.held, seen.stored, seen.next_due_ms) == (
        0,
        3,
        3,
        3,
        None,
    )
    assert sorted(ids(queue.peek(state="held"))) == sorted([a, b, late])
    assert queue.peek(state="delayed") == queue.peek(-9, state="delayed") == []
    assert queue.show(a).state == "held"
    assert queue.hold(a) == []
    assert queue.receive(9) == []
    assert queue.enqueue(a, b, late) == [a, b, late]
    assert ids(queue.receive(9)) == [b, a, late]


@row("Disque", "QSCAN COUNT MINLEN MAXLEN")
def test_queues_are_scanned_by_length(caller: Caller, app: QWorker) -> None:
    """A scan goes through the queues in bounded pages, and takes those of a length."""
    for length in range(5):
        queue = caller.queue(f"q{length}")
        queue.send_many([str(n) for n in range(length)])
        queue.pause("none")  # an empty queue is known once it is made
    assert _lengths(caller, app) == {f"q{n}": n for n in range(5)}
    assert _lengths(caller, app, minlen=2, maxlen=3, count=1) == {"q2": 2, "q3": 3}
    output = caller.cli("queue", "scan", "--minlen", "4")
    assert output.split() == ["q4", "4"]
    page = caller.cli_json("queue", "scan", "--cursor", "0", "--count", "1000")
    assert (page["cursor"], len(page["queues"])) == ("0", 5)
    caller.ask("SET", caller.keys("q1").ready[0], "other")
    assert _lengths(caller, app)["q1"] is None


@row("Disque", "JSCAN COUNT QUEUE STATE REPLY")
def test_messages_are_scanned_by_queue_and_state(caller: Caller) -> None:
    """A scan goes through the messages of some states in bounded pages; ids or all of them."""
    queue = caller.queue()
    queue.send_many([str(n) for n in range(25)], priority=2)
    ready = ids(queue.peek(1000))
    late, held = queue.send("late", delay="1h"), queue.send("held", priority=9)
    queue.hold(held)
    queue.bury(queue.receive()[0])
    dead, ready = ready[:1], ready[1:]
    for _ in range(10):
        queue.receive()
    unacked, ready = ready[:10], ready[10:]
    assert ids(listed(caller, queue.scan("ready", count=3))) == ready[::-1]
    assert sorted(ids(listed(caller, queue.scan("unacked", count=2)))) == unacked
    assert ids(listed(caller, queue.scan("held"))) == [held]
    assert sorted(ids(listed(caller, queue.scan("delayed", "dead")))) == sorted([late, *dead])
    everything = sorted([*ready, *unacked, *dead, late, held])
    assert sorted(ids(listed(caller, queue.scan(count=1)))) == everything
    page = queue.scan_page("0", "ready", count=5)
    assert (ids(page.items), page.cursor) == (ready[:-6:-1], "ready-2/5")
    assert ids(queue.scan_page(page.cursor, "ready", count=5).items) == ready[-6:-11:-1]
    output = caller.cli("message", "scan", "emails", "--state", "dead", "--reply", "id")
    assert output.split() == dead
    document = caller.cli_json("message", "scan", "emails", "--cursor", "0", "--state", "held")
    assert (document["cursor"], document["messages"][0]["state"]) == ("0", "held")
    for bad in ("x", "ready-2/x", "dead/1"):
        with pytest.raises(InvalidOptionError, match="cursor"):
            queue.scan_page(bad, "ready")
    with pytest.raises(InvalidOptionError, match="not a state"):
        queue.scan_page("0", "acked")


@row("Disque", "JSCAN while messages move")
def test_a_scan_misses_nothing_that_stays(caller: Caller) -> None:
    """Messages that are received at the head while a scan continues make it miss none of the others."""
    queue = caller.queue()
    queue.send_many([str(n) for n in range(100)])
    all_ids, scanned, cursor = ids(queue.peek(1000)), [], "0"
    while True:
        page = queue.scan_page(cursor, "ready", count=10)
        scanned += ids(page.items)
        queue.ack(*queue.receive(3))
        queue.send("more")
        cursor = page.cursor
        if cursor == "0":
            break
    assert set(ids(queue.peek(1000))) & set(all_ids) <= set(scanned)


def _lengths(caller: Caller, app: QWorker, **given: Any) -> dict[str, Any]:
    if caller.way == "sync":
        return {queue.queue: queue.ready for queue in app.scan_queues(**given)}

    async def read() -> dict[str, Any]:
        scanned = {queue.queue: queue.ready async for queue in app.ascan_queues(**given)}
        await app.aclose()
        return scanned

    return asyncio.run(read())
