"""Looks after divided queues: heals what a failover has lost, and gives up shards that have run empty."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import structlog

from qworker.client.plan import run_plan
from qworker.client.queue_ref import QueueRef
from qworker.client.sharding import tend
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
        #: Per queue, shards that held messages at the last look although the queue did not know of them.
        self._orphans: dict[str, set[int]] = {}

    def slice(self, queues: Sequence[QueueKeys]) -> Iterator[tuple[QueueKeys, Iterator[None]]]:
        """Yield a duty of a few calls for each queue that has several shards, when it is time."""
        now = self._clock()
        if now < self._look_at:
            return
        self._look_at = now + _EVERY_S
        numbers: dict[str, list[int]] = {}
        for keys in queues:
            if keys.shard:
                numbers.setdefault(keys.name, []).append(keys.shard)
        self._orphans = {name: self._orphans.get(name, set()) for name in numbers}
        for name, some in numbers.items():
            yield QueueKeys(self._namespace, name), self._tend(name, some)

    def _tend(self, name: str, numbers: Sequence[int]) -> Iterator[None]:
        queue = QueueRef(self._namespace, name, self._ids)
        try:
            gone, orphans = run_plan(self._execute, tend(queue, numbers, self._orphans[name]))
        except BrokenQueueError:
            return  # the sweep has told which shard that is
        self._orphans[name] = orphans
        if gone:
            _log.info("shards_given_up", queue=name)
        if orphans:
            _log.warning("shards_forgotten", queue=name, shards=sorted(orphans))
        yield
