"""Gives up shards that were to run empty, once they have."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import structlog

from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.client.sharding import give_up_empty
from qworker.daemon.registry import Execute
from qworker.wire.ids import IdSource
from qworker.wire.keys import QueueKeys

__all__ = ["Dividing", "run_plan"]

_log = structlog.get_logger(__name__)
T = TypeVar("T")

_EVERY_S: Final = 10.0


class Dividing:
    """Looks every ten seconds at the queues that have several shards; costs nothing where there is none."""

    def __init__(
        self,
        execute: Execute,
        namespace: str,
        ids: IdSource,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._execute = execute
        self._namespace = namespace
        self._ids = ids
        self._clock = clock
        self._look_at = float("-inf")

    def look(self, queues: Sequence[QueueKeys]) -> None:
        """Give up what is empty. Raises the `ServerError` of a server that does not serve."""
        now = self._clock()
        if now < self._look_at:
            return
        self._look_at = now + _EVERY_S
        for name in sorted({keys.name for keys in queues if keys.shard}):
            if run_plan(self._execute, give_up_empty(QueueRef(self._namespace, name, self._ids))):
                _log.info("shards_given_up", queue=name)


def run_plan(execute: Execute, plan: Plan[T]) -> T:
    """Execute the commands of a plan that neither sends nor waits."""
    result: Any = None
    try:
        while True:
            step: Any = plan.send(result)
            result = execute(step)
    except StopIteration as end:
        found: T = end.value
        return found
