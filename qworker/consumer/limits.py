"""Ends children that are over a limit: the time of a handler, silence, memory."""

from __future__ import annotations

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
        if size := self._watch.is_too_large(child):
            _log.info("child_too_large", pid=child.pid, rss_bytes=size)
            child.stop("rss")
            self._keeping.recall([child])
            return "rss"
        return ""
