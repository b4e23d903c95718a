"""`advance`: stored messages get older, as if time had passed."""

from __future__ import annotations

import pytest

from qworker import InvalidOptionError, StaleReceiptError, current
from qworker.testing import advance, drain


@pytest.fixture
def greet(app):
    """A task with its own queue."""

    @app.task(queue="greetings")
    def greet(name: str = "") -> None: ...

    return greet


def test_a_delayed_message_is_due_when_its_time_has_passed(app, greet):
    greet.send_later("10m")
    advance(app, "9m")
    assert drain(app, include_delayed=False).handled == 0
    advance(app, "1m")
    assert drain(app, include_delayed=False).handled == 1


def test_messages_sent_afterwards_count_from_now(app, greet):
    advance(app, "1h")
    greet.send_later("10m")
    assert drain(app, include_delayed=False).handled == 0
    advance(app, "10m")
    assert drain(app, include_delayed=False).handled == 1


def test_a_time_to_live_passes_while_a_message_is_ready(app, greet):
    greet.options(ttl="1h").send("short")
    greet.options(ttl="3h").send("long")
    advance(app, "2h")
    drained = drain(app)
    assert (drained.handled, drained.expired) == (1, 1)


def test_a_time_to_live_passes_while_a_message_is_delayed(app, greet):
    greet.options(ttl="1h", delay="2h").send()
    drained = drain(app)
    assert (drained.handled, drained.expired, drained.left) == (0, 1, 0)


def test_a_lease_runs_out_and_its_receipt_is_stale(app, greet):
    queue = app.queue("greetings")
    greet.send()
    message = queue.receive(visibility="1m")[0]
    advance(app, "59s")
    assert drain(app).handled == 0
    advance(app, "2s")
    assert drain(app).handled == 1
    with pytest.raises(StaleReceiptError):
        queue.nack(message)


def test_a_unique_key_is_free_when_its_time_is_over(app, greet):
    first = greet.options(unique="one", unique_for="24h").send()
    waiting = greet.options(unique="two", delay="48h").send()
    replaced = greet.options(unique="three", debounce="25h").send()
    advance(app, "23h")
    assert greet.options(unique="one").send() == first
    latest = greet.options(unique="three", debounce="25h").send()
    assert app.queue(greet.queue).show(replaced) is None
    advance(app, "24h")
    assert greet.options(unique="one").send() != first
    assert greet.options(unique="two").send() == waiting
    assert app.queue(greet.queue).show(latest) is not None


def test_a_handler_sees_how_old_its_message_is(app):
    ages = []

    @app.task
    def note_age() -> None:
        ages.append(current().sent_ms)

    note_age.send()
    advance(app, "1h")
    note_age.send()
    drain(app)
    assert 3_599_000 < ages[1] - ages[0] < 3_660_000


def test_order_priorities_and_bodies_do_not_change(app):
    order = []

    @app.task
    def take(name: bytes) -> None:
        order.append(name)

    for name in (b"a", b"b\n\xff"):
        take.send(name)
        take.options(priority=5).send(name)
    advance(app, "1m")
    drain(app)
    assert order == [b"a", b"b\n\xff", b"a", b"b\n\xff"]


def test_plain_and_foreign_items_do_not_change(app, greet):
    queue = app.queue("greetings")
    greet.send()
    with app.client.factory.redis() as redis:
        redis.rpush(queue.keys.ready[0], '{"task": "greet"}', "q1 not a header\nbody")
        advance(app, "1m")
        assert redis.lrange(queue.keys.ready[0], 1, 2) == [
            b'{"task": "greet"}',
            b"q1 not a header\nbody",
        ]


def test_time_passes_for_an_empty_app(app):
    advance(app, "1h")


def test_other_values_than_durations_are_refused(app):
    with pytest.raises(InvalidOptionError, match="duration"):
        advance(app, "soon")
