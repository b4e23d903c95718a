"""The check of `qworker doctor` for limits over several queues of which a part cannot be used."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import TYPE_CHECKING

from qworker.health.finding import FIX_AWAY, Finding, Status, listed

if TYPE_CHECKING:
    from qworker.client.manage.limits import SharedLimit
    from qworker.health.access import NamespaceAccess

__all__ = ["check_shared_limits"]


def check_shared_limits(access: NamespaceAccess, away: Set[str]) -> Iterator[Finding]:
    """Name limits that keep a share for a queue that is `away`, and say if shares cannot be moved."""
    from qworker.client.manage.limits import declared
    from qworker.errors import (
        InDoubtError,
        LoadingError,
        ServerError,
        UnavailableError,
        server_refused,
    )

    try:
        known = access.client.run(declared(access.namespace))
    except (UnavailableError, InDoubtError, LoadingError) as error:
        if away:  # Else it has passed.
            yield Finding(
                "limits.unread",
                Status.WARNING,
                f"limits over several queues cannot be read, so queues keep the shares they have: {error}",
                FIX_AWAY,
            )
        return
    except ServerError as error:
        if not server_refused(error):
            raise
        yield Finding(
            "limits.unread",
            Status.PROBLEM,
            f"limits over several queues cannot be read, so queues keep the shares they have: {error}",
            f"inspect the key {access.namespace}:limits in redis-cli, and rename it; then set these limits again",
        )
        return
    kept = [f"{name} {_share(one, away)}" for name, one in known.items() if away & {*one.queues}]
    if kept:
        yield Finding(
            "limits.away",
            Status.WARNING,
            f"limits over several queues keep what queues that cannot be read may still use: {listed(kept)}",
            FIX_AWAY,
        )


def _share(one: SharedLimit, away: Set[str]) -> str:
    shares = [share for shard, share in one.shares.items() if shard.partition("/")[0] in away]
    parts = []
    if one.limit.concurrency is not None:
        slots = sum(slots or 0 for slots, _ in shares)
        parts.append(f"{slots:,} of {one.limit.concurrency:,} slots")
    if one.limit.rate is not None:
        parts.append(f"{sum(part for _, part in shares) / 10_000:.0f} % of {one.limit.rate}")
    return " and ".join(parts)
