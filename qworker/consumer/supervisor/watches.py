"""Checks of a supervisor on the boards of its children: slow handlers, memory, silence."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import psutil

from qworker.consumer.board.clock import boot_time
from qworker.consumer.board.states import LeaseState, Mark

if TYPE_CHECKING:
    from qworker.consumer.board.states import LeaseView
    from qworker.consumer.options import RunOptions
    from qworker.consumer.supervisor.processes.process import ChildProcess

__all__ = ["Watch", "rss_bytes"]

#: Messages that have waited for longer than this behind a slow handler are given back.
_SLOW_S: Final = 1.0
#: The same while another child is idle.
_SLOW_BESIDE_IDLE_S: Final = 0.1
_RSS_EVERY_S: Final = 2.0


class Watch:
    """Checks one child at a time; decides nothing."""

    def __init__(self, options: RunOptions) -> None:
        self._max_rss = options.max_rss
        self._watchdog_s = options.watchdog_ms / 1000
        self._rss_at: dict[int, float] = {}
        self._busy_at: dict[int, float] = {}

    def is_idle(self, child: ChildProcess) -> bool:
        """Whether a child could take messages that others give back."""
        return child.ready and not child.stopping and not child.board.running.views()

    def stuck_leases(self, child: ChildProcess, *, beside_idle: bool = False) -> list[LeaseView]:
        """Leases with messages that have not started for a second: a batch is meant to last 50 ms.

        While other children are idle (`beside_idle`), also leases of 0.1 s behind handlers that run for as long.
        Messages of a batch handler may also wait for their max wait. A lease whose reply the child has not read is
        stuck only if handlers hold it up: it may be waiting for a message.
        """
        now = boot_time()
        running = child.board.running.views()
        begun = min((view.started for view in running), default=now)
        soon = beside_idle and now - begun > _SLOW_BESIDE_IDLE_S
        stuck = []
        for lease in child.board.leases.views():
            if lease.recalled or lease.queue >= len(child.max_waits_s):
                continue
            pending = lease.state is LeaseState.PENDING
            # Behind a handler that began before the receive, its reply may be on the way.
            slow_s = (
                _SLOW_BESIDE_IDLE_S if soon and not (pending and begun < lease.begun) else _SLOW_S
            )
            if now - lease.begun < slow_s + child.max_waits_s[lease.queue]:
                continue
            if now - begun > slow_s if pending else Mark.UNSTARTED in lease.marks:
                stuck.append(lease)
        return stuck

    def is_too_large(self, child: ChildProcess) -> int:
        """The child's resident memory in bytes if it is over the limit, else 0; measured every two seconds."""
        now = time.monotonic()
        if not self._max_rss or now < self._rss_at.get(child.pid, 0.0):
            return 0
        self._rss_at[child.pid] = now + _RSS_EVERY_S
        size = rss_bytes(child.pid)
        return size if size > self._max_rss else 0

    def silent_s(self, child: ChildProcess, answering_since: float | None) -> float:
        """Seconds for which a child has not spoken to a server that answers, if that is too long; else 0.

        A running handler may hold the child up: that is what time limits are for. To be called many times a second.
        """
        now = boot_time()
        if child.board.running.views():
            self._busy_at[child.pid] = now
            return 0.0
        if not self._watchdog_s or child.starting or answering_since is None:
            return 0.0
        # Counted from the end of a handler, whose outcome is not sent yet, and not from before it began.
        busy_at = self._busy_at.get(child.pid, 0.0)
        silent_s = now - max(child.board.beat, answering_since, busy_at)
        return silent_s if silent_s > self._watchdog_s else 0.0

    def forget(self, child: ChildProcess) -> None:
        """Forget an ended child."""
        self._rss_at.pop(child.pid, None)
        self._busy_at.pop(child.pid, None)


def rss_bytes(pid: int) -> int:
    """The resident memory of a process in bytes; 0 if it is gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
