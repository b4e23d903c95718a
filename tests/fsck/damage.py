"""Damage to a queue that holds some of everything, and the kinds that a check must report."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from qworker.client.queue import Queue
from qworker.fsck.damage import DamageKind
from qworker.wire.keys import queues_key
from tests.lua.drive import NOW, Drive, own

__all__ = ["DAMAGES", "begin", "fill"]

DAY_MS = 86_400_000


def fill(drive: Drive) -> set[str]:
    """Put messages into every state, as the scripts leave them; returns their ids. The time is the server's."""
    drive.redis.hdel(drive.keys.meta, "test")
    namespace = drive.base.partition(":")[0]
    drive.redis.hset(queues_key(namespace), drive.keys.queue, 1)
    drive.redis.hset(drive.keys.meta, "journal", "all")
    drive.send("a1", "a2", "a3", lane="lane", sequence=1, at=None)
    drive.receive("L-1", 2, at=None)
    drive.send("b1", "b2", "b3", at=None)
    drive.send("p1", priority=5, at=None)
    drive.send("d1", "d2", delay_ms=DAY_MS, at=None)
    drive.send("x1", at=None)
    drive.redis.rpush(drive.keys.suspect, own("s1", timeouts=1))
    drive.redis.hincrby(drive.keys.stats, "stored", 1)
    drive.redis.xadd(
        drive.keys.dead,
        {"envelope": own("e1"), "reason": "rejected", "class": "", "error": "", "died_ms": NOW},
    )
    drive.redis.hset(drive.keys.unique, "key", f"b1 {NOW * 10**7}")
    return {"a1", "a2", "a3", "b1", "b2", "b3", "p1", "d1", "d2", "x1", "s1", "e1"}


def begin(drive: Drive, group: str) -> None:
    """Keep a group of one call, which began long ago and is not sent."""
    packed = msgspec.msgpack.encode([0, "", "", f"q1 {group} ", "\nx"])
    about = {"@size": 1, "@policy": "all", "@left": 1, "@made": 1, "@sent": 0, "@then": packed}
    drive.redis.hset(drive.keys.join(group), mapping=about)
    drive.redis.zadd(drive.keys.joins, {group: 1})


def _restore(drive: Drive, key: str, dumped: bytes) -> None:
    """Write a copy of a key; the original may be on another node."""
    drive.redis.restore(key, 0, dumped, replace=True)


def _copy(drive: Drive, wanted: str) -> str:
    """The item of a ready message."""
    for item in drive.state("ready")["ready"]:
        if item.split()[1] == wanted:
            return str(item)
    raise AssertionError(wanted)


def _string(part: str) -> Callable[[Drive], None]:
    def do(drive: Drive) -> None:
        drive.redis.set(drive.base + part, "other")

    return do


def _foreign_in_lease(drive: Drive) -> None:
    drive.redis.hset(drive.keys.lease("L-1"), "7", "hello")
    drive.redis.hincrby(drive.keys.stats, "unacked", 1)
    drive.redis.hincrby(drive.keys.stats, "stored", 1)


def _half_received(drive: Drive) -> None:
    """A receive that wrote its lease and did not cut the list."""
    drive.redis.hset(drive.keys.lease("L-2"), "0", _copy(drive, "b1"))
    drive.redis.zadd(drive.keys.unacked, {"L-2": _soon(drive)})
    drive.redis.hincrby(drive.keys.stats, "unacked", 1)
    drive.redis.hincrby(drive.keys.stats, "stored", 1)


def _half_buried(drive: Drive) -> None:
    drive.redis.xadd(drive.keys.dead, {"envelope": _copy(drive, "b2"), "reason": "rejected"})


def _soon(drive: Drive) -> int:
    seconds, _ = drive.redis.time()
    return int(seconds) * 1000 + 30_000


def _level(drive: Drive) -> None:
    drive.redis.rpush(drive.keys.ready[7], own("q7", flags=" p=7"))


def _rewind_journal(drive: Drive) -> None:
    drive.redis.hset(drive.keys.stats, "journal_entries", 1)


def _strange_journal(drive: Drive) -> None:
    drive.redis.xadd(drive.keys.journal, {"hello": "world"}, id=f"{2**52}-5")


