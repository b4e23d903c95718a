"""Lets time pass for the messages of an app, without waiting.

The server's clock cannot be set, but queues only compare stored instants with now: ten minutes pass when every stored
instant moves ten minutes into the past. Consumers, reaper and scripts run unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from qworker.client.namespace.queues import list_shards
from qworker.durations import Duration, duration_ms
from qworker.wire.envelope import Envelope
from qworker.wire.keys import QueueKeys
from qworker.wire.leases import held_items

if TYPE_CHECKING:
    from redis import Redis

    from qworker.app.app import QWorker

__all__ = ["advance", "age", "group_starts_in_ms", "keys_of", "record_reap"]

#: The due time of held messages.
_NEVER_MS: Final = 2**53
#: From here on scores of delayed are not times: seats in groups, and held messages.
_SEATS_FROM: Final = 2**52
#: Flags of an envelope that are instants: expiry, first receive, ready since, unknown since.
_INSTANTS: Final = (b"x=", b"f=", b"t=", b"k=")


def advance(app: QWorker, duration: Duration) -> None:
    """Let `duration` pass for all messages of the app: delays, times to live, visibility timeouts, unique keys.

    The next `drain` moves messages that have become due. Schedules do not fire: call their task. Nothing else may use
    the queues. Raises `InvalidOptionError` for a wrong duration.
    """
    passed_ms = duration_ms(duration, "duration")
    for keys in keys_of(app):
        age(app, keys, passed_ms)


def keys_of(app: QWorker) -> Iterator[QueueKeys]:
    """Yield the keys of the app's queues, and of other queues and shards in its namespace."""
    names = {task.queue for task in app.tasks.values()}
    names.update(app.client.run(list_shards(app.namespace)))
    for name in sorted(names):
        yield QueueKeys(app.namespace, name)


def age(app: QWorker, keys: QueueKeys, by_ms: int) -> None:
    """Move every instant of a queue into the past."""
    with app.client.factory.redis(keys.meta) as redis:
        for key in (*keys.ready, keys.suspect):
            _age_list(redis, key, by_ms)
        _age_set(redis, keys.delayed, by_ms, messages=True)
        _age_set(redis, keys.unacked, by_ms, messages=False)
        _age_set(redis, keys.cancelled, by_ms, messages=False)
        for lease in _all(redis.zrange(keys.unacked, 0, -1)):
            _age_lease(redis, keys.lease(lease.decode()), by_ms)
        _age_uniques(redis, keys.unique, by_ms)
        _age_limit(redis, keys.meta, by_ms)
        _age_set(redis, keys.later, by_ms, messages=False)
        _age_groups(redis, keys.groups, by_ms)
        for run in _all(redis.zrange(keys.runs, 0, -1)):
            _age_run(redis, keys.run(run.decode()), by_ms)


def _age_groups(redis: Redis, name: str, by_ms: int) -> None:
    for field, value in _all(redis.hgetall(name)).items():
        if field.startswith(b":"):
            state = msgspec.msgpack.decode(value, type=list[float])
            # Of a rate, and of a wait that a handler asked for.
            times = [max(0, int(ms) - by_ms) for ms in state[6:]]
            redis.hset(
                name, field, msgspec.msgpack.encode([*map(int, state[:5]), state[5], *times])
            )


def group_starts_in_ms(app: QWorker, keys: QueueKeys) -> int | None:
    """Return the ms until the rate of a group lets its next message start; None if none waits for one.

    Ignores a wait that a handler asked for (`RateLimited`): a test lets it pass by `advance`.
    """
    with app.client.factory.redis(keys.meta) as redis:
        now_ms = _now_ms(redis)
        first: Any = redis.zrange(keys.later, 0, 99, withscores=True)
        for name, until_ms in first:
            value: Any = redis.hget(keys.groups, b":" + name)
            waits_ms = 0.0 if value is None else msgspec.msgpack.decode(value, type=list[float])[7]
            if waits_ms <= now_ms:
                return math.ceil(float(until_ms)) - now_ms
        return None


