"""Several calls on their way at once: what a bulk write needs, and the clients do not offer.

Only for commands that may be repeated: whatever is not answered when a connection breaks is sent again, in order, over
a new one. A call that the queue has no room for is sent again when its `Patience` says so, one whose slot is at another
node of a Cluster, or on its way there, as its `Attempt` says; those behind it, which a ledger refuses then because of
the gap, follow it in order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

import structlog
from redis.exceptions import RedisError, ResponseError

from qworker.client.calling import load_missing
from qworker.client.commands.command import GIVE_UP_S, Attempt, Brief, Command
from qworker.client.sync import Client
from qworker.errors import (
    BulkGapError,
    InDoubtError,
    OutOfMemoryError,
    QueueFullError,
    QueuePausedError,
    QworkerError,
    ServerError,
)
from qworker.store.connection import ConnectionFactory, map_error
from qworker.store.lines import Line, Lines
from qworker.store.nodes import Address
from qworker.store.scripts import Script

__all__ = ["WINDOW", "Patience", "Pipe"]

T = TypeVar("T")

#: Calls on their way at once: enough to hide the round trip, few enough to hold in memory (1 MiB each at most).
WINDOW: Final = 8
_NO_ROOM: Final = (QueueFullError, QueuePausedError, OutOfMemoryError)
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_TOLD_EVERY_S: Final = 10.0

_log = structlog.get_logger(__name__)


class Patience:
    """What to do where a queue has no room: raise, or wait up to `wait_s` seconds without any progress."""

    def __init__(
        self,
        wait_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take 0 seconds to raise at once."""
        self._wait_s = wait_s
        self._clock = clock
        self._sleep = sleep
        self._since: float | None = None
        self._told = 0.0
        self._pause_s = _FIRST_PAUSE_S

    def moved(self) -> None:
        """Note progress: the time to wait begins anew."""
        self._since = None
        self._pause_s = _FIRST_PAUSE_S

    def wait(self, error: QworkerError) -> None:
        """Sleep for a moment, and log every 10 s what is waited for; raise `error` when the time is over."""
        now = self._clock()
        if self._since is None:
            self._since = self._told = now
        waited_s = now - self._since
        if waited_s >= self._wait_s:
            raise error
        if now - self._told >= _TOLD_EVERY_S:
            self._told = now
            _log.warning("bulk_write_waiting", waited_s=round(waited_s), reason=str(error))
        self._sleep(min(self._pause_s, self._wait_s - waited_s))
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


class _Call(NamedTuple):
    command: Command[Any]
    tell: Callable[[Any], None]


class _Sent(NamedTuple):
    call: _Call
    line: Line | None  # None: it could not be sent
    asking: bool


