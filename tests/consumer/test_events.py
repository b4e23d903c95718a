"""Lines of the journal that a child writes, and the server's time in them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qworker import QWorker, Retry
from qworker.client.commands.receiving import Batch
from qworker.consumer.board import Board, boot_time
from qworker.consumer.delivery import Delivery
from qworker.consumer.events import event_line, times_of
from qworker.consumer.hand import Hand
from qworker.consumer.pace import QueuePace
from qworker.consumer.runner import Runner
from qworker.consumer.server_clock import ServerClock
from qworker.wire.keys import QueueKeys

NOW_MS = 1_800_000_000_000
OWN = b"q1 abc 1799999999000 0 0 0 0"
BODY = b'\n{"task":"shop.mail","args":[1]}'


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board.create(2)
    yield board
    board.close()


def deliveries(board: Board, *items: bytes) -> list[Delivery]:
    """Messages in hand, received at `NOW_MS` in the lease `L`, in a queue whose journal is on."""
    hand = Hand(board)
    entry = hand.enter(QueuePace(QueueKeys("test", "mail"), 0), "L")
    indices = [str(index) for index in range(1, len(items) + 1)]
    batch = Batch(
        lease_id="L",
        items=list(items),
        indices=indices,
        now_ms=NOW_MS,
        deadline_ms=NOW_MS + 30_000,
        ready_left=0,
        hint_ms=0,
        alone=False,
        degraded=False,
        settled=(),
        journal=True,
    )
    return hand.hold(entry, batch)


def runner(board: Board) -> Runner:
    """A runner of tasks that return, fail and fail for good."""
    app = QWorker("test")

    @app.task(name="shop.mail")
    def mail(n: int) -> None: ...

    @app.task(name="fail", retry=Retry.none())
    def fail(n: int) -> None:
        raise LookupError

    return Runner(app.tasks, board, [], clock=boot_time)


@pytest.mark.parametrize(
    ("item", "header"),
    [
        (OWN + BODY, OWN[3:]),
        (OWN + b" p=5 t=1799999999500 w=a%20b" + BODY, OWN[3:] + b" p=5 t=1799999999500 w=a%20b"),
        (b"q1 a.b-c 5 3 2 1 0 f=6" + BODY, b"a.b-c 5 3 2 1 0 f=6"),
        (BODY[1:], b"L.1 1800000000000 0 0 0 0"),
    ],
)
def test_the_line_of_an_acked_message(board: Board, item: bytes, header: bytes) -> None:
    """Event, times, task, no reason, no error, and the header as it was received; a plain item is named here."""
    (delivery,) = deliveries(board, item)
    begun = boot_time()
    runner(board).run(0, delivery, begun)
    delivery.started, delivery.took_s = begun + 2, 0.0012345

    line = event_line("acked", delivery)

    words = line.split(b" ", 7)
    assert words[0] == b"acked"
    assert int(words[1]) == NOW_MS
    assert NOW_MS + 2000 <= int(words[2]) < NOW_MS + 2500
    assert words[3:] == [b"1234", b"shop.mail", b"-", b"-", header]


def test_the_line_of_what_never_began(board: Board) -> None:
    """What was found wrong before its handler has no start and no running time; a foreign item has no id either."""
    unknown, foreign, unread = deliveries(
        board, OWN + b'\n{"task":"other","args":[]}', b"hello\nworld", OWN + BODY
    )
    run = runner(board).run
    for each in (unknown, foreign):
        run(0, each, boot_time())

    assert event_line("nacked", unknown, "", "UnknownTaskError") == (
        b"nacked 1800000000000 - - - - UnknownTaskError " + OWN[3:]
    )
    assert event_line("dead", foreign, "foreign") == (
        b"dead 1800000000000 - - - foreign - - 1800000000000 0 0 0 0"
    )
    assert event_line("released", unread) == b"released 1800000000000 - - - - - " + OWN[3:]


def test_words_of_a_line_hold_nothing_that_separates(board: Board) -> None:
    """What is no character of a word becomes '_', and a word has 200 characters at most."""
    (delivery,) = deliveries(board, OWN + BODY)

    line = event_line("dead", delivery, "a b\nc", "é" * 300 + ".x")

    assert line == b"dead 1800000000000 - - - a_b_c " + b"_" * 200 + b" " + OWN[3:]


def test_the_times_of_a_failure(board: Board) -> None:
    """For what the script writes the child says when it was delivered and begun, how long it ran, and its task."""
    (delivery,) = deliveries(board, OWN + b'\n{"task":"fail","args":[1]}')
    runner(board).run(0, delivery, boot_time())

    delivered, started, run_us, task = times_of(delivery).split(" ")

    assert (int(delivered), task) == (NOW_MS, "fail")
    assert NOW_MS <= int(started) < NOW_MS + 1000
    assert 0 <= int(run_us) < 1_000_000


# -- the server's clock ------------------------------------------------------------------------


def test_the_servers_time_lies_between_call_and_reply() -> None:
    """A narrow window says the offset at once."""
    clock = ServerClock()
    clock.note(1_000_000, called=10.0, answered=10.001)

    assert 1_000_498 <= clock.ms(10.5) <= 1_000_501


def test_a_wide_window_corrects_only_what_it_contradicts() -> None:
    """A reply that waited to be read, or a call that waited at a doorbell, does not spoil what is known."""
    clock = ServerClock()
    clock.note(1_000_000, called=10.0, answered=10.001)
    clock.note(1_001_000, called=11.0, answered=15.0)  # read late
    clock.note(1_008_000, called=16.0, answered=18.001)  # waited before it ran

    assert 1_009_998 <= clock.ms(20.0) <= 1_010_001


def test_a_clock_that_jumps_is_followed() -> None:
    """After a failover or a correction of the server's clock its new time counts."""
    clock = ServerClock()
    clock.note(1_000_000, called=10.0, answered=10.001)
    clock.note(900_000, called=11.0, answered=11.001)
    assert 900_498 <= clock.ms(11.5) <= 900_502

    clock.note(2_000_000, called=12.0, answered=12.001)
    assert 2_000_498 <= clock.ms(12.5) <= 2_000_502


def test_nothing_begins_before_it_was_delivered(board: Board) -> None:
    """A server's clock that goes back between two batches does not put the start before the delivery."""
    (delivery,) = deliveries(board, OWN + BODY)
    assert delivery.lease.server_ms(boot_time() - 60) == NOW_MS
