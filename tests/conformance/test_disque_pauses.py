"""Disque's pauses, and what holds for its queues as a whole, under the names that they have here."""

from __future__ import annotations

import pytest

from qworker import QWorker
from qworker.errors import (
    InvalidOptionError,
    QueuePausedError,
)
from tests.conformance.conftest import Caller
from tests.conformance.driving import ids, reaped
from tests.conformance.rows import row
from tests.consumer.driving import until
from tests.consumer.workers import Lab
from tests.daemon.processes import daemon

#: Messages of 4 s: more than are handled while a few commands run, however long these take.
NUMBER = 100


@row("Disque", "PAUSE in")
def test_a_pause_of_the_input_refuses_sends(caller: Caller) -> None:
    """Sends are refused, receives are not; the state is reported."""
    queue = caller.queue()
    queue.send("before")
    assert queue.pause("in") == "in"
    with pytest.raises(QueuePausedError):
        queue.send("refused")
    assert len(queue.receive()) == 1
    assert "paused in" in caller.cli("queue", "pause", "emails", "--in")


@row("Disque", "PAUSE in, requeueing waits")
def test_a_strict_pause_keeps_expired_messages_away(caller: Caller) -> None:
    """While input is paused strictly nothing comes back by a timeout: its timer starts again."""
    queue = caller.queue()
    sent = queue.send("slow")
    queue.receive()
    assert "not requeued" in caller.cli("queue", "pause", "emails", "--in", "--strict")
    reaped(caller)
    assert ids(queue.peek(state="unacked")) == [sent]
    [deadline] = caller.ask("ZRANGE", caller.keys().unacked, 0, -1, "WITHSCORES")[1::2]
    assert abs(float(deadline) - caller.now_ms() - 30_000) < 5000
    queue.pause("in")
    reaped(caller)
    assert ids(queue.peek()) == [sent]
    with pytest.raises(InvalidOptionError):
        queue.pause("out", strict=True)


@row("Disque", "PAUSE out")
def test_a_pause_of_the_output_hands_out_nothing(caller: Caller) -> None:
    """Receivers wait as if the queue were empty; sends are stored."""
    queue = caller.queue()
    assert queue.pause("out") == "out"
    queue.send("waits")
    assert queue.receive(wait="20ms") == []
    assert "paused out" in caller.cli("queue", "pause", "emails", "--out")


@row("Disque", "PAUSE all")
def test_a_pause_of_both(caller: Caller) -> None:
    """Neither in nor out."""
    queue = caller.queue()
    queue.send("before")
    assert queue.pause("all") == "all"
    assert queue.receive() == []
    with pytest.raises(QueuePausedError):
        queue.send("refused")
    caller.cli("queue", "resume", "emails")
    assert len(queue.receive()) == 1


@row("Disque", "PAUSE none")
def test_a_pause_is_ended(caller: Caller) -> None:
    """`none` opens both ways, and wakes who waits."""
    queue = caller.queue()
    queue.pause("all", strict=True)
    assert queue.pause("none") == "none"
    queue.send("goes in")
    assert len(queue.receive()) == 1
    assert not queue.stat().strict
    assert "not paused" in caller.cli("queue", "resume", "emails")


@row("Disque", "PAUSE state")
def test_a_pause_is_asked_for(caller: Caller) -> None:
    """`state` changes nothing and tells what is paused."""
    queue = caller.queue()
    queue.send("a")
    assert queue.pause("state") == "none"
    queue.pause("out")
    assert queue.pause("state") == "out"
    document = caller.cli_json("queue", "pause", "emails", "--state")
    assert document == {"queues": [{"queue": "emails", "paused": "out", "strict": False}]}
    with pytest.raises(InvalidOptionError, match="not a direction"):
        queue.pause("sideways")


@row("Disque", "PAUSE over all shards")
def test_a_pause_holds_for_every_shard(caller: Caller) -> None:
    """in, out, all, none and state are of the queue, wherever its messages are."""
    queue = caller.queue()
    queue.divide(3, wait=0)
    for direction in ("in", "out", "all", "none"):
        assert queue.pause(direction) == direction
        assert queue.pause("state") == direction
        shards = [caller.queue(f"emails/{n}") for n in range(3)]
        assert [shard.pause("state") for shard in shards] == [direction] * 3
    caller.cli("queue", "pause", "emails", "--in", "--strict")
    assert [caller.queue(f"emails/{n}").inspect().strict for n in range(3)] == [True] * 3


@row("Disque", "PAUSE bcast")
def test_all_queues_are_paused_at_once(caller: Caller, app: QWorker) -> None:
    """A pause of the namespace reaches every queue of it."""
    for name in ("one", "two"):
        caller.queue(name).send("a")
    paused = caller.finish(_apause(app, "in")) if caller.way == "async" else app.pause("in")
    assert paused == {"one": "in", "two": "in"}
    document = caller.cli_json("queue", "resume", "--all")
    assert [queue["paused"] for queue in document["queues"]] == ["", ""]
    caller.cli("queue", "pause", "--all", "--out")
    assert caller.queue("two").pause("state") == "out"
    assert "--all" in caller.cli("queue", "pause", code=2)