class Pipe:
    """Sends commands in order and tells their results in order; connects at the first one.

    In a Cluster each goes to the server of its key, over a connection per server. `script` is loaded into a server on
    connecting. `give_up_s`: seconds after which a server that cannot be reached, or cannot serve, is given up.
    """

    def __init__(
        self,
        factory: ConnectionFactory,
        script: Script,
        patience: Patience,
        *,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        self._factory = factory
        self._script = script
        self._patience = patience
        self._give_up_s = give_up_s
        self._lines = Lines(factory, self._load, busy=self._is_busy)
        #: Servers whose lines are closed as soon as all is read that is on its way over them.
        self._spent: set[Address] = set()
        #: On their way, in order; and those that have to be sent again, all of them from in front of these.
        self._sent: deque[_Sent] = deque()
        self._refused: list[_Call] = []
        #: Why calls have to be sent again. While there is one, nothing is sent: order is kept.
        self._reason: QworkerError | None = None
        self._attempt: Attempt[Any] | None = None

    def put(self, command: Command[T], tell: Callable[[T], None]) -> None:
        """Send a command; waits for the oldest reply where too many are on their way.

        Raises what that reply means: a `RefusedError`, an `InvalidError`, or a `ServerError` that did not pass.
        """
        self._transmit([_Call(command, tell)])
        self._settle(WINDOW - 1)

    def ask(self, command: Command[T]) -> T:
        """Send a command and return its result, after those of all before it."""
        results: list[T] = []
        self._transmit([_Call(command, results.append)])
        self._settle(0)
        return results[0]

    def try_briefly(self, command: Command[Any]) -> None:
        """Make a call that may fail, once and for a fraction of a second, over a connection of its own."""
        with Client(self._factory) as client:
            client.briefly(Brief(command, quiet=True))

    def flush(self) -> None:
        """Wait for all replies. Raises as `put` does."""
        self._settle(0)

    def close(self) -> None:
        """Drop the connections, and whatever is on its way."""
        self._sent.clear()
        self._refused.clear()
        self._reason = None
        self._spent.clear()
        self._lines.close()

    def _transmit(self, calls: list[_Call], detour: Address | None = None) -> None:
        """Send calls; the first one to `detour` where its slot is moving there."""
        for call in calls:
            line = None if self._reason else self._dispatch(call, detour)
            self._sent.append(_Sent(call, line, detour is not None))
            detour = None

    def _dispatch(self, call: _Call, detour: Address | None) -> Line | None:
        """Send one call and return the line that it went over; None where that failed."""
        address = detour
        try:
            address = detour or self._factory.locate(call.command.key)
            line = self._lines.to(address)
            asking = line.connection.pack_command("ASKING") if detour else ()
            line.connection.send_packed_command([*asking, call.command.packed()])
        except (RedisError, OSError, ServerError) as error:
            self._failed(error, address)
            return None
        return line

    def _settle(self, keep: int) -> None:
        """Read replies until at most `keep` calls are on their way and none has to be sent again."""
        while self._reason or len(self._sent) > keep:
            if not self._sent:
                self._send_again()
                continue
            call, line, asking = self._sent.popleft()
            if line is None or line is not self._lines.known(line.address):
                # Closed with an error, or because its server has no slots any more.
                self._refuse(call, InDoubtError("the connection was closed before a reply came"))
                continue
            try:
                reply = _reply(line, asking)
            except (RedisError, OSError) as error:
                self._failed(error, line.address)
                self._refused.append(call)
            else:
                self._told(call, reply)

    def _told(self, call: _Call, reply: Any) -> None:
        try:
            result = call.command.decode(reply)
        except _NO_ROOM as error:
            self._attempt = None
            self._refuse(call, error)
        except BulkGapError as error:
            if not self._refused:
                raise
            self._refuse(call, error)
        else:
            self._patience.moved()
            self._attempt = None
            call.tell(result)

    def _failed(self, cause: Exception, address: Address | None) -> None:
        """Note what a server said or did not say, and close the line to it where that is of no more use.

        Behind an error that it said there are replies to the other calls, which are read first: rows without a ledger
        must not be sent again where they were stored. The calls behind a line that broke are found in `_settle`.
        """
        error = map_error(cause, sent=True)
        if error is not cause:
            error.__cause__ = cause
        self._reason = self._reason or error
        if isinstance(error, OutOfMemoryError):
            self._attempt = None
        elif address is not None and self._factory.failed(error, address):
            if isinstance(cause, ResponseError):
                self._spent.add(address)
            else:
                self._lines.drop(address)

    def _is_busy(self, address: Address) -> bool:
        return any(line is not None and line.address == address for _, line, _ in self._sent)

    def _refuse(self, call: _Call, error: QworkerError) -> None:
        self._refused.append(call)
        self._reason = self._reason or error

    def _send_again(self) -> None:
        """Wait for room, or for the server, and send in order what has to be sent again."""
        reason, self._reason = self._reason, None
        assert reason is not None
        while self._spent:
            self._lines.drop(self._spent.pop())
        calls, self._refused = self._refused, []
        if isinstance(reason, _NO_ROOM):
            self._patience.wait(reason)
            self._transmit(calls)
            return
        if self._attempt is None:
            self._attempt = Attempt(calls[0].command, self._give_up_s)
        time.sleep(self._attempt.failed(reason))
        self._transmit(calls, self._attempt.detour)

    def _load(self, line: Line) -> None:
        load_missing(line.connection, [self._script])


def _reply(line: Line, asking: bool) -> Any:
    if asking:
        # A refusal shows in the reply to the call as well.
        with suppress(ResponseError):
            line.connection.read_response()
    return line.connection.read_response()
