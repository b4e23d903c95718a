"""Lines of many messages at once are those of each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qworker.consumer.board import Board, boot_time
from qworker.consumer.delivery import Delivery
from qworker.consumer.events import acked_lines, event_line
from tests.consumer.test_events import BODY, NOW_MS, OWN, deliveries, runner


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board.create(2)
    yield board
    board.close()


def ended(board: Board, *items: bytes) -> list[Delivery]:
    """Messages that have run, one after the other, some before the others were known to have come."""
    found = deliveries(board, *items)
    begun = boot_time()
    for number, each in enumerate(found):
        runner(board).run(0, each, begun)
        each.started, each.took_s = begun + number, 0.001 * (number + 1)
    return found


AGAIN = b"q1 abd 1799999999000 1 1 0 0 f=5 t=1799999999500"
OTHER = b'\n{"task":"fail","args":[1]}'


@pytest.mark.parametrize(
    "items",
    [
        [OWN + BODY] * 3,
        [OWN + BODY, OWN + b" w=x" + BODY],
        [OWN + BODY, AGAIN + BODY, BODY[1:]],
        [OWN + BODY, OWN + OTHER],
        [OWN + OTHER, BODY[1:]],
    ],
)
def test_lines_of_a_batch_are_those_of_each(board: Board, items: list[bytes]) -> None:
    """First deliveries and others, of one task or of several."""
    found = ended(board, *items)
    assert acked_lines(found).split(b"\n") == [event_line("acked", each) for each in found]


def test_lines_of_what_is_acked_before_its_start(board: Board) -> None:
    """At most once: neither a start nor a running time is known."""
    found = deliveries(board, OWN + BODY, BODY[1:])
    assert acked_lines(found).split(b"\n") == [event_line("acked", each) for each in found]


def test_nothing_in_a_batch_begins_before_it_was_delivered(board: Board) -> None:
    """A server's clock that went back meanwhile puts no start before the delivery."""
    found = ended(board, *[OWN + BODY] * 3)
    for each in found:
        each.started -= 60
    started = [int(line.split(b" ")[2]) for line in acked_lines(found).split(b"\n")]
    assert started == [NOW_MS, NOW_MS + 1000, NOW_MS + 2000]
