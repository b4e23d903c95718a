"""Checks that cannot be made: a node of a Cluster is away, or another program has put another type into a key."""

from __future__ import annotations

from collections.abc import Iterator

from qworker.client.per_shard import of_one_key
from qworker.errors import (
    ClusterMovingError,
    InDoubtError,
    LoadingError,
    QworkerError,
    UnavailableError,
)
from qworker.health.finding import FIX_AWAY, FIX_BROKEN, Finding, Status

__all__ = ["not_made", "unless_broken"]

_AWAY = (UnavailableError, InDoubtError, LoadingError, ClusterMovingError)


def not_made(check: str, error: QworkerError, *, clustered: bool) -> Finding | None:
    """Say why a check was not made; None if the error concerns everything that is read from the server."""
    if of_one_key(error):
        return Finding(check, Status.PROBLEM, f"not checked: {error}", FIX_BROKEN)
    if clustered and isinstance(error, _AWAY):
        text = f"not checked, because its node is away ({error})"
        return Finding(check, Status.PROBLEM, text, FIX_AWAY)
    return None


def unless_broken(
    check: str, findings: Iterator[Finding], *, clustered: bool = False
) -> Iterator[Finding]:
    """Make a check: such a key must not hide what the others say, nor a node that is away if it is `clustered`."""
    try:
        yield from findings
    except QworkerError as error:
        finding = not_made(check, error, clustered=clustered)
        if finding is None:
            raise
        yield finding
