"""Keys that hold another type than the data model's, because another program wrote them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from qworker.engine.raw import raw
from qworker.errors import BrokenQueueError, QworkerError
from qworker.wire.keys import QueueKeys
from qworker.wire.shards import WHOLE

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.engine.inspect import Inspection
    from qworker.wire.shards import Shards

__all__ = ["find_foreign", "foreign_of_queues"]

_AT_ONCE: Final = 1000


def find_foreign(client: Client, types: Mapping[str, str]) -> Iterator[BrokenQueueError]:
    """Yield an error for each key that holds another type than it is to; a key that cannot be read is passed over.

    One trip per 1,000 keys.
    """
    keys = [*types]
    for first in range(0, len(keys), _AT_ONCE):
        some = keys[first : first + _AT_ONCE]
        answers = client.execute_each([raw("TYPE", key, decode=bytes.decode) for key in some])
        for key, found in zip(some, answers, strict=True):
            if not isinstance(found, QworkerError) and found not in ("none", types[key]):
                yield BrokenQueueError(key, found)


def foreign_of_queues(
    client: Client,
    namespace: str,
    inspected: Mapping[str, Inspection | BrokenQueueError],
    divided: Mapping[str, Shards],
) -> dict[str, BrokenQueueError]:
    """Of the queues that an inspection could read whole, find those with such a key; one error for each."""
    types: dict[str, str] = {}
    queue_of: dict[str, str] = {}
    for name, queue in inspected.items():
        if isinstance(queue, BrokenQueueError) or queue.unread:
            continue
        for shard in divided.get(name, WHOLE).names(name):
            unseen = _not_inspected(QueueKeys(namespace, shard))
            types |= unseen
            queue_of |= dict.fromkeys(unseen, name)
    return {queue_of[error.key]: error for error in find_foreign(client, types)}


def _not_inspected(keys: QueueKeys) -> dict[str, str]:
    """Return the keys of a queue whose type its inspection does not check, with the type."""
    inspected = {keys.meta, keys.stats, *keys.ready, keys.suspect, keys.delayed, keys.unacked}
    inspected |= {keys.wake, keys.dead, keys.journal, keys.unique, keys.cancelled}
    return {key: kind for key, kind in keys.types().items() if key not in inspected}