#: Name → the damage, and the kinds that are reported.
DAMAGES: dict[str, tuple[Callable[[Drive], object], list[DamageKind]]] = {
    "a list of another type": (_string("ready:3"), [DamageKind.WRONG_TYPE]),
    "a journal of another type": (_string("schedules"), [DamageKind.WRONG_TYPE]),
    "a lease of another type": (_string("lease:L-9"), [DamageKind.WRONG_TYPE]),
    "ready expires": (lambda d: d.redis.expire(d.keys.ready[0], 1000), [DamageKind.EXPIRY]),
    "a lease expires": (lambda d: d.redis.expire(d.keys.lease("L-1"), 1000), [DamageKind.EXPIRY]),
    "a lease without deadline": (
        lambda d: d.redis.zrem(d.keys.unacked, "L-1"),
        [DamageKind.NO_DEADLINE, DamageKind.COUNTER],
    ),
    "a deadline without lease": (
        lambda d: d.redis.zadd(d.keys.unacked, {"L-8": _soon(d)}),
        [DamageKind.NO_MESSAGES],
    ),
    "a deadline in years": (
        lambda d: d.redis.zadd(d.keys.unacked, {"L-1": 9e15}),
        [DamageKind.BAD_DEADLINE],
    ),
    "an endless deadline": (
        lambda d: d.redis.zadd(d.keys.unacked, {"L-1": "+inf"}),
        [DamageKind.BAD_DEADLINE],
    ),
    "a deadline before all time": (
        lambda d: d.redis.zadd(d.keys.unacked, {"L-1": -5}),
        [DamageKind.BAD_DEADLINE],
    ),
    "something else among the deadlines": (
        lambda d: d.redis.zadd(d.keys.unacked, {b"no lease \xff": _soon(d)}),
        [DamageKind.FOREIGN_LEASE],
    ),
    "a lease that has no name": (
        lambda d: d.redis.hset(d.keys.lease("a b"), "1", own("n1")),
        [DamageKind.UNNAMED_LEASE],
    ),
    "a foreign item in ready": (
        lambda d: d.redis.rpush(d.keys.ready[0], "hello"),
        [DamageKind.FOREIGN_ITEM],
    ),
    "half an envelope in ready": (
        lambda d: d.redis.lpush(d.keys.ready[0], "q1 abc 1 1"),
        [DamageKind.FOREIGN_ITEM],
    ),
    "a foreign item among the suspects": (
        lambda d: (
            d.redis.rpush(d.keys.suspect, b"\xff\x00"),
            d.redis.hincrby(d.keys.stats, "stored"),
        ),
        [DamageKind.FOREIGN_ITEM],
    ),
    "a foreign item in delayed": (
        lambda d: (
            d.redis.zadd(d.keys.delayed, {"hi": 5}),
            d.redis.hincrby(d.keys.stats, "stored"),
        ),
        [DamageKind.FOREIGN_ITEM],
    ),
    "a foreign item in a lease": (_foreign_in_lease, [DamageKind.FOREIGN_ITEM]),
    "delayed for ever": (
        lambda d: d.redis.zadd(
            d.keys.delayed, {d.state("delayed")["delayed"].popitem()[0]: "+inf"}
        ),
        [DamageKind.BAD_DUE_TIME],
    ),
    "delayed until before all time": (
        lambda d: d.redis.zadd(d.keys.delayed, {d.state("delayed")["delayed"].popitem()[0]: -1}),
        [DamageKind.BAD_DUE_TIME],
    ),
    "a dead letter without envelope": (
        lambda d: d.redis.xadd(d.keys.dead, {"reason": "x", "text": "y"}),
        [DamageKind.NO_ENVELOPE],
    ),
    "half received": (_half_received, [DamageKind.TWO_PLACES]),
    "half buried": (_half_buried, [DamageKind.TWO_PLACES]),
    "the same item twice in a list": (
        lambda d: d.redis.rpush(d.keys.ready[0], _copy(d, "b1")),
        [DamageKind.TWO_PLACES],
    ),
    "two messages of one id": (
        lambda d: d.redis.rpush(d.keys.ready[0], own("b1", body="another")),
        [DamageKind.SAME_ID],
    ),
    "two messages of one id, one of them twice": (
        lambda d: (
            d.redis.rpush(d.keys.ready[0], own("b1", body="another")),
            d.redis.xadd(d.keys.dead, {"envelope": own("b1", body="another"), "reason": "x"}),
        ),
        [DamageKind.TWO_PLACES, DamageKind.SAME_ID],
    ),
    "a level that is not received": (_level, [DamageKind.LEVEL]),
    "stored too high": (lambda d: d.redis.hset(d.keys.stats, "stored", 999), [DamageKind.COUNTER]),
    "stored too low": (lambda d: d.redis.hset(d.keys.stats, "stored", -3), [DamageKind.COUNTER]),
    "no stored": (lambda d: d.redis.hdel(d.keys.stats, "stored"), [DamageKind.COUNTER]),
    "unacked wrong": (lambda d: d.redis.hset(d.keys.stats, "unacked", 1), [DamageKind.COUNTER]),
    "a counter that is no number": (
        lambda d: d.redis.hset(d.keys.stats, mapping={"sent": "many", "unacked": "x"}),
        [DamageKind.COUNTER, DamageKind.COUNTER],
    ),
    "journal numbers behind": (_rewind_journal, [DamageKind.JOURNAL]),
    "journal written by others": (_strange_journal, [DamageKind.JOURNAL]),
    "a lane that says nothing": (
        lambda d: d.redis.hset(d.keys.producers, "lane", "hello"),
        [DamageKind.LANE],
    ),
    "a lane among the counters that says nothing": (
        lambda d: d.redis.hset(d.keys.stats, "lane:a", "hello"),
        [DamageKind.LANE],
    ),
    "a lane of the future": (
        lambda d: d.redis.hset(d.keys.producers, "lane", "1 99999999999999"),
        [DamageKind.LANE],
    ),
    "a unique key without a message": (
        lambda d: d.redis.hset(d.keys.unique, "k", "gone 99999999999999"),
        [DamageKind.UNIQUE],
    ),
    "a unique key that says nothing": (
        lambda d: d.redis.hset(d.keys.unique, "k", "?"),
        [DamageKind.UNIQUE],
    ),
    "a slot of a group without a message": (
        lambda d: d.redis.hset(d.keys.slots, "gone:0", "acme"),
        [DamageKind.GROUP],
    ),
    "a message that its group does not know": (
        lambda d: d.redis.zadd(
            d.keys.delayed, {own("g1").replace("\n", " g=acme\n", 1): 2**52 + 2**31}
        ),
        [DamageKind.GROUP],
    ),
    "a limit that only the first shard has": (
        lambda d: (
            Queue(d.client, d.namespace, d.keys.queue).divide(2, wait=0),
            d.redis.hset(d.keys.limits, "acme/*", "c=3"),
        ),
        [DamageKind.LIMIT],
    ),
    "a limit of a queue that is gone": (
        lambda d: (
            d.redis.hset(f"{d.base.partition('{')[0]}{{gone}}:limits", "acme/*", "c=3"),
            d.redis.hset(queues_key(d.base.partition(":")[0]), "gone", 1),
        ),
        [DamageKind.LONE_LIMIT],
    ),
    "a share of a limit that was not set": (
        lambda d: d.redis.hset(d.keys.limits, "api/", "c=0 s=5"),
        [DamageKind.SHARE],
    ),
    "a run whose message is gone": (
        lambda d: d.redis.zadd(d.keys.runs, {"gone": 1}),
        [DamageKind.RUN],
    ),
    "a group of calls whose state is gone": (
        lambda d: d.redis.zadd(d.keys.joins, {"gone": 1}),
        [DamageKind.CALLS],
    ),
    "a group of calls that is not listed": (
        lambda d: (begin(d, "g"), d.redis.zrem(d.keys.joins, "g")),
        [DamageKind.CALLS],
    ),
    "a group of calls that is decided, and listed": (
        lambda d: (begin(d, "b1"), d.redis.hset(d.keys.join("b1"), "@over", 1)),
        [DamageKind.CALLS],
    ),
    "values for a callback that has ended": (
        lambda d: (
            begin(d, "g"),
            d.redis.hset(d.keys.join("g"), "@over", 1),
            d.redis.zrem(d.keys.joins, "g"),
        ),
        [DamageKind.CALLS],
    ),
    "a call that is gone": (
        lambda d: (begin(d, "g"), d.redis.hset(d.keys.join("g"), "@sent", 1)),
        [DamageKind.LOST_CALL],
    ),
    "a call that died, of which its group was not told": (
        lambda d: (
            begin(d, "h"),
            d.redis.hset(d.keys.join("h"), "@sent", 1),
            d.redis.xadd(d.keys.dead, {"envelope": own("h.0"), "reason": "rejected"}),
        ),
        [DamageKind.UNTOLD_CALL],
    ),
    "an outbox that is not listed": (
        lambda d: d.redis.xadd(
            d.keys.outbox("other"), {"result": "a", "keep": 9, "words": ""}, id="5-0"
        ),
        [DamageKind.OUTBOX],
    ),
    "not registered": (
        lambda d: d.redis.hdel(queues_key(d.base.partition(":")[0]), d.keys.queue),
        [DamageKind.UNREGISTERED],
    ),
    "a name of no queue": (
        lambda d: d.redis.hset(queues_key(d.base.partition(":")[0]), "No Queue", 1),
        [DamageKind.BAD_NAME],
    ),
    "entries of no queue": (
        lambda d: d.redis.hset(queues_key(d.base.partition(":")[0]), "nothing", 1),
        [DamageKind.NO_QUEUE],
    ),
    "a shard of a queue that is gone": (
        lambda d: (
            d.redis.hset(f"{d.base.partition('{')[0]}{{gone/1}}:meta", "shard", "open 2 7"),
            d.redis.hset(queues_key(d.base.partition(":")[0]), "gone/1", 1),
        ),
        [DamageKind.LEFTOVER],
    ),
    "a division that says nothing": (
        lambda d: d.redis.hset(d.keys.meta, "shards", "x"),
        [DamageKind.BAD_SHARDS],
    ),
    "a division that was made by none": (
        lambda d: d.redis.hset(d.keys.meta, "shards", "1 1 999999999999999"),
        [DamageKind.BAD_SHARDS],
    ),
    "a registry of another type": (
        lambda d: _restore(d, queues_key(d.base.partition(":")[0]), d.redis.dump(d.keys.ready[0])),
        [DamageKind.WRONG_TYPE],
    ),
}
