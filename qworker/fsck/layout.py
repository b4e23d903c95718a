"""Checks the types of keys, and leases and their deadlines."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from qworker.client.inspect.walk import SortedSetWalk
from qworker.engine.repair import repair_key, repair_lease
from qworker.fsck.damage import Damage, DamageKind
from qworker.wire.keys import QueueKeys

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client

__all__ = ["check_keys", "check_leases"]

_LEASE_KINDS: Final = {
    "no_deadline": (
        DamageKind.NO_DEADLINE,
        "messages without a deadline: no reaper would take them back",
    ),
    "no_messages": (DamageKind.NO_MESSAGES, "a deadline without messages"),
    "deadline": (DamageKind.BAD_DEADLINE, "a deadline that no receive would write"),
    "no_lease": (DamageKind.FOREIGN_LEASE, "is not a lease, but has a deadline"),
    "unnamed": (DamageKind.UNNAMED_LEASE, "messages in a lease with an invalid id"),
}


def check_keys(
    client: Client, keys: QueueKeys, leases: Iterable[bytes], *, repair: bool
) -> Iterator[Damage]:
    """Check the type of every key, and that none expires; a key of another type blocks everything else."""
    types = keys.types() | {keys.lease(name): "hash" for name in _texts(leases)}
    # Part of the new name of a key, so that a later repair does not find it taken.
    stamp = time.time_ns() // 1_000_000
    base = keys.meta.removesuffix("meta")
    for key, kind in types.items():
        part = key.removeprefix(base)
        aside = f"{base}aside:{part}:{stamp}"
        problem, value = client.execute(repair_key(keys, key, aside, kind, repair=repair))
        if problem == "type":
            text = f"is a {value}, must be a {kind}" + (f"; it is {aside} now" if repair else "")
            yield Damage(keys.queue, DamageKind.WRONG_TYPE, part, text, repair)
        elif problem:
            text = f"Redis deletes it in {int(value) / 1000:.0f} s: it has an expiry"
            yield Damage(keys.queue, DamageKind.EXPIRY, part, text, repair)


def check_leases(
    client: Client, keys: QueueKeys, leases: Iterable[bytes], *, repair: bool
) -> Iterator[Damage]:
    """Check all leases that a survey found, and all that have a deadline."""
    seen = set()
    for name in leases:
        seen.add(name)
        yield from _lease(client, keys, name, repair=repair)
    for page in SortedSetWalk(keys.unacked).pages(client.run):
        for name, _ in page:
            if name not in seen:
                yield from _lease(client, keys, name, repair=repair)


def _lease(client: Client, keys: QueueKeys, name: bytes, *, repair: bool) -> Iterator[Damage]:
    command = repair_lease(keys, name, repair=repair)
    problem = client.execute(command)
    if not problem:
        return
    kind, text = _LEASE_KINDS[problem]
    # One call takes only a part of an unnamed lease.
    while repair and problem == "unnamed" and client.execute(command) == problem:
        pass
    place = "unacked" if kind in (DamageKind.FOREIGN_LEASE, DamageKind.NO_MESSAGES) else "lease"
    yield Damage(keys.queue, kind, f"{place}:{name.decode('utf-8', 'replace')}", text, repair)


def _texts(names: Iterable[bytes]) -> Iterator[str]:
    for name in names:
        try:
            yield name.decode()
        except UnicodeDecodeError:
            continue
