"""Walks through one key while others use it: what stays is read, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from redis import Redis

from qworker.client.execute.sync import Client
from qworker.client.inspect import peek
from qworker.client.inspect.walk import ListWalk, SortedSetWalk, StreamWalk, Walk
from qworker.client.message import Stored
from qworker.client.plan import Plan
from qworker.client.queue import Queue
from qworker.client.queue_ref import QueueRef
from tests.topologies.servers import client_of

T = TypeVar("T")


@pytest.fixture
def redis(store_url: str) -> Iterator[Redis]:
    with client_of(store_url) as redis:
        yield redis


def read(client: Client, walk: Walk[T], between: Callable[[], object] = lambda: None) -> list[T]:
    """All that a walk reads; `between` is called after each of its pages."""

    def run(plan: Plan[list[T]]) -> list[T]:
        page = client.run(plan)
        between()
        return page

    return [item for page in walk.pages(run) for item in page]


@pytest.mark.parametrize("number", [0, 1, 4, 5, 3000])
def test_every_item_of_a_key_is_read_once(
    client: Client, redis: Redis, namespace: str, number: int
) -> None:
    """Lists come from the tail, sorted sets by score, streams from the oldest entry."""
    items = [b"%05d" % at for at in range(number)]
    ids = [b"%d-1" % (at + 1) for at in range(number)]
    ready, due, dead = (f"{namespace}:{part}" for part in ("l", "z", "x"))
    with redis.pipeline() as pipe:
        for at, item in enumerate(items):
            pipe.rpush(ready, item).zadd(due, {item: at // 7}).xadd(dead, {"n": item}, ids[at])
        pipe.execute()
    assert read(client, ListWalk(ready)) == items[::-1]
    assert read(client, SortedSetWalk(due)) == [
        (item, b"%d" % (at // 7)) for at, item in enumerate(items)
    ]
    assert read(client, StreamWalk(dead)) == [
        (at, [b"n", item]) for at, item in zip(ids, items, strict=True)
    ]


def test_pages_of_large_items_are_short(client: Client, redis: Redis, namespace: str) -> None:
    """A page has about 1 MiB, whatever its items: others wait for the reply."""
    key, pages = f"{namespace}:l", list[int]()
    redis.rpush(key, *[b"x" * 300_000] * 10)
    for page in ListWalk(key).pages(client.run):
        pages.append(len(page))
    assert pages == [4, 3, 3]


def test_a_list_is_read_whole_while_its_head_is_received(
    client: Client, redis: Redis, namespace: str
) -> None:
    """What is taken from the head makes no other item be missed."""
    key = f"{namespace}:l"
    redis.rpush(key, *range(500))
    seen = read(client, ListWalk(key, 50), lambda: redis.lpop(key, 10))
    assert len(seen) == len({*seen})
    left = {int(item) for item in redis.lrange(key, 0, -1)}
    assert left <= {int(item) for item in seen}


def test_a_list_continues_after_items_that_its_reader_took(
    client: Client, redis: Redis, namespace: str
) -> None:
    """An item that the reader removes moves all that are before it."""
    key = f"{namespace}:l"
    redis.rpush(key, *range(100))
    walk, seen = ListWalk(key), list[int]()
    for page in walk.pages(client.run):
        for item in page:
            seen.append(int(item))
            if int(item) % 3 == 0:
                redis.lrem(key, -1, item)
                walk.took()
    assert seen == [*range(99, -1, -1)]


def test_scores_without_an_end_are_read(client: Client, redis: Redis, namespace: str) -> None:
    """Others may have written any score, and any member."""
    key = f"{namespace}:z"
    members: dict[Any, float] = {"": float("-inf"), "a": float("-inf"), "b": 1.5, "c": float("inf")}
    redis.zadd(key, members)
    assert [member for member, _ in read(client, SortedSetWalk(key))] == [b"", b"a", b"b", b"c"]


@pytest.mark.slow
def test_a_long_row_of_one_score_is_read_once_though_one_goes_with_each_page(
    client: Client, redis: Redis, namespace: str
) -> None:
    """What has gone costs half a page to read again, never all from the beginning."""
    key, pages = f"{namespace}:z", list[int]()
    redis.zadd(key, {f"{number:05}": 5 for number in range(20_000)})

    def take() -> None:
        pages.append(1)
        redis.zremrangebyrank(key, 0, 0)

    seen = [member for member, _ in read(client, SortedSetWalk(key), take)]
    assert len(seen) == len({*seen}) >= 20_000 - len(pages)
    assert len(pages) < 200


def test_a_message_is_found_behind_leases_that_are_acked_during_the_search(
    client: Client, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays where it is: that others leave the set of leases before it hides it from no search."""
    queue = Queue(client, namespace, "q")
    ids = queue.send_many(["body"] * 60)
    others, read = [queue.receive(1)[0] for _ in ids][:20], peek.lease

    def ack_one(ref: QueueRef, lease_id: str, deadline_ms: int) -> Plan[list[Stored]]:
        if others:
            queue.ack(others.pop(0))
        return (yield from read(ref, lease_id, deadline_ms))

    monkeypatch.setattr(peek, "lease", ack_one)
    found = queue.show(ids[30])
    assert (found is not None and found.state, others) == ("unacked", [])
