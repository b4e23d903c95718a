"""Whether anybody reaps, seen from a worker that does not: else nothing becomes due and nothing comes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import structlog

from qworker.client.commands.command import Command
from qworker.errors import AccessDeniedError, ServerError
from qworker.telemetry.logs import Seldom
from qworker.wire.keys import reapers_key
from qworker.wire.presence import Reaper, list_reapers

if TYPE_CHECKING:
    from qworker.client.sync import Client

__all__ = ["ReaperWatch"]

_log = structlog.get_logger(__name__)

#: Seconds between two looks, and after one that failed: the thread that looks also keeps leases.
_EVERY_S: Final = 4.0
_AGAIN_S: Final = 30.0
#: Seconds without a reaper before it is told: a daemon that starts beside the worker comes by meanwhile.
_PATIENCE_S: Final = 4.0
#: Seconds between two warnings.
_WARN_EVERY_S: Final = 600.0
_MOST: Final = 1000


class ReaperWatch:
    """Looks every few seconds at the list of reapers, and tells when nobody reaps and when somebody does again."""

    def __init__(
        self, client: Client, namespace: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        #: Reapers that came by lately; None where that is not known.
        self.seen: int | None = None
        self._client = client
        self._key = reapers_key(namespace)
        self._clock = clock
        self._seldom = Seldom(_WARN_EVERY_S, clock=clock)
        self._look_at = float("-inf")
        self._missed_since: float | None = None
        self._warned = False

    def look(self) -> None:
        """Look, if it is time to. Never raises an error of the server: what cannot be read is not known."""
        now = self._clock()
        if now < self._look_at:
            return
        self._look_at = now + _EVERY_S
        words = ("ZREVRANGE", self._key, 0, _MOST - 1, "WITHSCORES")
        command = Command(None, (), words, _reapers, then=("TIME",))
        try:
            reapers = self._client.execute(command, give_up_s=0.0)
        except ServerError as error:
            self.seen, self._missed_since = None, None
            self._look_at = now + _AGAIN_S
            if isinstance(error, AccessDeniedError):
                # Its user may not look there: no worker fails for that.
                self._look_at = float("inf")
                _log.info("reapers_not_watched", problem=str(error))
            return
        alive = [each for each in reapers if not each.is_gone]
        self.seen = len(alive)
        if alive:
            self._found(alive[0])
        else:
            self._missed(reapers[0] if reapers else None, now)

    def _found(self, reaper: Reaper) -> None:
        if self._warned:
            _log.info("reaper_returned", reaper=reaper.name)
        self._missed_since, self._warned = None, False

    def _missed(self, last: Reaper | None, now: float) -> None:
        if self._missed_since is None:
            self._missed_since = now
        if now - self._missed_since < _PATIENCE_S:
            return
        self._warned = True
        if (held := self._seldom.more("missed")) is not None:
            _log.warning(
                "reaper_missed",
                problem="none is alive: delayed and timed-out messages stay where they are, schedules do not fire",
                advice="start one: qworker daemon, or qworker run without --no-reaper",
                held_back=held,
                last=last and last.name,
                last_seen_seconds=last and last.age_ms / 1000,
            )


def _reapers(replies: list[Any]) -> list[Reaper]:
    flat, time_ = replies
    if isinstance(time_, Exception):
        raise ServerError(str(time_)) from time_
    return list_reapers(flat, int(time_[0]) * 1000 + int(time_[1]) // 1000)
