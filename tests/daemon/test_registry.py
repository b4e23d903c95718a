"""Which queues a reaper knows: those registered, and those that only their keys show."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qworker.client.commands.command import Command
from qworker.client.sync import Client
from qworker.daemon.presence import FORGOTTEN_MS, Presence, reaper_name
from qworker.daemon.reaper import Reaper
from qworker.daemon.registry import DISCOVER_S, Registry
from qworker.errors import AccessDeniedError
from qworker.wire.keys import queues_key, reapers_key
from tests.daemon.conftest import Clock, events
from tests.lua.drive import NOW, Drive

OpenQueue = Callable[..., Drive]


def names(registry: Registry) -> list[str]:
    """The queues that a registry knows after a refresh."""
    registry.refresh(1.0)
    return [keys.queue for keys in registry.queues]


@pytest.fixture
def registry(client: Client, namespace: str, clock: Clock) -> Registry:
    """A registry that has seen nothing yet."""
    return Registry(client.execute, namespace, client.factory.masters, clock=clock)


@pytest.mark.parametrize("part", ["ready", "delayed", "unacked", "meta"])
def test_finds_and_registers_queues_that_nobody_registered(
    registry: Registry, open_queue: OpenQueue, namespace: str, part: str
) -> None:
    """A plain RPUSH of somebody else makes a queue that is reaped like any other."""
    queue = open_queue("found", registered=False)
    queue.redis.delete(queue.keys.meta)
    match part:
        case "ready":
            queue.redis.rpush(queue.keys.ready[0], '{"a": 1}')
        case "meta":
            queue.redis.hset(queue.keys.meta, "paused", "in")
        case _:
            queue.redis.zadd(queue.base + part, {"x": 1})
    assert names(registry) == ["found"]
    assert queue.redis.hgetall(queues_key(namespace)) == {b"found": b"1"}


def test_leases_and_keys_of_others_make_no_queue(
    registry: Registry, open_queue: OpenQueue, namespace: str
) -> None:
    """Only parts that a queue has make one, only in this namespace, and only under a name that is allowed."""
    redis = open_queue("q", registered=False).redis
    redis.delete(f"{namespace}:{{q}}:meta")
    for key in ("{b}:lease:L", "{c}:dead", "{d}:ready:1", "{E}:ready", "{a b}:ready", "e:ready"):
        redis.set(f"{namespace}:{key}", 1)
    redis.set(f"x{namespace}:{{f}}:ready", 1)
    assert names(registry) == []
    assert not redis.exists(queues_key(namespace))


def test_new_queue_is_seen_at_the_next_refresh(
    registry: Registry, open_queue: OpenQueue, namespace: str
) -> None:
    """One more entry is noticed at once, a swap of two within ten seconds."""
    open_queue("b")
    assert names(registry) == ["b"]
    redis = open_queue("a").redis
    assert names(registry) == ["a", "b"]
    redis.hdel(queues_key(namespace), "b")
    redis.hset(queues_key(namespace), "c", 1)
    registry._walk_at = float("inf")
    assert names(registry) == ["a", "b"]


def test_swapped_queues_are_seen_in_time(
    registry: Registry, open_queue: OpenQueue, namespace: str, clock: Clock
) -> None:
    """The registry is read again after ten seconds though its size is the same."""
    redis = open_queue("b").redis
    redis.delete(f"{namespace}:{{b}}:meta")
    names(registry)
    redis.hdel(queues_key(namespace), "b")
    redis.hset(queues_key(namespace), "c", 1)
    clock.now_s += 10
    assert names(registry) == ["c"]


def test_walks_again_after_ten_minutes(
    registry: Registry, open_queue: OpenQueue, clock: Clock
) -> None:
    """A queue that loses its entry, or never had one, is found by the next walk."""
    assert names(registry) == []
    open_queue("late", registered=False)
    clock.now_s += DISCOVER_S - 1
    assert names(registry) == []
    clock.now_s += 1
    assert names(registry) == ["late"]


def test_names_that_are_none_are_left_aside(
    registry: Registry, open_queue: OpenQueue, namespace: str, logs: list[dict[str, object]]
) -> None:
    """Whatever stands in the registry, valid names are served and the others are told once."""
    redis = open_queue("a").redis
    for name in ("A", "x y", "\x1b[31m", b"\xff", "queues"):
        redis.hset(queues_key(namespace), name, 1)
    assert names(registry) == ["a"]
    redis.hset(queues_key(namespace), "b", 1)
    assert names(registry) == ["a", "b"]
    (line,) = events(logs, "queue_names_ignored")
    assert line["names"] == ["\x1b[31m", "A", "queues", "x y", "�"]


def test_goes_on_where_scan_is_forbidden(
    client: Client, namespace: str, open_queue: OpenQueue, logs: list[dict[str, object]]
) -> None:
    """An ACL without SCAN costs the discovery, not the reaping."""

    def execute(command: Command[object]) -> object:
        if command.args[0] == "SCAN":
            raise AccessDeniedError("no SCAN")
        return client.execute(command)

    open_queue("a")
    registry = Registry(execute, namespace, client.factory.masters)  # type: ignore[arg-type]
    assert names(registry) == ["a"]
    assert [line["problem"] for line in events(logs, "discovery_refused")] == ["no SCAN"]


def test_presence_is_written_once_a_second_and_ends(
    client: Client, namespace: str, open_queue: OpenQueue, clock: Clock
) -> None:
    """A reaper stands in the list with the server's time, forgets those that are gone, and leaves at its end."""
    redis, key = open_queue("a").redis, reapers_key(namespace)
    redis.zadd(key, {"gone": NOW - FORGOTTEN_MS - 1, "other": NOW - FORGOTTEN_MS})
    presence = Presence(client.execute, namespace, "me", clock=clock)
    presence.seen(NOW)
    assert redis.zrange(key, 0, -1, withscores=True) == [
        (b"other", NOW - FORGOTTEN_MS),
        (b"me", NOW),
    ]
    assert presence.reapers == 2
    presence.seen(NOW + 5)
    assert redis.zscore(key, "me") == NOW
    clock.now_s += 1
    presence.seen(NOW + 1000)
    assert redis.zscore(key, "me") == NOW + 1000
    presence.leave()
    assert redis.zrange(key, 0, -1) == [b"other"]


def test_reaper_is_present_by_the_servers_time(
    client: Client, namespace: str, open_queue: OpenQueue
) -> None:
    """A pass writes the presence with its own time, and closing takes it off the list."""
    redis = open_queue("a").redis
    reaper = Reaper(client, namespace, name="r")
    now_ms = reaper.tick().now_ms
    assert redis.zrange(reapers_key(namespace), 0, -1, withscores=True) == [(b"r", now_ms)]
    reaper.close()
    assert not redis.exists(reapers_key(namespace))


def test_names_of_reapers_differ() -> None:
    """Two reapers of one process have two names."""
    assert reaper_name() != reaper_name()


def test_a_registry_that_shrank_is_not_trusted(
    registry: Registry, open_queue: OpenQueue, namespace: str, clock: Clock
) -> None:
    """A server that lost everything gets its queues back from senders that have announced them a moment ago."""
    queue = open_queue("lost")
    assert names(registry) == ["lost"]
    queue.redis.delete(queues_key(namespace), *queue.redis.keys(f"{namespace}:{{lost}}:*"))
    assert names(registry) == []
    clock.now_s += 10
    assert names(registry) == []
    queue.redis.rpush(queue.keys.ready[0], '{"a": 1}')
    clock.now_s += 10
    assert names(registry) == ["lost"]
