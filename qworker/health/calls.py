"""The check of `qworker doctor` for groups of calls that wait for an operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from qworker.health.finding import Finding, Status, counted

if TYPE_CHECKING:
    from qworker.client.inspect.peek import Inspection
    from qworker.health.access import Access

__all__ = ["check_calls"]

#: Groups of a queue that are looked at, and how long one may take to be started.
_MOST: Final = 1000
_STARTS_MS: Final = 60_000


def check_calls(access: Access, queues: Mapping[str, Inspection]) -> Iterator[Finding]:
    """Name queues whose callbacks wait for dead letters, or for calls that were never sent. O(n) of their groups."""
    blocked: dict[str, int] = {}
    partly: dict[str, int] = {}
    dead = ""
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
    if blocked:
        yield Finding(
            "calls.blocked",
            Status.WARNING,
            "groups of calls wait for dead letters to be redriven: " + counted(blocked),
            f"see which by qworker calls show {dead}; redrive or drop them, or end it: qworker calls abandon {dead}",
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
