"""Which queues a reaper knows: those registered, and those that only their keys show."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qworker.client.execute.sync import Client
from qworker.daemon.discovery import LEAST_REST_S
from qworker.daemon.presence import FORGOTTEN_MS, ReaperPresence, reaper_name
from qworker.daemon.reaper import Reaper
from qworker.daemon.registry import Registry
from qworker.engine.command import Command
from qworker.errors import AccessDeniedError, UnavailableError
from qworker.wire.keys import queues_key, reapers_key
from qworker.wire.presence import AHEAD_MS
from tests.daemon.conftest import events
from tests.lua.drive import NOW, Drive
from tests.timing import Clock

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
def test_finds_and_registers_unregistered_queues(
    registry: Registry, open_queue: OpenQueue, namespace: str, part: str
) -> None:
    """A plain RPUSH makes a queue that is reaped like any other."""
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
    """A new entry is noticed at once; a lost one is written again while its queue has keys."""
    open_queue("b")
    assert names(registry) == ["b"]
    redis = open_queue("a").redis
    assert names(registry) == ["a", "b"]
    redis.hdel(queues_key(namespace), "b")
    registry._discovery._walk_at = float("inf")
    assert names(registry) == ["a", "b"]
    assert redis.hexists(queues_key(namespace), "b")


def test_a_removed_queue_is_forgotten(
    registry: Registry, open_queue: OpenQueue, namespace: str, clock: Clock
) -> None:
    """A reaper that knew it does not write it into the index again; another entry takes its place."""
    redis = open_queue("b").redis
    assert names(registry) == ["b"]
    redis.delete(f"{namespace}:{{b}}:meta")
    redis.hdel(queues_key(namespace), "b")
    open_queue("c")
    clock.now_s += 10
    assert names(registry) == ["c"]
    assert redis.hkeys(queues_key(namespace)) == [b"c"]


@pytest.mark.parametrize(
    ("scans", "reapers", "after_s"), [(1, 1, 10), (100, 1, 60), (100, 3, 180), (5000, 1, 600)]
)
def test_the_next_walk_comes_the_sooner_the_fewer_keys_there_are(
    registry: Registry,
    client: Client,
    open_queue: OpenQueue,
    clock: Clock,
    scans: int,
    reapers: int,
    after_s: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An unannounced queue is found: within ten seconds on a small server, within ten minutes on any."""
    # One call reads all keys, however many other tests have left.
    monkeypatch.setattr("qworker.daemon.discovery._SCANNED", 10**6)
    registry.reapers = reapers
    assert names(registry) == []
    assert registry._discovery._walk_at - clock() == LEAST_REST_S
    registry._discovery._scans = scans - len(
        client.factory.masters()
    )  # each is scanned once more now
    registry._discovery._walk_at = clock()
    assert names(registry) == []
    open_queue("late", registered=False)
    clock.now_s += after_s - 1
    assert names(registry) == []
    clock.now_s += 1
    assert names(registry) == ["late"]


@pytest.mark.bad_input("data found: nonsense in other tables")
@pytest.mark.slow
def test_entries_of_no_queue_are_left_aside_and_leave(
    registry: Registry,
    open_queue: OpenQueue,
    namespace: str,
    clock: Clock,
    logs: list[dict[str, object]],
) -> None:
    """Whatever others write into the index, only queues with keys count, and other entries are removed."""
    redis = open_queue("a").redis
    for name in ("A", "x y", "\x1b[31m", b"\xff", "queues"):
        redis.hset(queues_key(namespace), name, "x" * 100_000)
    redis.hset(queues_key(namespace), mapping={f"junk{number}": "4 4 9" for number in range(2500)})
    assert names(registry) == ["a"]
    (line,) = events(logs, "index_entries_ignored")
    assert line["entries"] == 5
    assert redis.hlen(queues_key(namespace)) == 2506
    # It may have been announced just before its first message.
    open_queue("junk7", registered=False)
    clock.now_s += 10
    assert names(registry) == ["a", "junk7"]
    assert redis.hlen(queues_key(namespace)) == 7


def test_a_broken_index_stops_nothing(
    registry: Registry,
    open_queue: OpenQueue,
    namespace: str,
    clock: Clock,
    logs: list[dict[str, object]],
) -> None:
    """While its key holds another type, walks find queues every ten seconds; afterwards it is written again."""
    redis = open_queue("a").redis
    assert names(registry) == ["a"]
    redis.delete(queues_key(namespace))
    redis.set(queues_key(namespace), "x")
    open_queue("b", registered=False)
    assert names(registry) == ["a"]
    clock.now_s += 10
    assert names(registry) == ["a", "b"]
    assert events(logs, "index_broken")
    redis.delete(f"{namespace}:{{a}}:meta")
    clock.now_s += 10
    assert names(registry) == ["b"]
    redis.delete(queues_key(namespace))
    clock.now_s += 10
    assert names(registry) == ["b"]
    assert redis.hkeys(queues_key(namespace)) == [b"b"]


def test_works_without_the_right_to_scan(
    client: Client, namespace: str, open_queue: OpenQueue, logs: list[dict[str, object]]
) -> None:
    """An ACL without SCAN costs the discovery, not the reaping."""

    def execute(command: Command[object]) -> object:
        if command.args[:1] == ("SCAN",):
            raise AccessDeniedError("no SCAN")
        return client.execute(command)

    open_queue("a")
    registry = Registry(execute, namespace, client.factory.masters)  # type: ignore[arg-type]
    assert names(registry) == ["a"]
    assert [line["problem"] for line in events(logs, "discovery_refused")] == ["no SCAN"]


