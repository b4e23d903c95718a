"""A connection that is written ahead and read later, and that outlives its breaks.

The child asks for the next batch, runs the present one, and then reads the reply. When the connection breaks between
the two, everything that is unanswered is sent again as a repetition: settles are idempotent, and a repeated receive
resumes its lease and never makes it twice.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import structlog
from redis.exceptions import RedisError

from qworker.errors import InDoubtError, QworkerError, RetryRule, ServerError
from qworker.store.connection import ConnectionFactory, is_noscript, map_error

if TYPE_CHECKING:
    from qworker.client.commands.command import Command
    from qworker.store.scripts import Script

__all__ = ["Abandoned", "Link"]

_log = structlog.get_logger(__name__)

_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 1.0


class Abandoned(Exception):  # noqa: N818 - not an error: the process is to end
    """The process is to end and the server cannot be reached; what is unanswered is left to the supervisor."""


class Link:
    """One connection with calls in flight, answered in the order of asking.

    `alive` is called at each reply. `give_up` is asked while the server cannot be reached: True raises `Abandoned`.
    """

    def __init__(
        self,
        factory: ConnectionFactory,
        scripts: tuple[Script, ...],
        *,
        alive: Callable[[], None],
        give_up: Callable[[], bool],
    ) -> None:
        self._factory = factory
        self._scripts = scripts
        self._alive = alive
        self._give_up = give_up
        # Any: most of redis-py's connection has no types.
        self._connection: Any = None
        #: Commands in flight, and whether each may have been sent: such a one is sent again as a repetition.
        self._unanswered: deque[tuple[Command[Any], bool]] = deque()
        self._troubled_since: float | None = None

    def __len__(self) -> int:
        return len(self._unanswered)

    def fileno(self) -> int:
        """The descriptor to wait on for a reply; -1 while there is no connection."""
        socket = getattr(self._connection, "_sock", None)
        return -1 if socket is None else int(socket.fileno())

    def begin(self, command: Command[Any]) -> None:
        """Send a command now; its reply is read by a later `finish`."""
        self._unanswered.append((command, self._connection is not None))
        if self._connection is None:
            return
        try:
            self._write(self._connection, command)
        except (RedisError, OSError):
            self.drop()

    def finish(self) -> Any:
        """Read the reply of the oldest command in flight, however long it takes.

        Raises the `RefusedError` of the reply, a `ServerError` that nobody can wait out, or `Abandoned`.
        """
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                reply = self._read()
            except ServerError as error:
                if error.retry is RetryRule.NEVER:
                    # An answer, if a bad one: what comes after it is answered too.
                    self._unanswered.popleft()
                    raise
                self.drop()
                self._trouble(error)
                if self._give_up():
                    raise Abandoned from error
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                continue
            command, _ = self._unanswered.popleft()
            self._alive()
            if self._troubled_since is not None:
                seconds = round(time.monotonic() - self._troubled_since, 1)
                self._troubled_since = None
                _log.info("server_returned", after_seconds=seconds)
            return command.decode(reply)

    def call(self, command: Command[Any]) -> Any:
        """Make one call; nothing may be in flight."""
        assert not self._unanswered
        self.begin(command)
        return self.finish()

    def drop(self) -> None:
        """Close the connection; what is unanswered will be repeated over the next one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def forget(self) -> None:
        """Close the connection and forget what is unanswered."""
        self.drop()
        self._unanswered.clear()

    def _read(self) -> Any:
        connection = self._connection or self._reconnect()
        try:
            return connection.read_response()
        except (RedisError, OSError) as error:
            if is_noscript(error):
                raise InDoubtError("the server forgot its scripts") from error
            raise map_error(error, sent=True) from error

    def _reconnect(self) -> Any:
        connection: Any = self._factory.connect()
        try:
            for script in self._scripts:
                connection.send_packed_command(
                    connection.pack_command("SCRIPT", "LOAD", script.source)
                )
                connection.read_response()
            again = [each.repeated() if sent else each for each, sent in self._unanswered]
            self._unanswered = deque((each, True) for each in again)
            for command in again:
                self._write(connection, command)
        except QworkerError:
            connection.disconnect()
            raise
        except (RedisError, OSError) as error:
            connection.disconnect()
            raise map_error(error, sent=True) from error
        self._connection = connection
        return connection

    def _write(self, connection: Any, command: Command[Any]) -> None:
        # One piece: several would wake the server several times, and lines for the journal are long.
        connection.send_packed_command([b"".join(connection.pack_command(*command.words()))])

    def _trouble(self, error: ServerError) -> None:
        if self._troubled_since is None:
            self._troubled_since = time.monotonic()
            _log.warning("server_lost", error=str(error), kind=type(error).__name__)
