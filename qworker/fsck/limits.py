"""Limits: whether their queue exists, and whether all shards of a divided queue have those of its first one.

A client writes a limit shard by shard. If it dies in between, the others keep what they had until it is set again.
Clients of earlier versions also wrote limits of queues that did not exist, or had just been removed.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from qworker.client.manage.limit import Limit, share_version
from qworker.client.manage.limit_writes import write_limit
from qworker.client.namespace.queues import existing
from qworker.engine.attributes import configure
from qworker.engine.groups import limits as stored_limits
from qworker.engine.shards import read_shards
from qworker.errors import ServerError, server_refused
from qworker.fsck.damage import Damage, DamageKind
from qworker.fsck.reading import ask
from qworker.wire.keys import QueueKeys
from qworker.wire.names import split_shard_name

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.fsck.unread import Unread
    from qworker.wire.shards import Shards

__all__ = ["check_limits"]

#: A client may be halfway, and count what is in flight in a shard before it writes the first limit there.
_AGAIN_S: Final = 1.0

#: What the first shard has and what this one has, by shard and name of the limit.
Differences = dict[tuple[str, str], tuple[str, str]]


def check_limits(
    client: Client, namespace: str, names: Collection[str], unread: Unread, *, repair: bool
) -> Iterator[Damage | str]:
    """Check that limits have a queue, and compare those of shards; yields a text if that could not be done.

    Queues of which a part cannot be read are left out.
    """
    shards = {name for name in names if not unread.has_part_of(split_shard_name(name)[0])}
    yield from _without_queue(client, namespace, shards, repair=repair)
    try:
        found = _differences(client, namespace, shards)
        if not found:
            return
        time.sleep(_AGAIN_S)
        still = _differences(client, namespace, {shard for shard, _ in found})
    except ServerError as error:
        if not server_refused(error):
            raise
        yield f"limits of shards were not compared: {error}"
        return
    for shard, name in sorted(still.keys() & found.keys()):
        first, has = still[shard, name]
        if repair:
            client.run(write_limit(QueueKeys(namespace, shard), name, first))
        problem = f"it has {_text(has)}, and the first shard {_text(first)}"
        yield Damage(shard, DamageKind.LIMIT, f"limit {name}", problem, repair)


def _without_queue(
    client: Client, namespace: str, shards: Collection[str], *, repair: bool
) -> Iterator[Damage]:
    names = sorted(name for name, number in map(split_shard_name, shards) if not number)
    there = client.run(existing(namespace, names))
    for name in names:
        keys = QueueKeys(namespace, name)
        if name in there or not ask(client, "EXISTS", keys.limits):
            continue
        if repair:
            client.execute(configure(keys, {}))
        text = "it applies to a queue that does not exist, or was removed"
        yield Damage(name, DamageKind.LONE_LIMIT, "limits", text, repair)


def _differences(client: Client, namespace: str, shards: Collection[str]) -> Differences:
    found: Differences = {}
    for queue in sorted({name for name, number in map(split_shard_name, shards) if number}):
        keys = QueueKeys(namespace, queue)
        known: Shards = client.execute(read_shards(keys))
        first: dict[str, str] = client.execute(stored_limits(keys))
        for shard in known.names(queue)[1:]:
            if shard not in shards:
                continue
            has: dict[str, str] = client.execute(stored_limits(QueueKeys(namespace, shard)))
            for name in first.keys() | has.keys():
                pair = first.get(name, ""), has.get(name, "")
                # Shares differ from shard to shard, see `fsck.shares`.
                if pair[0] != pair[1] and not any(map(share_version, pair)):
                    found[shard, name] = pair
    return found


def _text(words: str) -> str:
    return Limit.of_words(words).text
