"""A client with the rights of a role for one queue tries to harm another one: judged by what is there afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.engine.scripts import SCRIPT_NAMES, load_script
from qworker.store.connections import ConnectionFactory
from qworker.wire.keys import QueueKeys
from tests.security.guarded import GuardedServer, guarded

NAMESPACE = "shop"
#: Names of commands that change a key, each with arguments behind it that would do harm.
HARM = (
    ("DEL",), ("UNLINK",), ("SET", "x"), ("RPUSH", "x"), ("LPUSH", "x"), ("LPOP",), ("LTRIM", 1, 0), ("LREM", 0, "x"),
    ("HSET", "a", "b"), ("HDEL", "stored"), ("HINCRBY", "stored", -1), ("ZADD", 1, "x"), ("ZREM", "x"),
    ("ZREMRANGEBYRANK", 0, -1), ("XADD", "*", "a", "b"), ("XTRIM", "MAXLEN", 0), ("XDEL", "1-1"), ("PEXPIRE", 1),
    ("RENAME", "shop:{mail}:ready"), ("RESTORE", 0, "x"), ("BLPOP", 0.01), ("LRANGE", 0, -1), ("XRANGE", "-", "+"),
)  # fmt: skip


@pytest.fixture(
    scope="module",
    params=[
        "valkey",
        pytest.param("redis", marks=pytest.mark.nightly("test_no_command_reaches_another_queue")),
    ],
)
def shop(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GuardedServer]:
    """A server whose producer and consumer are those of `mail`; `pay` is another's."""
    folder: Path = tmp_path_factory.mktemp("acl")
    with guarded(request.param, NAMESPACE, folder, queues=["mail"]) as server:
        yield server


def state(server: GuardedServer) -> dict[bytes, bytes]:
    """Everything that is not of `mail`: keys and their values."""
    with server.redis() as tester:
        return {
            key: tester.dump(key)
            for key in sorted(tester.keys("*"))
            if b"{mail}" not in key and key != b"shop:queues"
        }


@pytest.fixture
def pay(shop: GuardedServer) -> Iterator[Queue]:
    """The neighbour: ready, delayed, unacked and dead messages, with a journal; it continues to work afterwards."""
    with Client(ConnectionFactory(shop.url("operator"))) as client:
        queue = Queue(client, NAMESPACE, "pay")
        queue.create(journal="all")
        for number in range(4):
            queue.send({"n": number})
        queue.send({"n": 9}, delay="1h")
        [message] = queue.receive(1)
        queue.bury(message, error="no")
        queue.receive(1)
        with shop.redis() as tester:
            tester.rpush(QueueKeys(NAMESPACE, "pay").wake, "1")
            tester.set("other:{pay}:ready", "x")
        yield queue
        assert [each.body for each in queue.receive(5)] != []
        with shop.redis() as tester:
            tester.delete(*[key for key in tester.keys("*") if b"{pay}" in key])


@pytest.mark.parametrize("role", ["producer", "consumer", "metrics"])
@pytest.mark.slow
def test_no_command_reaches_another_queue(shop: GuardedServer, pay: Queue, role: str) -> None:
    """Nothing that a narrowed role sends changes a key of another queue or namespace, by itself or out of a script."""
    before = state(shop)
    keys = [item.decode() for item in before]
    assert len(keys) >= 7
    scripts = [load_script(name).sha for name in SCRIPT_NAMES]
    with shop.redis(role) as client:
        for key in keys:
            for name, *rest in HARM:
                with contextlib.suppress(redis.RedisError):
                    client.execute_command(name, key, *rest)
            for sha in scripts:
                # Its own queue first, so that the right to the first key opens nothing.
                with contextlib.suppress(redis.RedisError):
                    client.execute_command("EVALSHA", sha, 2, "shop:{mail}:meta", key, 1, 1, 1)
        for words in (
            ["SCRIPT", "LOAD", "while true do end"], ["EVAL", "while true do end", 0], ["SCRIPT", "FLUSH"],
            ["FUNCTION", "FLUSH"], ["FLUSHALL"], ["FLUSHDB"], ["SWAPDB", 0, 1], ["CONFIG", "SET", "maxmemory", 1],
            ["DEBUG", "SLEEP", 60], ["SHUTDOWN"], ["CLIENT", "KILL", "TYPE", "normal"], ["CLIENT", "PAUSE", 60000],
            ["ACL", "SETUSER", "x", "on"], ["MONITOR"], ["KEYS", "*"], ["REPLICAOF", "127.0.0.1", 1], ["MULTI"],
        ):  # fmt: skip
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*words)
    assert state(shop) == before
