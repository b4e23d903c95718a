"""Ends children that are over a limit: the time of a handler, that after a cancel, silence, memory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from qworker.consumer.supervisor.lease_thread import LeaseThread
    from qworker.consumer.supervisor.processes.process import ChildProcess
    from qworker.consumer.supervisor.watches import Watch

__all__ = ["LimitEnforcer"]

_log = structlog.get_logger(__name__)

#: Characters of stacks in a line of the log.
_MAX_CHARACTERS: Final = 8192
#: A child that takes longer than this to import the app is logged.
_SLOW_START_S: Final = 10.0


class LimitEnforcer:
    """Acts on what `Watch` finds, one child at a time. `cancel_grace_s`: None for no end of cancelled handlers."""

    def __init__(
        self, watch: Watch, lease_thread: LeaseThread, cancel_grace_s: float | None
    ) -> None:
        self._cancel_grace_s = cancel_grace_s
        self._watch = watch
        self._lease_thread = lease_thread

    def enforce(self, child: ChildProcess) -> str:
        """End a child that is over a limit; returns why (see `totals.REASONS`), or ''."""
        overdue = child.overdue_handlers()
        if overdue:
            child.final_stacks = child.stacks.dump()
            # That takes some time: handlers that end during it are not to blame.
            overdue = tuple(view for view in child.overdue_handlers() if view in overdue)
        if overdue:
            names = [child.task_name(view.task) for view in overdue]
            _log.warning("time_limit_exceeded", pid=child.pid, tasks=names)
            child.kill("time_limit", overdue)
            return "time_limit"
        grace_s = self._cancel_grace_s
        if grace_s is not None and (cancelled := child.cancelled_handlers(grace_s)):
            names = [child.task_name(view.task) for view in cancelled]
            _log.warning("cancel_grace_exceeded", pid=child.pid, tasks=names)
            child.kill("cancelled", cancelled)
            return "cancelled"
        # A child that was asked to end may have stalled as well.
        if silent_s := self._watch.silent_s(child, self._lease_thread.answering_since):
            stacks = child.stacks.dump()[:_MAX_CHARACTERS]
            fields = {"silent_seconds": round(silent_s, 1), "stacks": stacks}
            _log.error("child_stalled", pid=child.pid, **fields)
            child.kill("watchdog")
            return "watchdog"
        if child.stopping:
            return ""
        self._warn_of_start(child)
        size = self._watch.is_too_large(child)
        if size and not (child.board.handled or child.board.running.views()):
            self._warn_of_base(child, size)
        elif size:
            _log.info("child_too_large", pid=child.pid, rss_bytes=size)
            child.stop("rss")
            self._lease_thread.recall([child])
            return "rss"
        return ""

    def _warn_of_base(self, child: ChildProcess, size: int) -> None:
        """Log that a child exceeds the memory limit before its first message: another child would exceed it, too."""
        if "max_rss" not in child.noted:
            child.noted.add("max_rss")
            _log.error(
                "max_rss_too_small",
                pid=child.pid,
                rss_bytes=size,
                error="a child takes more than max_rss before its first message; raise max_rss",
            )

    def _warn_of_start(self, child: ChildProcess) -> None:
        """Log where a child is that is slow to start."""
        seconds = time.monotonic() - child.started
        if child.starting and seconds > _SLOW_START_S and "start" not in child.noted:
            child.noted.add("start")
            stacks = child.stacks.dump()[:_MAX_CHARACTERS]
            _log.warning("child_not_ready", pid=child.pid, seconds=round(seconds), stacks=stacks)
