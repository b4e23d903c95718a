"""Feeds: what handlers tell while they run, and how it is read again after a break."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from qworker import (
    FeedEntry,
    InvalidBodyError,
    InvalidOptionError,
    Keyring,
    QWorker,
    ResultTimeoutError,
    Retry,
    Run,
    SyncRun,
    TaskFailedError,
    current,
)
from qworker.client.results import feed
from qworker.testing import drain
from tests.timing import DEADLINE_S


def tell(*values: object) -> list[str]:
    """Append to the feed of the message that is handled."""
    context = current()
    assert context is not None
    return context.feed.append(*values)


@pytest.mark.slow
def test_a_feed_is_read_until_its_message_has_ended(app: QWorker) -> None:
    """In order, from the beginning or behind an entry; a reader that is there first gets it as it grows."""

    @app.task(result="1h")
    def count(number: int) -> int:
        for done in range(number):
            tell({"done": done})
        tell("a", "b")
        return number

    handle = count.start(250)
    live: list[FeedEntry] = []
    reader = threading.Thread(target=lambda: live.extend(handle.feed(timeout=DEADLINE_S)))
    reader.start()
    drain(app)
    reader.join(DEADLINE_S)
    read = list(handle.feed(timeout=0))
    assert [entry.value for entry in read] == [{"done": n} for n in range(250)] + ["a", "b"]
    assert live == read
    assert list(handle.feed(read[-3].id)) == read[-2:]
    assert list(handle.feed(read[-1].id)) == []
    assert abs(read[0].at_ms - app.queue("default").inspect().now_ms) < 60_000
    assert handle.result(0) == 250


def test_async_code_appends_and_reads(app: QWorker, store_url: str) -> None:
    """Beside a worker, each in its own loop; steps of runs append, too."""

    @app.workflow
    async def order(run: Run) -> str:
        async def stream() -> str:
            context = current()
            assert context is not None
            for token in "abc":
                await context.feed.aappend(token)
            return "abc"

        text = await run.step("stream", stream)
        await run.sleep("1d")
        tell("done")
        return text

    handle = order.start()
    worker = threading.Thread(target=drain, args=(app,))

    async def read() -> list[Any]:
        reader = QWorker(app.namespace, url=store_url)
        worker.start()
        other = reader.handle("default", handle.id)
        values = [entry.value async for entry in other.afeed(timeout=DEADLINE_S)]
        with pytest.raises(InvalidOptionError, match="after"):
            other.afeed("x")
        await reader.aclose()
        return values

    assert asyncio.run(read()) == ["a", "b", "c", "done"]
    worker.join(DEADLINE_S)


def test_a_feed_is_bounded_and_expires(app: QWorker) -> None:
    """The newest thousand entries stay, as long as the result; of a message without one for an hour."""
    refused: list[str] = []

    @app.task(result="10m")
    def much() -> None:
        for first in range(0, 1100, 100):
            tell(*range(first, first + 100))
        for wrong in ((), (0,) * 101, ("x" * 16_384,), (object(),)):
            with pytest.raises(InvalidBodyError) as error:
                tell(*wrong)
            refused.append(str(error.value))

    @app.task(queue="others")
    def little() -> None:
        tell(1)

    handle = much.start()
    other = little.send()
    assert drain(app).errors == []
    assert [entry.value for entry in handle.feed()] == list(range(100, 1100))
    assert ["got 0 values" in refused[0], "16 KiB" in refused[2]] == [True, True]
    keys, others = app.queue("default").keys, app.queue("others").keys
    with app.client.factory.redis(keys.meta) as redis:
        assert 500_000 < redis.pttl(keys.feed(handle.id)) <= 600_000
    with app.client.factory.redis(others.meta) as redis:
        assert 3_500_000 < redis.pttl(others.feed(other)) <= 3_600_000


def test_a_reader_is_told_when_nothing_comes(app: QWorker) -> None:
    """After its timeout; an end without a value ends the feed as any other."""

    @app.task(result="1h", retry=Retry.none())
    def fail() -> None:
        tell("before")
        raise ValueError

    handle = fail.start()
    with pytest.raises(ResultTimeoutError):
        list(handle.feed(timeout="50ms"))
    drain(app, errors="collect")
    assert [entry.value for entry in handle.feed()] == ["before"]
    with pytest.raises(TaskFailedError):
        handle.result(0)


def test_the_feed_of_a_message_without_a_result_ends(
    app: QWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the message is gone, as that of an unknown one; not while it waits."""
    monkeypatch.setattr(feed, "_SEARCH_S", 0.01)

    @app.task
    def work() -> None:
        tell("done")

    handle = app.handle("default", work.send())
    with pytest.raises(ResultTimeoutError):
        list(handle.feed(timeout="100ms"))
    drain(app)
    assert [entry.value for entry in handle.feed(timeout=DEADLINE_S)] == ["done"]
    assert list(app.handle("default", "nobody").feed(timeout=DEADLINE_S)) == []


@pytest.mark.parametrize("divided", [False, True])
def test_entries_are_protected_as_messages_are(
    store_url: str, namespace: str, divided: bool
) -> None:
    """Encrypted in Redis; read in whatever shard the message is."""
    keys = Keyring(signing={"k": b"s" * 32}, encryption={"k": b"e" * 32})
    app = QWorker(namespace, url=store_url, keys=keys)
    if divided:
        app.queue("default").divide(3)

    @app.workflow
    def order(run: SyncRun, number: int) -> None:
        tell(f"secret {number}")

    handles = [order.start(number) for number in range(4)]
    drain(app)
    for number, handle in enumerate(handles):
        assert [entry.value for entry in handle.feed()] == [f"secret {number}"]
    queue = app.queue("default")
    stored = []
    for shard in range(queue.ref.shards.kept):
        for handle in handles:
            key = queue.ref.shard(shard).keys.feed(handle.id)
            with app.client.factory.redis(key) as redis:
                stored += [fields[b"v"] for _, fields in redis.xrange(key)]
    assert len(stored) == len(handles)
    assert b"secret" not in b"".join(stored)
    app.close()
