"""Divides limits over several queues among their shards, in one reaper at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from qworker.client.manage.balancing import REST_MS, Balancer
from qworker.client.plan import run_plan
from qworker.engine.shares import NO_LIMITS, OWN_TURN, take_turn
from qworker.errors import AccessDeniedError, RefusedError, ServerError, concerns_the_call
from qworker.telemetry.throttle import LogThrottle

if TYPE_CHECKING:
    from qworker.client.execute.recurring import RecurringCalls
    from qworker.daemon.tick import Tick

__all__ = ["Sharing"]

_log = structlog.get_logger(__name__)

#: Without limits over several queues, a reaper asks for them this often.
_LOOK_EVERY_S: Final = 5.0
#: While another one has the turn.
_OTHERS_S: Final = 1.0
#: No pass begins sooner than this after the last one.
_EVERY_S: Final = 0.1
#: How long a reaper keeps the turn without a pass.
_TURN_MS: Final = 3000
#: When the next pass is, while messages of these limits wait or run.
_ACTIVE_MS: Final = 250
#: Passes one after the other for shares that others have yet to give up; then a running message holds one.
_AT_ONCE: Final = 5


class Sharing:
    """Asks now and then whether there are such limits and it is this reaper's turn, and makes a pass over them."""

    def __init__(
        self,
        calls: RecurringCalls,
        namespace: str,
        name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls = calls
        self._namespace = namespace
        self._name = name
        self._clock = clock
        self._balancer = Balancer(namespace)
        self._throttle = LogThrottle(clock=clock)
        self._next_s = float("-inf")
        self._unsettled = 0

    def tend(self, tick: Tick) -> None:
        """Make a pass if it is time; notes in `tick` when the next one should be."""
        now_s = self._clock()
        if now_s < self._next_s:
            return
        try:
            turn = self._calls.execute(take_turn(self._namespace, self._name, _TURN_MS))
            if turn != OWN_TURN:
                self._next_s = now_s + (_LOOK_EVERY_S if turn == NO_LIMITS else _OTHERS_S)
                return
            self._next_s = now_s + _EVERY_S
            balanced = run_plan(self._calls.execute, self._balancer.balance())
        except (RefusedError, ServerError) as error:
            # Its key is of another type, or forbidden by an ACL of an older version: queues keep their shares.
            if not concerns_the_call(error) and not isinstance(error, AccessDeniedError):
                raise
            self._next_s = now_s + _LOOK_EVERY_S
            if (suppressed := self._throttle.admit("")) is not None:
                _log.warning("shares_unchanged", problem=str(error), held_back=suppressed)
            return
        for shard, problem in balanced.silent.items():
            if (suppressed := self._throttle.admit(shard)) is not None:
                _log.warning(
                    "shares_unchanged", queue=shard, problem=str(problem), held_back=suppressed
                )
        self._unsettled = self._unsettled + 1 if balanced.unsettled else 0
        if 0 < self._unsettled <= _AT_ONCE:
            tick.wake_at(tick.now_ms + REST_MS)
        elif self._unsettled or balanced.active:
            tick.wake_at(tick.now_ms + _ACTIVE_MS)
