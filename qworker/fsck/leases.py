"""Checks by scripts that get the ids of all leases of a queue, and give up if others change them meanwhile."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from qworker.fsck.reading import ask
from qworker.wire.keys import QueueKeys

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.engine.command import Command

__all__ = ["ATTEMPTS", "FAST", "UNNAMED", "ask_with_leases", "lease_ids"]

T = TypeVar("T")

#: Leases that one call takes, and calls until a busy queue is given up.
_MAX_LEASES: Final = 5000
ATTEMPTS: Final = 20
_LEASE_ID: Final = re.compile(rb"[A-Za-z0-9._-]+")
#: Why a script could not check.
FAST: Final = "its leases change too fast"
UNNAMED: Final = f"it has over {_MAX_LEASES:,} leases, or one without a name: repair that first"
_WHY: Final = {"": "", "large": "it has more messages than a script may read"}


def lease_ids(client: Client, keys: QueueKeys) -> list[str] | None:
    """Return the ids of the leases at one instant; None if there are too many, or an invalid one."""
    names = ask(client, "ZRANGE", keys.unacked, 0, _MAX_LEASES)
    if len(names) > _MAX_LEASES or not all(_LEASE_ID.fullmatch(name) for name in names):
        return None
    return [name.decode() for name in names]


def ask_with_leases(
    client: Client,
    keys: QueueKeys,
    question: Callable[[Sequence[str]], Command[tuple[str, list[T]]]],
) -> tuple[str, list[T]]:
    """Ask a question that takes the ids of the leases until these stay. Returns why it failed, or '', and answers."""
    for _ in range(ATTEMPTS):
        leases = lease_ids(client, keys)
        if leases is None:
            return UNNAMED, []
        why, answers = client.execute(question(leases))
        if why != "busy":
            return _WHY[why], answers
    return FAST, []
