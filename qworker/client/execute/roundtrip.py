"""Make calls over open connections, load missing scripts, and map errors."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redis.exceptions import RedisError, ResponseError

from qworker.engine.command import LEAST_S, Command
from qworker.errors import QworkerError, RefusedError, ServerError
from qworker.store.connections import ConnectionFactory, is_noscript, map_error
from qworker.telemetry.logger import logger

if TYPE_CHECKING:
    from qworker.client.execute.settle_replay import RecentSettles
    from qworker.engine.scripts import Script
    from qworker.store.connection_set import ConnectionSet
    from qworker.store.connections import ServerConnection
    from qworker.store.nodes import Address

__all__ = ["LOADS", "Unanswered", "call", "call_all", "load_missing", "settle_again"]

#: How often a call loads its script at once; after that it is retried like any call that fails.
LOADS: Final = 3

_log = logger(__name__)


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
        key = None if command.script else command.key
        raise map_error(error, sent=True, key=key) from error


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


class Unanswered(NamedTuple):
    """A node that did not answer in a trip, and how long it was waited for."""

    error: ServerError
    after_s: float


def call_all(
    factory: ConnectionFactory,
    connections: ConnectionSet,
    commands: Sequence[Command[Any]],
    within_s: float | None = None,
) -> tuple[dict[int, Any], dict[Address, Unanswered]]:
    """Make calls in one trip per node; returns the results of those that succeeded by index, and nodes without answer.

    The caller makes the others by themselves: those with a missing script, a moved slot, a refusal or a node that is
    away. Every command may be repeated. All nodes together are waited for `within_s` seconds, and for as long again
    where there was no connection; None waits for the connection's own timeout, for each node.
    """
    began = time.monotonic()
    if commands and factory.node(commands[0].key) is None:
        with suppress(ServerError):
            factory.locate(commands[0].key, within_s)
    by_node: dict[Address, list[int]] = {}
    for index, command in enumerate(commands):
        node = factory.node(command.key)
        if node is not None:
            by_node.setdefault(node, []).append(index)
    sent: list[tuple[Address, Any]] = []
    results: dict[int, Any] = {}
    unanswered: dict[Address, Unanswered] = {}

    def failed(address: Address, error: Exception, *, was_sent: bool) -> None:
        connections.drop(address)
        mapped = error if isinstance(error, ServerError) else map_error(error, sent=was_sent)
        factory.failed(mapped, address)
        unanswered[address] = Unanswered(mapped, time.monotonic() - began)

    try:
        for address, indices in by_node.items():
            try:
                connection = connections.idle(address, within_s).connection
                # In one piece: redis-py would write each piece separately.
                packed = b"".join([commands[index].packed() for index in indices])
                connection.send_packed_command([packed])
            except (RedisError, OSError, ServerError) as error:
                failed(address, error, was_sent=False)
            else:
                sent.append((address, connection))
        sent_at = time.monotonic()
        for address, connection in sent:
            if within_s is None:
                left_s = connection.socket_timeout
            else:
                left_s = max(LEAST_S, sent_at + within_s - time.monotonic())
            try:
                with _answered_within(connection, left_s):
                    for index in by_node[address]:
                        try:
                            results[index] = commands[index].decode(connection.read_response())
                        except (ResponseError, QworkerError):
                            continue
            except (RedisError, OSError) as error:
                failed(address, error, was_sent=True)
    except BaseException:
        # Interrupted between calls and replies: the next replies on these connections are not ours.
        connections.close()
        raise
    return results, unanswered


def settle_again(recent: RecentSettles, server: ServerConnection) -> None:
    """Repeat recent settles to a server that took over. Raises `ServerError`."""
    lost = recent.lost(server)
    for command in lost:
        try:
            command.decode(call(server.connection, command))
        except RefusedError:
            continue  # A key of the queue holds another type there: nothing can be settled.
        recent.note(command, server)
    if lost:
        _log.info("settles_repeated", server=str(server.address), calls=len(lost))
