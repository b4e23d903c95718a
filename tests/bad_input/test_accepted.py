"""What looks odd and is fine: the ends of ranges, and values that must come through exactly."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from qworker import QueueAttributes
from qworker.wire.codec import decode
from tests.bad_input.conftest import Bench
from tests.consumer.driving import drain

MAXSIZE = 256 * 1024


def received(bench: Bench) -> bytes:
    (message,) = bench.queue.receive()
    bench.queue.ack(message)
    return message.body


@pytest.mark.bad_input(
    "body or key: exactly maxsize", "body or key: 0 bytes", "body or key: bytes of every value"
)
@pytest.mark.parametrize(
    "body",
    [b"", b"x" * MAXSIZE, bytes(range(256)), b"\n", b"q1 x 0\n", b"{}\r\n"],
    ids=["0 bytes", "exactly maxsize", "every byte", "newline", "like an envelope", "CRLF"],
)
def test_bytes_come_back_as_they_were_sent(bench: Bench, body: bytes) -> None:
    """Of any value, up to maxsize."""
    bench.queue.send(body)

    assert received(bench) == body


@pytest.mark.bad_input("body or key: integer over 2^53")
@pytest.mark.parametrize("number", [2**53 + 1, 2**64, -(2**63) - 1, 12345678901234567, 10**400])
def test_an_integer_is_exact_through_every_move(bench: Bench, number: int) -> None:
    """Sent, delayed, nacked, buried, redriven: no script reads a body."""
    bench.queue.send({"n": number, "empty": []}, delay="1ms")
    bench.queue.send({"n": number, "empty": []})
    (message,) = bench.queue.receive()
    bench.queue.nack(message)
    (message,) = bench.queue.receive()
    bench.queue.bury(message)
    (dead_letter,) = bench.queue.dead()
    bench.queue.redrive(dead_letter.entry_id)

    assert decode(received(bench)) == {"n": number, "empty": []}
    (delayed,) = bench.queue.peek(state="delayed")
    assert decode(delayed.body) == {"n": number, "empty": []}


@pytest.mark.bad_input("body or key: datetime, UUID, Decimal, set and bytes are fine")
def test_types_that_json_lacks_are_restored_by_the_handler(bench: Bench) -> None:
    """datetime, UUID, Decimal, set and bytes, by the annotations of the task."""
    seen: list[object] = []

    @bench.app.task(queue="emails")
    def keep(at: datetime, id: UUID, price: Decimal, tags: set[str], raw: bytes) -> None:  # noqa: A002
        seen.extend([at, id, price, tags, raw])

    given = (datetime(2031, 5, 4, tzinfo=UTC), UUID(int=7), Decimal("1.10"), {"a"}, b"\x00\xff")
    keep.send(*given)
    drain(bench.app)

    assert tuple(seen) == given


@pytest.mark.bad_input("body or key: depth over 64")
def test_64_levels_are_taken(bench: Bench) -> None:
    """One less than what is refused."""
    bench.queue.send(b"[" * 64 + b"]" * 64)
    value: object = 1
    for _ in range(64):
        value = [value]
    bench.queue.send(value)

    assert received(bench).count(b"[") == received(bench).count(b"[") == 64


@pytest.mark.bad_input(
    "body or key: unique key held, same body", "body or key: unique key held, another body"
)
@pytest.mark.parametrize("payload", [{"to": "ada"}, {"to": "grace"}], ids=["same", "other"])
def test_a_unique_key_that_is_held_keeps_any_body_out(bench: Bench, payload: object) -> None:
    """The id of the message that holds it comes back; its body stays, and nothing else is stored."""
    first = bench.queue.send({"to": "ada"}, unique="ada")
    stored = bench.queue.inspect().stored

    second = bench.queue.send(payload, unique="ada")

    assert second == first
    assert bench.queue.inspect().stored == stored
    assert decode(received(bench)) == {"to": "ada"}


@pytest.mark.bad_input("body or key: a batch of 0")
def test_a_batch_of_nothing_does_nothing(bench: Bench) -> None:
    """No call, no queue."""
    before = bench.dump()

    assert bench.app.queue("other").send_many([]) == []
    assert bench.greet.send_many([]) == []

    assert bench.dump() == before


@pytest.mark.bad_input("body or key: a batch over 1,000")
def test_more_than_a_call_takes_go_in_several(bench: Bench) -> None:
    """Chunks of 1,000, each stored whole."""
    ids = bench.queue.send_many(range(2001))

    assert len(set(ids)) == 2001
    assert bench.queue.inspect().ready == 2001


@pytest.mark.bad_input("number or time: delay 0", "number or time: eta in the past")
@pytest.mark.parametrize(
    "options",
    [
        {"delay": 0},
        {"delay": 0.0},
        {"delay": "0s"},
        {"delay": timedelta(0)},
        {"eta": datetime(2001, 1, 1, tzinfo=UTC)},
        {"eta": datetime(1, 1, 1, tzinfo=UTC)},
    ],
    ids=["0", "0.0", "text", "timedelta", "eta in the past", "eta before 1970"],
)
def test_no_wait_is_ready_at_once(bench: Bench, options: dict[str, object]) -> None:
    """Whatever it is written as."""
    bench.queue.send({}, **options)

    assert bench.queue.inspect().ready == 1


@pytest.mark.bad_input("number or time: delay over the limit")
def test_a_delay_reaches_as_far_as_a_score_is_exact(bench: Bench) -> None:
    """A due time of 2^52 ms, about 142,000 years."""
    bench.queue.send({}, delay=timedelta(milliseconds=2**52 - 2**42))

    (delayed,) = bench.queue.peek(state="delayed")
    assert delayed.at_ms is not None
    assert math.isclose(delayed.at_ms, 2**52, rel_tol=2e-3)


@pytest.mark.bad_input("number or time: visibility out of range")
def test_visibility_0_is_visible_now(bench: Bench) -> None:
    """For an unacked message, and only there."""
    bench.queue.extend(bench.message, 0)

    assert bench.queue.inspect().ready == 1
    assert bench.queue.ack(bench.message) == []


@pytest.mark.parametrize(
    "attributes",
    [{"visibility": "1s"}, {"visibility": "12h"}, {"max_receives": 1}, {"max_receives": 999_999}],
    ids=str,
)
def test_the_ends_of_ranges_are_taken(bench: Bench, attributes: dict[str, object]) -> None:
    """Of the attributes that a queue stores."""
    bench.queue.configure(QueueAttributes(**attributes))  # type: ignore[arg-type]

    bench.queue.send({})
    assert len(bench.queue.receive()) == 1
