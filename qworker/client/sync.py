"""The sync client: executes command values over pooled connections, each with a lane of its own.

Safe to use from many threads, and after a fork: a child drops the inherited connections and lanes and makes its own.
Nothing is connected before the first call.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from redis.exceptions import RedisError, ResponseError

from qworker.client.commands.command import GIVE_UP_S, Attempt, Command, Pause
from qworker.client.commands.sending import SendCall, Sent
from qworker.errors import InDoubtError, QworkerError, ServerError
from qworker.store.connection import ConnectionFactory, is_noscript, map_error
from qworker.wire.ids import IdSource, new_lane_id

if TYPE_CHECKING:
    from qworker.client.operations import Plan

__all__ = ["Client", "call"]

T = TypeVar("T")

_POOLED: Final = 64


class _Lane:
    """One ordered stream of sends, bound to one connection at a time; see `lua/send.lua`."""

    __slots__ = ("connection", "id", "sequence")

    def __init__(self) -> None:
        self.id = new_lane_id()
        self.sequence = 0
        self.connection: Any = None


def call(connection: Any, command: Command[Any]) -> Any:
    """Make one call over one connection and return the raw reply; loads the script where the server lacks it.

    Raises the `ServerError` that fits. After `InDoubtError` or `UnavailableError` the connection must be dropped.
    """
    try:
        try:
            return _ask(connection, command)
        except RedisError as error:
            if not is_noscript(error) or command.script is None:
                raise
        load = connection.pack_command("SCRIPT", "LOAD", command.script.source)
        connection.send_packed_command(load)
        connection.read_response()
        return _ask(connection, command)
    except (RedisError, OSError) as error:
        raise map_error(error, sent=True) from error


def _ask(connection: Any, command: Command[Any]) -> Any:
    if not command.then:
        connection.send_packed_command(connection.pack_command(*command.words()))
        return connection.read_response()
    connection.send_packed_command(connection.pack_commands([command.words(), command.then]))
    replies: list[Any] = []
    for _ in range(2):
        try:
            replies.append(connection.read_response())
        except ResponseError as error:
            replies.append(error)
    if isinstance(replies[0], ResponseError):
        raise replies[0]
    return replies


class Client:
    """Executes commands; sends are repeated safely on their lane.

    `give_up_s`: seconds after which a call that keeps failing raises its error (transient errors are tried again
    until then; refusals and permanent errors are raised at once).
    """

    def __init__(self, factory: ConnectionFactory, *, give_up_s: float = GIVE_UP_S) -> None:
        self.factory = factory
        self.ids = IdSource()
        self._give_up_s = give_up_s
        self._free: list[_Lane] = []
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def execute(self, command: Command[T], *, give_up_s: float | None = None) -> T:
        """Execute a command until it succeeds, is refused, or `give_up_s` is over.

        Raises `RefusedError` (definite, nothing written) or `ServerError`; of these only `InDoubtError` leaves open
        whether the command ran.
        """
        lane = self._take()
        try:
            return self._attempt(lane, command, self._give_up_s if give_up_s is None else give_up_s)
        finally:
            self._give_back(lane)

    def send(self, make: Callable[..., Command[Sent]]) -> Sent:
        """Execute a send once, whatever happens to its replies. `make` is given `lane` and `sequence`."""
        lane = self._take()
        lane.sequence += 1
        try:
            result = self._attempt(
                lane, make(lane=lane.id, sequence=lane.sequence), self._give_up_s
            )
        except BaseException as error:
            # A call in doubt must be settled before anything newer; nobody will repeat this one,
            # so its lane ends here. A definite refusal leaves the lane as it was.
            if isinstance(error, InDoubtError) or not isinstance(error, QworkerError):
                self._drop(lane)
                lane = _Lane()
            raise
        finally:
            self._give_back(lane)
        return result

    def run(self, plan: Plan[T]) -> T:
        """Execute the commands and sends of a plan one after the other, and return its result."""
        result: Any = None
        try:
            while True:
                step = plan.send(result)
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                    result = None
                elif isinstance(step, SendCall):
                    result = self.send(step.make)
                else:
                    result = self.execute(step)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close the idle connections. The client may be used again."""
        while self._free:
            self._drop(self._free.pop())

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _attempt(self, lane: _Lane, command: Command[T], give_up_s: float) -> T:
        attempt = Attempt(command, give_up_s)
        while True:
            try:
                if lane.connection is None:
                    lane.connection = self.factory.connect()
                return attempt.command.decode(call(lane.connection, attempt.command))
            except QworkerError as error:
                # After a lost reply the connection is of no use; and where the server cannot serve
                # (a replica, a server that loads) another one may answer at the same address soon.
                if isinstance(error, ServerError):
                    self._drop(lane)
                time.sleep(attempt.failed(error))
            except BaseException:
                # Interrupted between call and reply: what comes next on this connection is not ours.
                self._drop(lane)
                raise

    def _take(self) -> _Lane:
        if os.getpid() != self._pid:
            self._forked()
        try:
            return self._free.pop()
        except IndexError:
            return _Lane()

    def _give_back(self, lane: _Lane) -> None:
        if len(self._free) < _POOLED:
            self._free.append(lane)
        else:
            self._drop(lane)

    def _forked(self) -> None:
        with self._lock:
            if os.getpid() != self._pid:
                # The sockets are the parent's too: dropped without a word on them.
                self._free = []
                self._pid = os.getpid()

    def _drop(self, lane: _Lane) -> None:
        connection, lane.connection = lane.connection, None
        if connection is not None:
            connection.disconnect()
