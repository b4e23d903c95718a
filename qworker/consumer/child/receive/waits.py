"""Waits at the doorbells of a child, and receives from what rings."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import TYPE_CHECKING, Final

from qworker.consumer.child.receive.doorbells import DoorbellWait
from qworker.engine.raw import raw
from qworker.engine.receive import PAUSED
from qworker.errors import QworkerError
from qworker.telemetry.guarded import guarded
from qworker.telemetry.throttle import LogThrottle

if TYPE_CHECKING:
    from qworker.consumer.child.leases.batch_size import QueueState
    from qworker.consumer.child.leases.board_slots import ChildLeases
    from qworker.consumer.child.receive.chooser import QueueChooser
    from qworker.consumer.child.receive.doorbells import Doorbell, Doorbells
    from qworker.consumer.child.receive.poll_schedule import PollSchedule
    from qworker.consumer.child.receive.receiver import Receiver
    from qworker.consumer.child.receive.suspect_turns import SuspectTurns

__all__ = ["LEAST_S", "DoorbellWaits"]

_log = guarded(__name__)

_BLOCK_S: Final = 2.0
#: Waits at the doorbells of many queues, during which the child polls.
_PATIENT_BLOCK_S: Final = 10.0
#: A child with one slot hears nothing while its handler runs. If it is back at its doorbells as soon as this it waits
#: at several: what rings meanwhile is late by this much.
_QUICK_S: Final = 0.05
#: It remembers how long it was away, up to this, and for about nine messages.
_LONGEST_AWAY_S: Final = 1.0
_AWAY_MEMORY: Final = 0.7
#: A wait or a sleep that would be over sooner is not worth its trip.
LEAST_S: Final = 0.01
#: How long no wait begins at a doorbell after an error there.
_DEAF_S: Final = 1.0
#: A busy child that has heard the bell for a suspect lets others hear it for this long.
_PASSED_ON_S: Final = 0.05


class DoorbellWaits:
    """Begins waits and reads their replies. `slots` handlers may run at a time."""

    def __init__(
        self,
        doorbells: Doorbells,
        chooser: QueueChooser,
        polls: PollSchedule,
        suspects: SuspectTurns,
        receiver: Receiver,
        leases: ChildLeases,
        *,
        slots: int,
    ) -> None:
        self._doorbells = doorbells
        self._chooser = chooser
        self._polls = polls
        self._suspects = suspects
        self._receiver = receiver
        self._leases = leases
        self._slots = slots
        self._throttle = LogThrottle()
        #: When a bell rang, None once the next wait has begun; and how long that takes lately, None: unknown.
        self._rang_at: float | None = None
        self._away_s: float | None = None
        self._by_wake = {queue.keys.wake.encode(): queue for queue in chooser.queues}

    def begin(self, *, idle: bool, most: int | None, within_s: float) -> None:
        """Wait at the doorbells for `within_s`, at most 2 s; at those of many queues for 10 s.

        The receive of a single queue goes in the same trip.

        `most`: messages that may still be taken, None for any number.
        """
        self._choose()
        if self._polls.requested:
            return  # a token was lost: what it rang for comes first
        for bell in self._doorbells:
            if bell.wait is None and not self._leases.full:
                self._begin(bell, idle=idle, most=most, within_s=within_s)

    def _choose(self) -> None:
        """Wait at several doorbells for a long time, or at one: then nothing rings unheard while a handler runs."""
        bells = self._doorbells
        if not bells.many:
            return
        if self._rang_at is not None:
            away_s = min(monotonic() - self._rang_at, _LONGEST_AWAY_S)
            self._away_s = max(away_s, _AWAY_MEMORY * (self._away_s or 0.0))
            self._rang_at = None
        patient = self._slots > 1 or (self._away_s is not None and self._away_s <= _QUICK_S)
        if bells.patient != patient:
            if bells.close():
                self._polls.request()
            bells.patient = patient

    def _begin(self, bell: Doorbell, *, idle: bool, most: int | None, within_s: float) -> None:
        now = monotonic()
        if now < bell.deaf_until:
            return
        one = self._doorbells.many and not self._doorbells.patient
        queues = self._chooser.usable(now, None if one else bell.queues)
        if not queues:
            return
        queue = queues[0]
        receives = self._chooser.single and idle and queue.hint_ms != PAUSED
        patient_s = max(_BLOCK_S, _PATIENT_BLOCK_S)
        block_s = patient_s if self._doorbells.patient else min(_BLOCK_S, max(LEAST_S, within_s))
        if receives:
            # The receive may run at any moment of the wait, and its lease counts from the earliest: a wait is short
            # compared with the visibility timeout.
            block_s = min(block_s, max(0.05, queue.visibility_s / 10))
        pending = self._receiver.enter(queue) if receives else None
        bell.wait = DoorbellWait(queues, pending, now + block_s)
        wait = raw("BLPOP", *(queue.keys.wake for queue in queues), f"{block_s:.3f}")
        # Connected now: or the first reply would block the child for the whole wait, deaf to handlers that end.
        bell.connection.connect(wait)
        if pending is None:
            bell.connection.begin(wait)
            return
        queue.receives += 1
        queue.ready_left = None
        count = queue.want(0, self._slots, 1)
        count = count if most is None else min(count, most)
        receive = self._receiver.command(pending, count, self._suspects.of_wait())
        # In one write, which wakes an idle server once.
        bell.connection.begin(wait, receive)

    def take(self, ready: set[int]) -> Iterator[tuple[Doorbell, QueueState]]:
        """Read the replies that are there, and yield each bell that rang with its queue. Raises `Abandoned`.

        The child that takes a queue's token receives from that queue first, or others would sleep on.
        """
        for bell in self._doorbells:
            if bell.wait is None:
                continue
            queue = None
            if self._doorbells.patient and bell.connection.fileno() == -1:
                # It was not sent, or is lost with its token. To send it now would block the child until it ends.
                self._polls.request()
                bell.connection.forget()
                bell.wait, bell.deaf_until = None, monotonic() + _DEAF_S
            elif bell.connection.fileno() in ready | {-1}:
                queue = self._finish(bell, bell.wait)
            elif monotonic() > bell.wait.until + _BLOCK_S:
                # The server has stopped: no reply will come.
                bell.connection.lapse()
                if bell.wait.pending is None:
                    self._polls.request()
                    bell.connection.forget()
                    bell.wait, bell.deaf_until = None, monotonic() + _DEAF_S
                else:
                    queue = self._finish(bell, bell.wait)
            if queue is not None:
                yield bell, queue

    def _finish(self, bell: Doorbell, wait: DoorbellWait) -> QueueState | None:
        """Read the reply of a wait; returns the queue that rang, if it is yet to be received from."""
        bell.wait = None
        try:
            token = bell.connection.finish()
        except QworkerError as error:
            self._note(error)
            bell.deaf_until = monotonic() + _DEAF_S
            token = None
            # A poll finds the queue that caused the error, and the next wait is without it.
            self._polls.request()
        if wait.pending is not None:
            self._receiver.take(bell.connection, wait.pending, waited=True)
            return None
        if token is None:
            # Plain pushes ring no bell. With several queues the next poll finds them.
            if self._chooser.single:
                self._chooser.note_ready(bell.queues[0])
            return None
        if self._rang_at is None:
            self._rang_at = monotonic()
        queue = self._by_wake[token[0]]
        self._chooser.note_ready(queue)
        self._polls.note_activity()
        queue.ready_left = None
        return queue

    def ring(self, bell: Doorbell, queue: QueueState) -> None:
        """Put a token back, for another consumer, or for this one once it can receive."""
        try:
            bell.connection.call(raw("RPUSH", queue.keys.wake, 1))
        except QworkerError as error:
            self._note(error)

    def _note(self, error: QworkerError) -> None:
        """Log that a bell cannot be waited at or rung: a queue that stays broken would be named every few seconds."""
        if (suppressed := self._throttle.admit(type(error).__name__)) is not None:
            _log.error("doorbell_broken", error=str(error), held_back=suppressed)

    def pass_on(self, bell: Doorbell, queue: QueueState) -> None:
        """Ring for a suspect that this child may not take, and leave the bell to idle children for a moment."""
        bell.deaf_until = monotonic() + _PASSED_ON_S
        self.ring(bell, queue)