@pytest.mark.slow
@row("Disque", "CLUSTER LEAVING")
def test_a_worker_leaves_when_its_running_handlers_have_ended(lab: Lab) -> None:
    """A drained worker takes nothing new, gives back what it has not started, ends what runs however long, and goes."""
    lab.app(
        "@app.task\ndef brief(n: int) -> None:\n    note('started', n)\n    time.sleep(4)\n    note('ended', n)\n"
    )
    lab.send_many("brief", NUMBER)
    worker = lab.start("--grace", "1s")
    until(lambda: lab.notes("started"))
    caller = Caller(lab.url, lab.namespace, "sync")
    refused = caller.cli("worker", "drain", "nobody", code=2)
    assert "no worker or daemon of this name is running" in refused
    until(lambda: caller.cli_json("worker", "ls")["workers"])
    until(lambda: caller.ask("ZCARD", f"{lab.namespace}:reapers"))
    [carried] = caller.ask("ZRANGE", f"{lab.namespace}:reapers", 0, -1)
    refused = caller.cli("worker", "drain", carried.decode(), code=2)
    assert "runs inside a worker; drain " in refused
    [document] = caller.cli_json("worker", "drain", "--all")["leaving"]
    assert worker.wait() == 0
    started = lab.noted("started")
    # In whatever order those that ran side by side have ended.
    assert sorted(started) == sorted(lab.noted("ended"))
    assert worker.events("child_cut_off") == []
    seen = lab.queue().inspect()
    assert (seen.stats["acked"], seen.ready, seen.unacked) == (
        len(started),
        NUMBER - len(started),
        0,
    )
    assert {message.receives for message in lab.queue().peek(NUMBER)} == {0}
    assert caller.ask("HEXISTS", f"{lab.namespace}:leaving", document) == 0
    caller.close()


@pytest.mark.slow
@row("Disque", "CLUSTER LEAVING of a daemon")
def test_a_daemon_leaves_after_its_pass(caller: Caller) -> None:
    """A daemon holds nothing: asked to leave it ends, another one continues, and nothing of it is left."""
    queue = caller.queue()
    queue.send("later", delay="200ms")

    def reapers() -> list[str]:
        return [
            item.decode() for item in caller.ask("ZRANGE", f"{caller.namespace}:reapers", 0, -1)
        ]

    with daemon(caller.url, caller.namespace) as leaving:
        until(lambda: len(reapers()) == 1)
        [name] = reapers()
        with daemon(caller.url, caller.namespace):
            until(lambda: len(reapers()) == 2)
            assert caller.cli("worker", "drain", name) == f"{name}: exits after its current pass\n"
            assert leaving.wait(60) == 0
            assert name not in reapers()
            assert not caller.ask("EXISTS", f"{caller.namespace}:leaving")
            until(lambda: queue.inspect().ready == 1)


@row("Disque", "requeue in creation order")
def test_what_comes_back_stands_in_front_in_its_order(caller: Caller) -> None:
    """Released and timed-out messages go to the head of the queue, the oldest first, before what came later."""
    queue = caller.queue()
    old = [queue.send(name) for name in "abcd"]
    lost = queue.receive(2)
    given_back = queue.receive(2)
    new = queue.send("e")
    for message_id in reversed(given_back):
        queue.release(message_id)
    assert ids(queue.peek()) == [*old[2:], new]
    reaped(caller)
    assert ids(queue.peek()) == [*ids(lost), *old[2:], new]


@row("Disque", "consumers led to the node with messages")
def test_a_receiver_learns_where_to_receive_next(caller: Caller) -> None:
    """With one node the answer to a receive leads: whether more is ready now, or when the next message is due."""
    from qworker.engine.receive import PAUSED, UNKNOWN, settle_receive

    def hint(number: int) -> int:
        command = settle_receive(caller.keys(), f"L{number}", 1)
        return caller.sync_client.execute(command).hint_ms

    queue = caller.queue()
    assert hint(1) == UNKNOWN
    queue.send_many(["a", "b"])
    assert [hint(2), hint(3)] == [0, UNKNOWN]
    queue.send("late", delay="1m")
    assert 50_000 < hint(4) <= 60_000
    queue.pause("out")
    assert hint(5) == PAUSED
    caller.cli("queue", "resume", "emails")


@row("Disque", "one queue on several nodes")
def test_a_receiver_is_led_to_the_shard_with_messages(caller: Caller) -> None:
    """Wherever the message is, one receive finds it, and its ack goes back there."""
    queue = caller.queue()
    queue.divide(3, wait=0)
    for number in range(3):
        caller.queue(f"emails/{number}").send("a")
        (got,) = queue.receive(1, wait="10s")
        assert got.receipt.shard == number
        assert ids(queue.ack(got)) == [got.id]


async def _apause(app: QWorker, direction: str) -> dict[str, str]:
    paused = await app.apause(direction)
    await app.aclose()
    return paused
