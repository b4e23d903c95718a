"""Gives back leases whose messages this child does not run: recalled ones, and those of receives without a reply.

A receive whose reply was lost may have run, or may yet run: a server that was frozen or cut off reads the bytes of a
closed connection later, perhaps after a repetition of the call. Its messages are in a lease that no child holds, and
the queue looks empty, so that no receive would come by. So they are given back whenever the server of the queue
answers anything about it, a poll for instance, and again for a while if the lease did not exist yet.
"""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from qworker.client.unreturned import Unreturned
from qworker.engine.settle import Outcomes, Settled, settle
from qworker.errors import QworkerError
from qworker.telemetry.guarded import guarded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qworker.consumer.board.doubts import Doubts
    from qworker.consumer.child.leases.batch_size import QueueState
    from qworker.consumer.child.receive.pipeline import Pipeline
    from qworker.wire.keys import QueueKeys

__all__ = ["LeaseReturns"]

_log = guarded(__name__)

#: A lease that did not exist is given back again this much later.
_AGAIN_S: Final = 1.0


class LeaseReturns:
    """The leases to give back, uncounted, over the settling connection. `caller` goes into the journal.

    Those in doubt are on the board as well: its supervisor gives them back if this child asks for nothing.
    """

    def __init__(self, pipeline: Pipeline, doubts: Doubts, *, caller: str) -> None:
        self._pipeline = pipeline
        self._doubts = doubts
        self._caller = caller
        self._unreturned = Unreturned()
        #: Queues with such leases whose server has answered, by shard; and when each has its next turn.
        self._answered: dict[str, QueueState] = {}
        self._not_before: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._unreturned)

    def recalled(self, queue: QueueState, lease_id: str) -> None:
        """Note a lease that exists."""
        self._not_before.pop(queue.shard, None)
        self._unreturned.note(queue.keys, lease_id)
        self.answered(queue)

    def in_doubt(self, queue: QueueState, lease_id: str) -> None:
        """Note a lease that may exist, or may yet be created."""
        self._doubts.note(lease_id, queue.index)
        self._unreturned.note(queue.keys, lease_id)

    def answered(self, queue: QueueState) -> None:
        """Note that the server of a queue answers."""
        if self._unreturned:
            self._answered[queue.shard] = queue

    def begin(self) -> None:
        """Give back leases of the queues that have answered. Only calls of the pipeline may be in flight."""
        while self._answered:
            shard, queue = self._answered.popitem()
            now = monotonic()
            if now >= self._not_before.get(shard, 0.0):
                self._not_before[shard] = now + _AGAIN_S
                self._begin(queue.keys)

    def begin_all(self) -> None:
        """Give back all leases: this child is about to end. Only calls of the pipeline may be in flight."""
        self._answered.clear()
        for keys in self._unreturned.queues():
            self._begin(keys)

    def _begin(self, keys: QueueKeys) -> None:
        if released := self._unreturned.outcomes(keys):
            command = settle(keys, released, caller=self._caller)
            self._pipeline.begin(command, partial(self._finish, keys, released))

    def _finish(self, keys: QueueKeys, released: Sequence[Outcomes]) -> None:
        try:
            settled: Settled = self._pipeline.connection.finish()
        except QworkerError as error:
            _log.error("release_refused", queue=keys.queue, error=str(error))
        else:
            self._unreturned.settled(keys, released, settled.per_lease)
