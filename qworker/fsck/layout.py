"""Types of the keys, leases and their deadlines."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from qworker.fsck.finding import Finding, Kind
from qworker.fsck.mending import mend_key, mend_lease
from qworker.fsck.reading import score_pages
from qworker.wire.keys import QueueKeys

if TYPE_CHECKING:
    from qworker.client.sync import Client

__all__ = ["check_keys", "check_leases"]

_LEASE_KINDS: Final = {
    "no_deadline": (Kind.NO_DEADLINE, "messages without a deadline: nobody would take them back"),
    "no_messages": (Kind.NO_MESSAGES, "a deadline of no messages"),
    "deadline": (Kind.BAD_DEADLINE, "a deadline that no receive writes"),
    "no_lease": (Kind.FOREIGN_LEASE, "is no lease, but stands among the deadlines"),
    "unnamed": (Kind.UNNAMED_LEASE, "messages in a lease that nobody can name"),
}


def check_keys(
    client: Client, keys: QueueKeys, leases: Iterable[bytes], *, repair: bool
) -> Iterator[Finding]:
    """Look at the type of every key, and whether it expires; without the keys of the right type nothing else works."""
    types = _types(keys) | {keys.lease(name): "hash" for name in _texts(leases)}
    # Names what is put aside, so that a later repair finds its place free.
    stamp = time.time_ns() // 1_000_000
    base = keys.meta.removesuffix("meta")
    for key, kind in types.items():
        part = key.removeprefix(base)
        aside = f"{base}aside:{part}:{stamp}"
        problem, found = client.execute(mend_key(keys, key, aside, kind, repair=repair))
        if problem == "type":
            text = f"is a {found}, must be a {kind}" + (f"; it is {aside} now" if repair else "")
            yield Finding(keys.queue, Kind.WRONG_TYPE, part, text, repair)
        elif problem:
            text = f"Redis deletes it in {int(found) / 1000:.0f} s: it has an expiry"
            yield Finding(keys.queue, Kind.EXPIRY, part, text, repair)


def check_leases(
    client: Client, keys: QueueKeys, leases: Iterable[bytes], *, repair: bool
) -> Iterator[Finding]:
    """Look at all leases that were found as keys, and at all that have a deadline."""
    seen = set()
    for name in leases:
        seen.add(name)
        yield from _lease(client, keys, name, repair=repair)
    for page in score_pages(client, keys.unacked):
        for name, _ in page:
            if name not in seen:
                yield from _lease(client, keys, name, repair=repair)


def _lease(client: Client, keys: QueueKeys, name: bytes, *, repair: bool) -> Iterator[Finding]:
    command = mend_lease(keys, name, repair=repair)
    problem = client.execute(command)
    if not problem:
        return
    kind, text = _LEASE_KINDS[problem]
    # Of an unnamed lease one call takes a part.
    while repair and problem == "unnamed" and client.execute(command) == problem:
        pass
    place = "unacked" if kind in (Kind.FOREIGN_LEASE, Kind.NO_MESSAGES) else "lease"
    yield Finding(keys.queue, kind, f"{place}:{name.decode('utf-8', 'replace')}", text, repair)


def _types(keys: QueueKeys) -> dict[str, str]:
    lists = {*keys.ready, keys.suspect, keys.wake}
    scores = {keys.delayed, keys.unacked, keys.cancelled}
    streams = {keys.dead, keys.journal}
    return {
        key: "list"
        if key in lists
        else "zset"
        if key in scores
        else "stream"
        if key in streams
        else "hash"
        for key in keys.all()
    }


def _texts(names: Iterable[bytes]) -> Iterator[str]:
    for name in names:
        try:
            yield name.decode()
        except UnicodeDecodeError:
            continue
