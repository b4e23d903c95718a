"""Set a limit over several queues, and take a queue out of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from qworker.client.manage.balancing import REST_MS, Balancer
from qworker.client.manage.limit import Limit
from qworker.client.manage.shared_limits import declared, words_of
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine import shares as commands
from qworker.engine.command import Brief, Pause
from qworker.engine.index import announce
from qworker.engine.raw import server_time
from qworker.engine.shards import read_shards
from qworker.engine.shares import MOST_SHARDS, TAKEN_AWAY
from qworker.errors import InvalidOptionError
from qworker.wire.keys import QueueKeys
from qworker.wire.names import split_shard_name
from qworker.wire.shards import Shards

__all__ = ["change", "leave", "take_away"]

#: Passes that a change waits for until its shares are written, at most.
_PASSES: Final = 3
_MOST_LIMITS: Final = 100


def change(namespace: str, name: str, limit: Limit, queues: Sequence[str]) -> Plan[None]:
    """Store a limit over several queues, and divide it until all have their shares, as far as they answer.

    Raises `InvalidOptionError` if it is over more shards than can be kept, or one limit too many.
    """
    shards: list[str] = []
    for queue in queues:
        known: Shards = yield read_shards(QueueKeys(namespace, queue))
        shards += known.names(queue)
    if len(shards) > MOST_SHARDS:
        raise InvalidOptionError(
            "with", f"makes a limit over {len(shards)} shards", f"the most is {MOST_SHARDS}"
        )
    others = yield from declared(namespace)
    if name not in others and len(others) >= _MOST_LIMITS:
        raise InvalidOptionError(
            "with",
            f"makes a limit over several queues of {_MOST_LIMITS + 1}",
            f"the most is {_MOST_LIMITS}",
        )
    now_ms: int = yield server_time()
    yield commands.declare(namespace, name, words_of(limit, queues, now_ms))
    yield Brief(announce(namespace, shards), index_write=True)
    balancer = Balancer(namespace)
    for _ in range(_PASSES):
        balanced = yield from balancer.balance(name)
        if not balanced.unsettled:
            break
        yield Pause(1.2 * REST_MS / 1000)


def leave(namespace: str, name: str, queue: str) -> Plan[tuple[str, ...]]:
    """Take a queue out of a limit; without a queue there is no limit. Returns the queues that it is still over.

    Its shards keep their shares: see `take_away`.
    """
    one = (yield from declared(namespace)).get(name)
    if one is None:
        return ()
    rest = tuple(each for each in one.queues if each != queue)
    if rest:
        now_ms: int = yield server_time()
        yield commands.declare(namespace, name, words_of(one.limit, rest, now_ms))
    else:
        yield commands.forget(namespace, [name])
    # From now on no pass that read the limit before allots anything of it.
    gone = []
    for field in (yield commands.shared_limits(namespace)):
        limit, _, shard = field.partition("\n")
        if limit == name and shard and (not rest or split_shard_name(shard)[0] == queue):
            gone.append(field)
    if gone:
        yield commands.forget(namespace, gone)
    return rest


def take_away(queue: QueueRef, name: str, left_ms: int) -> Plan[None]:
    """Take its shares away from all shards of a queue that has left a limit at `left_ms`.

    Twice, because the queue may get shards, and a pass that read the limit before may write a share once more: it takes
    that back, unless it dies.
    """
    for attempt in range(2):
        if attempt:
            yield Pause(0.3)
        for shard in (yield from queue.every_shard(refresh=True)):
            yield commands.share(shard.keys, [(name, left_ms + 3_600_000, TAKEN_AWAY)])
