"""Steps after the end of a child: settle its leases, count and log it, and start another in its slot."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from qworker.consumer.supervisor.leases.postmortem import Death, death_of, ending_of

if TYPE_CHECKING:
    from qworker.consumer.supervisor.lease_thread import LeaseThread
    from qworker.consumer.supervisor.processes.pool import ChildPool
    from qworker.consumer.supervisor.processes.process import ChildProcess
    from qworker.consumer.supervisor.processes.totals import Totals
    from qworker.consumer.supervisor.watches import Watch

__all__ = ["EndedChildren"]

_log = structlog.get_logger(__name__)

#: A burst gives up after this many children in a row that end while they start.
_BURST_STARTS: Final = 3


class EndedChildren:
    """Settles for ended children and replaces them. `burst`: children that end because nothing is left stay away."""

    def __init__(
        self,
        pool: ChildPool,
        watch: Watch,
        totals: Totals,
        lease_thread: LeaseThread,
        *,
        burst: bool,
    ) -> None:
        self._pool = pool
        self._watch = watch
        self._totals = totals
        self._lease_thread = lease_thread
        self._burst = burst

    def settle(self, child: ChildProcess, code: int, *, stopping: bool) -> str:
        """Settle for a child, and let another take its slot unless `stopping`; returns why a burst gives up, or ''."""
        slot = self._pool.slot_of(child)
        self._pool.forget(child)
        reason = child.reason(code)
        running = len(child.board.running.views())
        death = _death_of(child, code, idle_before=slot is not None and slot.died_idle)
        log = _log.info if reason in ("stopped", "recycled", "rss") else _log.warning
        fields: dict[str, object] = {"stack": death.stack} if death.stack else {}
        if child.left:
            fields["processes_ended"] = child.left
        log("child_ended", pid=child.pid, code=code, reason=reason, running=running, **fields)
        self._watch.forget(child)
        self._totals.note_exit(child, reason)
        self._lease_thread.settle_dead(child, death)
        if slot is None or stopping or (self._burst and reason == "stopped"):
            return ""
        slot.child_ended(reason, running=running)
        pause_s = self._pool.replace(child, slot, reason, running=running)
        if pause_s is None:
            return ""
        problem = f"the process of a child {ending_of(code)} while it imported the app"
        _log.error(
            "child_died_starting",
            pid=child.pid,
            error=problem,
            tries=slot.failed_starts,
            next_try_seconds=pause_s,
        )
        if self._burst and slot.failed_starts >= _BURST_STARTS:
            return f"{problem}, {slot.failed_starts} times"
        return ""


def _death_of(child: ChildProcess, code: int, *, idle_before: bool) -> Death:
    death = death_of(
        child.board,
        child.tasks,
        code,
        pid=child.pid,
        overdue=child.overdue,
        idle_before=idle_before,
        stopping=child.killed == "stopped",
        stacks=child.final_stacks,
    )
    if child.killed == "cancelled":
        return replace(death, cancelled=frozenset(death.accused))
    return death
