"""A connection that is written ahead and read later, and that survives breaks.

A child asks for the next batch, runs the present one, and then reads the reply. If the connection breaks in the
meantime, every unanswered call is sent again as a repetition: settles are idempotent, and a repeated receive resumes
its lease and never creates it twice.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from qworker.client.execute.backoff import LeftAloneError
from qworker.client.execute.roundtrip import load_missing, settle_again
from qworker.client.execute.settle_replay import RecentSettles
from qworker.client.execute.sync import Client
from qworker.consumer.child.in_flight import InFlightCall
from qworker.consumer.child.outages import Outages
from qworker.errors import (
    ClusterMovingError,
    InDoubtError,
    OutOfMemoryError,
    QworkerError,
    RetryRule,
    ServerError,
    UnavailableError,
)
from qworker.store.connection_set import ConnectionSet
from qworker.store.connections import ConnectionFactory, ServerConnection, map_error
from qworker.store.topology import RedirectedError

if TYPE_CHECKING:
    from qworker.client.execute.backoff import AwayServers
    from qworker.engine.command import Command
    from qworker.engine.scripts import Script
    from qworker.store.nodes import Address

__all__ = ["Abandoned", "Connection"]

_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 1.0
#: A call that a Cluster redirects is followed for this long.
_FOLLOW_S: Final = 2.0
#: With several servers each step of connecting to one may take this long.
_CONNECT_S: Final = 0.5
#: A call that is made in between may take this long.
_CALL_S: Final = 0.5


class Abandoned(Exception):  # noqa: N818 - not an error: the process is to end
    """The process must end while the server cannot be reached; the supervisor settles unanswered calls."""


class Connection:
    """A connection to each server, with calls in flight that are answered in the order in which they were begun.

    `alive` is called at each reply. `give_up` is called while a server cannot be reached: True raises `Abandoned`.
    `patience_s`: with several servers a call is given up after this time; None waits for as long as it takes.
    `away`: servers that were given up lately, over this connection or others; calls to them fail at once for a while.
    """

    def __init__(
        self,
        factory: ConnectionFactory,
        scripts: tuple[Script, ...],
        *,
        alive: Callable[[], None],
        give_up: Callable[[], bool],
        patience_s: float | None = None,
        away: AwayServers | None = None,
    ) -> None:
        self._factory = factory
        self._scripts = scripts
        self._alive = alive
        self._give_up = give_up
        self._patience_s = patience_s
        self._outages = Outages(away)
        #: With several servers, other calls wait behind one that does not answer.
        self._several = away is not None
        self._servers = ConnectionSet(factory, self._opened)
        self._recent = RecentSettles(factory)
        self._client = Client(factory)
        self._calls: deque[InFlightCall] = deque()
        #: Whether the reply that was read last is that of a repetition: the first try may have counted.
        self.repeated = False
        self._last: ServerConnection | None = None
        #: The server of the last call; None if it was not found.
        self._reaching: Address | None = None

    def __len__(self) -> int:
        return len(self._calls)

    def fileno(self) -> int:
        """The descriptor to poll for the next reply; -1 while there is no connection."""
        server = self._calls[0].server if self._calls else self._last
        socket = getattr(server.connection, "_sock", None) if server is not None else None
        return -1 if socket is None else int(socket.fileno())

    def has_reply(self, within_s: float = 0.0) -> bool:
        """Whether the next reply is there: a poll does not announce bytes that were read along with another reply."""
        server = self._calls[0].server if self._calls else None
        if server is None:
            return False
        try:
            return bool(server.connection.can_read(within_s))
        except (RedisError, OSError):
            return True

    def connect(self, command: Command[Any]) -> None:
        """Connect to the server of a command, so that `begin` sends it and `finish` need not block.

        If that fails, `finish` tries for longer.
        """
        with suppress(QworkerError):
            self._server_at(self._factory.locate(command.key))

    def begin(self, *commands: Command[Any]) -> None:
        """Send commands of one slot now, in one write, if a connection is open; a later `finish` each reads the reply.

        In a Cluster they go to the last known node even if the map of slots has to be read again: another node's
        failure does not keep them back, and a node that has lost the slot redirects them.
        """
        address = self._factory.last_node(commands[0].key)
        server = None
        if address is not None and not self._outages.is_left_alone(address):
            server = self._servers.known(address)
        for command in commands:
            self._calls.append(InFlightCall(command, server, sent=server is not None))
        if server is None:
            return
        try:
            self._write(server, *commands)
        except (RedisError, OSError):
            self._drop(server)

    def finish(self) -> Any:
        """Read the reply of the oldest command in flight, however long it takes (see `patience_s`).

        Raises the `RefusedError` of the reply, a `ServerError` that waiting does not cure, or `Abandoned`. After a lost
        reply an error of the server proves nothing, so that is an `InDoubtError`.
        """
        pause_s, began = _FIRST_PAUSE_S, time.monotonic()
        while True:
            call = self._calls[0]
            try:
                reply = self._read(call)
            except ClusterMovingError as error:
                self._calls.popleft()
                return self._follow(call, error)
            except LeftAloneError as error:
                self._calls.popleft()
                kind = InDoubtError if call.sent else UnavailableError
                raise kind(str(error)) from error.error
            except ServerError as error:
                if error.retry is RetryRule.NEVER or isinstance(error, OutOfMemoryError):
                    # An error reply: later calls are answered too. A full server serves all but heavy outcomes.
                    self._calls.popleft()
                    call.command.name_script(error)
                    call.raise_doubt(error)
                    raise
                address = call.server.address if call.server else self._reaching
                self._lose(error, call.server)
                self._outages.lost(address, error)
                if self._give_up():
                    raise Abandoned from error
                if self._patience_s is not None and time.monotonic() - began >= self._patience_s:
                    self._calls.popleft()
                    self._outages.leave_alone(address, error)
                    call.raise_doubt(error)
                    raise
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                continue
            self._calls.popleft()
            self.repeated = call.lost
            self._answered(call)
            return call.command.decode(reply)

    def call(self, command: Command[Any]) -> Any:
        """Make one short call; nothing may be in flight. With several servers it waits for half a second."""
        assert not self._calls
        self.begin(command)
        if self._several and self._calls[0].server and not self.has_reply(_CALL_S):
            self.lapse()
        return self.finish()

    def lapse(self) -> None:
        """Wait no longer for the next reply: the server has stopped, and may have been replaced."""
        if self._calls:
            server = self._calls[0].server
            error = InDoubtError("the server did not answer in time")
            self._lose(error, server)
            if server is not None:
                self._outages.leave_alone(server.address, error)

    def forget(self) -> None:
        """Close the connections and forget unanswered calls."""
        self._servers.close()
        self._client.close()
        self._calls.clear()
        self._last = None

    def detach(self) -> None:
        """Leave the connections to the process that this one was forked from."""
        self._servers.close_inherited()
        self._calls.clear()

    # -- sending and reading -------------------------------------------------------------------

    def _read(self, call: InFlightCall) -> Any:
        server = call.server or self._reach(call)
        try:
            # Other calls wait behind this one: it gets less time than a connection allows.
            if (
                self._several
                and self._patience_s
                and not server.connection.can_read(self._patience_s)
            ):
                error = InDoubtError("the server did not answer in time")
                self._outages.leave_alone(server.address, error)
                raise error
            return server.connection.read_response()
        except (RedisError, OSError) as error:
            raise map_error(error, sent=True) from error

    def _reach(self, call: InFlightCall) -> ServerConnection:
        """Connect to the server of a call, and send the unsent calls for that server in order."""
        self._reaching = None
        self._reaching = self._factory.locate(call.command.key)
        server = self._server_at(self._reaching)
        if any(other.server is server for other in self._calls):
            # A later call has overtaken this one, and a server answers in the order in which calls arrive.
            self._drop(server)
            server = self._server_at(self._reaching)
        for waiting in self._calls:
            address = self._factory.node(waiting.command.key)
            if waiting.server is None and (waiting is call or address == server.address):
                if waiting.sent:
                    waiting.command = waiting.command.repeated()
                waiting.server, waiting.sent, waiting.at = server, True, time.monotonic()
                try:
                    self._write(server, waiting.command)
                except (RedisError, OSError) as error:
                    raise map_error(error, sent=True) from error
        return server

    def _follow(self, call: InFlightCall, error: ClusterMovingError) -> Any:
        """Make a redirected call at the right node, unless it is a wait: the next wait does as well."""
        if call.server is not None:
            self._factory.failed(error, call.server.address)
        if call.command.script is None:
            raise error
        if isinstance(error, RedirectedError) and self._outages.is_left_alone(error.address):
            raise UnavailableError(f"{error.address}, where the slot is now, does not answer")
        result = self._client.execute(call.command, give_up_s=_FOLLOW_S)
        self._alive()
        return result

    def _write(self, server: ServerConnection, *commands: Command[Any]) -> None:
        server.connection.send_packed_command([b"".join([each.packed() for each in commands])])

    def _answered(self, call: InFlightCall) -> None:
        assert call.server is not None
        self._last = call.server
        self._recent.note(call.command, call.server)
        self._alive()
        self._outages.answered(call.server.address, call.at)

    # -- servers -------------------------------------------------------------------------------

    def _server_at(self, address: Address) -> ServerConnection:
        """Return the connection to a server, opened if needed. Raises `LeftAloneError` if it is left alone."""
        if not self._several:
            return self._servers.to(address)
        self._outages.check(address)
        try:
            return self._servers.to(address, _CONNECT_S)
        except ServerError as error:
            # Not retried: other calls wait behind this one.
            self._outages.leave_alone(address, error)
            raise

    def _opened(self, server: ServerConnection) -> None:
        load_missing(server.connection, self._scripts)
        settle_again(self._recent, server)

    def _lose(self, error: ServerError, server: ServerConnection | None) -> None:
        if server is not None:
            self._factory.failed(error, server.address)
            self._drop(server)

    def _drop(self, server: ServerConnection) -> None:
        """Close a connection; its unanswered calls will be repeated over the next one."""
        self._servers.drop(server.address)
        for call in self._calls:
            if call.server is server:
                call.server, call.lost = None, True
