"""Watches for reapers, in a worker that carries none: without one, no message becomes due and none comes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import structlog

from qworker.engine.raw import raw
from qworker.errors import AccessDeniedError, ServerError
from qworker.telemetry.throttle import LogThrottle
from qworker.wire.keys import reapers_key
from qworker.wire.presence import ReaperInfo, list_reapers

if TYPE_CHECKING:
    from qworker.client.execute.recurring import RecurringCalls
    from qworker.client.execute.sync import Client

__all__ = ["ReaperWatch"]

_log = structlog.get_logger(__name__)

#: How often to check, and how long to wait after a failure: the same thread keeps leases.
_EVERY_S: Final = 4.0
_AGAIN_S: Final = 30.0
#: How long a reaper may be missing before that is logged: a daemon may be starting beside the worker.
_PATIENCE_S: Final = 4.0
_WARN_EVERY_S: Final = 600.0
_MAX_REAPERS: Final = 1000


class ReaperWatch:
    """Reads the list of reapers every few seconds, and logs when there is none and when there is one again."""

    def __init__(
        self,
        client: Client | RecurringCalls,
        namespace: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        #: Reapers seen lately; None if unknown.
        self.seen: int | None = None
        self._client = client
        self._key = reapers_key(namespace)
        self._clock = clock
        self._throttle = LogThrottle(_WARN_EVERY_S, clock=clock)
        self._next_at = float("-inf")
        self._missed_since: float | None = None
        self._warned = False

    def check(self) -> None:
        """Check if it is time to. Raises nothing: if the list cannot be read, `seen` is None."""
        now = self._clock()
        if now < self._next_at:
            return
        self._next_at = now + _EVERY_S
        words = ("ZREVRANGE", self._key, 0, _MAX_REAPERS - 1, "WITHSCORES")
        command = raw(*words, decode=_reapers, then=("TIME",))
        try:
            reapers = self._client.execute(command, give_up_s=0.0)
        except ServerError as error:
            self.seen, self._missed_since = None, None
            self._next_at = now + _AGAIN_S
            if isinstance(error, AccessDeniedError):
                # The user may not read the list; no worker fails for that.
                self._next_at = float("inf")
                _log.info("reapers_not_watched", problem=str(error))
            return
        alive = [reaper for reaper in reapers if not reaper.is_gone]
        self.seen = len(alive)
        if alive:
            self._note_seen(alive[0])
        else:
            self._note_missing(reapers[0] if reapers else None, now)

    def _note_seen(self, reaper: ReaperInfo) -> None:
        if self._warned:
            _log.info("reaper_returned", reaper=reaper.name)
        self._missed_since, self._warned = None, False

    def _note_missing(self, last: ReaperInfo | None, now: float) -> None:
        if self._missed_since is None:
            self._missed_since = now
        if now - self._missed_since < _PATIENCE_S:
            return
        self._warned = True
        if (suppressed := self._throttle.admit("missed")) is not None:
            _log.warning(
                "reaper_missed",
                problem="none is alive: delayed and timed-out messages stay where they are, schedules do not fire",
                advice="start one: qworker daemon, or qworker run without --no-reaper",
                held_back=suppressed,
                last=last and last.name,
                last_seen_seconds=last and last.age_ms / 1000,
            )


def _reapers(replies: list[Any]) -> list[ReaperInfo]:
    flat, time_ = replies
    if isinstance(time_, Exception):
        raise ServerError(str(time_)) from time_
    return list_reapers(flat, int(time_[0]) * 1000 + int(time_[1]) // 1000)
