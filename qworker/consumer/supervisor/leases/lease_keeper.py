"""Keeps the leases of children from the supervisor: extends them, recalls unstarted messages, settles for the dead.

The messages of a child that dies go back at once, because its board says which it held.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from qworker.consumer.board.clock import boot_time
from qworker.consumer.board.states import LeaseState, Mark
from qworker.consumer.supervisor.leases.dead_child_leases import (
    EndedLease,
    lost_of,
    outcomes_of,
    stale_of,
    times_of,
)
from qworker.consumer.supervisor.leases.doubtful_leases import DoubtfulLeases
from qworker.consumer.supervisor.leases.fates import Fate, fates_of, log_fates
from qworker.consumer.supervisor.leases.heartbeats import EXTEND_GIVE_UP_S, Heartbeats
from qworker.consumer.supervisor.leases.lost_rings import ring_again
from qworker.engine.command import Command
from qworker.engine.options import QueueAttributes
from qworker.engine.raw import raw
from qworker.engine.settle import Outcomes, settle
from qworker.errors import QworkerError, RetryRule, ServerError
from qworker.wire.envelope import Envelope
from qworker.wire.ids import lease_number
from qworker.wire.leases import held_items
from qworker.wire.numbers import whole

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.consumer.board.board import Board
    from qworker.consumer.board.states import LeaseView
    from qworker.consumer.supervisor.leases.postmortem import Death
    from qworker.wire.keys import QueueKeys

__all__ = ["LeaseKeeper"]

_log = structlog.get_logger(__name__)

#: A write to shared memory is seen by the other process long before this has passed.
_SEEN_S: Final = 0.01
#: In a Cluster a settle is tried several times for a short time each, between extensions: a node that is away must not
#: cost leases on others.
_SETTLE_GIVE_UP_S: Final = 20.0
#: A wait of a dead child is over after this time, even if its connection stays open: `waits._BLOCK_S` and a margin.
_WAITED_S: Final = 3.0
#: What a child had sent when it was killed has reached the server after this time, unless the network is slow.
_SENT_S: Final = 0.3
#: Messages that are read from a dead child's lease, beside those that it has not counted.
_READ: Final = (Mark.DONE, Mark.RUNNING)


class LeaseKeeper(Heartbeats):
    """Extends, recalls and settles leases over one client. Not thread-safe.

    `caller` goes into the journal. `note_fates` gets messages that dead children have not counted. `extended`
    and `lost` count leases; `stale` counts outcomes that dead children have counted and not settled. A board comes with
    the keys of its queues, by their numbers on it.
    """

    def __init__(
        self,
        client: Client,
        *,
        caller: str = "",
        note_fates: Callable[[Sequence[Fate]], None] = lambda _: None,
    ) -> None:
        super().__init__(client)
        self._clustered = client.factory.clustered
        self._settle_give_up_s = EXTEND_GIVE_UP_S if self._clustered else _SETTLE_GIVE_UP_S
        #: What a node of a Cluster that is away has left to be done, in order.
        self._unsettled: list[Callable[[], object]] = []
        self._note_fates = note_fates
        self._caller = caller
        #: Leases that calls of dead children may still create, by when to look: a heap.
        self._pending: list[tuple[float, str, QueueKeys]] = []
        self.stale = 0
        self.doubtful = DoubtfulLeases(self._calls, caller=caller)

    # -- recalling -----------------------------------------------------------------------------

    def recall(
        self, leases: Iterable[tuple[Board, Sequence[QueueKeys], Sequence[LeaseView]]]
    ) -> int:
        """Give back unstarted messages of leases, uncounted; returns their number."""
        leases = list(leases)
        for board, _, views in leases:
            for view in views:
                now = board.leases.view(view.slot)
                # The view may be old: this thread has other work.
                if now is not None and now.lease_id == view.lease_id:
                    board.leases.recall(view.slot)
        time.sleep(_SEEN_S)
        given_back = 0
        for board, queues, views in leases:
            for view in sorted(views, key=_delivered, reverse=True):
                now = board.leases.view(view.slot)
                if now is not None and now.lease_id == view.lease_id and now.queue < len(queues):
                    given_back += self._recall_lease(board, queues[now.queue], now)
        return given_back

    def _recall_lease(self, board: Board, keys: QueueKeys, lease: LeaseView) -> int:
        outcomes = Outcomes(lease.lease_id)
        if lease.state is LeaseState.PENDING:
            # The child has not read the reply of the call that makes it.
            outcomes.release("*")
        for position, mark in enumerate(lease.marks):
            if mark == Mark.UNSTARTED:
                board.leases.mark(lease.slot, position, Mark.RECALLED)
                outcomes.release(lease.index_of(position), times=times_of(lease))
        return self._settle(keys, outcomes)

    # -- settling for the dead -----------------------------------------------------------------

    def settle_dead(self, board: Board, queues: Sequence[QueueKeys], death: Death) -> int:
        """Settle the leases of a dead child, see `outcomes_of`; returns the number of messages that were running."""
        self.doubtful.note(board, queues)
        leases = [lease for lease in board.leases.views() if lease.queue < len(queues)]
        running = sum(lease.marks.count(Mark.RUNNING) for lease in leases)
        fates: list[Fate] = []
        until = boot_time() + _SETTLE_GIVE_UP_S
        # The latest first, so that each goes to the head in front of those that were delivered after it.
        for lease in sorted(leases, key=_delivered, reverse=True):
            keys, uncounted = queues[lease.queue], board.tally.uncounted(lease.slot)
            acked = board.acked.of(lease)
            fates += self._end(EndedLease(keys, lease, acked, uncounted, death, running, until))
            if lease.state is LeaseState.PENDING:
                for after_s in (_SENT_S, _WAITED_S):
                    again = (boot_time() + after_s, lease.lease_id, keys)
                    heapq.heappush(self._pending, again)
        self._note_fates(fates)
        log_fates(fates, death)
        return running

    def ring_again(self, queues: Sequence[QueueKeys]) -> None:
        """Ring for others at queues that have messages: a token on its way to a child that was killed is lost."""
        ring_again(self._calls, queues)

    def _end(self, ended: EndedLease) -> list[Fate]:
        """Settle a lease of a dead child; returns what became of messages that it has not counted."""
        keys, lease, death = ended.keys, ended.lease, ended.death
        try:
            items = self._read(keys, lease, {*ended.uncounted, *ended.acked})
            lost = lost_of(lease, ended.acked, items)
        except QworkerError as error:
            if self._may_be_back(error, ended.until):
                self._unsettled.append(partial(self._end_again, ended))
                return []
            _log.warning(
                "lease_unread", queue=keys.queue, lease_id=lease.lease_id, error=str(error)
            )
            items, lost = {}, lost_of(lease, ended.acked, range(lease.count))
        outcomes = outcomes_of(lease, items, death, ended.running, ended.uncounted)
        fates = [*fates_of(ended, items, self._is_dead, lost)]
        self._settle(keys, outcomes, ended.until)
        self._settle(keys, stale_of(lease, ended.uncounted), ended.until, stale=True)
        return fates

    def _end_again(self, ended: EndedLease) -> None:
        fates = self._end(ended)
        self._note_fates(fates)
        log_fates(fates, ended.death)

    def _may_be_back(self, error: QworkerError, until: float) -> bool:
        """Whether to settle again later: other calls go on while a node of a Cluster is away."""
        return (
            self._clustered
            and isinstance(error, ServerError)
            and error.retry is not RetryRule.NEVER
            and boot_time() < until
        )

    @property
    def unsettled(self) -> bool:
        """Whether leases cannot be settled yet because their node of a Cluster is away."""
        return bool(self._unsettled)

    def settle_again(self) -> None:
        """Settle what could not be settled because a node of a Cluster is away, for up to 20 s each."""
        for _ in range(len(self._unsettled)):
            self._unsettled.pop(0)()

    def release_late(self) -> None:
        """Give back messages that came into leases of dead children after their death.

        A server that is busy carries out a call after its sender was killed. A process with a copy of a dead child's
        connection keeps its wait going, and so does a network that does not tell the server. Then the next message goes
        to the dead child, and must be back before its lease runs out; until then it has a slot of its limits.
        """
        while self._pending and self._pending[0][0] <= boot_time():
            _, lease_id, keys = heapq.heappop(self._pending)
            outcomes = Outcomes(lease_id)
            outcomes.release("*")
            if given_back := self._settle(keys, outcomes):
                _log.warning("messages_went_to_a_dead_child", queue=keys.queue, messages=given_back)

    def _is_dead(
        self, keys: QueueKeys, envelope: Envelope | None, death: Death, message: tuple[int, int]
    ) -> bool | None:
        """Whether a message to blame has had its last try."""
        if envelope is None:
            return None
        limit = whole(envelope.flags.get("m")) or death.accused.get(message)
        if limit is None:
            read = raw("HGET", keys.meta, "max_receives", decode=_whole)
            try:
                limit = self._calls.execute(read, give_up_s=self._settle_give_up_s)
            except QworkerError:
                return None  # settling it does not depend on this, and logs its own failure
        return envelope.nacks + envelope.timeouts + 1 >= (limit or QueueAttributes().max_receives)

    def _read(
        self, keys: QueueKeys, lease: LeaseView, others: AbstractSet[int]
    ) -> dict[int, Envelope]:
        """Read the messages of a lease that were handled, that ran, and those at other positions, by position.

        Raises `QworkerError`.
        """
        positions = {at for at, mark in enumerate(lease.marks) if mark in _READ} | others
        if not positions:
            return {}
        command: Command[list[bytes]] = raw("HGETALL", keys.lease(lease.lease_id), decode=list)
        flat = self._calls.execute(command, give_up_s=self._settle_give_up_s)
        items = dict(held_items(flat))
        envelopes = {}
        for position in sorted(positions):
            index = lease.index_of(position)
            item = items.get(index.encode())
            if item is not None:
                envelope = Envelope.parse(item)
                if envelope is None:
                    adopted = f"{lease.lease_id}.{index}"
                    envelope = Envelope.adopt(adopted, lease.delivered_ms, item)
                envelopes[position] = envelope
        return envelopes

    def _settle(
        self,
        keys: QueueKeys,
        outcomes: Outcomes,
        until: float | None = None,
        *,
        stale: bool = False,
    ) -> int:
        """Settle; if the server cannot be reached until then, leave it to the visibility deadline.

        Returns the number of messages settled; `stale`: each was counted with an outcome that was never settled.
        """
        if not outcomes:
            return 0
        until = boot_time() + _SETTLE_GIVE_UP_S if until is None else until
        try:
            command = settle(keys, [outcomes], caller=self._caller)
            settled = self._calls.execute(command, give_up_s=self._settle_give_up_s)
        except QworkerError as error:
            if self._may_be_back(error, until):
                again = partial(self._settle, keys, outcomes, until, stale=stale)
                self._unsettled.append(again)
                return 0
            _log.warning(
                "lease_left_to_expire",
                queue=keys.queue,
                lease_id=outcomes.lease_id,
                error=str(error),
            )
            return 0
        count = settled.per_lease[0]
        if stale:
            self.stale += count
        return count


def _delivered(lease: LeaseView) -> int:
    """Sort the leases of a child by the order of delivery."""
    return lease_number(lease.lease_id)


def _whole(reply: bytes | None) -> int | None:
    return None if reply is None else whole(reply.decode("latin-1"))
