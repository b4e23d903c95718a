"""The whole check of a namespace: one walk through its keys, then queue by queue.

Everything is read in bounded pages while the queues are in use, and looked at again by a script before it is told:
see `reading` and `mending`. Memory: 8 bytes per message of the queue in hand, and the names of all leases.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from qworker.fsck.books import check_books, check_lanes, check_uniques, is_queue
from qworker.fsck.finding import Finding, Kind
from qworker.fsck.index import check_index, check_shards
from qworker.fsck.layout import check_keys, check_leases
from qworker.fsck.messages import Ids, check_items, check_places
from qworker.fsck.reading import pages_of_keys
from qworker.wire.keys import QueueKeys
from qworker.wire.names import split_place

if TYPE_CHECKING:
    from qworker.client.sync import Client

__all__ = ["Survey", "check", "check_queue", "survey"]

#: Characters of a pattern that mean something to SCAN.
_GLOB: Final = re.compile(r"([\\*?\[\]])")


class Survey:
    """Queues that have keys, and the leases of each as they were found: some are settled by now."""

    def __init__(self) -> None:
        self.leases: dict[str, list[bytes]] = {}

    @property
    def queues(self) -> set[str]:
        """Names of queues that have keys."""
        return set(self.leases)


def survey(client: Client, namespace: str, queues: Sequence[str] = ()) -> Survey:
    """Walk through the keys of the namespace, or of some of its queues and their shards.

    O(keys of the server), 1,000 per call.
    """
    found = Survey()
    prefix = f"{namespace}:".encode()
    one = queues[0] if len(queues) == 1 else None
    escaped = _GLOB.sub(r"\\\1", namespace)
    for page in pages_of_keys(client, f"{escaped}:{{{one or ''}*}}:*"):
        for key in page:
            name, closed, part = key.removeprefix(prefix + b"{").partition(b"}:")
            text = name.decode("utf-8", "replace")
            if not closed or not is_queue(text):
                continue
            if queues and not {text, split_place(text)[0]} & set(queues):
                continue
            leases = found.leases.setdefault(text, [])
            if part.startswith(b"lease:"):
                leases.append(part.removeprefix(b"lease:"))
    for leases in found.leases.values():
        leases[:] = dict.fromkeys(leases)  # SCAN may name a key twice
    return found


def check(
    client: Client,
    namespace: str,
    queues: Sequence[str] = (),
    *,
    repair: bool = False,
    told: Callable[[int], None] = lambda _: None,
) -> Iterator[Finding | str]:
    """Check some queues, or all and the index; yields findings, and texts about what could not be looked at.

    With `repair` each finding has been mended when it is yielded. `told` hears how many more messages were looked at.
    Raises `ServerError`.
    """
    found = survey(client, namespace, queues)
    if not queues:
        yield from check_index(client, namespace, found.queues, repair=repair)
    yield from check_shards(client, namespace, found.queues, repair=repair)
    for name in sorted(found.queues | set(queues)):
        yield from check_queue(
            client, QueueKeys(namespace, name), found.leases.get(name, []), repair=repair, told=told
        )


def check_queue(
    client: Client,
    keys: QueueKeys,
    leases: Sequence[bytes] = (),
    *,
    repair: bool = False,
    told: Callable[[int], None] = lambda _: None,
) -> Iterator[Finding | str]:
    """Check one queue; `leases` are those that a survey found as keys."""
    broken = False
    for finding in check_keys(client, keys, leases, repair=repair):
        broken |= finding.kind is Kind.WRONG_TYPE and not repair
        yield finding
    if broken:
        yield f"{keys.queue}: nothing else was looked at, keys of another type stop every script"
        return
    ids = Ids()
    yield from check_leases(client, keys, leases, repair=repair)
    yield from check_items(client, keys, ids, told, repair=repair)
    yield from check_places(client, keys, ids, told, repair=repair)
    yield from check_lanes(client, keys, repair=repair)
    yield from check_uniques(client, keys, repair=repair)
    yield from check_books(client, keys, repair=repair)
