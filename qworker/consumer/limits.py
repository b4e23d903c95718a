"""Ends children that are over a limit: the time of a handler, silence, memory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from qworker.consumer.keeping import Keeping
    from qworker.consumer.process import ChildProcess
    from qworker.consumer.watch import Watch

__all__ = ["Limits"]

_log = structlog.get_logger(__name__)

#: Of the stacks of a child what a line of the log holds.
_MAX_CHARACTERS: Final = 8192
#: A child that has not imported the app after so long is told of.
_SLOW_START_S: Final = 10.0


class Limits:
    """Acts on what `Watch` sees of one child at a time."""

    def __init__(self, watch: Watch, keeping: Keeping) -> None:
        self._watch = watch
        self._keeping = keeping

    def enforce(self, child: ChildProcess) -> str:
        """Tell a child to end where it has to; returns why (see `totals.REASONS`), or ''."""
        overdue = child.overdue_handlers()
        if overdue:
            child.stacks = child.dump_stacks()
            # That takes its time: only those are to blame that have not ended meanwhile.
            overdue = tuple(view for view in child.overdue_handlers() if view in overdue)
        if overdue:
            names = [child.task_name(view.task) for view in overdue]
            _log.warning("time_limit_exceeded", pid=child.pid, tasks=names)
            child.kill("time_limit", overdue)
            return "time_limit"
        # A child that was asked to end may be deaf as well.
        if silent_s := self._watch.silent_s(child, self._keeping.answering_since):
            stacks = child.dump_stacks()[:_MAX_CHARACTERS]
            fields = {"silent_seconds": round(silent_s, 1), "stacks": stacks}
            _log.error("child_stalled", pid=child.pid, **fields)
            child.kill("watchdog")
            return "watchdog"
        if child.stopping:
            return ""
        self._note_start(child)
        size = self._watch.is_too_large(child)
        if size and not (child.board.handled or child.board.running()):
            self._note_base(child, size)
        elif size:
            _log.info("child_too_large", pid=child.pid, rss_bytes=size)
            child.stop("rss")
            self._keeping.recall([child])
            return "rss"
        return ""

    def _note_base(self, child: ChildProcess, size: int) -> None:
        """Say that a limit is below what a child takes before its first message: another one would take as much."""
        if "max_rss" not in child.noted:
            child.noted.add("max_rss")
            _log.error(
                "max_rss_too_small",
                pid=child.pid,
                rss_bytes=size,
                error="a child takes more than max_rss before its first message; raise max_rss",
            )

    def _note_start(self, child: ChildProcess) -> None:
        """Say of a child that is slow to start where it is."""
        seconds = time.monotonic() - child.started
        if child.starting and seconds > _SLOW_START_S and "start" not in child.noted:
            child.noted.add("start")
            stacks = child.dump_stacks()[:_MAX_CHARACTERS]
            _log.warning("child_not_ready", pid=child.pid, seconds=round(seconds), stacks=stacks)
