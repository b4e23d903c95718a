"""Relays outboxes that were left behind: by a worker that died, or because their destination did not take them."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from qworker.client.plan import run_plan
from qworker.client.relay import relay
from qworker.engine.inspect import existing
from qworker.errors import QworkerError
from qworker.telemetry.throttle import LogThrottle

if TYPE_CHECKING:
    from qworker.client.execute.recurring import RecurringCalls
    from qworker.wire.keys import QueueKeys

__all__ = ["Relaying"]

_log = structlog.get_logger(__name__)

#: Queues that a pass asks for outboxes, and those of one question: 30 microseconds of the server.
_MOST: Final = 2500
_TOGETHER: Final = 250
#: Pages per destination and pass.
_PAGES: Final = 10


class Relaying:
    """Asks some queues in each pass whether they have an outbox, in turn, and relays those."""

    def __init__(
        self,
        calls: RecurringCalls,
        namespace: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls = calls
        self._namespace = namespace
        self._throttle = LogThrottle(clock=clock)
        self._after = ""
        self._announced: dict[str, float] = {}

    def slice(self, queues: Sequence[QueueKeys]) -> Iterator[tuple[QueueKeys, Iterator[None]]]:
        """Yield a duty for each queue with an outbox; `queues` are sorted by name."""
        first = bisect_right(queues, self._after, key=_name)
        turn = [*queues[first:], *queues[:first]][:_MOST]
        if turn:
            self._after = turn[-1].queue
        for at in range(0, len(turn), _TOGETHER):
            some = turn[at : at + _TOGETHER]
            if self._calls.execute(existing([keys.out for keys in some])):
                questions = [existing([keys.out]) for keys in some]
                answers = self._calls.execute_each(questions)
                for keys, answer in zip(some, answers, strict=True):
                    if answer == 1:
                        yield keys, self._relay(keys)

    def _relay(self, keys: QueueKeys) -> Iterator[None]:
        plan = relay(self._namespace, keys, pages=_PAGES, announced=self._announced)
        failed = run_plan(self._calls.execute, plan)
        for name, error in failed.items():
            self._waits(keys.queue, name, error)
        yield

    def _waits(self, queue: str, destination: str, error: QworkerError) -> None:
        if (suppressed := self._throttle.admit(f"{queue} {destination}")) is not None:
            _log.warning(
                "outbox_waits",
                queue=queue,
                destination=destination,
                problem=str(error),
                held_back=suppressed,
            )


def _name(keys: QueueKeys) -> str:
    return keys.queue
