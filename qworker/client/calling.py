"""Single calls over an open connection: one command, its script loaded where the server lacks it, its errors named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import structlog
from redis.exceptions import RedisError, ResponseError

from qworker.client.commands.command import Command
from qworker.errors import QworkerError, RefusedError, ServerError
from qworker.store.connection import ConnectionFactory, is_noscript, map_error

if TYPE_CHECKING:
    from qworker.client.recent import RecentSettles
    from qworker.store.lines import Line, Lines
    from qworker.store.nodes import Address
    from qworker.store.scripts import Script

__all__ = ["LOADS", "call", "call_all", "load_missing", "settle_again"]

#: How often a call loads its script at once; then it waits like any call that the server cannot serve now.
LOADS: Final = 3

_log = structlog.get_logger(__name__)


def call(
    connection: Any,
    command: Command[Any],
    *,
    asking: bool = False,
    within_s: float | None = None,
) -> Any:
    """Make one call over one connection and return the raw reply; loads the script where the server lacks it.

    `asking`: the slot of the keys is on its way to this node. `within_s`: how long to wait for each piece of a reply,
    None for as long as the connection does. Raises the `ServerError` that fits; of these `ScriptsNotLoadedError` where
    the script may not be loaded, or is gone again after `LOADS` times. After `InDoubtError` or `UnavailableError` the
    connection must be dropped.
    """
    if within_s is not None:
        with _answered_within(connection, command.answered_within(within_s)):
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
        raise map_error(error, sent=True) from error


@contextmanager
def _answered_within(connection: Any, seconds: float) -> Iterator[None]:
    socket = connection._sock
    if socket is not None:
        socket.settimeout(seconds)
    try:
        yield
    finally:
        if socket is not None and connection._sock is socket:
            socket.settimeout(connection.socket_timeout)


def load_missing(connection: Any, scripts: Sequence[Script]) -> int:
    """Load those of some scripts that a server lacks, over a connection to it; returns how many those were.

    Asks first: who may not load any (`qworker acl`) can do with those that are there. Raises `ServerError`.
    """
    try:
        words = ("SCRIPT", "EXISTS", *(script.sha for script in scripts))
        connection.send_packed_command(connection.pack_command(*words))
        there = connection.read_response()
        missing = [script for script, found in zip(scripts, there, strict=True) if not found]
        for script in missing:
            connection.send_packed_command(connection.pack_command("SCRIPT", "LOAD", script.source))
            connection.read_response()
    except (RedisError, OSError) as error:
        raise map_error(error, sent=False) from error  # of the call that needs them
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


def call_all(
    factory: ConnectionFactory, lines: Lines, commands: Sequence[Command[Any]]
) -> dict[int, Any]:
    """Make calls in one trip per node; returns the results of those that succeeded, by their number.

    The others (a script to be loaded, a slot that has moved, a refusal, a node that is away) are for the caller to make
    by themselves. Every command may be repeated.
    """
    at: dict[Address, list[int]] = {}
    for number, command in enumerate(commands):
        place = factory.place(command.key)
        if place is not None:
            at.setdefault(place, []).append(number)
    asked: list[tuple[Address, Any]] = []
    results: dict[int, Any] = {}
    try:
        for address, numbers in at.items():
            try:
                connection = lines.to(address).connection
                # In one piece: redis-py would write each piece by itself.
                packed = b"".join([commands[number].packed() for number in numbers])
                connection.send_packed_command([packed])
            except (RedisError, OSError, ServerError):
                lines.drop(address)
            else:
                asked.append((address, connection))
        for address, connection in asked:
            for number in at[address]:
                try:
                    results[number] = commands[number].decode(connection.read_response())
                except (ResponseError, QworkerError):
                    continue
                except (RedisError, OSError):
                    lines.drop(address)
                    break
    except BaseException:
        # Interrupted between calls and replies: what comes next on these connections is not ours.
        lines.close()
        raise
    return results


def settle_again(recent: RecentSettles, line: Line) -> None:
    """Tell a server that took over what was settled lately. Raises `ServerError`."""
    lost = recent.lost(line)
    for command in lost:
        try:
            command.decode(call(line.connection, command))
        except RefusedError:
            continue  # A key of the queue holds another type there: nothing can be settled.
        recent.note(command, line)
    if lost:
        _log.info("settles_repeated", server=str(line.address), calls=len(lost))
