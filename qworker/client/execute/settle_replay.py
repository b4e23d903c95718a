"""Recent settles, repeated after a failover.

A lost master takes with it what its replicas had not received yet, mostly the last milliseconds. A client repeats its
settles of that time to the server that takes over: effective if the lease came back, refused as stale if the settle had
arrived. Sends are not repeated: `send(..., replicas=1)` covers them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from qworker.chunks import chunks
from qworker.engine.command import Command
from qworker.errors import RefusedError
from qworker.telemetry.logger import logger

if TYPE_CHECKING:
    from qworker.store.connections import ConnectionFactory, ServerConnection
    from qworker.store.nodes import Address
    from qworker.store.topology import Key

__all__ = ["RecentSettles"]

_log = logger(__name__)

#: Seconds for which settles are kept; limits on their number, for a child that acks 100,000 messages a second.
_KEPT_S: Final = 10.0
_MAX_CALLS: Final = 2_000
_MAX_WORDS: Final = 100_000
#: What is repeated in one trip, at most.
_TRIP_CALLS: Final = 500
_TRIP_BYTES: Final = 2**20


class _Settled(msgspec.Struct, frozen=True):
    """A call that settled: when, and over which connection its reply came."""

    at: float
    words: int
    address: Address
    client_id: int
    run_id: str
    #: Makes the command that only repeats the settles of the call.
    again: Callable[[], Command[Any]]
    #: The node of its key is the one to repeat it to.
    key: Key | None

    def may_be_lost(self, server: ServerConnection) -> bool:
        """Say whether a new connection leads to another server than the one that replied, or to another run of it.

        If the server does not report its run, only a client id that is not higher proves that: a server counts its
        connections upwards from its start. Without an id (0) nothing is proved.
        """
        if server.address != self.address:
            return True
        if self.run_id and server.run_id:
            return self.run_id != server.run_id
        return 0 < server.client_id <= self.client_id


class RecentSettles:
    """The settles of the last 10 s. Thread-safe. None expire while no server replies."""

    def __init__(
        self, factory: ConnectionFactory, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._factory = factory
        self._clock = clock
        self._lock = threading.Lock()
        self._settled: deque[_Settled] = deque()
        self._words = 0

    def note(self, command: Command[Any], server: ServerConnection) -> None:
        """Keep a command if it settles messages."""
        if command.settled is None:
            return
        now, words = self._clock(), len(command.args)
        with self._lock:
            self._settled.append(
                _Settled(
                    now,
                    words,
                    server.address,
                    server.client_id,
                    server.run_id,
                    command.settled,
                    command.key,
                )
            )
            self._words += words
            while (
                now - self._settled[0].at > _KEPT_S
                or len(self._settled) > _MAX_CALLS
                or (self._words > _MAX_WORDS and len(self._settled) > 1)
            ):
                self._words -= self._settled.popleft().words

    def _lost(self, server: ServerConnection) -> list[_Settled]:
        """Take out the settles to repeat over a new connection, to another server or another run than replied."""
        if not self._settled:
            return []
        again, kept = [], deque[_Settled]()
        with self._lock:
            for settled in self._settled:
                elsewhere = self._factory.node(settled.key) != server.address
                if elsewhere or not settled.may_be_lost(server):
                    kept.append(settled)
                else:
                    again.append(settled)
                    self._words -= settled.words
            self._settled = kept
        return again

    @contextmanager
    def repeating(self, server: ServerConnection) -> Iterator[_Repetition]:
        """Repeat settles over a new connection; at an error those not answered are kept for the next one."""
        lost = self._lost(server)
        repetition = _Repetition(self, server, lost)
        try:
            yield repetition
        except BaseException:
            self._put_back(lost[repetition.done :])
            raise
        if lost:
            _log.info("settles_repeated", server=str(server.address), calls=len(lost))

    def _put_back(self, lost: Sequence[_Settled]) -> None:
        with self._lock:
            self._settled.extendleft(reversed(lost))
            self._words += sum(settled.words for settled in lost)


class _Repetition:
    """Settles that go to a server that took over, some hundred in a trip."""

    def __init__(
        self, recent: RecentSettles, server: ServerConnection, lost: Sequence[_Settled]
    ) -> None:
        self._recent = recent
        self._server = server
        self._lost = lost
        #: How many the server has answered.
        self.done = 0

    def trips(self) -> Iterator[list[Command[Any]]]:
        """Divide the calls into trips. The first one goes alone: it may have to load its script."""
        if not self._lost:
            return
        commands = [settled.again() for settled in self._lost]
        yield commands[:1]
        yield from chunks(
            commands[1:],
            lambda command: len(command.packed()),
            most_bytes=_TRIP_BYTES,
            most=_TRIP_CALLS,
        )

    def answered(self, command: Command[Any], reply: Any) -> None:
        """Take the raw reply to a call."""
        # If a key of the queue holds another type there, nothing can be settled.
        with suppress(RefusedError):
            command.decode(reply)
            self._recent.note(command, self._server)
        self.done += 1
