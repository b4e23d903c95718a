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
from qworker.errors import ServerError
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
from qworker.fsck.unread import Unread
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
        #: Whether the keys of some node of a Cluster are missing.
        self.partial = False

    @property
    def queues(self) -> set[str]:
        """Names of queues that have keys."""
        return set(self.leases)

    def add(self, name: str, part: bytes) -> None:
        """Note a key of a queue."""
        if part.startswith((b"result:", b"run:", b"feed:")):
            return  # They outlive their messages, and expire by themselves.
        if part.startswith(b"out:"):
            self.outboxes.setdefault(name, []).append(part.removeprefix(b"out:"))
            return
        if part.startswith(b"join:"):
            self.joins.setdefault(name, []).append(part.removeprefix(b"join:"))
        leases = self.leases.setdefault(name, [])
        if part.startswith(b"lease:"):
            leases.append(part.removeprefix(b"lease:"))


def survey(client: Client, namespace: str, unread: Unread, queues: Sequence[str] = ()) -> KeySurvey:
    """Walk through the keys of the namespace, or of some queues and their shards.

    O(keys of the server), 1,000 per call.
    """
    surveyed = KeySurvey()
    prefix = f"{namespace}:".encode()
    one = queues[0] if len(queues) == 1 else None
    escaped = _GLOB.sub(r"\\\1", namespace)
    pattern = f"{escaped}:{{{one or ''}*}}:*"
    for node in client.factory.masters():
        try:
            for page in pages_of_keys(client, pattern, node):
                for key in page:
                    name, closed, part = key.removeprefix(prefix + b"{").partition(b"}:")
                    text = name.decode("utf-8", "replace")
                    if closed and is_queue(text) and _wanted(text, queues):
                        surveyed.add(text, part)
        except ServerError as error:
            if not unread.note(f"the list of keys of {node}", error):
                raise
            surveyed.partial = True
    for leases in surveyed.leases.values():
        leases[:] = dict.fromkeys(leases)  # SCAN may return a key twice.
    return surveyed


def _wanted(name: str, queues: Sequence[str]) -> bool:
    return not queues or bool({name, split_shard_name(name)[0]} & {*queues})


def check(
    client: Client,
    namespace: str,
    queues: Sequence[str] = (),
    *,
    repair: bool = False,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Iterator[Damage | str]:
    """Check some queues, or all queues and the index; yields damage, and texts about what could not be checked.

    With `repair`, damage is repaired when it is yielded. `on_progress` gets the number of messages just checked. In a
    Cluster queues are left out that no node serves now, see `Unread`. Raises `ServerError`.
    """
    unread = Unread(client, namespace)
    surveyed = survey(client, namespace, unread, queues)
    unread.ask_with_shards(surveyed.queues | {*queues})
    yield from _check_namespace(
        client, namespace, surveyed, unread, whole=not queues, repair=repair
    )
    for name in sorted(unread.readable(surveyed.queues | {*queues})):
        keys, leases = QueueKeys(namespace, name), surveyed.leases.get(name, [])
        own = check_queue(client, keys, leases, repair=repair, on_progress=on_progress)
        yield from unread.unless(name, f"{name}: the rest was", own)
        joins = check_joins(client, keys, surveyed.joins.get(name, ()), repair=repair)
        yield from unread.unless(name, f"{name}: groups of calls were", joins)
    for name in sorted(unread.readable(surveyed.outboxes)):
        keys, destinations = QueueKeys(namespace, name), sorted({*surveyed.outboxes[name]})
        outboxes = check_outboxes(client, keys, destinations, repair=repair)
        yield from unread.unless(name, f"{name}: outboxes were", outboxes)
    if not queues:
        yield from _check_calls(client, namespace, surveyed, unread, repair=repair)
    yield from unread.texts()


def _check_namespace(
    client: Client,
    namespace: str,
    surveyed: KeySurvey,
    unread: Unread,
    *,
    whole: bool,
    repair: bool,
) -> Iterator[Damage | str]:
    """Check what queues have in common: the index if the `whole` namespace is checked, shards and limits."""
    if whole:
        index = check_index(client, namespace, surveyed.queues, unread, repair=repair)
        yield from unread.unless("the index of queues", "the index of queues was", index)
    shards = surveyed.queues
    if surveyed.partial:
        # Without its first shard, a queue would seem to be gone.
        shards = {name for name in shards if split_shard_name(name)[0] in shards}
    yield from check_shards(client, namespace, shards, unread, repair=repair)
    limits = check_limits(client, namespace, surveyed.queues, unread, repair=repair)
    yield from unread.unless("the limits of queues", "limits were", limits)
    shares = check_shares(client, namespace, surveyed.queues, unread, repair=repair)
    yield from unread.unless("the limits over several queues", "shares of limits were", shares)


def _check_calls(
    client: Client, namespace: str, surveyed: KeySurvey, unread: Unread, *, repair: bool
) -> Iterator[Damage | str]:
    """Search for the calls that groups wait for. They may be in any queue, so all must be read."""
    places = [QueueKeys(namespace, name) for name in sorted(surveyed.joins)]
    if not places:
        return
    what = "the calls that groups wait for were"
    if unread:
        yield f"{what} not searched for: they may be in what cannot be read"
        return

    def everywhere() -> tuple[list[QueueKeys], Mapping[str, Sequence[bytes]]]:
        now = survey(client, namespace, unread)
        unread.ask(now.queues)
        return [QueueKeys(namespace, name) for name in sorted(now.queues)], now.outboxes

    found = check_calls(client, places, everywhere, lambda: bool(unread), repair=repair)
    yield from unread.unless("the calls of groups", what, found)


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


def _namespace_of(keys: QueueKeys) -> str:
    return keys.meta.partition(":{")[0]
