"""The whole check of a namespace: one walk through its keys, then queue by queue.

Everything is read in bounded pages while the queues are in use, and a script checks suspected damage again before it is
reported: see `reading` and `qworker.engine.repair`. Memory: 8 bytes per message of one queue, and the names of all
leases.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from qworker.client.queue_ref import QueueRef
from qworker.fsck.calls import check_calls, check_joins
from qworker.fsck.counters import check_counters, check_lanes, check_uniques, is_queue
from qworker.fsck.damage import Damage, DamageKind
from qworker.fsck.groups import check_groups
from qworker.fsck.index import check_index, check_shards
from qworker.fsck.layout import check_keys, check_leases
from qworker.fsck.limits import check_limits
from qworker.fsck.messages import Ids, check_duplicates, check_items
from qworker.fsck.reading import pages_of_keys
from qworker.fsck.runs import check_outboxes, check_runs
from qworker.fsck.shares import check_shares
from qworker.wire.keys import QueueKeys
from qworker.wire.names import split_shard_name

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client

__all__ = ["KeySurvey", "check", "check_queue", "survey"]

#: Special characters of a pattern of SCAN.
_GLOB: Final = re.compile(r"([\\*?\[\]])")


class KeySurvey:
    """Queues that have keys, and their leases when they were read: some are settled by now."""

    def __init__(self) -> None:
        self.leases: dict[str, list[bytes]] = {}
        #: Queue → destinations of its outboxes.
        self.outboxes: dict[str, list[bytes]] = {}
        #: Queue → its groups of calls.
        self.joins: dict[str, list[bytes]] = {}

    @property
    def queues(self) -> set[str]:
        """Names of queues that have keys."""
        return set(self.leases)


def survey(client: Client, namespace: str, queues: Sequence[str] = ()) -> KeySurvey:
    """Walk through the keys of the namespace, or of some queues and their shards.

    O(keys of the server), 1,000 per call.
    """
    surveyed = KeySurvey()
    prefix = f"{namespace}:".encode()
    one = queues[0] if len(queues) == 1 else None
    escaped = _GLOB.sub(r"\\\1", namespace)
    for page in pages_of_keys(client, f"{escaped}:{{{one or ''}*}}:*"):
        for key in page:
            name, closed, part = key.removeprefix(prefix + b"{").partition(b"}:")
            text = name.decode("utf-8", "replace")
            if not closed or not is_queue(text):
                continue
            if part.startswith((b"result:", b"run:", b"feed:")):
                continue  # They outlive their messages, and expire by themselves.
            if queues and not {text, split_shard_name(text)[0]} & set(queues):
                continue
            if part.startswith(b"out:"):
                surveyed.outboxes.setdefault(text, []).append(part.removeprefix(b"out:"))
                continue
            if part.startswith(b"join:"):
                surveyed.joins.setdefault(text, []).append(part.removeprefix(b"join:"))
            leases = surveyed.leases.setdefault(text, [])
            if part.startswith(b"lease:"):
                leases.append(part.removeprefix(b"lease:"))
    for leases in surveyed.leases.values():
        leases[:] = dict.fromkeys(leases)  # SCAN may return a key twice.
    return surveyed


def check(
    client: Client,
    namespace: str,
    queues: Sequence[str] = (),
    *,
    repair: bool = False,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Iterator[Damage | str]:
    """Check some queues, or all queues and the index; yields damage, and texts about what could not be checked.

    With `repair`, damage is repaired when it is yielded. `on_progress` gets the number of messages just checked.
    Raises `ServerError`.
    """
    surveyed = survey(client, namespace, queues)
    if not queues:
        yield from check_index(client, namespace, surveyed.queues, repair=repair)
    yield from check_shards(client, namespace, surveyed.queues, repair=repair)
    yield from check_limits(client, namespace, surveyed.queues, repair=repair)
    yield from check_shares(client, namespace, surveyed.queues, repair=repair)
    for name in sorted(surveyed.queues | set(queues)):
        keys, leases = QueueKeys(namespace, name), surveyed.leases.get(name, [])
        yield from check_queue(client, keys, leases, repair=repair, on_progress=on_progress)
        yield from check_joins(client, keys, surveyed.joins.get(name, ()), repair=repair)
    for name, destinations in sorted(surveyed.outboxes.items()):
        keys = QueueKeys(namespace, name)
        yield from check_outboxes(client, keys, sorted({*destinations}), repair=repair)
    if not queues:
        places = [QueueKeys(namespace, name) for name in sorted(surveyed.joins)]
        yield from check_calls(
            client, places, lambda: _everywhere(client, namespace), repair=repair
        )


def check_queue(
    client: Client,
    keys: QueueKeys,
    leases: Sequence[bytes] = (),
    *,
    repair: bool = False,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Iterator[Damage | str]:
    """Check one queue; `leases` are those of a survey."""
    broken = False
    for damage in check_keys(client, keys, leases, repair=repair):
        broken |= damage.kind is DamageKind.WRONG_TYPE and not repair
        yield damage
    if broken:
        yield f"{keys.queue}: only its keys were checked, because keys of another type stop every script"
        return
    ids = Ids()
    yield from check_leases(client, keys, leases, repair=repair)
    yield from check_items(client, keys, ids, on_progress, repair=repair)
    yield from check_duplicates(client, keys, ids, on_progress, repair=repair)
    yield from check_lanes(client, keys, repair=repair)
    yield from check_uniques(client, keys, repair=repair)
    yield from check_groups(client, keys, repair=repair)
    yield from check_runs(
        client, QueueRef(_namespace_of(keys), keys.queue, client.ids), repair=repair
    )
    yield from check_counters(client, keys, repair=repair)


def _everywhere(
    client: Client, namespace: str
) -> tuple[list[QueueKeys], Mapping[str, Sequence[bytes]]]:
    """Name the queues that there are now, and their outboxes."""
    surveyed = survey(client, namespace)
    return [QueueKeys(namespace, name) for name in sorted(surveyed.queues)], surveyed.outboxes


def _namespace_of(keys: QueueKeys) -> str:
    return keys.meta.partition(":{")[0]
