"""What was settled lately: after a failover it is settled again.

A master that is lost takes with it what its replicas had not heard of yet, mostly the last milliseconds. The settles
among that are told again to whoever serves the queue then: effective where the lease came back, refused as stale where
the settle had arrived. Sends are not repeated: `send(..., replicas=1)` is for them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from qworker.client.commands.command import Command

if TYPE_CHECKING:
    from qworker.store.connection import ConnectionFactory
    from qworker.store.lines import Line
    from qworker.store.nodes import Address

__all__ = ["RecentSettles"]

#: Seconds for which settles are kept, and bounds of how much: a child that acks 100,000 messages a second keeps less.
_KEPT_S: Final = 10.0
_MOST_CALLS: Final = 2_000
_MOST_WORDS: Final = 100_000


@dataclass(frozen=True, slots=True)
class _Settled:
    """One call that settled: when, and over which line it was answered."""

    at: float
    words: int
    address: Address
    client_id: int
    run_id: str
    command: Command[Any]

    def may_be_lost(self, line: Line) -> bool:
        """Whether another server is at the end of a new line than the one that answered, or another run of it.

        Where it does not say which run it is, only a lower number of the connection proves that: a server counts its
        connections upwards from its start.
        """
        if line.address != self.address:
            return True
        if self.run_id and line.run_id:
            return self.run_id != line.run_id
        return self.client_id > line.client_id


class RecentSettles:
    """The settles of the last 10 s. Thread-safe. While no server answers nothing grows old."""

    def __init__(
        self, factory: ConnectionFactory, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._factory = factory
        self._clock = clock
        self._lock = threading.Lock()
        self._settled: deque[_Settled] = deque()
        self._words = 0

    def note(self, command: Command[Any], line: Line) -> None:
        """Keep a call that settled, if it did."""
        if command.settled is None:
            return
        now, words = self._clock(), len(command.args)
        with self._lock:
            self._settled.append(
                _Settled(now, words, line.address, line.client_id, line.run_id, command)
            )
            self._words += words
            while (
                now - self._settled[0].at > _KEPT_S
                or len(self._settled) > _MOST_CALLS
                or (self._words > _MOST_WORDS and len(self._settled) > 1)
            ):
                self._words -= self._settled.popleft().words

    def lost(self, line: Line) -> list[Command[Any]]:
        """Take out those to be told again over a new line: it goes to another server than answered, or to a new run."""
        if not self._settled:
            return []
        again, kept = [], deque[_Settled]()
        with self._lock:
            for each in self._settled:
                elsewhere = self._factory.place(each.command.key) != line.address
                if elsewhere or not each.may_be_lost(line):
                    kept.append(each)
                else:
                    again.append(each.command)
                    self._words -= each.words
            self._settled = kept
        return [each.settled() for each in again if each.settled is not None]

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._settled.clear()
            self._words = 0
