"""The loop of a child: receives batches, hands them to executors, and sends how messages ended.

While one batch runs, the next one is on its way.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from qworker.consumer.child.burst_end import BurstEnd
from qworker.consumer.child.connection import Abandoned
from qworker.consumer.child.settle.ack_buffer import FLUSH_S
from qworker.telemetry.guarded import guarded

if TYPE_CHECKING:
    from qworker.consumer.child.dispatch import Dispatcher
    from qworker.consumer.child.handlers.runner import Runner
    from qworker.consumer.child.leases.board_slots import ChildLeases
    from qworker.consumer.child.notifier import Waker
    from qworker.consumer.child.receive.fetch import Fetcher
    from qworker.consumer.child.settle.ack_buffer import AckBuffer
    from qworker.consumer.child.settle.stats import HandlerStats
    from qworker.consumer.child.stop_request import StopRequest

__all__ = ["RECYCLED", "Broker", "BrokerOptions"]

_log = guarded(__name__)

#: Why a broker stops once it has handled its maximum number of messages.
RECYCLED: Final = "recycled"
#: How often a child checks whether to stop, and whether it has lost a lease, even while nothing happens.
_CHECK_S: Final = 0.5
#: How long it sleeps if there is nothing to wait for, because every queue is broken.
_NOTHING_S: Final = 0.05


class BrokerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`burst`: end when nothing is left to do. `max_messages`: end after this many; 0: unlimited."""

    burst: bool = False
    max_messages: int = 0


