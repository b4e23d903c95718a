"""Keeps the leases of children, from outside of them.

A handler that holds the GIL for a minute keeps its lease, because not its own process extends it; and what a child
had in hand when it died goes back at once, because its board says what that was.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import structlog

from qworker.client.commands.command import Command
from qworker.client.commands.extending import extend
from qworker.client.commands.settling import Outcomes, settle
from qworker.client.options import QueueAttributes
from qworker.consumer.board import LeaseState, Mark, boot_time
from qworker.consumer.counters import ACKED, DISCARDED, NACKED, OTHER, RELEASED
from qworker.consumer.events import acked_headers, times_word
from qworker.consumer.fates import Fate, tell_of
from qworker.errors import InvalidError, QworkerError, ServerError, concerns_the_call
from qworker.telemetry.logs import Seldom
from qworker.wire import codec
from qworker.wire.envelope import Envelope
from qworker.wire.ids import lease_number
from qworker.wire.leases import held_items
from qworker.wire.numbers import whole

if TYPE_CHECKING:
    from qworker.client.sync import Client
    from qworker.consumer.board import Board, LeaseView
    from qworker.consumer.death import Death
    from qworker.store.nodes import Address
    from qworker.wire.keys import QueueKeys

__all__ = ["Keeper"]

_log = structlog.get_logger(__name__)

#: Leases are extended so often at least; the reaper's grace after a gap counts on it.
_HEARTBEAT_S: Final = 5.0
#: No lease is kept longer than this, whatever its handler does.
_LONGEST_S: Final = 12 * 3600.0
#: A store into shared memory is seen by the other side long before this has passed.
_SEEN_S: Final = 0.01
#: How long what was lost with its worker waits before the next try.
_CRASH_DELAY_MS: Final = 1000
#: What is due stays due, so an extension is soon given up; a settle is tried but once.
_EXTEND_GIVE_UP_S: Final = 1.0
_SETTLE_GIVE_UP_S: Final = 20.0
#: A wait of a dead child is over by then, whoever keeps its connection: `fetching._BLOCK_S`, and a margin.
_WAITED_S: Final = 3.0
#: What is read of a dead child's lease, beside what it has not counted.
_READ: Final = (Mark.DONE, Mark.RUNNING)
#: As what a message is counted that had ended, as its supervisor settles it.
_ENDED: Final[dict[int, str]] = {Mark.DONE: ACKED, Mark.FAILED: NACKED}
#: Leases of one extend.
_AT_ONCE: Final = 1000


class Keeper:
    """Extends, recalls and settles leases over one client. Not thread-safe.

    `who` makes the calls, for the journal. `note_fates` is told of what dead children have not counted. `extended` and
    `lost` count leases. A board comes with the keys of its queues, by their numbers on it.
    """

    def __init__(
        self,
        client: Client,
        *,
        who: str = "",
        note_fates: Callable[[Sequence[Fate]], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._note_fates = note_fates
        self._who = who
        self._first_seen: dict[str, float] = {}
        self._seldom = Seldom()
        #: Leases that waits of dead children may make yet, and when those waits are over.
        self._pending: deque[tuple[float, QueueKeys, str]] = deque()
        self.extended = 0
        self.lost = 0

    # -- extending -----------------------------------------------------------------------------

    def extend_due(self, boards: Iterable[tuple[Board, Sequence[QueueKeys]]]) -> None:
        """Extend every lease that has run for a third of its visibility timeout, or for 5 s.

        Raises `ServerError` where a server cannot be reached; what is due there stays due. Of a queue that refuses, and
        of a node of a Cluster that is away, the others take no harm.
        """
        now = boot_time()
        due: dict[tuple[QueueKeys, int], list[tuple[Board, LeaseView]]] = {}
        seen: set[str] = set()
        for board, queues in boards:
            for lease in board.held_leases():
                seen.add(lease.lease_id)
                first = self._first_seen.setdefault(lease.lease_id, now)
                wait_s = lease.visibility_s - min(lease.visibility_s / 3, _HEARTBEAT_S)
                if lease.deadline - now > wait_s or now - first > _LONGEST_S:
                    continue
                if lease.queue < len(queues):
                    key = (queues[lease.queue], round(lease.visibility_s * 1000))
                    due.setdefault(key, []).append((board, lease))
        for lease_id in self._first_seen.keys() - seen:
            del self._first_seen[lease_id]
        away: dict[Address | None, ServerError] = {}
        for (keys, visibility_ms), leases in due.items():
            for some in _chunks(leases):
                node = self._client.factory.place(keys.unacked)
                if node not in away:
                    try:
                        self._extend(keys, visibility_ms, some)
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
            deadlines = self._client.execute(
                extend(keys, ids, visibility_ms), give_up_s=_EXTEND_GIVE_UP_S
            )
        except QworkerError as error:
            if not concerns_the_call(error):
                raise
            if self._seldom.more(keys.queue) is not None:
                _log.error("extend_refused", queue=keys.queue, error=str(error))
            return
        for board, lease in leases:
            now = board.lease(lease.slot)
            if now is None or now.lease_id != lease.lease_id:
                continue  # settled meanwhile
            if deadlines[lease.lease_id]:
                board.set_deadline(lease.slot, begun + visibility_ms / 1000)
                self.extended += 1
            elif now.state is LeaseState.HELD and lease.state is LeaseState.HELD:
                # A lease that is only pending may not exist yet; one that is held and gone is lost.
                self._lose(board, lease, keys.queue)

    def _lose(self, board: Board, lease: LeaseView, queue: str) -> None:
        if board.lost(lease.slot) or not set(lease.marks) & {Mark.UNSTARTED, Mark.RUNNING}:
            return  # all of it is handled: what remains is to be told so
        board.lose(lease.slot)
        self.lost += 1
        _log.warning("lease_lost", queue=queue, lease_id=lease.lease_id, messages=lease.count)

    # -- recalling -----------------------------------------------------------------------------

    def recall(
        self, leases: Iterable[tuple[Board, Sequence[QueueKeys], Sequence[LeaseView]]]
    ) -> int:
        """Give back what has not started of some leases, uncounted; returns how many messages that were."""
        leases = list(leases)
        for board, _, views in leases:
            for view in views:
                board.recall(view.slot)
        time.sleep(_SEEN_S)
        given_back = 0
        for board, queues, views in leases:
            for view in sorted(views, key=_delivered, reverse=True):
                now = board.lease(view.slot)
                if now is not None and now.lease_id == view.lease_id and now.queue < len(queues):
                    given_back += self._recall_lease(board, queues[now.queue], now)
        return given_back

    def _recall_lease(self, board: Board, keys: QueueKeys, lease: LeaseView) -> int:
        outcomes = Outcomes(lease.lease_id)
        if lease.state is LeaseState.PENDING:
            # The child has not read the reply of the call that makes it.
            outcomes.release("*")
        for place, mark in enumerate(lease.marks):
            if mark == Mark.UNSTARTED:
                board.mark(lease.slot, place, Mark.RECALLED)
                outcomes.release(_index(lease, place), times=_times(lease))
        return self._settle(keys, outcomes)

    # -- settling for the dead -----------------------------------------------------------------

    def settle_dead(self, board: Board, queues: Sequence[QueueKeys], death: Death) -> int:
        """Settle what a dead child had in hand; returns the number of messages that were running.

        Handled ones are acked, unstarted ones released uncounted. Of the running ones those to blame are nacked, and
        the others go back; where nobody can say whose fault it was, all share the blame.
        """
        leases = [lease for lease in board.held_leases() if lease.queue < len(queues)]
        running = sum(lease.marks.count(Mark.RUNNING) for lease in leases)
        fates: list[Fate] = []
        # The latest first, so that each goes to the head in front of those that were delivered after it.
        for lease in sorted(leases, key=_delivered, reverse=True):
            keys = queues[lease.queue]
            uncounted = board.uncounted(lease.slot)
            items = self._read(keys, lease, uncounted)
            outcomes = _outcomes(lease, items, death, running)
            fates += self._fates(keys, lease, items, uncounted, death, running)
            self._settle(keys, outcomes)
            if lease.state is LeaseState.PENDING:
                again = boot_time() + _WAITED_S
                self._pending.append((again, queues[lease.queue], lease.lease_id))
        self._note_fates(fates)
        tell_of(fates, death)
        return running

    def release_late(self) -> None:
        """Give back what came into the leases of dead children after their death.

        A process that has a copy of a dead child's connection keeps its wait going, and so does a network that does not
        tell the server: the next message goes to nobody, and is to be back before anybody is blamed for it.
        """
        while self._pending and self._pending[0][0] <= boot_time():
            _, keys, lease_id = self._pending.popleft()
            outcomes = Outcomes(lease_id)
            outcomes.release("*")
            if given_back := self._settle(keys, outcomes):
                _log.warning("messages_went_to_a_dead_child", queue=keys.queue, messages=given_back)

    def _fates(
        self,
        keys: QueueKeys,
        lease: LeaseView,
        items: Mapping[int, Envelope],
        uncounted: Container[int],
        death: Death,
        running: int,
    ) -> Iterator[Fate]:
        """Say what became of messages that the child has not counted, those that were running among them."""
        for place, mark in enumerate(lease.marks):
            if mark != Mark.RUNNING and place not in uncounted:
                continue
            message, envelope = (lease.slot, place), items.get(place)
            _, ran = death.running.get(message, (0.0, ""))
            task = ran or (_task_of(envelope) if envelope is not None else "")
            if death.tasks and task and task not in death.tasks:
                continue  # no child counts what is no task of its own
            blame = death.blame(message, running) if mark == Mark.RUNNING else 0.0
            outcome = death.outcome if blame else _ENDED.get(mark, RELEASED)
            if mark == Mark.RUNNING and message in death.cancelled:
                outcome = DISCARDED
            yield Fate(
                keys.name,
                task,
                outcome,
                death.tasks.get(task, (keys.name, task or OTHER)),
                blame,
                envelope.id if envelope is not None else None,
                envelope.receives + 1 if envelope is not None else None,
                self._is_dead(keys, envelope, death, message) if blame == 1.0 else None,
                death.error_of(message),
            )

    def _is_dead(
        self, keys: QueueKeys, envelope: Envelope | None, death: Death, message: tuple[int, int]
    ) -> bool | None:
        """Whether a message that is to blame has had its last try."""
        if envelope is None:
            return None
        limit = whole(envelope.flags.get("m")) or death.accused.get(message)
        if limit is None:
            read: Command[int | None] = Command(
                None,
                (),
                ("HGET", keys.meta, "max_receives"),
                lambda reply: whole(reply.decode("latin-1")) if reply is not None else None,
            )
            try:
                limit = self._client.execute(read, give_up_s=_SETTLE_GIVE_UP_S)
            except QworkerError:
                return None  # it is settled all the same, or that is told
        return envelope.nacks + envelope.timeouts + 1 >= (limit or QueueAttributes().max_receives)

    def _read(
        self, keys: QueueKeys, lease: LeaseView, uncounted: Sequence[int]
    ) -> dict[int, Envelope]:
        """Read of a lease what was handled, what ran and what nobody has counted, by place."""
        places = {place for place, mark in enumerate(lease.marks) if mark in _READ} | {*uncounted}
        if not places:
            return {}
        command: Command[list[bytes]] = Command(
            None, (), ("HGETALL", keys.lease(lease.lease_id)), list
        )
        try:
            flat = self._client.execute(command, give_up_s=_SETTLE_GIVE_UP_S)
        except QworkerError as error:
            _log.warning(
                "lease_unread", queue=keys.queue, lease_id=lease.lease_id, error=str(error)
            )
            return {}
        held = dict(held_items(flat))
        found = {}
        for place in sorted(places):
            index = _index(lease, place)
            item = held.get(index.encode())
            if item is not None:
                envelope = Envelope.parse(item)
                if envelope is None:
                    adopted = f"{lease.lease_id}.{index}"
                    envelope = Envelope.adopt(adopted, lease.delivered_ms, item)
                found[place] = envelope
        return found

    def _settle(self, keys: QueueKeys, outcomes: Outcomes) -> int:
        """Settle, or leave it to the visibility deadline where the server cannot be reached."""
        if not outcomes:
            return 0
        try:
            command = settle(keys, [outcomes], who=self._who)
            settled = self._client.execute(command, give_up_s=_SETTLE_GIVE_UP_S)
        except QworkerError as error:
            _log.warning(
                "lease_left_to_expire",
                queue=keys.queue,
                lease_id=outcomes.lease_id,
                error=str(error),
            )
            return 0
        return settled.per_lease[0]


def _outcomes(
    lease: LeaseView, items: Mapping[int, Envelope], death: Death, running: int
) -> Outcomes:
    """Say how the messages of a dead child's lease end; `items` are those of it that were handled, at least."""
    outcomes = Outcomes(lease.lease_id)
    if lease.state is LeaseState.PENDING:
        outcomes.release("*")
    done = []
    for place, mark in enumerate(lease.marks):
        index = _index(lease, place)
        if mark == Mark.DONE:
            done.append(place)
        elif mark == Mark.FAILED:
            outcomes.nack(index, _CRASH_DELAY_MS, times=_times(lease))
        elif mark == Mark.RUNNING:
            _blame(outcomes, index, lease, place, death, running)
        elif mark == Mark.UNSTARTED and death.idle_before and not running:
            outcomes.share(index, times=_times(lease))
        elif mark != Mark.RECALLED:
            outcomes.release(index, times=_times(lease))
    _ack(outcomes, lease, [(place, items[place]) for place in done if place in items])
    return outcomes


