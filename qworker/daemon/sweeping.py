"""Sweeps: which queues have something due, overdue or expired, asked in as few calls as the server allows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from qworker.daemon.attention import Attention
from qworker.engine.reap import QueueSweep, sweep

if TYPE_CHECKING:
    from qworker.client.execute.recurring import RecurringCalls
    from qworker.daemon.tick import Tick
    from qworker.wire.keys import QueueKeys

__all__ = ["LISTED", "MAX_TICK_MS", "SWEPT_AT_ONCE", "Sweeping"]

#: The longest tick that the scripts can distinguish from a gap (see `lua/lib/grace.lua`).
MAX_TICK_MS: Final = 60_000
#: Queues of one sweep: 2 ms of the server (500 took up to 4 ms).
SWEPT_AT_ONCE: Final = 250
#: With more queues than that, most are first asked whether they hold anything that has a time: queues of a question,
#: questions in a trip. Each pass still sweeps a tenth of the others, for expired messages at the head of ready.
_TOGETHER: Final = 10
_QUESTIONS: Final = 100
_HEADS_EVERY: Final = 10
#: Overdue leases that a sweep lists of each queue.
LISTED: Final = 10


class Sweeping:
    """Sweeps the queues of a namespace; queues that stay quiet are asked less often."""

    def __init__(
        self,
        calls: RecurringCalls,
        tick_ms: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls = calls
        self._tick_ms = tick_ms
        self._attention = Attention(tick_ms, clock=clock)
        #: Queues that `Attention` left alone for longer than a tick, and for how many ms.
        self._paused: dict[str, int] = {}

    def candidates(self, queues: Sequence[QueueKeys], reapers: int) -> Sequence[QueueKeys]:
        """Leave out queues that a sweep would find quiet: most of many hold no lease and no delayed message.

        `reapers`: how many share the namespace.
        """
        self._paused = {}
        if len(queues) <= SWEPT_AT_ONCE:
            return queues
        together = 1 if self._calls.factory.clustered else _TOGETHER
        groups = self._attention.due(queues, together, reapers)
        chosen = {at for at, group in enumerate(groups) if group.checks % _HEADS_EVERY == 0}
        others = [at for at in range(len(groups)) if at not in chosen]
        for first in range(0, len(others), _QUESTIONS):
            some = others[first : first + _QUESTIONS]
            questions = [groups[at].question for at in some]
            answers = self._calls.execute_each(questions)
            for at, answer in zip(some, answers, strict=True):
                if answer != 0:  # Or an error: the sweep finds out whose.
                    chosen.add(at)
                    self._attention.active(groups[at].queues[0].queue)
        self._paused = self._attention.checked(groups)
        return [keys for at in sorted(chosen) for keys in groups[at].queues]

    def sweep(
        self, queues: Sequence[QueueKeys], tick: Tick, now_ms: int | None
    ) -> Iterator[tuple[QueueKeys, QueueSweep]]:
        """Sweep queues, and yield those with work or a problem."""
        for chunk, tick_ms in self._chunks(queues):
            first = 0
            while first < len(chunk):
                command = sweep(chunk[first:], tick_ms, leases=LISTED, now_ms=now_ms)
                swept_ms, sweeps = self._calls.execute(command)
                # The time of the pass's first call: messages due later wait for the next pass.
                tick.now_ms = tick.now_ms or swept_ms
                for keys, swept in zip(chunk[first:], sweeps, strict=False):
                    if not swept.quiet:
                        self._attention.active(keys.queue)
                        yield keys, swept
                first += len(sweeps)

    def _chunks(self, queues: Sequence[QueueKeys]) -> Iterator[tuple[Sequence[QueueKeys], int]]:
        """Yield queues to sweep together, and the tick for the script: a pause on purpose is not a gap."""
        paused = [keys for keys in queues if keys.queue in self._paused]
        others = [keys for keys in queues if keys.queue not in self._paused] if paused else queues
        longest_ms = max((self._paused[keys.queue] for keys in paused), default=0)
        # A gap is longer than three of these.
        paused_ms = min(MAX_TICK_MS, math.ceil((longest_ms + max(3 * self._tick_ms, 2000)) / 3))
        for some, tick_ms in ((others, self._tick_ms), (paused, paused_ms)):
            for first in range(0, len(some), SWEPT_AT_ONCE):
                yield some[first : first + SWEPT_AT_ONCE], tick_ms
