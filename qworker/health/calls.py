"""The check of `qworker doctor` for groups of calls that wait for an operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from qworker.health.finding import Finding, Status, counted

if TYPE_CHECKING:
    from qworker.client.inspect.peek import Inspection
    from qworker.health.access import NamespaceAccess

__all__ = ["check_calls"]

#: Groups of a queue that are checked, and how long one may take to be started.
_MOST: Final = 1000
_STARTS_MS: Final = 60_000


def check_calls(access: NamespaceAccess, queues: Mapping[str, Inspection]) -> Iterator[Finding]:
    """Name queues whose callbacks wait for dead letters, or for calls that were never sent or are gone.

    O(n) of their groups. That calls are gone is seen only where nothing is left at all; `qworker fsck` finds each.
    """
    blocked: dict[str, int] = {}
    partly: dict[str, int] = {}
    gone: dict[str, int] = {}
    dead = ""
    nothing_left = not any(_holds_any(queue) for queue in queues.values())
    for name, queue in queues.items():
        # A group puts its calls into outboxes of this queue.
        if "followed" not in queue.stats:
            continue
        for group in access.queues.get(name).calls(_MOST):
            age_ms = queue.now_ms - (group.began_ms or queue.now_ms)
            if group.state == "blocked":
                blocked[name] = blocked.get(name, 0) + 1
                dead = dead or group.id
            elif group.state == "starting" and age_ms > _STARTS_MS:
                partly[name] = partly.get(name, 0) + 1
            elif group.state == "running" and age_ms > _STARTS_MS and nothing_left:
                gone[name] = gone.get(name, 0) + 1
    if blocked:
        yield Finding(
            "calls.blocked",
            Status.WARNING,
            "groups of calls wait for dead letters to be redriven: " + counted(blocked),
            f"see which by qworker calls show {dead}; redrive or drop them, or end it: qworker calls abandon {dead}",
        )
    if gone and not any(access.queues.get(name).outboxes() for name in queues):
        yield Finding(
            "calls.gone",
            Status.PROBLEM,
            "groups of calls wait, and no queue has a message, so their calls are gone: "
            + counted(gone),
            "check for deleted keys or a failover; qworker fsck --repair counts such calls as discarded",
        )
    if partly:
        worst = max(partly, key=lambda name: partly[name])
        yield Finding(
            "calls.starting",
            Status.PROBLEM,
            "groups of calls were started in part, so their callbacks are not sent: "
            + counted(partly),
            f"start them again with the same id, or end them: qworker calls ls {worst}, qworker calls abandon ID",
        )


def _holds_any(queue: Inspection) -> bool:
    """Whether a queue holds a message, or may."""
    waiting = sum(queue.ready_by_priority) + queue.suspect + queue.delayed + queue.leases
    return bool(waiting or queue.dead or queue.unread)
