"""A consumer by hand: `qworker message` receive, pop, pending, ack, nack, release, bury, extend, claim."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cli.conftest import Ran, Shop, table

Run = Callable[..., Ran]


def receipt_of(run: Run) -> str:
    """Receive one message; its receipt."""
    return run("message", "receive", "emails").out.split()[0]


def test_receive_prints_receipt_id_and_body(shop: Shop, run: Run) -> None:
    """A line for each message, from the queues left to right; none is reported on stderr."""
    ids = [*shop.queue("high").send_many(["a\n"]), *shop.queue("low").send_many(["b"])]
    ran = run("message", "receive", "high", "low", "-n", "5")
    lines = [line.split("  ") for line in ran.lines]
    assert [line[1:] for line in lines] == [[ids[0], '"a\\n"'], [ids[1], '"b"']]
    assert [line[0] for line in lines] == [
        str(shop.queue(name).pending()[0].receipt) for name in ("high", "low")
    ]
    nothing = run("message", "receive", "high", "low")
    assert (nothing.out, nothing.code) == ("", 0)
    assert "no message" in nothing.err


def test_pop_prints_no_receipt(shop: Shop, run: Run) -> None:
    """What is popped has been acked."""
    (sent,) = shop.queue().send_many(["a"])
    assert run("message", "pop", "emails").lines == [f'{sent}  "a"']
    assert shop.queue().inspect().stored == 0


def test_ack_names_stale_receipts(shop: Shop, run: Run) -> None:
    """What counted is on stdout, what did not in the error and the exit code."""
    shop.send()
    receipt = receipt_of(run)
    assert run("message", "ack", "emails", receipt, receipt).lines == [receipt]
    again = run("message", "ack", "emails", receipt)
    assert (again.code, again.out) == (1, "")
    assert f"1 of 1 receipts are stale: {receipt}" in again.err
    both = run("message", "ack", "emails", receipt, "--json")
    assert both.json == {"queue": "emails", "acked": [], "stale": [receipt]}


def test_nack_release_and_bury(shop: Shop, run: Run) -> None:
    """Each is what the library does: counted and delayed, uncounted, dead with its error."""
    shop.send()
    assert run("message", "nack", "emails", receipt_of(run), "--delay", "1h").code == 0
    (delayed,) = shop.queue().peek(state="delayed")
    assert delayed.nacks == 1
    shop.send()
    assert run("message", "release", "emails", receipt_of(run)).code == 0
    (ready,) = shop.queue().peek()
    assert ready.receives == 0
    assert run("message", "bury", "emails", receipt_of(run), "--error", "no address").code == 0
    (dead_letter,) = shop.queue().dead()
    assert (dead_letter.reason, dead_letter.error) == ("rejected", "no address")


@pytest.mark.parametrize("verb", ["nack", "release", "bury"])
def test_stale_receipts_change_nothing(shop: Shop, run: Run, verb: str) -> None:
    """Another consumer's delivery is not settled by an old receipt."""
    shop.send()
    receipt = receipt_of(run)
    shop.queue().release(shop.queue().received(receipt))
    before = shop.dump()
    assert run("message", verb, "emails", receipt).code == 1
    assert shop.dump() == before


def test_extend_prints_the_new_receipt(shop: Shop, run: Run) -> None:
    """The old receipt is stale from then on."""
    shop.send()
    receipt = receipt_of(run)
    new = run("message", "extend", "emails", receipt, "1h").out.strip()
    assert run("message", "extend", "emails", receipt, "1h").code == 1
    assert run("message", "ack", "emails", new).code == 0


def test_extend_takes_many_receipts_and_names_stale_ones(shop: Shop, run: Run) -> None:
    """In one call; the new receipts come in the order of the old ones, and the others are extended anyway."""
    sent = shop.send(number=4)
    receipts = [receipt_of(run) for _ in range(4)]
    assert run("message", "ack", "emails", receipts[1]).code == 0
    asked = [receipts[2], receipts[1], receipts[0], receipts[3], receipts[0]]
    ran = run("message", "extend", "emails", *asked, "1h", "--json")
    document = ran.json
    assert (ran.code, document["stale"]) == (1, [receipts[1]])
    assert f"1 of 4 receipts are stale: {receipts[1]}" in ran.err
    assert [message["id"] for message in document["extended"]] == [sent[2], sent[0], sent[3]]
    new = [message["receipt"] for message in document["extended"]]
    assert len({*new, *receipts}) == 7
    assert run("message", "extend", "emails", *new, "0").code == 0
    assert shop.queue().inspect().ready == 3


def test_pending_lists_unacked_messages(shop: Shop, run: Run) -> None:
    """Receipt, id, last delivery, elapsed and deliveries."""
    (sent,) = shop.send()
    receipt = receipt_of(run)
    (row,) = table(run("message", "pending", "emails").lines)
    assert (row["RECEIPT"], row["ID"], row["DELIVERIES"]) == (receipt, sent, "1")
    assert "no such unacked message" in run("message", "pending", "emails", "--elapsed", "1h").err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("ack", "emails", "x"), "'x' is not a receipt"),
        (("receive", "emails", "--wait", "soon"), "--wait: 'soon' is not a duration"),
        (("receive", "emails", "--visibility", "13h"), "visibility"),
        (("receive", "emails", "-n", "0"), "--count"),
        (("claim", "emails"), "--elapsed"),
        (("claim", "emails", "--elapsed", "x"), "--elapsed: 'x' is not a duration"),
        (("pop", "none"), "'none' does not exist"),
    ],
)
def test_bad_input_is_refused(shop: Shop, run: Run, args: tuple[str, ...], said: str) -> None:
    """Exit code 2, one line, and nothing received."""
    shop.send()
    ran = run("message", *args)
    assert ran.code == 2
    assert said in ran.err
    assert shop.queue().inspect().ready == 1