class Broker:
    """Moves messages between the server and the executors until it is asked to stop."""

    def __init__(
        self,
        runner: Runner,
        dispatcher: Dispatcher,
        fetcher: Fetcher,
        ack_buffer: AckBuffer,
        leases: ChildLeases,
        stats: HandlerStats,
        notifier: Waker,
        stop: StopRequest,
        options: BrokerOptions,
    ) -> None:
        self._runner = runner
        self._dispatcher = dispatcher
        self._fetcher = fetcher
        self._ack_buffer = ack_buffer
        self._leases = leases
        self._stats = stats
        self._notifier = notifier
        self._stop = stop
        self._options = options
        self._burst = (
            BurstEnd(leases.board, lambda: ack_buffer.is_settled and not fetcher.fetching)
            if options.burst
            else None
        )

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop."""
        return bool(self._stop)

    @property
    def why_stopped(self) -> str:
        """Why it was asked to stop; '' by its supervisor, or if it was not."""
        return self._stop.why

    def run(self) -> None:
        """Work until asked to stop (a burst: until nothing is ready) and running handlers have ended. Call it once."""
        executors = self._dispatcher.executors
        for executor in executors:
            executor.start(self._between)
        try:
            while not (self._stop and self._is_over()):
                self._turn()
            for executor in executors:
                executor.stop()
            self._fetcher.end()
            self._dispatcher.give_back()
            self._stats.write()
            self._ack_buffer.flush(last=True)
            self._ack_buffer.close()
            self._fetcher.ring()
            for executor in executors:
                executor.join()
        except Abandoned:
            _log.warning("server_abandoned")
            # Running handlers may end: their marks on the board tell the supervisor how.
            while self._leases.board.running.views():
                self._notifier.sleep(_CHECK_S)
        finally:
            self._fetcher.close()
            self._notifier.close()

    def stop(self, why: str) -> None:
        """Receive nothing more; `run` returns when running handlers have ended. From any thread."""
        self._stop.make(why)

    def coroutines(self) -> list[tuple[int, Any]]:
        """Slots of async handlers that run, and their coroutines. From any thread."""
        return [pair for executor in self._dispatcher.executors for pair in executor.coroutines()]

    def detach(self, end: Callable[..., NoReturn]) -> None:
        """Make a forked copy of this process harmless: the messages and connections are its parent's.

        `end` is called when a handler ends in the copy, with the delivery and the error if it fails; it ends the copy.
        """
        self._fetcher.detach()
        self._runner.detach(end)
        for executor in self._dispatcher.executors:
            executor.detach()

    def _turn(self) -> None:
        ended = self._collect()
        self._check_leases()
        # A lone message starts before more is asked for: its ack takes the next receive along.
        lone = self._dispatcher.runs_at_once and self._fetcher.has_lone
        if not (self._stop or lone):
            self._fetch_more()
        self._settle_before_handlers()
        started = self._start()
        if ended_now := self._collect():
            ended += ended_now
            if not self._stop:
                # The next receive takes the outcomes along.
                self._fetch_more(wait=False)
        self._send(at_once=not self._dispatcher.running)
        self._sleep(progress=bool(ended or started))

    def _is_over(self) -> bool:
        self._collect()
        return not (self._start() or self._dispatcher.running)

    def _start(self) -> int:
        """Start received messages, or give them back when stopping; returns the messages started."""
        if self._stop:
            self._dispatcher.give_back()
            return 0
        return self._dispatcher.start()

    def _fetch_more(self, *, wait: bool = True) -> None:
        """Receive more; `wait`: or wait for more, or end a burst."""
        dispatcher, fetcher = self._dispatcher, self._fetcher
        collected = len(dispatcher.groups)
        arrived = len(fetcher.receiver.arrived)
        busy = dispatcher.calls + arrived
        idle = not busy and not collected
        most = self._most()
        if most is not None and most <= 0:
            if idle:
                self.stop(RECYCLED)
            return
        more, burst = fetcher.more(busy, collected, most), self._burst
        if burst is not None and not idle:
            burst.works()
        elif burst is not None and more:
            burst.asks()
        if more or busy >= dispatcher.slots or not wait:
            return
        if burst is None:
            fetcher.begin_wait(idle=idle, most=most)
        elif idle and burst.may_end():
            self.stop("burst")
        elif idle and burst.is_to_check():
            # Messages that have ended since the last look may be ready again, and others behind them: a retry without
            # delay, the next step of a chain.
            fetcher.recheck()
            fetcher.more(busy, collected, most)

    def _most(self) -> int | None:
        """Return how many more messages it may take; None for any number."""
        if not self._options.max_messages:
            return None
        held = self._dispatcher.running + len(self._dispatcher.groups)
        held += len(self._fetcher.receiver.arrived)
        return self._options.max_messages - self._ack_buffer.started - held

    def _settle_before_handlers(self) -> None:
        """Send the outcomes that no receive has taken along, before handlers that may be long take the thread."""
        dispatcher = self._dispatcher
        if self._ack_buffer.unsent_since is not None and dispatcher.inline and dispatcher.has_work:
            self._fetcher.settle()

    def _between(self, begun: float, now: float, *, last: bool, at_once: bool = False) -> float:
        """Send outcomes in time after a handler that ran in the broker's thread, from `begun` to `now`.

        `at_once`: without waiting for more of them. The next handler does not wait for the reply. After the last one of
        several the turn sends them, with the next receive if it can. Returns the time from which to call it again.
        """
        since = self._ack_buffer.unsent_since
        if since is None:
            self._ack_buffer.unsent_since = since = begun
        if now - since <= FLUSH_S and not at_once:
            return since + FLUSH_S
        if not last:
            self._collect()
            self._stats.write()
            self._fetcher.settle_between()
        return now

    def _collect(self) -> int:
        ended = self._dispatcher.collect()
        if ended and self._burst is not None:
            self._burst.works()
        return ended

    def _send(self, *, at_once: bool) -> None:
        """Send outcomes that have waited for 20 ms; `at_once` sends all, since the child has nothing else to do."""
        self._stats.write()
        due_s = self._ack_buffer.due_in()
        if due_s is None or (due_s > 0 and not at_once):
            return
        if self._fetcher.fetching:
            return  # its reply is near, and the next receive takes the outcomes along
        self._ack_buffer.flush()

    def _check_leases(self) -> None:
        """Cancel the async handlers of lost leases."""
        if not self._dispatcher.running:
            return
        for slot, lease in self._leases.by_slot.items():
            if not lease.cancelled and lease.lost:
                lease.cancelled = True
                for executor in self._dispatcher.executors:
                    executor.cancel_lease(slot)

    def _sleep(self, *, progress: bool) -> None:
        """Sleep until a reply, an ended handler or a deadline."""
        fetcher, dispatcher = self._fetcher, self._dispatcher
        descriptors = fetcher.descriptors()
        if not (descriptors or dispatcher.running or dispatcher.groups):
            if progress:
                return
            timeout_s = min(_NOTHING_S, fetcher.poll_in() or _NOTHING_S)
        else:
            timeout_s = self._timeout_s()
        self._notifier.going_to_sleep()
        # A turn that has ended its last message waits at its doorbell again, and must not sleep at the others before.
        if -1 in descriptors or dispatcher.is_due() or (progress and fetcher.may_wait):
            timeout_s = 0.0
        open_ones = (descriptor for descriptor in descriptors if descriptor >= 0)
        ready = self._notifier.sleep(timeout_s, *open_ones)
        fetcher.take(
            ready,
            busy=dispatcher.calls,
            collected=len(dispatcher.groups),
            most=0 if self._stop else self._most(),
        )

    def _timeout_s(self) -> float:
        fetcher, dispatcher = self._fetcher, self._dispatcher
        waits_s = (
            _CHECK_S,
            fetcher.overdue_in if fetcher.fetching else self._ack_buffer.due_in(),
            dispatcher.groups.due_in(),
            fetcher.doorbells.deaf_s(monotonic()),
            # A child without a free slot asks for nothing.
            fetcher.poll_in() if dispatcher.calls < dispatcher.slots else None,
        )
        return min(wait_s for wait_s in waits_s if wait_s is not None)
