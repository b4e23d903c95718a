"""How long a caller avoids what has failed: a server, a shard, the index of queues.

Without `AwayServers`, a receive over the queues of several nodes would wait for a frozen node once per queue on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from qworker.errors import (
    BusyError,
    InDoubtError,
    LoadingError,
    QworkerError,
    ReadOnlyError,
    RetryRule,
    ServerError,
    UnavailableError,
    is_answer,
    of_one_slot,
)
from qworker.telemetry.logger import logger

if TYPE_CHECKING:
    from qworker.store.nodes import Address

__all__ = ["AWAY", "AwayServers", "Backoff", "IndexWrites", "LeftAloneError"]

_log = logger(__name__)

#: Errors of a call to a node of a Cluster that does not serve now; others may serve.
AWAY: Final = (UnavailableError, InDoubtError, LoadingError, BusyError, ReadOnlyError)

_FIRST_S: Final = 0.5
_LONGEST_S: Final = 5.0
_FIRST_INDEX_S: Final = 60.0
_LONGEST_INDEX_S: Final = 600.0


class Backoff:
    """A pause after each failure: `first_s`, twice as long after each further one, at most `longest_s`.

    Times are seconds by one monotonic clock. Threads share it without a lock: a race costs one call too many or too
    few.
    """

    __slots__ = ("_first_s", "_longest_s", "_pause_s", "_until")

    def __init__(self, first_s: float = _FIRST_S, longest_s: float = _LONGEST_S) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._pause_s = 0.0
        self._until = float("-inf")

    def failed(self, now: float, *, answered: bool = False) -> float:
        """Begin a pause; returns its seconds. `answered`: start over at `first_s`, since asking again is cheap."""
        longer_s = 0.0 if answered else 2 * self._pause_s
        self._pause_s = min(max(longer_s, self._first_s), self._longest_s)
        self._until = now + self._pause_s
        return self._pause_s

    def succeeded(self) -> None:
        """End the pause."""
        self._pause_s = 0.0
        self._until = float("-inf")

    @property
    def is_first(self) -> bool:
        """Whether the pause is as short as the first one."""
        return self._pause_s <= self._first_s

    def left_s(self, now: float) -> float:
        """Return the seconds left of the pause; 0 without one."""
        return max(0.0, self._until - now)


class LeftAloneError(UnavailableError):
    """A server that was not asked because it failed a moment ago with `error`. Never leaves the client."""

    def __init__(self, error: ServerError, seconds: float) -> None:
        super().__init__(str(error))
        self.error, self.seconds = error, seconds


class _Failure(msgspec.Struct):
    at: float
    error: ServerError
    backoff: Backoff


class AwayServers:
    """The servers that failed lately, each left alone for 0.5 s, or up to 5 s if it does not answer. Thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: By address; None is for the servers that know the addresses: Sentinels, or the nodes of a Cluster.
        self._failures: dict[Address | None, _Failure] = {}

    def check(self, address: Address | None, since: float) -> None:
        """Raise `LeftAloneError` if a server is left alone now; failures before `since` do not count."""
        failure = self._failures.get(address)
        if failure is not None and failure.at >= since:
            left_s = failure.backoff.left_s(self._clock())
            if left_s > 0:
                raise LeftAloneError(failure.error, left_s)

    def failed(self, address: Address | None, error: ServerError) -> None:
        """Leave a server alone for a while if the error is about the server."""
        if error.retry is RetryRule.NEVER:
            return
        if of_one_slot(error):
            address = None
        now = self._clock()
        failure = self._failures.setdefault(address, _Failure(now, error, Backoff()))
        failure.at, failure.error = now, error
        failure.backoff.failed(now, answered=is_answer(error))

    def served(self, address: Address | None, asked_at: float = float("inf")) -> None:
        """Ask a server again as usual: it has answered.

        To a call from before its failure it may have answered before it as well: that does not end the first pause.
        """
        failure = self._failures.get(address)
        if failure is not None and not (asked_at <= failure.at and failure.backoff.is_first):
            self._failures.pop(address, None)


class IndexWrites:
    """Pauses writes to the index of queues after one failed: for a minute, later for up to ten."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._backoff = Backoff(_FIRST_INDEX_S, _LONGEST_INDEX_S)

    @property
    def paused(self) -> bool:
        """Whether the index is not written now."""
        return self._backoff.left_s(self._clock()) > 0

    def failed(self, error: QworkerError) -> None:
        """Begin a pause, and log the first one; a failure during a pause does not count."""
        if not self.paused and self._backoff.failed(self._clock()) == _FIRST_INDEX_S:
            _log.warning(
                "index_unwritten",
                problem=str(error),
                next_step="until then reapers find queues by a scan of the keys; see `qworker doctor`",
            )

    def succeeded(self) -> None:
        """Forget failures."""
        self._backoff.succeeded()