def record_reap(app: QWorker, keys: QueueKeys) -> None:
    """Record that a reaper has just run, so that the time between two drains does not count as an outage."""
    with app.client.factory.redis(keys.meta) as redis:
        if redis.exists(keys.stats):
            redis.hset(keys.stats, "reaped_ms", str(_now_ms(redis)))
            redis.hdel(keys.stats, "gap_from_ms", "gap_until_ms")


def _age_list(redis: Redis, name: str, by_ms: int) -> None:
    items = _all(redis.lrange(name, 0, -1))
    if items:
        with redis.pipeline() as transaction:
            transaction.delete(name)
            transaction.rpush(name, *(_aged(item, by_ms) for item in items))
            transaction.execute()


def _age_set(redis: Redis, name: str, by_ms: int, *, messages: bool) -> None:
    members = _all(redis.zrange(name, 0, -1, withscores=True))
    if members:
        with redis.pipeline() as transaction:
            transaction.delete(name)
            transaction.zadd(
                name,
                {
                    _aged(member, by_ms) if messages else member: (
                        max(0, int(score) - by_ms) if score < _SEATS_FROM else int(score)
                    )
                    for member, score in members
                },
            )
            transaction.execute()


def _age_lease(redis: Redis, name: str, by_ms: int) -> None:
    held: Any = redis.hgetall(name)
    if held:
        flat = [part for pair in held.items() for part in pair]
        with redis.pipeline() as transaction:
            transaction.delete(name)
            transaction.hset(
                name, mapping={index: _aged(item, by_ms) for index, item in held_items(flat)}
            )
            transaction.execute()


def _age_run(redis: Redis, name: str, by_ms: int) -> None:
    """Age when a run continues, and its message as it was parked."""
    fields: Any = redis.hgetall(name)
    for field, value in fields.items():
        if field.startswith(b"~") and int(value) < _NEVER_MS:
            redis.hset(name, field, _earlier(value, by_ms))
        elif field == b"@parked":
            redis.hset(name, field, _aged(value, by_ms))


def _age_limit(redis: Redis, name: str, by_ms: int) -> None:
    """Age until when a queue is rate limited."""
    mode, _, until_ms = (_all(redis.hget(name, "paused")) or b"").partition(b" ")
    if mode == b"until" and until_ms.isdigit():
        redis.hset(name, "paused", b"until " + _earlier(until_ms, by_ms))


def _age_uniques(redis: Redis, name: str, by_ms: int) -> None:
    held: Any = redis.hgetall(name)
    for key, value in held.items():
        message_id, *words = value.split(b" ")
        words = [_aged_word(word, by_ms) for word in words]
        redis.hset(name, key, b" ".join((message_id, *words)))


def _aged_word(word: bytes, by_ms: int) -> bytes:
    """Age an instant of a unique key, which may follow an @; one that never comes stays."""
    at, digits = (b"@", word[1:]) if word[:1] == b"@" else (b"", word)
    if not digits.isdigit() or int(digits) >= _NEVER_MS:
        return word
    return at + _earlier(digits, by_ms)


def _aged(item: bytes, by_ms: int) -> bytes:
    """Write an item with earlier instants; foreign items have none."""
    if Envelope.parse(item) is None:
        return item
    header, newline, body = item.partition(b"\n")
    words = header.split(b" ")
    words[2] = _earlier(words[2], by_ms)
    for at, word in enumerate(words):
        if at > 6 and word[:2] in _INSTANTS and word[2:].isdigit():
            words[at] = word[:2] + _earlier(word[2:], by_ms)
    return b" ".join(words) + newline + body


def _earlier(instant_ms: bytes, by_ms: int) -> bytes:
    return b"%d" % max(0, int(instant_ms) - by_ms)


def _now_ms(redis: Redis) -> int:
    seconds, microseconds = _all(redis.time())
    return int(seconds * 1000 + microseconds // 1000)


def _all(reply: Any) -> Any:
    """Return a reply of a sync client; redis-py types it as a reply or an awaitable."""
    return reply
