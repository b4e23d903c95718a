"""The roles of the ACL: for each kind of process its raw commands, and the keys that it may access."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from qworker.wire.keys import (
    QueueKeys,
    answer_key,
    control_key,
    leaving_key,
    owners_key,
    paused_tasks_key,
    queues_key,
    reapers_key,
    shared_limits_key,
    workers_key,
)

__all__ = ["ROLES", "Keys", "Role"]

#: Every queue of the namespace.
_ANY: Final = "*"

Keys = Callable[[QueueKeys], Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """The commands that a kind of process sends itself, and the keys it may access. Its scripts: see `scripts_of`.

    It may read and write the `keys` of a queue, only write `writes`, only read `reads`. `shared` are ACL patterns of
    keys of the namespace. `announces`: it may add names to the index of queues, but neither remove nor read them.
    `lists`: it may read the index. `channels`: patterns of channels that it may publish to and hear. `extra` are other
    rights. `every_queue`: it is for all queues of the namespace.
    """

    about: str
    raw: Sequence[str] = ()
    keys: Keys = field(default=lambda _: ())
    writes: Keys = field(default=lambda _: ())
    reads: Keys = field(default=lambda _: ())
    shared: Callable[[str], Iterable[str]] = field(default=lambda _: ())
    announces: bool = False
    lists: bool = False
    channels: Keys = field(default=lambda _: ())
    extra: Sequence[str] = ()
    every_queue: bool = False


def _producer_keys(keys: QueueKeys) -> tuple[str, ...]:
    return (keys.meta, keys.stats, keys.producers, keys.unique, keys.journal, *keys.of_groups())


def _into(keys: QueueKeys) -> tuple[str, ...]:
    return (keys.ready[0], f"{keys.ready[0]}:[1-9]", keys.delayed, keys.wake)


def _consumer_keys(keys: QueueKeys) -> tuple[str, ...]:
    return (
        *_into(keys),
        keys.suspect,
        keys.unacked,
        f"{keys.lease_prefix}*",
        keys.dead,
        keys.meta,
        keys.stats,
        keys.unique,
        keys.cancelled,
        keys.schedules,
        keys.journal,
        *_results(keys),
        *_outboxes(keys),
        keys.producers,
        keys.runs,
        f"{keys.run_prefix}{_ANY}",
        *_groups_of_calls(keys),
        *keys.of_groups(),
    )


def _groups_of_calls(keys: QueueKeys) -> tuple[str, ...]:
    return (keys.joins, f"{keys.join_prefix}{_ANY}")


def _outboxes(keys: QueueKeys) -> tuple[str, ...]:
    return (keys.out, keys.outbox(_ANY))


def _results(keys: QueueKeys) -> tuple[str, ...]:
    return (f"{keys.result_prefix}{_ANY}", f"{keys.feed_prefix}{_ANY}")


def _counted(keys: QueueKeys) -> tuple[str, ...]:
    return (
        keys.ready[0],
        f"{keys.ready[0]}:[1-9]",
        keys.suspect,
        keys.delayed,
        keys.unacked,
        keys.dead,
        keys.stats,
        keys.meta,
        keys.journal,
    )


_REGISTERING: Final = ("hset", "hgetall", "hdel", "hlen", "exists")
_SERVER_FACTS: Final = ("info", "config|get")

ROLES: Final[dict[str, Role]] = {
    "producer": Role(
        about="sends to its queues; cannot read messages",
        raw=("wait", "waitaof", "hget", "hmget"),
        keys=_producer_keys,
        writes=lambda keys: (
            *_into(keys), keys.cancelled, keys.runs, f"{keys.run_prefix}{_ANY}", *_groups_of_calls(keys),
            *_outboxes(keys),
        ),
        announces=True,
    ),
    "results": Role(
        about="waits for and reads results, feeds and runs of its queues (with producer: starts tasks)",
        raw=("get", "mget", "hmget", "hget", "xrange", "ssubscribe", "sunsubscribe"),
        reads=lambda keys: (
            *_results(keys), keys.meta, f"{keys.run_prefix}{_ANY}", *_groups_of_calls(keys), keys.out,
        ),
        channels=_results,
    ),
    "consumer": Role(
        about="receives from its queues, settles, and registers its schedules (qworker run --no-reaper)",
        raw=(
            "blpop", "rpush", "lrange", "pexpire", "hmget", "hget", "hkeys", "zscore", "hexists", "zrevrange",
            *_REGISTERING,
        ),
        keys=_consumer_keys,
        channels=_results,
        announces=True,
        lists=True,
        shared=lambda namespace: (
            f"~{workers_key(namespace)}",
            f"~{leaving_key(namespace)}",
            f"~{owners_key(namespace)}",
            f"%R~{paused_tasks_key(namespace)}",
            f"%R~{control_key(namespace, _ANY)}",
            f"%W~{answer_key(namespace, _ANY)}",
            f"%R~{reapers_key(namespace)}",
        ),
    ),
    "daemon": Role(
        about="reaps every queue of the namespace, fires schedules, reads counters (qworker daemon)",
        raw=(
            "hincrby", "hkeys", "hlen", "hset", "hget", "hgetall", "hexists", "hscan", "hdel", "exists", "scan",
            "llen", "lrange", "xrange", "zadd", "zcard", "zrange", "zrem", "zremrangebyscore", *_SERVER_FACTS,
        ),
        keys=lambda keys: (keys.ready[0].removesuffix("ready") + "*",),
        channels=_results,
        shared=lambda namespace: (
            f"~{queues_key(namespace)}",
            f"~{reapers_key(namespace)}",
            f"~{workers_key(namespace)}",
            f"~{leaving_key(namespace)}",
            f"~{shared_limits_key(namespace)}",
            f"%R~{owners_key(namespace)}",
        ),
        every_queue=True,
    ),
    "operator": Role(
        about="inspects, moves, edits and deletes everything in the namespace (the command line)",
        raw=(
            "blpop", "rpush", "hset", "hsetnx", "hincrby", "hdel", "hget", "hmget", "hgetall", "hkeys", "hvals",
            "hlen", "hexists", "hscan", "exists", "type", "lrange", "zrange", "zrevrange", "zscan",
            "zrangebyscore", "zrevrangebyscore", "zscore", "zrem", "zcard", "xadd", "xdel", "xrange",
            "xrevrange", "scan", "renamenx", "unlink", "pexpire", "wait", "get", "mget", "ssubscribe", "sunsubscribe",
            "pttl", "waitaof", *_SERVER_FACTS,
        ),
        channels=_results,
        shared=lambda namespace: (f"~{namespace}:*",),
        every_queue=True,
    ),
    "metrics": Role(
        about="counts messages and reads counters; cannot read messages or call scripts (an exporter, KEDA)",
        raw=("llen", "zcard", "xlen", "hget", "hmget", "hgetall", "hkeys", "exists", "type", "time"),
        reads=_counted,
        shared=lambda namespace: (f"%R~{queues_key(namespace)}",),
    ),
    "admin": Role(
        about="works on the keys of the namespace (redis-cli)",
        shared=lambda namespace: (f"~{namespace}:*",),
        extra=(
            "+@read", "+@write", "+@keyspace", "+@scripting", "+@connection", "+@transaction",
            # Functions belong to the whole server: FUNCTION FLUSH would delete those of others.
            "-@dangerous", "-function", *(f"+{command}" for command in _SERVER_FACTS), "+script|load", "+script|exists",
            "+script|flush", "+acl|whoami", "+acl|dryrun", "+acl|log", "+slowlog|get",
        ),
        every_queue=True,
    ),
}  # fmt: skip
