"""Set a limit over several queues, and take a queue out of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from qworker.client.manage.balancing import REST_MS, Balancer
from qworker.client.manage.limit import Limit, share_version
from qworker.client.manage.limit_writes import ATTEMPTS, changed_by_others, write_limit
from qworker.client.manage.shared_limits import SharedLimit, declared, first_share, words_of
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine import shares as commands
from qworker.engine.attributes import configure
from qworker.engine.command import Brief, Pause
from qworker.engine.groups import limits as stored_limits
from qworker.engine.index import announce
from qworker.engine.raw import server_time
from qworker.engine.shards import read_shards
from qworker.engine.shares import MAX_LIMITED_SHARDS, TAKEN_AWAY
from qworker.errors import InvalidOptionError, QworkerError
from qworker.wire.keys import QueueKeys
from qworker.wire.names import split_shard_name
from qworker.wire.shards import Shards

__all__ = ["change", "leave", "take_away"]

#: Passes that a change waits for until its shares are written, at most.
_PASSES: Final = 3
_MAX_LIMITS: Final = 100


def change(
    namespace: str,
    one: SharedLimit,
    limit: Limit,
    queues: Sequence[str],
    read: Mapping[str, str] = MappingProxyType({}),
) -> Plan[bool]:
    """Store a limit over several queues, and divide it until all have their shares, as far as they answer.

    `one`: as it was read. `read`: words of its name that were read in some of the queues. Returns False if other
    clients have changed any of these: then nothing is stored. Queues that do not exist are created. Raises
    `InvalidOptionError` if it is over more shards than can be kept, or one limit too many.
    """
    shards: list[str] = []
    for queue in queues:
        known: Shards = yield read_shards(QueueKeys(namespace, queue))
        shards += known.names(queue)
    if len(shards) > MAX_LIMITED_SHARDS:
        raise InvalidOptionError(
            "with",
            f"makes the limit span {len(shards)} shards",
            f"the maximum is {MAX_LIMITED_SHARDS}",
        )
    if not one.words and len((yield from declared(namespace))) >= _MAX_LIMITS:
        raise InvalidOptionError(
            "with",
            f"would be limit {_MAX_LIMITS + 1} over several queues",
            f"the maximum is {_MAX_LIMITS}",
        )
    adopted: dict[str, str] = {}
    try:
        if not (yield from _adopt(namespace, one.name, queues, read, adopted)):
            return False
        now_ms: int = yield server_time()
        words = words_of(limit, queues, now_ms)
        if not (yield commands.declare(namespace, one.name, one.words, words)):
            return False
    except QworkerError:
        for queue, own in adopted.items():
            yield from write_limit(QueueKeys(namespace, queue), one.name, own, first_share(own))
        raise
    yield Brief(announce(namespace, shards), index_write=True)
    balancer = Balancer(namespace)
    for _ in range(_PASSES):
        balanced = yield from balancer.balance(one.name)
        if not balanced.unsettled:
            break
        yield Pause(1.2 * REST_MS / 1000)
    return True


def _adopt(
    namespace: str,
    name: str,
    queues: Sequence[str],
    read: Mapping[str, str],
    adopted: dict[str, str],
) -> Plan[bool]:
    """Make what queues have for themselves shares, so that no client changes it as a limit of one queue any more.

    The limit of the caller's queue becomes that of all, and passes write shares over those of the others: a change that
    came after that would be lost. Returns False if a queue has no longer what was read. `adopted` collects what each
    queue had.
    """
    for queue in queues:
        keys = QueueKeys(namespace, queue)
        words = read.get(queue)
        if words is None:
            yield configure(keys, {})
            stored: dict[str, str] = yield stored_limits(keys)
            words = stored.get(name, "")
        if share_version(words):
            continue
        if not (yield from write_limit(keys, name, first_share(words), words)):
            return False
        adopted[queue] = words
    return True


def leave(namespace: str, name: str, queue: str) -> Plan[None]:
    """Take a queue out of a limit; without a queue there is no limit.

    Its shards keep their shares: see `take_away`.
    """
    for _ in range(ATTEMPTS):
        one = (yield from declared(namespace)).get(name)
        if one is None:
            return
        rest = tuple(each for each in one.queues if each != queue)
        now_ms: int = yield server_time()
        words = words_of(one.limit, rest, now_ms) if rest else ""
        if (yield commands.declare(namespace, name, one.words, words)):
            break
    else:
        raise changed_by_others(name)
    # From now on no pass that read the limit before allots anything of it.
    gone = []
    for field in (yield commands.shared_limits(namespace)):
        limit, _, shard = field.partition("\n")
        if limit == name and shard and (not rest or split_shard_name(shard)[0] == queue):
            gone.append(field)
    if gone:
        yield commands.forget(namespace, gone)


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
