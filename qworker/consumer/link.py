"""Connections that are written ahead and read later, and that outlive their breaks.

The child asks for the next batch, runs the present one, and then reads the reply. When the connection breaks between
the two, everything that is unanswered is sent again as a repetition: settles are idempotent, and a repeated receive
resumes its lease and never makes it twice.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from qworker.client.away import LeftAloneError
from qworker.client.calling import load_missing, settle_again
from qworker.client.recent import RecentSettles
from qworker.client.sync import Client
from qworker.errors import (
    ClusterMovingError,
    InDoubtError,
    QworkerError,
    RetryRule,
    ServerError,
    UnavailableError,
)
from qworker.store.connection import ConnectionFactory, map_error
from qworker.store.lines import Line, Lines
from qworker.store.topology import RedirectedError
from qworker.telemetry.guarded import guarded

if TYPE_CHECKING:
    from qworker.client.away import AwayServers
    from qworker.client.commands.command import Command
    from qworker.store.nodes import Address
    from qworker.store.scripts import Script

__all__ = ["Abandoned", "Link"]

_log = guarded(__name__)

_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 1.0
#: How long a call is followed through a Cluster that sends it elsewhere.
_FOLLOW_S: Final = 2.0
#: Where there are other servers, each step of connecting to one may take so long.
_CONNECT_S: Final = 0.5


class Abandoned(Exception):  # noqa: N818 - not an error: the process is to end
    """The process is to end and the server cannot be reached; what is unanswered is left to the supervisor."""


@dataclass(slots=True)
class _Asked:
    """A command in flight. `line`: over which its reply comes, None where it is to be sent (again)."""

    command: Command[Any]
    line: Line | None
    #: It may have been sent before: the next time it goes as a repetition.
    sent: bool


class Link:
    """Connections, one per server, with calls in flight, answered in the order of asking.

    `alive` is called at each reply. `give_up` is asked while a server cannot be reached: True raises `Abandoned`.
    `patience_s`: where there are other servers, a call is given up after so long; None waits for as long as it takes.
    `away`: servers that were given up lately, by this link or others; their calls fail at once for a while.
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
        self._away = away
        self._lines = Lines(factory, self._opened)
        self._recent = RecentSettles(factory)
        self._client = Client(factory)
        self._unanswered: deque[_Asked] = deque()
        self._last: Line | None = None
        #: The server that a call was last to go to, None where that was not found out.
        self._reaching: Address | None = None
        #: Since when each server has not answered; where there are no others to ask the key is None.
        self._troubled: dict[Address | None, float] = {}

    def __len__(self) -> int:
        return len(self._unanswered)

    def fileno(self) -> int:
        """The descriptor to wait on for the next reply; -1 while there is no connection."""
        line = self._unanswered[0].line if self._unanswered else self._last
        socket = getattr(line.connection, "_sock", None) if line is not None else None
        return -1 if socket is None else int(socket.fileno())

    def has_reply(self) -> bool:
        """Whether the next reply needs no waiting: select does not tell of what was read along with another."""
        line = self._unanswered[0].line if self._unanswered else None
        if line is None:
            return False
        try:
            return bool(line.connection.can_read(0))
        except (RedisError, OSError):
            return True

    def connect(self, command: Command[Any]) -> None:
        """Connect to where a command goes, so that `begin` sends it and `finish` need not block.

        Where that fails, `finish` will try for longer.
        """
        with suppress(QworkerError):
            self._line_to(self._factory.locate(command.key))

    def begin(self, command: Command[Any]) -> None:
        """Send a command now; its reply is read by a later `finish`."""
        place = self._factory.place(command.key)
        line = None if place is None or self._left_alone(place) else self._lines.known(place)
        asked = _Asked(command, line, sent=line is not None)
        self._unanswered.append(asked)
        if line is None:
            return
        try:
            self._write(line, command)
        except (RedisError, OSError):
            self._drop(line)

    def finish(self) -> Any:
        """Read the reply of the oldest command in flight, however long it takes (see `patience_s`).

        Raises the `RefusedError` of the reply, a `ServerError` that nobody can wait out, or `Abandoned`.
        """
        pause_s, began = _FIRST_PAUSE_S, time.monotonic()
        while True:
            asked = self._unanswered[0]
            try:
                reply = self._read(asked)
            except ClusterMovingError as error:
                self._unanswered.popleft()
                return self._follow(asked, error)
            except LeftAloneError as error:
                self._unanswered.popleft()
                kind = InDoubtError if asked.sent else UnavailableError
                raise kind(str(error)) from error.error
            except ServerError as error:
                if error.retry is RetryRule.NEVER:
                    # An answer, if a bad one: what comes after it is answered too.
                    self._unanswered.popleft()
                    asked.command.name_script(error)
                    raise
                place = asked.line.address if asked.line else self._reaching
                self._lost(error, asked.line)
                self._trouble(error, place)
                if self._give_up():
                    raise Abandoned from error
                if self._patience_s is not None and time.monotonic() - began >= self._patience_s:
                    self._unanswered.popleft()
                    self._leave_alone(place, error)
                    raise
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                continue
            self._unanswered.popleft()
            self._answered(asked)
            return asked.command.decode(reply)

    def call(self, command: Command[Any]) -> Any:
        """Make one call; nothing may be in flight."""
        assert not self._unanswered
        self.begin(command)
        return self.finish()

    def lapse(self) -> None:
        """Take no reply for an answer any more: the server has stopped, and may have been replaced."""
        if self._unanswered:
            error, line = (
                InDoubtError("the server did not answer in time"),
                self._unanswered[0].line,
            )
            self._lost(error, line)
            if line is not None:
                self._leave_alone(line.address, error)

    def forget(self) -> None:
        """Close the connections and forget what is unanswered."""
        self._lines.close()
        self._client.close()
        self._unanswered.clear()
        self._last = None

    def let_go(self) -> None:
        """Leave the connections to the process that this one was forked from."""
        self._lines.let_go()
        self._unanswered.clear()

    def _read(self, asked: _Asked) -> Any:
        line = asked.line or self._reach(asked)
        try:
            # What others wait behind is not waited for as long as a connection allows.
            if (
                self._away is not None
                and self._patience_s
                and not line.connection.can_read(self._patience_s)
            ):
                error = InDoubtError("the server did not answer in time")
                self._leave_alone(line.address, error)
                raise error
            return line.connection.read_response()
        except (RedisError, OSError) as error:
            raise map_error(error, sent=True) from error

    def _reach(self, asked: _Asked) -> Line:
        """Connect to where a command goes, and send what waits for that server, in the order of asking."""
        self._reaching = None
        self._reaching = self._factory.locate(asked.command.key)
        line = self._line_to(self._reaching)
        if any(each.line is line for each in self._unanswered):
            # What was asked later has gone ahead over it, and a server answers in the order in which it is asked.
            self._drop(line)
            line = self._line_to(self._reaching)
        for each in self._unanswered:
            place = self._factory.place(each.command.key)
            if each.line is None and (each is asked or place == line.address):
                if each.sent:
                    each.command = each.command.repeated()
                each.line, each.sent = line, True
                try:
                    self._write(line, each.command)
                except (RedisError, OSError) as error:
                    raise map_error(error, sent=True) from error
        return line

    def _line_to(self, address: Address) -> Line:
        """The line to a server, opened where there is none. Raises `LeftAloneError` for one that is left alone."""
        if self._away is None:
            return self._lines.to(address)
        self._away.check(address, -inf)
        try:
            return self._lines.to(address, _CONNECT_S)
        except ServerError as error:
            # Not tried again and again meanwhile: others wait behind it.
            self._leave_alone(address, error)
            raise

    def _left_alone(self, address: Address) -> bool:
        try:
            if self._away is not None:
                self._away.check(address, -inf)
        except LeftAloneError:
            return True
        return False

    def _leave_alone(self, address: Address | None, error: ServerError) -> None:
        """Let calls to a server fail at once for a while, where there are others."""
        if self._away is not None:
            self._away.failed(address, error)

    def _opened(self, line: Line) -> None:
        load_missing(line.connection, self._scripts)
        settle_again(self._recent, line)

    def _follow(self, asked: _Asked, error: ClusterMovingError) -> Any:
        """Make a call that a node did not take where it is taken. A wait is not followed: the next one is as good."""
        if asked.line is not None:
            self._factory.failed(error, asked.line.address)
        if asked.command.script is None:
            raise error
        if isinstance(error, RedirectedError) and self._left_alone(error.address):
            raise UnavailableError(f"{error.address}, where the slot is now, does not answer")
        result = self._client.execute(asked.command, give_up_s=_FOLLOW_S)
        self._alive()
        return result

    def _write(self, line: Line, command: Command[Any]) -> None:
        line.connection.send_packed_command([command.packed()])

    def _answered(self, asked: _Asked) -> None:
        assert asked.line is not None
        self._last = asked.line
        self._recent.note(asked.command, asked.line)
        self._alive()
        address = asked.line.address
        if self._away is not None:
            self._away.served(address)
        if self._troubled:
            since = self._troubled.pop(address if self._away is not None else None, None)
            if since is not None:
                seconds = round(time.monotonic() - since, 1)
                _log.info("server_returned", server=str(address), after_seconds=seconds)

    def _lost(self, error: ServerError, line: Line | None) -> None:
        if line is not None:
            self._factory.failed(error, line.address)
            self._drop(line)

    def _drop(self, line: Line) -> None:
        """Close a connection; what is unanswered over it will be repeated over the next one."""
        self._lines.drop(line.address)
        for each in self._unanswered:
            if each.line is line:
                each.line = None

    def _trouble(self, error: ServerError, address: Address | None) -> None:
        key = address if self._away is not None else None
        if key not in self._troubled:
            self._troubled[key] = time.monotonic()
            server = None if address is None else str(address)
            _log.warning("server_lost", server=server, error=str(error), kind=type(error).__name__)
