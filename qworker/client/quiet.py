"""When the index of queues is not written: after a failure for a minute, after several for longer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import structlog

from qworker.errors import QworkerError

__all__ = ["WITHIN_S", "Quiet"]

_log = structlog.get_logger(__name__)

#: How long a step that may fail waits for its server, in seconds.
WITHIN_S: Final = 0.2
#: Seconds of rest after a failure; they double with each further one.
_REST_S: Final = 60.0
_LONGEST_REST_S: Final = 600.0


class Quiet:
    """Knows whether it is time to try again, and says once that it fails."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = float("-inf")
        self._rest_s = _REST_S

    @property
    def now(self) -> bool:
        """Whether nothing is tried now."""
        return self._clock() < self._until

    def failed(self, error: QworkerError) -> None:
        """Rest after a failure; one that comes while others rest already counts with them."""
        if self.now:
            return
        if self._rest_s == _REST_S:
            _log.warning(
                "index_unwritten",
                problem=str(error),
                next_step="reapers find queues by a walk through the keys meanwhile; see `qworker doctor`",
            )
        self._until = self._clock() + self._rest_s
        self._rest_s = min(2 * self._rest_s, _LONGEST_REST_S)

    def succeeded(self) -> None:
        """Forget failures."""
        self._rest_s = _REST_S
