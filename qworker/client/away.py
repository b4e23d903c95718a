"""Servers that do not answer: a caller with others to ask leaves them alone for a while.

Without it every receive over the queues of several nodes would wait for the one that is frozen, once per queue on it.
One that answers that it cannot serve yet (it loads its data, it lacks scripts) is asked again twice a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from qworker.errors import RetryRule, ServerError, UnavailableError, is_answer

if TYPE_CHECKING:
    from qworker.store.nodes import Address

__all__ = ["AwayServers", "LeftAloneError"]

_FIRST_REST_S: Final = 0.5
_LONGEST_REST_S: Final = 5.0


class LeftAloneError(UnavailableError):
    """A server that was not asked, because it failed a moment ago with `error`. Never leaves the client."""

    def __init__(self, error: ServerError, seconds: float) -> None:
        super().__init__(str(error))
        self.error, self.seconds = error, seconds


@dataclass(frozen=True, slots=True)
class _Failure:
    at: float
    until: float
    rest_s: float
    error: ServerError


class AwayServers:
    """The servers that failed lately, each left alone for 0.5 s; for up to 5 s if they do not answer. Thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: None: whoever says where the servers are (Sentinels, nodes of a Cluster).
        self._failures: dict[Address | None, _Failure] = {}

    def check(self, address: Address | None, since: float) -> None:
        """Raise `LeftAloneError` for one that is left alone now; failures before `since` do not count."""
        failure = self._failures.get(address)
        if failure is not None and failure.at >= since:
            left_s = failure.until - self._clock()
            if left_s > 0:
                raise LeftAloneError(failure.error, left_s)

    def failed(self, address: Address | None, error: ServerError) -> None:
        """Leave a server alone for a while, if what it raised is about the server."""
        if error.retry is RetryRule.NEVER:
            return
        before, now = self._failures.get(address), self._clock()
        rest_s = _FIRST_REST_S
        if before is not None and not is_answer(error):
            rest_s = min(2 * before.rest_s, _LONGEST_REST_S)
        self._failures[address] = _Failure(now, now + rest_s, rest_s, error)

    def served(self, address: Address | None) -> None:
        """Ask it as ever: it has answered."""
        if self._failures:
            self._failures.pop(address, None)
