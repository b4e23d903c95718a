"""Gives up shards that were to run empty, once they have."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import structlog

from qworker.client.plan import run_plan
from qworker.client.queue_ref import QueueRef
from qworker.client.sharding import give_up_empty
from qworker.daemon.registry import Execute
from qworker.errors import BrokenQueueError
from qworker.wire.ids import IdSource
from qworker.wire.keys import QueueKeys

__all__ = ["Dividing"]

_log = structlog.get_logger(__name__)

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

    def slice(self, queues: Sequence[QueueKeys]) -> Iterator[tuple[QueueKeys, Iterator[None]]]:
        """Yield a duty of a few calls for each queue that has several shards, when it is time."""
        now = self._clock()
        if now < self._look_at:
            return
        self._look_at = now + _EVERY_S
        for keys in queues:
            if keys.shard == 1:
                yield keys, self._give_up(keys)

    def _give_up(self, keys: QueueKeys) -> Iterator[None]:
        queue = QueueRef(self._namespace, keys.name, self._ids)
        try:
            if run_plan(self._execute, give_up_empty(queue)):
                _log.info("shards_given_up", queue=keys.name)
        except BrokenQueueError:
            return  # the sweep has told which shard that is
        yield
