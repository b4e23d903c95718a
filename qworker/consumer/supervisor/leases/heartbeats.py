"""Heartbeats of leases: another process extends them, so a handler that holds the GIL for a minute keeps its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from qworker.client.execute.recurring import RecurringCalls
from qworker.consumer.board.clock import boot_time
from qworker.consumer.board.states import LeaseState, Mark
from qworker.engine.extend import extend
from qworker.errors import QworkerError, ServerError, concerns_the_call
from qworker.telemetry.throttle import LogThrottle

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.consumer.board.board import Board
    from qworker.consumer.board.states import LeaseView
    from qworker.store.nodes import Address
    from qworker.wire.keys import QueueKeys

__all__ = ["EXTEND_GIVE_UP_S", "Heartbeats"]

_log = structlog.get_logger(__name__)

#: Leases are extended at least this often; the reaper's grace after a gap relies on it.
_HEARTBEAT_S: Final = 5.0
#: No lease is kept longer than this.
_LONGEST_S: Final = 12 * 3600.0
#: A lease that is due stays due, so an extension is given up soon.
EXTEND_GIVE_UP_S: Final = 1.0
#: Leases of one extend.
_AT_ONCE: Final = 1000


class Heartbeats:
    """Extends the leases of children, and tells them which are lost and which messages are cancelled."""

    def __init__(self, client: Client) -> None:
        self._calls = RecurringCalls(client, give_up_s=EXTEND_GIVE_UP_S)
        self._first_seen: dict[str, float] = {}
        self._throttle = LogThrottle()
        self.extended = 0
        self.lost = 0

    def extend_due(self, boards: Iterable[tuple[Board, Sequence[QueueKeys]]]) -> None:
        """Extend every lease that has run for a third of its visibility timeout, or for 5 s.

        Raises `ServerError` if a server cannot be reached; its leases stay due. A queue that refuses, or a node of a
        Cluster that is away, does not affect the others.
        """
        now = boot_time()
        due: dict[tuple[QueueKeys, int], list[tuple[Board, LeaseView]]] = {}
        seen: set[str] = set()
        for board, queues in boards:
            for lease in board.leases.views():
                seen.add(lease.lease_id)
                first_seen = self._first_seen.setdefault(lease.lease_id, now)
                wait_s = lease.visibility_s - min(lease.visibility_s / 3, _HEARTBEAT_S)
                if lease.deadline - now > wait_s or now - first_seen > _LONGEST_S:
                    continue
                if lease.queue < len(queues):
                    key = (queues[lease.queue], round(lease.visibility_s * 1000))
                    due.setdefault(key, []).append((board, lease))
        for lease_id in self._first_seen.keys() - seen:
            del self._first_seen[lease_id]
        away: dict[Address | None, ServerError] = {}
        for (keys, visibility_ms), leases in due.items():
            for first in range(0, len(leases), _AT_ONCE):
                node = self._calls.factory.last_node(keys.unacked)
                if node not in away:
                    try:
                        self._extend(keys, visibility_ms, leases[first : first + _AT_ONCE])
                    except ServerError as error:
                        away[node] = error
        if away:
            raise next(iter(away.values()))

    def _extend(
        self, keys: QueueKeys, visibility_ms: int, leases: Sequence[tuple[Board, LeaseView]]
    ) -> None:
        begun = boot_time()
        ids = [lease.lease_id for _, lease in leases]
        try:
            extended = self._calls.execute(extend(keys, ids, visibility_ms))
        except QworkerError as error:
            if not concerns_the_call(error):
                raise
            if self._throttle.admit(keys.queue) is not None:
                _log.error("extend_refused", queue=keys.queue, error=str(error))
            return
        for board, lease in leases:
            now = board.leases.view(lease.slot)
            if now is None or now.lease_id != lease.lease_id:
                continue  # settled in between
            if extended.deadlines[lease.lease_id]:
                board.leases.set_deadline(lease.slot, begun + visibility_ms / 1000)
                self.extended += 1
            elif now.state is LeaseState.HELD and lease.state is LeaseState.HELD:
                # A lease that is only pending may not exist yet; one that is held and gone is lost.
                self._lose(board, lease, keys.queue)
        held = {lease.lease_id: (board, lease.slot) for board, lease in leases}
        for lease_id, index in extended.cancelled:
            _stop_cancelled(*held[lease_id], lease_id, index)

    def _lose(self, board: Board, lease: LeaseView, queue: str) -> None:
        if board.leases.lost(lease.slot) or not set(lease.marks) & {Mark.UNSTARTED, Mark.RUNNING}:
            return  # all of it is handled: only the outcomes remain to be sent
        board.leases.lose(lease.slot)
        self.lost += 1
        _log.warning("lease_lost", queue=queue, lease_id=lease.lease_id, messages=lease.count)


def _stop_cancelled(board: Board, slot: int, lease_id: str, index: str) -> None:
    """Tell a child of a cancelled message that runs. One that has not started goes back, and is dropped there."""
    lease = board.leases.view(slot)
    if lease is None or lease.lease_id != lease_id:
        return  # settled in between
    position = lease.position_of(index)
    if position is not None and lease.marks[position] == Mark.RUNNING:
        board.orders.cancel(lease_id, position, boot_time())
