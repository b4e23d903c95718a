"""Make calls over open connections, load missing scripts, and map errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError, ResponseError

from qworker.engine.command import Command
from qworker.store.connections import is_noscript, map_error

if TYPE_CHECKING:
    from qworker.client.execute.settle_replay import RecentSettles
    from qworker.engine.scripts import Script
    from qworker.store.connections import ServerConnection

__all__ = ["LOADS", "answered_within", "call", "load_missing", "settle_again"]

#: How often a call loads its script at once; after that it is retried like any call that fails.
LOADS: Final = 3


def call(
    connection: Any,
    command: Command[Any],
    *,
    asking: bool = False,
    within_s: float | None = None,
) -> Any:
    """Make one call over one connection and return the raw reply; loads the script if the server lacks it.

    `asking`: the slot of the keys is moving to this node. `within_s`: how long to wait for each piece of a reply, None
    for the connection's own timeout. Raises the `ServerError` that fits: `ScriptsNotLoadedError` if the script may not
    be loaded, or is gone again after `LOADS` times. Drop the connection after `InDoubtError` or `UnavailableError`.
    """
    if within_s is not None:
        with answered_within(connection, command.answered_within(within_s)):
            return call(connection, command, asking=asking)
    try:
        for _ in range(LOADS):
            try:
                return _ask(connection, command, asking)
            except RedisError as error:
                if not is_noscript(error) or command.script is None:
                    raise
            connection.send_packed_command(
                connection.pack_command("SCRIPT", "LOAD", command.script.source)
            )
            connection.read_response()
        return _ask(connection, command, asking)
    except (RedisError, OSError) as error:
        key = None if command.script else command.key
        raise map_error(error, sent=True, reads=command.only_reads, key=key) from error


@contextmanager
def answered_within(connection: Any, seconds: float) -> Iterator[None]:
    """Bound the wait for each piece of a reply, for a while."""
    socket = connection._sock
    if socket is not None:
        socket.settimeout(seconds)
    try:
        yield
    finally:
        if socket is not None and connection._sock is socket:
            socket.settimeout(connection.socket_timeout)


def load_missing(connection: Any, scripts: Sequence[Script]) -> int:
    """Load the scripts that a server lacks over a connection to it; returns how many. Raises `ServerError`.

    Checks first: a user that may not load scripts (`qworker acl`) can use those that are loaded.
    """
    try:
        words = ("SCRIPT", "EXISTS", *(script.sha for script in scripts))
        connection.send_packed_command(connection.pack_command(*words))
        loaded = connection.read_response()
        missing = [script for script, is_there in zip(scripts, loaded, strict=True) if not is_there]
        for script in missing:
            connection.send_packed_command(connection.pack_command("SCRIPT", "LOAD", script.source))
            connection.read_response()
    except (RedisError, OSError) as error:
        raise map_error(error, sent=False) from error  # the call that needs them was not sent
    return len(missing)


def _ask(connection: Any, command: Command[Any], asking: bool) -> Any:
    if asking:
        connection.send_packed_command(connection.pack_command("ASKING"))
        connection.read_response()
    connection.send_packed_command([command.packed()])
    if not command.then:
        return connection.read_response()
    replies: list[Any] = []
    for _ in range(2):
        try:
            replies.append(connection.read_response())
        except ResponseError as error:
            replies.append(error)
    if isinstance(replies[0], ResponseError):
        raise replies[0]
    return replies


def settle_again(recent: RecentSettles, server: ServerConnection) -> None:
    """Repeat recent settles to a server that took over. Raises `ServerError`."""
    with recent.repeating(server) as repetition:
        for commands in repetition.trips():
            replies = _replies(server.connection, commands)
            for command, reply in zip(commands, replies, strict=True):
                repetition.answered(command, reply)


def _replies(connection: Any, commands: Sequence[Command[Any]]) -> Iterator[Any]:
    """Make calls in one trip, and yield their raw replies; a call whose script is missing is made again alone."""
    try:
        connection.send_packed_command([b"".join([command.packed() for command in commands])])
        replies: list[Any] = []
        for _ in commands:
            try:
                replies.append(connection.read_response())
            except ResponseError as error:
                replies.append(error)
    except (RedisError, OSError) as error:
        raise map_error(error, sent=True) from error
    for command, reply in zip(commands, replies, strict=True):
        if not isinstance(reply, ResponseError):
            yield reply
        elif is_noscript(reply):
            yield call(connection, command)
        else:
            raise map_error(reply, sent=True)
