"""Upkeep of queues with several shards: repairs divisions after failovers, and removes empty shards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import structlog

from qworker.client.execute.protocol import Execute
from qworker.client.manage.shard_upkeep import tend
from qworker.client.plan import run_plan
from qworker.client.queue_ref import QueueRef
from qworker.errors import BrokenQueueError
from qworker.wire.ids import IdSource
from qworker.wire.keys import QueueKeys

__all__ = ["ShardUpkeep"]

_log = structlog.get_logger(__name__)

_EVERY_S: Final = 10.0


class ShardUpkeep:
    """Checks queues with several shards every ten seconds; costs nothing without such queues."""

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
        self._check_at = float("-inf")
        #: Per queue, shards that held messages at the last check but that the queue did not list.
        self._orphans: dict[str, set[int]] = {}

    def slice(self, queues: Sequence[QueueKeys]) -> Iterator[tuple[QueueKeys, Iterator[None]]]:
        """Yield a duty of a few calls for each queue with several shards, when it is time."""
        now = self._clock()
        if now < self._check_at:
            return
        self._check_at = now + _EVERY_S
        numbers: dict[str, list[int]] = {}
        for keys in queues:
            if keys.shard:
                numbers.setdefault(keys.name, []).append(keys.shard)
        self._orphans = {name: self._orphans.get(name, set()) for name in numbers}
        for name, shards in numbers.items():
            yield QueueKeys(self._namespace, name), self._tend(name, shards)

    def _tend(self, name: str, shards: Sequence[int]) -> Iterator[None]:
        queue = QueueRef(self._namespace, name, self._ids)
        try:
            gone, orphans = run_plan(self._execute, tend(queue, shards, self._orphans[name]))
        except BrokenQueueError:
            return  # The sweep has logged which shard that is.
        self._orphans[name] = orphans
        if gone:
            _log.info("shards_given_up", queue=name)
        if orphans:
            _log.warning("shards_forgotten", queue=name, shards=sorted(orphans))
        yield
