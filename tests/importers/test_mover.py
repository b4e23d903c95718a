"""An interrupted move loses nothing and moves nothing twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from qworker.client.queue_ref import QueueRef
from qworker.engine.raw import raw
from qworker.errors import QueueFullError, QueuePausedError
from qworker.importers.mover import ImportSupersededError, MoveCounts, Mover
from qworker.importers.rsmq import Rsmq, as_it_is
from qworker.importers.source import SourceKey
from qworker.importers.survey import PAGE
from tests.importers.keys import add_rsmq

BODIES = [f"message {at}".encode() for at in range(2 * PAGE + 50)]


class Stop(BaseException):
    """Ends the code as a kill would."""


class Stopping:
    """A key at which the `at`-th call of a step ends the run, before or after it was done."""

    priority = 0

    def __init__(self, key: SourceKey, step: str, at: int, *, done: bool) -> None:
        self._key, self._step, self._left, self._done = key, step, at, done

    def size(self) -> int:
        return self._key.size()

    def read(self, start: int, count: int) -> Any:
        return self._do("read", lambda: self._key.read(start, count))

    def remove_originals(self, messages: Any) -> Any:
        return self._do("remove_originals", lambda: self._key.remove_originals(messages))

    def _do(self, step: str, call: Callable[[], Any]) -> Any:
        self._left -= step == self._step
        stops = step == self._step and self._left == 0
        if stops and not self._done:
            raise Stop
        result = call()
        if stops:
            raise Stop
        return result


@pytest.fixture
def source(other: Any) -> Rsmq:
    """A queue of 450 messages."""
    add_rsmq(other.redis, "texts", BODIES)
    return Rsmq(other.redis, lambda _: as_it_is)


@pytest.fixture
def ours(shop: Any) -> QueueRef:
    """The queue that they are moved into."""
    return QueueRef(shop.namespace, "texts", shop.client.ids)


def handled(shop: Any) -> Iterator[bytes]:
    """Handle all messages, as consumers do that run meanwhile."""
    queue = shop.queue("texts")
    while messages := queue.receive(1000):
        queue.ack(*messages)
        yield from (message.body for message in messages)


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    "at",
    [
        pytest.param(1, marks=pytest.mark.nightly("test_interrupted_run_is_continued")),
        2,
        pytest.param(3, marks=pytest.mark.nightly("test_interrupted_run_is_continued")),
    ],
)
@pytest.mark.parametrize("step", ["read", "remove_originals"])
@pytest.mark.parametrize(
    "consumers",
    [
        pytest.param(
            False, marks=pytest.mark.nightly("test_interrupted_run_is_continued"), id="alone"
        ),
        pytest.param(True, id="consumed"),
    ],
)
@pytest.mark.slow
def test_interrupted_run_is_continued(
    source: Rsmq, shop: Any, ours: QueueRef, move: Any, other: Any, step: str, at: int, done: bool,
    consumers: bool,
) -> None:  # fmt: skip
    """At each step, also if the copies were handled before the second run."""
    queue = source.queue("texts")
    stopping = replace(queue, keys=[Stopping(queue.keys[0], step, at, done=done)])
    with pytest.raises(Stop):
        Mover(shop.client, ours).move(stopping)
    seen = Counter(handled(shop)) if consumers else Counter[bytes]()

    moved = move(source, "texts")

    seen.update(handled(shop))
    assert seen == Counter(BODIES)
    copied = min(PAGE, len(BODIES) - (at - 1) * PAGE)
    assert moved.known == (copied if step == "remove_originals" and not done else 0)
    assert other.redis.zcard("rsmq:texts") == 0
    # At most the marks of the last page stay, of messages that no longer exist in the source.
    assert shop.ask("HLEN", ours.keys.imported) <= PAGE + 1
    if step == "remove_originals" and not done:
        assert shop.ask("HLEN", ours.keys.imported) == 0


@pytest.mark.slow
def test_earlier_import_is_stopped_by_a_later_one(
    source: Rsmq, shop: Any, ours: QueueRef, move: Any
) -> None:
    """It may have read messages that the later one has moved and forgotten."""
    queue = source.queue("texts")
    key = queue.keys[0]
    others: list[MoveCounts] = []

    class Slow(Stopping):
        def read(self, start: int, count: int) -> Any:
            page = key.read(start, count)
            if not others:
                others.append(move(source, "texts"))
            return page

    slow = replace(queue, keys=[Slow(key, "", 0, done=False)])
    with pytest.raises(ImportSupersededError):
        Mover(shop.client, ours).move(slow)

    assert others == [MoveCounts(stored=len(BODIES))]
    assert Counter(handled(shop)) == Counter(BODIES)


def test_message_that_vanishes_during_the_import_is_counted(
    source: Rsmq, shop: Any, ours: QueueRef
) -> None:
    """A consumer of the source took it, so both have it: at least once."""
    queue = source.queue("texts")
    key = queue.keys[0]

    class Taken(Stopping):
        def remove_originals(self, messages: Any) -> Any:
            key.remove_originals(messages[:3])
            return key.remove_originals(messages)

    taken = replace(queue, keys=[Taken(key, "", 0, done=False)])

    moved = Mover(shop.client, ours).move(taken)

    assert moved == MoveCounts(stored=len(BODIES), vanished=9)


@pytest.mark.slow
def test_full_or_paused_queue_stops_it_and_loses_nothing(
    source: Rsmq, shop: Any, move: Any, other: Any
) -> None:
    """The originals of copied messages are removed, the others stay."""
    shop.configure("texts", maxlen=PAGE + 1)
    with pytest.raises(QueueFullError):
        move(source, "texts")
    assert other.redis.zcard("rsmq:texts") == len(BODIES) - PAGE
    seen = Counter(handled(shop))
    shop.queue("texts").pause("in")
    with pytest.raises(QueuePausedError):
        move(source, "texts")
    shop.queue("texts").resume()
    shop.configure("texts", maxlen=10**6)
    move(source, "texts")
    assert seen + Counter(handled(shop)) == Counter(BODIES)


def test_busy_producer_does_not_keep_it_running(source: Rsmq, shop: Any, ours: QueueRef) -> None:
    """A run moves as many messages as there were when it began."""
    queue = source.queue("texts")
    key = queue.keys[0]

    class Growing(Stopping):
        def remove_originals(self, messages: Any) -> Any:
            removed = key.remove_originals(messages)
            key._redis.zadd(
                "rsmq:texts", {f"new{n}{messages[0].name}": 2 for n in range(len(messages))}
            )
            return removed

    growing = replace(queue, keys=[Growing(key, "", 0, done=False)])

    moved = Mover(shop.client, ours).move(growing)

    assert moved.stored == len(BODIES)


@pytest.mark.slow
def test_large_messages_go_in_calls_of_few_bytes(other: Any, shop: Any, move: Any) -> None:
    """A call blocks the server while it stores its messages."""
    add_rsmq(other.redis, "texts", [b"x" * 3_000_000] * 5)
    calls = int(shop.client.execute(_calls()))
    assert move(Rsmq(other.redis, lambda _: as_it_is), "texts") == MoveCounts(stored=5)
    assert int(shop.client.execute(_calls())) - calls >= 6
    assert [len(body) for body in handled(shop)] == [3_000_000] * 5


def _calls() -> Any:

    def count(reply: bytes) -> int:
        lines = dict(line.split(b":", 1) for line in reply.split() if b":" in line)
        calls = lines.get(b"cmdstat_evalsha", b"calls=0")
        return int(calls.partition(b"calls=")[2].partition(b",")[0])

    return raw("INFO", "commandstats", decode=count)


def test_queue_is_registered(source: Rsmq, shop: Any, move: Any) -> None:
    """So that reapers and consumers find it."""
    move(source, "texts")
    assert shop.ask("HGET", f"{shop.namespace}:queues", "texts") == b"1"
