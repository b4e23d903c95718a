"""Several calls in flight at once, for bulk sends; the clients do not offer that.

Only for commands that may be repeated: a call without a reply when its connection breaks is sent again, in order, over
a new one. A call for which the queue has no room is sent again after a `RoomWait`; one whose slot is on another node of
a Cluster, or on its way there, as its `Attempt` says; one whose shard takes no more messages, to where its sender says.
The calls after it, which a ledger refuses because of the gap, follow in order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

import structlog
from redis.exceptions import RedisError, ResponseError

from qworker.client.execute.roundtrip import load_missing
from qworker.client.execute.sync import Client
from qworker.engine.attempt import GIVE_UP_S, Attempt
from qworker.engine.command import Brief, Command
from qworker.engine.scripts import Script
from qworker.errors import (
    BulkGapError,
    InDoubtError,
    OutOfMemoryError,
    QueueFullError,
    QueuePausedError,
    QworkerError,
    ServerError,
    ShardDrainingError,
)
from qworker.store.connection_set import ConnectionSet
from qworker.store.connections import ConnectionFactory, ServerConnection, map_error
from qworker.store.nodes import Address

__all__ = ["WINDOW", "RoomWait", "Transport"]

T = TypeVar("T")

#: Calls in flight: enough to hide the round trip, few enough to hold in memory (1 MiB each at most).
WINDOW: Final = 8
_NO_ROOM: Final = (QueueFullError, QueuePausedError, OutOfMemoryError)
#: Attempts at calls whose shard takes no messages, without any success in between.
_ATTEMPTS: Final = 5
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_REPORT_EVERY_S: Final = 10.0

_log = structlog.get_logger(__name__)


class RoomWait:
    """What to do if a queue has no room: raise, or wait up to `wait_s` seconds without any progress."""

    def __init__(
        self,
        wait_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """With 0 seconds `wait` raises at once."""
        self._wait_s = wait_s
        self._clock = clock
        self._sleep = sleep
        self._since: float | None = None
        self._reported = 0.0
        self._pause_s = _FIRST_PAUSE_S

    def progressed(self) -> None:
        """Note progress: the time to wait starts again."""
        self._since = None
        self._pause_s = _FIRST_PAUSE_S

    def wait(self, error: QworkerError) -> None:
        """Sleep for a moment, and log the reason every 10 s; raise `error` when the time is over."""
        now = self._clock()
        if self._since is None:
            self._since = self._reported = now
        waited_s = now - self._since
        if waited_s >= self._wait_s:
            raise error
        if now - self._reported >= _REPORT_EVERY_S:
            self._reported = now
            _log.warning("bulk_write_waiting", waited_s=round(waited_s), reason=str(error))
        self._sleep(min(self._pause_s, self._wait_s - waited_s))
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


class _Call(NamedTuple):
    command: Command[Any]
    on_result: Callable[[Any], None]
    elsewhere: Callable[[], Command[Any]] | None = None


class _InFlight(NamedTuple):
    call: _Call
    server: ServerConnection | None  # None: it could not be sent
    asking: bool


class Transport:
    """Sends commands in order and reports their results in order; connects at the first one.

    In a Cluster each goes to the server of its key, over a connection per server. `script` is loaded into a server on
    connecting. `give_up_s`: seconds after which a server that cannot be reached, or cannot serve, is given up.
    """

    def __init__(
        self,
        connections: ConnectionFactory,
        script: Script,
        room: RoomWait,
        *,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        self._factory = connections
        self._script = script
        self._room = room
        self._give_up_s = give_up_s
        self._servers = ConnectionSet(connections, self._load, busy=self._is_busy)
        #: Servers to disconnect from as soon as their replies to all calls in flight are read.
        self._spent: set[Address] = set()
        #: In flight, in order; and the calls to send again, all of which come before these.
        self._sent: deque[_InFlight] = deque()
        self._refused: list[_Call] = []
        #: Why calls have to be sent again. While there is a reason, nothing is sent: order is kept.
        self._reason: QworkerError | None = None
        self._attempt: Attempt[Any] | None = None
        self._drained = 0

    def send(
        self,
        command: Command[T],
        on_result: Callable[[T], None],
        elsewhere: Callable[[], Command[T]] | None = None,
    ) -> None:
        """Send a command; waits for the oldest reply if too many calls are in flight.

        If its shard takes no messages, the command that `elsewhere` returns is sent instead; it may execute others.
        Raises what the oldest reply means: a `RefusedError`, an `InvalidError`, or a `ServerError` that did not pass.
        """
        self._transmit([_Call(command, on_result, elsewhere)])
        self._settle(WINDOW - 1)

    def execute(self, command: Command[T]) -> T:
        """Send a command and return its result, after the results of all commands before it."""
        results: list[T] = []
        self._transmit([_Call(command, results.append)])
        self._settle(0)
        return results[0]

    def try_briefly(self, command: Command[Any]) -> None:
        """Make a call that may fail, once and for a fraction of a second, over its own connection."""
        with Client(self._factory) as client:
            client.briefly(Brief(command, index_write=True))

    def flush(self) -> None:
        """Wait for all replies. Raises as `send` does."""
        self._settle(0)

    def close(self) -> None:
        """Drop the connections and the calls in flight."""
        self._sent.clear()
        self._refused.clear()
        self._reason = None
        self._spent.clear()
        self._servers.close()

    def _transmit(self, calls: list[_Call], detour: Address | None = None) -> None:
        """Send calls; the first one to `detour`, if its slot is moving there."""
        for call in calls:
            server = None if self._reason else self._dispatch(call, detour)
            self._sent.append(_InFlight(call, server, detour is not None))
            detour = None

    def _dispatch(self, call: _Call, detour: Address | None) -> ServerConnection | None:
        """Send one call and return the connection it went over; None if that failed."""
        address = detour
        try:
            address = detour or self._factory.locate(call.command.key)
            server = self._servers.to(address)
            asking = server.connection.pack_command("ASKING") if detour else ()
            server.connection.send_packed_command([*asking, call.command.packed()])
        except (RedisError, OSError, ServerError) as error:
            self._failed(error, address)
            return None
        return server

    def _settle(self, keep: int) -> None:
        """Read replies until at most `keep` calls are in flight and none has to be sent again."""
        while self._reason or len(self._sent) > keep:
            if not self._sent:
                self._send_again()
                continue
            call, server, asking = self._sent.popleft()
            if server is None or server is not self._servers.known(server.address):
                # Closed with an error, or because its server has no slots any more.
                self._refuse(call, InDoubtError("the connection was closed before a reply came"))
                continue
            try:
                reply = _reply(server, asking)
            except (RedisError, OSError) as error:
                self._failed(error, server.address)
                self._refused.append(call)
            else:
                self._replied(call, reply)

    def _replied(self, call: _Call, reply: Any) -> None:
        try:
            result = call.command.decode(reply)
        except _NO_ROOM as error:
            self._attempt = None
            self._refuse(call, error)
        except ShardDrainingError as error:
            if call.elsewhere is None or self._drained == _ATTEMPTS:
                raise
            self._refuse(call, error)
        except BulkGapError as error:
            if not self._refused:
                raise
            self._refuse(call, error)
        else:
            self._room.progressed()
            self._attempt = None
            if call.elsewhere is not None:
                self._drained = 0
            call.on_result(result)

    def _failed(self, cause: Exception, address: Address | None) -> None:
        """Note an error of a server, or its silence, and disconnect if the connection is of no more use.

        An error that the server has sent is followed by replies to the other calls, which are read first: rows without
        a ledger must not be sent again if they were stored. `_settle` finds the calls on a connection that broke.
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
                self._servers.drop(address)

    def _is_busy(self, address: Address) -> bool:
        return any(server is not None and server.address == address for _, server, _ in self._sent)

    def _refuse(self, call: _Call, error: QworkerError) -> None:
        self._refused.append(call)
        self._reason = self._reason or error

    def _send_again(self) -> None:
        """Wait for room, or for the server, and send the refused calls in order."""
        reason, self._reason = self._reason, None
        assert reason is not None
        while self._spent:
            self._servers.drop(self._spent.pop())
        calls, self._refused = self._refused, []
        if isinstance(reason, _NO_ROOM):
            self._room.wait(reason)
            self._transmit(calls)
            return
        if isinstance(reason, ShardDrainingError):
            self._drained += 1
            # Nothing is in flight, so `elsewhere` may execute commands.
            self._transmit(
                [
                    call if call.elsewhere is None else call._replace(command=call.elsewhere())
                    for call in calls
                ]
            )
            return
        if self._attempt is None:
            self._attempt = Attempt(calls[0].command, self._give_up_s)
        time.sleep(self._attempt.failed(reason))
        self._transmit(calls, self._attempt.detour)

    def _load(self, server: ServerConnection) -> None:
        load_missing(server.connection, [self._script])


def _reply(server: ServerConnection, asking: bool) -> Any:
    if asking:
        # If the node refuses ASKING, the reply to the call shows it as well.
        with suppress(ResponseError):
            server.connection.read_response()
    return server.connection.read_response()
