"""`qworker queue shards`, and what other verbs say of a queue that has several."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qworker.engine.raw import raw
from qworker.wire.codec import encode_call
from tests.cli.conftest import Ran, Shop


@pytest.fixture
def divided(shop: Shop) -> Shop:
    """A queue of three shards with messages in each."""
    queue = shop.queue()
    queue.divide(3, wait=0)
    for n in range(6):
        queue.send(encode_call("send_email", [n], {}))
    return shop


def test_shards_are_shown(divided: Shop, run: Callable[..., Ran]) -> None:
    """What each holds, for people and for programs."""
    ran = run("queue", "shards", "emails")
    assert ran.code == 0
    assert ran.lines[0].split() == ["SHARD", "NODE", "STATE", "READY", "DELAYED", "UNACKED", "DEAD"]
    assert len(ran.lines) == 4
    document = run("queue", "shards", "emails", "--json").json
    assert document["active"] == 3
    assert [shard["ready"] for shard in document["shards"]] == [2, 2, 2]
    assert not any(shard["draining"] for shard in document["shards"])


def test_a_queue_is_divided_and_drawn_together(shop: Shop, run: Callable[..., Ran]) -> None:
    """After a question, which --yes answers; what has run empty is gone when it is called again."""
    shop.send()
    assert run("queue", "shards", "emails", "2").code != 0
    ran = run("queue", "shards", "emails", "2", "--yes", "--json")
    assert ran.json["active"] == 2
    queue = shop.queue()
    for _ in range(4):
        queue.send({})
    fewer = run("queue", "shards", "emails", "1", "--yes")
    assert "draining" in fewer.out
    assert "1 shard draining" in fewer.out
    queue.ack(*queue.receive(100))
    assert len(run("queue", "shards", "emails", "1", "--json").json["shards"]) == 1


def test_figures_are_sums(divided: Shop, run: Callable[..., Ran]) -> None:
    """The queue is one line of the list; a shard by itself is read by its name."""
    [listed] = run("queue", "ls", "--json").json["queues"]
    assert (listed["queue"], listed["ready"]) == ("emails", 6)
    assert run("queue", "show", "emails", "--over", "0", "--json").json["ready"] == 6
    assert run("queue", "show", "emails/1", "--over", "0", "--json").json["ready"] == 2
    assert "emails  6" in run("queue", "scan").out


def test_dead_letters_of_all_shards(divided: Shop, run: Callable[..., Ran]) -> None:
    """Listed together, shown and redriven by the entry ids that are listed."""
    queue = divided.queue()
    for message in queue.receive(6):
        queue.bury(message, error="no")
    document = run("dead", "ls", "emails", "--json").json
    assert document["total"] == 6
    last = document["dead_letters"][-1]
    assert run("dead", "show", "emails", last["entry_id"]).code == 0
    assert run("dead", "show", last["message"]["queue"], last["message"]["id"]).code == 0
    one = run("dead", "redrive", "emails", "--id", last["entry_id"], "--yes", "--json").json
    assert one["redriven"] == 1
    rest = run("dead", "redrive", "emails", "--all", "--limit", "4", "--yes", "--json").json
    assert rest["redriven"] == 4
    assert run("dead", "drop", "emails", "--all", "--yes", "--json").json["dropped"] == 1
    assert queue.inspect().ready == 5


def test_dead_letters_of_the_same_entry_id_are_told_apart(
    divided: Shop, run: Callable[..., Ran]
) -> None:
    """Show, edit, redrive, drop and delete change the dead letter of the named shard only."""
    for n in range(3):
        keys = divided.queue(f"emails/{n}").keys
        for number in (1, 2):
            words = (
                "XADD",
                keys.dead,
                f"5-{number}",
                "envelope",
                f"q1 m{n}{number} 1 1 0 0 0\n{{}}",
            )
            divided.client.execute(raw(*words))
    for n, entry_id in enumerate(("5-1", "5-1/1", "5-1/2")):
        document = run("dead", "show", "emails", entry_id, "--json").json
        assert (document["entry_id"], document["message"]["id"]) == (entry_id, f"m{n}1")
    edited = run("dead", "edit", "emails", "5-1/1", "--body", "[1]", "--json").json
    assert edited["new_entry_id"].endswith("/1")
    assert (
        run("dead", "redrive", "emails", "--id", "5-1/2", "--yes", "--json").json["redriven"] == 1
    )
    assert run("dead", "drop", "emails", "--id", "5-1", "--yes", "--json").json["dropped"] == 1
    assert run("message", "delete", "emails", "m12", "--yes", "--json").json["deleted"] == ["m12"]
    left = [dead_letter.message.id for dead_letter in divided.queue().dead()]
    assert left == ["m02", "m22", "m11"]
    assert run("dead", "drop", "emails", "--id", "", "--yes", "--json").json["dropped"] == 0


def test_messages_are_found_in_any_shard(divided: Shop, run: Callable[..., Ran]) -> None:
    """By id, and by the receipt of its receiver."""
    queue = divided.queue()
    for message in queue.receive(6):
        assert run("message", "show", str(message.receipt), "--json").json["id"] == message.id
        assert run("message", "ack", "emails", str(message.receipt)).code == 0
    assert queue.inspect().unacked == 0


def test_attributes_and_purges_reach_all_shards(divided: Shop, run: Callable[..., Ran]) -> None:
    """`set`, `pause`, `purge`, `rm`."""
    assert run("queue", "set", "emails", "visibility=90s").code == 0
    assert {divided.queue(f"emails/{n}").attributes().visibility_ms for n in range(3)} == {90_000}
    assert run("queue", "pause", "emails").code == 0
    assert {divided.queue(f"emails/{n}").inspect().paused for n in range(3)} == {"all"}
    assert run("queue", "purge", "emails", "--yes", "--json").json["deleted"] == {"ready": 6}
    assert run("queue", "rm", "emails", "--yes").code == 0
    assert run("queue", "ls", "--json").json["queues"] == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("emails", "0"), "0 is out of range; give 1 to 64"),
        (("emails", "65"), "65 is out of range; give 1 to 64"),
        (("emails", "x"), "is not a whole number; give 1 to 64"),
        (("emails/1", "2"), "is a shard; name its queue: emails"),
        (("emials",), "did you mean 'emails'"),
        (("emails/64",), "names shard 64"),
    ],
)
def test_bad_input(
    divided: Shop, run: Callable[..., Ran], words: tuple[str, ...], says: str
) -> None:
    """One error that says what to write instead."""
    ran = run("queue", "shards", *words, "--yes")
    assert ran.code == 2
    assert says in ran.err
    assert divided.queue().division().active == 3


def test_a_broken_shard_is_named_and_the_others_are_counted(
    divided: Shop, run: Callable[..., Ran]
) -> None:
    """By the list of queues, and by doctor as a problem."""
    key = divided.keys("emails/1").ready[0]
    divided.ask("DEL", key)
    divided.ask("SET", key, "x")
    listed = run("queue", "ls")
    assert "emails is incomplete: emails/1: " in listed.err
    assert run("queue", "show", "emails", "--over", "0", "--json").json["ready"] == 4
    text = " ".join(run("doctor").out.split())
    assert "a shard cannot be read, and its messages wait: emails/1: " in text
