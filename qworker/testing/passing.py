"""Lets time pass for what an app has stored, without waiting for it.

The server's clock cannot be turned, but a queue knows time only as instants that it compares with now: to let ten
minutes pass is the same as to move every stored instant ten minutes into the past. So nothing else has to know of it:
consumers, reaper and scripts run as they are, and what is sent afterwards counts from now.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from qworker.client.registry import places
from qworker.durations import Duration, duration_ms
from qworker.wire.envelope import Envelope
from qworker.wire.keys import QueueKeys
from qworker.wire.leases import held_items

if TYPE_CHECKING:
    from redis import Redis

    from qworker.app.app import QWorker

__all__ = ["advance", "age", "note_reaper", "queues_of"]

#: Flags of an envelope that hold an instant: expiry, first receive, ready since, unknown since.
_INSTANTS: Final = (b"x=", b"f=", b"t=", b"k=")


def advance(app: QWorker, duration: Duration) -> None:
    """Let `duration` pass for all messages of the app: delays, times to live, visibility timeouts, unique keys.

    What has become due is moved by the next `drain`. Schedules are not fired: call their task. The caller must be the
    only one who works on these queues meanwhile.
    """
    passed_ms = duration_ms(duration, "duration")
    for keys in queues_of(app):
        age(app, keys, passed_ms)


def queues_of(app: QWorker) -> Iterator[QueueKeys]:
    """Yield the queues of the app's tasks, and those that were used beside them."""
    names = {task.queue for task in app.tasks.values()}
    names.update(app.client.run(places(app.namespace)))
    for name in sorted(names):
        yield QueueKeys(app.namespace, name)


def age(app: QWorker, keys: QueueKeys, by_ms: int) -> None:
    """Move every instant of a queue into the past."""
    with app.client.factory.redis(keys.meta) as redis:
        for place in (*keys.ready, keys.suspect):
            _age_list(redis, place, by_ms)
        for name, member_is_message in ((keys.delayed, True), (keys.unacked, False)):
            _age_set(redis, name, by_ms, messages=member_is_message)
        _age_set(redis, keys.cancelled, by_ms, messages=False)
        for lease in _all(redis.zrange(keys.unacked, 0, -1)):
            _age_lease(redis, keys.lease(lease.decode()), by_ms)
        _age_uniques(redis, keys.unique, by_ms)


def note_reaper(app: QWorker, keys: QueueKeys) -> None:
    """Write that a reaper has just been by: that none came between two drains is not to be taken for an outage."""
    with app.client.factory.redis(keys.meta) as redis:
        if redis.exists(keys.stats):
            redis.hset(keys.stats, "reaped_ms", str(_now_ms(redis)))
            redis.hdel(keys.stats, "gap_from_ms", "gap_until_ms")


def _age_list(redis: Redis, name: str, by_ms: int) -> None:
    items = _all(redis.lrange(name, 0, -1))
    if items:
        with redis.pipeline() as together:
            together.delete(name)
            together.rpush(name, *(_aged(item, by_ms) for item in items))
            together.execute()


def _age_set(redis: Redis, name: str, by_ms: int, *, messages: bool) -> None:
    found = _all(redis.zrange(name, 0, -1, withscores=True))
    if found:
        with redis.pipeline() as together:
            together.delete(name)
            together.zadd(
                name,
                {
                    _aged(member, by_ms) if messages else member: max(0, int(score) - by_ms)
                    for member, score in found
                },
            )
            together.execute()


def _age_lease(redis: Redis, name: str, by_ms: int) -> None:
    held: Any = redis.hgetall(name)
    if held:
        flat = [part for pair in held.items() for part in pair]
        with redis.pipeline() as together:
            together.delete(name)
            together.hset(
                name, mapping={index: _aged(item, by_ms) for index, item in held_items(flat)}
            )
            together.execute()


def _age_uniques(redis: Redis, name: str, by_ms: int) -> None:
    held: Any = redis.hgetall(name)
    for key, value in held.items():
        message_id, _, until_ms = value.partition(b" ")
        if until_ms.isdigit():
            redis.hset(name, key, b"%s %d" % (message_id, max(0, int(until_ms) - by_ms)))


def _aged(item: bytes, by_ms: int) -> bytes:
    """Write an item with earlier instants; one that is not ours has none."""
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
    found: Any = redis.time()
    return int(found[0] * 1000 + found[1] // 1000)


def _all(reply: Any) -> Any:
    """Take a reply of a sync client, which redis-py types as one or the other."""
    return reply
