"""Make several calls in one trip per node; repeat those that failed one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from redis.exceptions import RedisError, ResponseError

from qworker.client.execute.roundtrip import answered_within
from qworker.engine.attempt import LEAST_S, Patience
from qworker.engine.command import Command
from qworker.errors import QworkerError, ServerError, is_of_server, of_one_slot
from qworker.store.connections import ConnectionFactory, map_error

if TYPE_CHECKING:
    from qworker.store.connection_set import ConnectionSet
    from qworker.store.nodes import Address

__all__ = ["Unanswered", "by_node", "call_all", "call_each"]

T = TypeVar("T")


class Unanswered(NamedTuple):
    """A node that did not answer in a trip, and how long the trip waited for it."""

    error: ServerError
    after_s: float


def call_all(
    factory: ConnectionFactory,
    connections: ConnectionSet,
    commands: Sequence[Command[Any]],
    within_s: float | None = None,
    answered: Callable[[Iterable[Address], float], None] | None = None,
) -> tuple[dict[int, Any], dict[Address, Unanswered]]:
    """Make calls in one trip per node; returns the results of those that succeeded by index, and nodes without answer.

    The caller repeats the others one by one: those with a missing script, a moved slot, a refusal or a node that is
    away. Every command may be repeated. Waits `within_s` seconds for all nodes together, and as long again to connect;
    None waits for the connection's own timeout, for each node. `answered` is told the nodes and the seconds of
    a trip in which all of them answered.
    """
    began = time.monotonic()
    if commands and factory.node(commands[0].key) is None:
        with suppress(ServerError):
            factory.locate(commands[0].key, within_s)
    nodes = by_node(factory, commands)
    sent: list[tuple[Address, Any]] = []
    results: dict[int, Any] = {}
    unanswered: dict[Address, Unanswered] = {}

    def failed(address: Address, error: Exception, *, was_sent: bool) -> None:
        connections.drop(address)
        reads = all(commands[index].only_reads for index in nodes[address])
        mapped = map_error(error, sent=was_sent, reads=reads)
        factory.failed(mapped, address)
        unanswered[address] = Unanswered(mapped, time.monotonic() - began)

    try:
        for address, indices in nodes.items():
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
                with answered_within(connection, left_s):
                    _read(connection, commands, nodes[address], results)
            except (RedisError, OSError) as error:
                failed(address, error, was_sent=True)
        if answered is not None and not unanswered:
            answered([address for address, _ in sent], time.monotonic() - sent_at)
    except BaseException:
        # Interrupted between calls and replies: the next replies on these connections are not ours.
        connections.close()
        raise
    return results, unanswered


def by_node(
    factory: ConnectionFactory, commands: Sequence[Command[Any]]
) -> dict[Address, list[int]]:
    """Map the nodes that are known to the indices of their commands."""
    nodes: dict[Address, list[int]] = {}
    for index, command in enumerate(commands):
        node = factory.node(command.key)
        if node is not None:
            nodes.setdefault(node, []).append(index)
    return nodes


def _read(
    connection: Any, commands: Sequence[Command[Any]], indices: list[int], results: dict[int, Any]
) -> None:
    """Read the replies of one node; leaves out refused commands."""
    for index in indices:
        try:
            results[index] = commands[index].decode(connection.read_response())
        except (ResponseError, QworkerError):
            continue


def call_each(
    factory: ConnectionFactory,
    connections: ConnectionSet,
    commands: Sequence[Command[T]],
    patience: Patience,
    attempt: Callable[[Command[T], Patience], T],
    answered: Callable[[Iterable[Address], float], None] | None = None,
) -> list[T | QworkerError]:
    """Make calls in one trip per node; returns the result or the error of each.

    `attempt` repeats calls that failed in the trip; for `answered` see `call_all`. Waits once for a node that does not
    serve, and once for slots that no node serves.
    """
    waits_s = patience.waits_s(factory.reply_timeout_s)
    results, unanswered = call_all(factory, connections, commands, waits_s, answered)
    outcomes: list[T | QworkerError] = []
    failed: dict[Address | None, ServerError] = {
        node: error for node, (error, after_s) in unanswered.items() if patience.is_over(after_s)
    }
    slot_unserved = False
    for index, command in enumerate(commands):
        if index in results:
            outcomes.append(results[index])
            continue
        asked = command.at_once() if slot_unserved else command
        node = factory.last_node(command.key)
        waited_s = unanswered[node].after_s if node in unanswered else 0.0
        try:
            outcomes.append(failed.get(node) or attempt(asked, patience.after(waited_s)))
        except QworkerError as error:
            slot_unserved = slot_unserved or of_one_slot(error)
            if is_of_server(error) and factory.last_node(command.key) == node:
                failed[node] = error
            outcomes.append(error)
    return outcomes
