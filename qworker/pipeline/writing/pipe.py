"""One connection with several calls on their way: what a bulk write needs, and the clients do not offer.

Only for commands that may be repeated: whatever is not answered when a connection breaks is sent again, in order, over
a new one. A call that the queue has no room for is sent again when its `Patience` says so; those behind it, which a
ledger refuses then because of the gap, follow it in order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import structlog
from redis.exceptions import RedisError

from qworker.client.commands.command import GIVE_UP_S, Attempt, Command
from qworker.errors import (
    BulkGapError,
    LoadingError,
    OutOfMemoryError,
    QueueFullError,
    QueuePausedError,
    QworkerError,
    ServerError,
)
from qworker.store.connection import ConnectionFactory, is_noscript, map_error
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


class Pipe:
    """Sends commands in order and tells their results in order; connects at the first one.

    `script` is loaded into the server on connecting. `give_up_s`: seconds after which a server that cannot be reached,
    or cannot serve, is given up.
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
        self._connection: Any = None
        #: On their way, in order; and those that came back refused, all of them from in front of these.
        self._sent: deque[_Call] = deque()
        self._refused: list[_Call] = []
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

    def flush(self) -> None:
        """Wait for all replies. Raises as `put` does."""
        self._settle(0)

    def close(self) -> None:
        """Drop the connection, and whatever is on its way."""
        self._sent.clear()
        self._refused.clear()
        self._drop()

    def _transmit(self, calls: list[_Call]) -> None:
        self._sent.extend(calls)
        try:
            if self._connection is None:
                self._connect()
                calls = list(self._sent)
            for call in calls:
                self._connection.send_packed_command([call.command.packed()])
        except (RedisError, OSError) as error:
            self._begin_anew(map_error(error, sent=True), error)

    def _settle(self, keep: int) -> None:
        """Read replies until at most `keep` calls are on their way and none is refused."""
        while len(self._sent) > keep or self._refused:
            if not self._sent:
                self._send_again()
                continue
            try:
                reply = self._connection.read_response()
            except (RedisError, OSError) as error:
                self._failed(error)
                continue
            self._told(self._sent.popleft(), reply)

    def _told(self, call: _Call, reply: Any) -> None:
        try:
            result = call.command.decode(reply)
        except _NO_ROOM as error:
            self._refuse(call, error)
        except BulkGapError as error:
            if not self._refused:
                raise
            self._refuse(call, error)
        else:
            self._patience.moved()
            self._attempt = None
            call.tell(result)

    def _failed(self, cause: Exception) -> None:
        """Deal with an error reply, or with a connection that broke."""
        error = map_error(cause, sent=True)
        if isinstance(error, OutOfMemoryError):
            self._refuse(self._sent.popleft(), error)
        elif is_noscript(cause):
            # Every call on its way comes back so; the new connection loads the script again.
            self._begin_anew(LoadingError("the server has forgotten the script"), cause)
        else:
            self._begin_anew(error, cause)

    def _refuse(self, call: _Call, error: QworkerError) -> None:
        self._refused.append(call)
        self._reason = self._reason or error

    def _send_again(self) -> None:
        """Wait for room, and send in order what there was none for."""
        reason, self._reason = self._reason, None
        assert reason is not None
        self._patience.wait(reason)
        calls, self._refused = self._refused, []
        self._transmit(calls)

    def _begin_anew(self, error: QworkerError, cause: Exception) -> None:
        """Send everything unanswered over a new connection; raises the error where it does not pass."""
        self._drop()
        calls = [*self._refused, *self._sent]
        self._refused, self._reason = [], None
        self._sent.clear()
        if self._attempt is None:
            self._attempt = Attempt(calls[0].command, self._give_up_s)
        try:
            time.sleep(self._attempt.failed(error))
        except QworkerError as final:
            raise final from cause
        self._transmit(calls)

    def _connect(self) -> None:
        while self._connection is None:
            try:
                connection: Any = self._factory.connect()
                load = connection.pack_command("SCRIPT", "LOAD", self._script.source)
                connection.send_packed_command(load)
                connection.read_response()
                self._connection = connection
            except ServerError as error:
                if self._attempt is None:
                    self._attempt = Attempt(self._sent[0].command, self._give_up_s)
                time.sleep(self._attempt.failed(error))

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()