def test_presence_is_written_once_a_second_and_ends(
    client: Client, namespace: str, open_queue: OpenQueue, clock: Clock
) -> None:
    """A reaper is listed with the server's time, removes those that are gone, and leaves at its end."""
    redis, key = open_queue("a").redis, reapers_key(namespace)
    redis.zadd(key, {"gone": NOW - FORGOTTEN_MS - 1, "other": NOW - FORGOTTEN_MS})
    redis.zadd(key, {"before the clock was set back": NOW + AHEAD_MS + 1})
    presence = ReaperPresence(client.execute, namespace, "me", clock=clock)
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


def test_an_index_that_shrank_brings_a_distant_walk_forward(
    registry: Registry, open_queue: OpenQueue, namespace: str, clock: Clock
) -> None:
    """On a large server the next walk may be ten minutes away; senders may be gone before."""
    redis = open_queue("a").redis
    assert names(registry) == ["a"]
    registry._discovery._walk_at = clock() + 600
    open_queue("b", registered=False)
    assert names(registry) == ["a"]
    redis.delete(queues_key(namespace))
    assert names(registry) == ["a", "b"]


def test_entries_that_the_registry_removes_itself_bring_no_walk_forward(
    registry: Registry, open_queue: OpenQueue, namespace: str, clock: Clock
) -> None:
    """An index that shrinks by them has lost nothing."""
    redis = open_queue("a").redis
    redis.hset(queues_key(namespace), "junk", 1)
    assert names(registry) == ["a"]
    registry._discovery._walk_at = clock() + 600
    open_queue("b", registered=False)
    clock.now_s += 10
    assert names(registry) == ["a"]
    assert redis.hkeys(queues_key(namespace)) == [b"a"]
    assert names(registry) == ["a"]


def test_a_broken_index_brings_a_distant_walk_forward(
    registry: Registry, open_queue: OpenQueue, namespace: str, clock: Clock
) -> None:
    """New queues are found within ten seconds without the index, however large the server is."""
    redis = open_queue("a").redis
    assert names(registry) == ["a"]
    registry._discovery._walk_at = clock() + 600
    redis.delete(queues_key(namespace))
    redis.set(queues_key(namespace), "x")
    open_queue("b", registered=False)
    assert names(registry) == ["a"]
    clock.now_s += 10
    assert names(registry) == ["a", "b"]


def test_an_entry_waits_ten_seconds_for_its_first_message(
    registry: Registry, open_queue: OpenQueue, namespace: str, clock: Clock
) -> None:
    """Each new queue has the index read again, which must not cost others their entries."""
    redis = open_queue("a").redis
    redis.hset(queues_key(namespace), "early", 1)
    assert names(registry) == ["a"]
    open_queue("b")
    assert names(registry) == ["a", "b"]
    assert redis.hexists(queues_key(namespace), "early")
    clock.now_s += 10
    assert names(registry) == ["a", "b"]
    assert not redis.hexists(queues_key(namespace), "early")


def test_a_queue_is_forgotten_after_ten_seconds_without_keys(
    registry: Registry, open_queue: OpenQueue, namespace: str, clock: Clock
) -> None:
    """Ten seconds in a row: it counts again from the start after it had keys in between."""
    queue = open_queue("a")
    index, meta = queues_key(namespace), queue.keys.meta
    assert names(registry) == ["a"]
    for _ in range(2):
        queue.redis.delete(meta)
        clock.now_s += 10
        assert names(registry) == ["a"]
        assert queue.redis.hexists(index, "a")
        queue.redis.hset(meta, "test", 1)
        clock.now_s += 10
        assert names(registry) == ["a"]
    queue.redis.delete(meta)
    for expected in (["a"], []):
        clock.now_s += 10
        assert names(registry) == expected
    assert not queue.redis.exists(index)


def test_known_queues_are_checked_in_turn(
    registry: Registry,
    open_queue: OpenQueue,
    namespace: str,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many queues there are, the last one is forgotten as well when its keys are gone."""
    monkeypatch.setattr("qworker.daemon.registry._CHECKED", 2)
    for name in "abcd":
        open_queue(name)
    last = open_queue("e")
    assert names(registry) == [*"abcde"]
    last.redis.delete(last.keys.meta)
    for _ in range(6):
        clock.now_s += 10
        registry.refresh(1.0)
    assert names(registry) == [*"abcd"]
    assert not last.redis.hexists(queues_key(namespace), "e")


@pytest.mark.parametrize("masters", [1, 2])
def test_an_index_whose_node_is_away_costs_no_queue(
    client: Client,
    namespace: str,
    open_queue: OpenQueue,
    logs: list[dict[str, object]],
    masters: int,
) -> None:
    """A Cluster has other nodes, whose queues are known; without the only server there is nothing to do."""
    away = False

    def execute(command: Command[object]) -> object:
        if away and command.args[:1] == ("HLEN",):
            raise UnavailableError("no answer")
        return client.execute(command)

    addresses = [*client.factory.masters()] * masters
    registry = Registry(execute, namespace, lambda: addresses)  # type: ignore[arg-type]
    open_queue("a")
    assert names(registry) == ["a"]
    away = True
    if masters == 1:
        with pytest.raises(UnavailableError):
            registry.refresh(1.0)
    else:
        assert names(registry) == ["a"]
    assert [line["problem"] for line in events(logs, "index_unread")] == ["no answer"] * (
        masters - 1
    )
