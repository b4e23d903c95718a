"""Limits over several queues: whether each shard has the share that was allotted to it.

A share is written once with its version, so shares of one version differ only if another program changed one. A shard
whose version is older was not reached, or no reaper runs: what it may use beyond its share is still counted as used.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from qworker.client.manage.limit import share_version
from qworker.client.manage.limit_writes import write_limit
from qworker.client.manage.shared_limit_writes import change
from qworker.client.manage.shared_limits import SharedLimit, declared, own_words, share_words
from qworker.engine.groups import limits as stored_limits
from qworker.engine.shares import TAKEN_AWAY, share
from qworker.errors import ServerError, server_refused
from qworker.fsck.damage import Damage, DamageKind, Remedy
from qworker.wire.keys import QueueKeys
from qworker.wire.names import split_shard_name

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.fsck.unread import Unread

__all__ = ["check_shares"]

#: A pass of a reaper, or a queue that leaves a limit, may be halfway.
_AGAIN_S: Final = 0.5

#: Problems by shard and limit.
Problems = dict[tuple[str, str], str]


def check_shares(
    client: Client, namespace: str, names: Collection[str], unread: Unread, *, repair: bool
) -> Iterator[Damage | str]:
    """Compare the shares of shards with what they were allotted; yields a text if that could not be done.

    A limit over a queue that cannot be read is not divided again.
    """
    shards = unread.readable(names)
    try:
        known = client.run(declared(namespace))
        found = _problems(client, namespace, shards, known)
        if not found:
            return
        time.sleep(_AGAIN_S)
        known = client.run(declared(namespace))
        still = _problems(client, namespace, {shard for shard, _ in found}, known)
    except ServerError as error:
        if not server_refused(error):
            raise
        yield f"limits over several queues were not compared with their shares: {error}"
        return
    for shard, name in sorted(still.keys() & found.keys()):
        one = known.get(name)
        left = _left(one, unread)
        repairs = repair and left is None
        if repairs:
            _repair(client, namespace, shard, name, one)
        problem = still[shard, name]
        yield Damage(shard, DamageKind.SHARE, f"limit {name}", problem, repairs, left=left)


def _left(one: SharedLimit | None, unread: Unread) -> Remedy | None:
    """Why a limit cannot be divided now, and what to do; None if it can."""
    names = ", ".join(filter(unread.has_part_of, sorted(one.queues) if one else ()))
    if not names:
        return None
    return Remedy(
        f"none: {names} cannot be read", f"qworker fsck --repair, once {names} can be read"
    )


def _problems(
    client: Client, namespace: str, shards: Collection[str], known: dict[str, SharedLimit]
) -> Problems:
    found: Problems = {}
    for shard in shards:
        has = _shares_of(client, namespace, shard)
        for name in {*has, *(name for name, one in known.items() if shard in one.versions)}:
            if problem := _problem(shard, has.get(name, ""), known.get(name)):
                found[shard, name] = problem
    return found


def _problem(shard: str, has: str, one: SharedLimit | None) -> str:
    if one is None or split_shard_name(shard)[0] not in one.queues:
        return "it keeps a share of a limit that is not over it" if has else ""
    if not has:
        return "it has no share, so it runs without the limit"
    version = share_version(has)
    if version != one.versions.get(shard):
        return ""
    allotted = share_words(one.limit, *one.shares[shard], version)
    return "" if has == allotted else f"its share is {has!r}, and {allotted!r} was allotted"


def _shares_of(client: Client, namespace: str, shard: str) -> dict[str, str]:
    words: dict[str, str] = client.execute(stored_limits(QueueKeys(namespace, shard)))
    return {name: each for name, each in words.items() if share_version(each)}


def _repair(client: Client, namespace: str, shard: str, name: str, one: SharedLimit | None) -> None:
    """Divide the limit again, or take away what is left of it; what the queue had for itself then holds."""
    if one is not None and split_shard_name(shard)[0] in one.queues:
        client.run(change(namespace, one, one.limit, one.queues))
        return
    keys, has = QueueKeys(namespace, shard), _shares_of(client, namespace, shard).get(name, "")
    own = own_words(has)
    if own:
        client.run(write_limit(keys, name, own, has))
    else:
        client.execute(share(keys, [(name, share_version(has) + 1, TAKEN_AWAY)]))