def _ack(outcomes: Outcomes, lease: LeaseView, done: Iterable[tuple[int, Envelope]]) -> None:
    """Ack handled messages, free the unique keys that they hold, and tell the journal what their bodies say."""
    unique_ones, others = [], []
    for place, envelope in done:
        index = _index(lease, place)
        unique = envelope.flags.get("u")
        told = _task_of(envelope), envelope.header
        if unique is None:
            outcomes.acks.append(index)
            others.append(told)
        else:
            outcomes.uniques += (index, unique, envelope.id)
            unique_ones.append(told)
    if lease.delivered_ms:
        outcomes.groups = acked_headers(lease.delivered_ms, unique_ones + others)


def _blame(
    outcomes: Outcomes, index: str, lease: LeaseView, place: int, death: Death, running: int
) -> None:
    """Say how a message ends that ran when its child died."""
    message = (lease.slot, place)
    times = _times(lease, death, place)
    blame = death.blame(message, running)
    if message in death.cancelled:
        outcomes.discard(index, times=times)
    elif blame == 1.0:
        limit = death.accused.get(message)
        error = death.error_of(message)
        outcomes.crash(index, max_receives=limit, error=error, times=times)
    elif blame:
        outcomes.share(index, times=times)
    else:
        outcomes.release(index, started=True, times=times)


def _times(lease: LeaseView, death: Death | None = None, place: int = 0) -> str:
    """What the journal is told of a delivery, if there is one: of what ran at a death also since when, and its task."""
    if not lease.delivered_ms:
        return ""
    ran = death.running.get((lease.slot, place)) if death is not None else None
    if death is None or ran is None:
        return times_word(lease.delivered_ms)
    started, task = ran
    return times_word(lease.delivered_ms, task, started - lease.delivered, death.at - started)


def _task_of(envelope: Envelope) -> str:
    """The task that a body names."""
    try:
        return codec.decode_call(envelope.body).task
    except InvalidError:
        return "-"


def _delivered(lease: LeaseView) -> int:
    """Where a lease stands among those of its child, in the order of delivery."""
    return lease_number(lease.lease_id)


def _index(lease: LeaseView, place: int) -> str:
    """The index in the lease: a message alone is 0, in company they count from 1."""
    return "0" if lease.count == 1 else str(place + 1)


def _chunks(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for first in range(0, len(items), _AT_ONCE):
        yield items[first : first + _AT_ONCE]
