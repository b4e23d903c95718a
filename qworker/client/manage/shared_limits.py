"""Limits over several queues, as they are stored: in a key of the namespace, and in each shard as its share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from qworker.client.manage.limit import FIRST_VERSION, Limit
from qworker.client.plan import Plan
from qworker.engine import shares as commands
from qworker.engine.shares import WHOLE, Report
from qworker.wire.keys import QueueKeys
from qworker.wire.numbers import whole

__all__ = [
    "NOTHING",
    "NO_LIMIT",
    "SharedLimit",
    "declared",
    "first_share",
    "give_shares",
    "own_words",
    "share_words",
    "undeclared",
    "words_of",
]

#: Slots of a share without a limit, as they are stored.
NO_LIMIT: Final = 10**12
#: The limits of a shard that starts nothing until a pass gives it a share.
NOTHING: Final = "c=0"


@dataclass(frozen=True, slots=True)
class SharedLimit:
    """A limit over several queues. `shares`: slots (None: no limit) and millionths of the rate of each shard."""

    name: str
    limit: Limit
    queues: tuple[str, ...]
    words: str
    shares: Mapping[str, tuple[int | None, int]]
    versions: Mapping[str, int]


def declared(namespace: str) -> Plan[dict[str, SharedLimit]]:
    """Read the limits over several queues of a namespace."""
    stored: dict[str, str] = yield commands.shared_limits(namespace)
    found = {}
    for name, words in sorted(stored.items()):
        if not name.endswith("/"):
            continue
        parts = dict(part.split("=", 1) for part in words.split() if "=" in part)
        queues = tuple(filter(None, parts.get("q", "").split(",")))
        shares, versions = {}, {}
        for key, text in stored.items():
            limit, _, shard = key.partition("\n")
            values = [whole(each) for each in text.split()]
            if limit == name and shard and len(values) == 6 and None not in values:
                version, slots, _, part, *_ = (int(each or 0) for each in values)
                shares[shard] = (slots if slots < NO_LIMIT else None, part)
                versions[shard] = version
        found[name] = SharedLimit(name, Limit.of_words(words), queues, words, shares, versions)
    return found


def undeclared(name: str) -> SharedLimit:
    """Return a limit over no queue."""
    return SharedLimit(name, Limit(), (), "", {}, {})


def give_shares(
    keys: QueueKeys, shares: Sequence[tuple[str, int, str]], *, now_ms: int | None = None
) -> Plan[list[Report]]:
    """Give a shard its shares, as `engine.shares.share` does; its first one once all that is in flight is counted."""
    reports: list[Report] | None = None
    while reports is None:
        reports = yield commands.share(keys, shares, now_ms=now_ms)
    return reports


def own_words(share: str) -> str:
    """Return the limit that a queue had for itself before it got this first share; '' without one."""
    words, _, version = share.rpartition("s=")
    return words.strip() if version == f"{FIRST_VERSION}" and words.strip() != NOTHING else ""


def words_of(limit: Limit, queues: Sequence[str], changed_ms: int) -> str:
    """Write a limit over several queues as it is stored."""
    return f"{limit.words} q={','.join(queues)} v={changed_ms}".strip()


def share_words(limit: Limit, slots: int | None, part: int, version: int) -> str:
    """Write the share of a shard. Old versions keep it as any other limit."""
    parts = []
    rated = limit.rate is not None
    if slots == 0 or (rated and part == 0):
        parts.append("c=0")
    elif limit.concurrency is not None:
        parts.append(f"c={slots}")
    if rated and part:
        every = -(-limit.period_ms * WHOLE // limit.starts)
        burst = max(1, round(limit.at_once * part / WHOLE))
        parts.append(f"r={part}/{every} b={burst}")
    if limit.weight is not None:
        parts.append(f"w={limit.weight:g}")
    if limit.max_waiting is not None:
        parts.append(f"m={limit.max_waiting}")
    return " ".join([*parts, f"s={version}"])


def first_share(words: str) -> str:
    """Write the share of a shard that no pass has given one: `NOTHING`, or the limit that its queue had for itself."""
    return f"{words} s={FIRST_VERSION}".strip()
