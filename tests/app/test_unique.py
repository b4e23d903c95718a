"""Unique keys of calls: once until the end, once until the start, once in a time, and only the last of many."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qworker import QWorker
from qworker.errors import InvalidOptionError
from qworker.testing import drain
from qworker.wire.keys import QueueKeys


@pytest.mark.slow
def test_calls_are_replaced_postponed_and_kept_out(app: QWorker) -> None:
    """Of sync and async senders alike, also in a divided queue: a key is in one shard."""
    seen: list[tuple[str, int]] = []

    @app.task(queue="mail")
    def index(kind: str, number: int) -> None:
        seen.append((kind, number))
        if kind == "started" and number == 0:
            index.options(unique="s", unique_until="started").send(kind, 9)

    async def send_many(number: int) -> None:
        for kind, options in KINDS.items():
            sender = index.options(unique=kind, **options)
            if number % 2:
                await sender.asend(kind, number)
            else:
                sender.send(kind, number)
        await app.aclose()

    app.queue("mail").divide(3, wait=0)
    for number in range(3):
        asyncio.run(send_many(number))
    drain(app)
    assert sorted(seen) == [
        ("debounced", 2), ("done", 0), ("started", 0), ("started", 9), ("timed", 0)
    ]  # fmt: skip
    seen.clear()
    asyncio.run(send_many(3))  # "timed" is still held
    drain(app)
    assert sorted(seen) == [("debounced", 3), ("done", 3), ("started", 3)]
    assert app.queue("mail").inspect().stats["cancelled"] == 2


KINDS: dict[str, dict[str, Any]] = {
    "done": {},
    "started": {"unique_until": "started"},
    "timed": {"unique_for": "2m"},
    "debounced": {"debounce": "30s"},
}


def test_a_key_is_held_for_as_long_as_it_was_asked_for(app: QWorker) -> None:
    """From the send on, whatever becomes of the message; the clock is that of the server."""

    @app.task(queue="mail")
    def index() -> None: ...

    async def send_later() -> None:
        await index.options(unique="b", unique_for="3h").asend()
        await app.aclose()

    before_ms = app.client.now_ms()
    index.options(unique="a", unique_for="2m").send()
    asyncio.run(send_later())
    after_ms = app.client.now_ms()
    for key, held_ms in (("a", 120_000), ("b", 3 * 3_600_000)):
        stored = app.client.ask("HGET", QueueKeys(app.namespace, "mail").unique, key)
        until_ms = int(stored.split()[1])
        assert before_ms <= until_ms - held_ms <= after_ms


def test_debounce_is_refused_where_somebody_waits(app: QWorker) -> None:
    """A message that is replaced has no result: neither a task with results nor a workflow may be debounced."""

    @app.task(queue="mail", result="1h")
    def count() -> int:
        return 1

    with pytest.raises(InvalidOptionError, match="whose result is kept"):
        count.options(unique="k", debounce="1s").send()
    assert app.queue("mail").inspect().stored == 0
