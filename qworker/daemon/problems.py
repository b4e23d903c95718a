"""Problems of single queues: counted in the tick, and logged once in a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from qworker.telemetry.throttle import LogThrottle

if TYPE_CHECKING:
    from qworker.daemon.tick import Tick

__all__ = ["Problems"]

_log = structlog.get_logger(__name__)


class Problems:
    """Counts and logs what is wrong with queues."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._throttle = LogThrottle(clock=clock)

    def broken(self, queue: str, problem: str, tick: Tick) -> None:
        """A key of the queue holds another type."""
        tick.broken.add(queue)
        if (suppressed := self._throttle.admit(f"broken {queue}")) is not None:
            _log.error(
                "queue_broken",
                queue=queue,
                problem=problem,
                fix=f"qworker fsck {queue} --repair renames the key",
                held_back=suppressed,
            )

    def failed(self, queue: str, error: Exception | str, tick: Tick, **fields: str) -> None:
        """A call for the queue failed; `fields` are logged with it."""
        tick.errors += 1
        if (suppressed := self._throttle.admit(f"failed {queue}")) is not None:
            _log.error(
                "queue_failed", queue=queue, problem=str(error), held_back=suppressed, **fields
            )
