"""Calls that a loop makes again and again: passes of a reaper, heartbeats of leases, scrapes.

A node of a Cluster that does not answer must not hold up such calls to the other nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar

from qworker.client.execute.backoff import AwayServers, LeftAloneError
from qworker.errors import QworkerError, ServerError, is_of_server, of_one_slot
from qworker.store.topology import slot_of

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.engine.command import Command
    from qworker.store.connections import ConnectionFactory
    from qworker.store.nodes import Address

__all__ = ["WITHIN_S", "RecurringCalls"]

T = TypeVar("T")

#: Seconds to wait for a node of a Cluster: many times what a busy one takes.
WITHIN_S: Final = 1.5


class RecurringCalls:
    """Makes calls that are made again later anyway: tried for `give_up_s` seconds.

    A call waits `within_s` seconds for a node of a Cluster. A node that does not answer is left alone for up to 5 s:
    calls to it raise its error at once. A slot that no node serves is waited for once, until a call for it succeeds. A
    single server has the client's patience. As thread-safe as its client.
    """

    def __init__(
        self,
        client: Client,
        *,
        give_up_s: float,
        within_s: float = WITHIN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._give_up_s = give_up_s
        self._within_s = within_s
        self._away = AwayServers(clock=clock)
        #: Slots that no node served when they were last asked for.
        self._unserved: set[int] = set()

    @property
    def factory(self) -> ConnectionFactory:
        """Knows the servers."""
        return self._client.factory

    def execute(self, command: Command[T], /, *, give_up_s: float | None = None) -> T:
        """Execute a command, as `Client.execute` does."""
        limit_s = self._give_up_s if give_up_s is None else give_up_s
        if not self.factory.clustered:
            return self._client.execute(command, give_up_s=limit_s)
        if command.per_queue is not None:
            per_queue = command.per_queue()
            return self._client.merged(per_queue, self.execute_each(per_queue.commands))
        node = self._node(command)
        if (problem := self._problem(node)) is not None:
            raise problem
        try:
            result = self._client.execute(
                self._at_once(command), give_up_s=limit_s, within_s=self._within_s
            )
        except QworkerError as error:
            self._note(node, command, error)
            self._note_slot(command, error)
            raise
        self._note_slot(command, result)
        self._away.served(node)
        return result

    def execute_each(self, commands: Sequence[Command[T]], /) -> list[T | QworkerError]:
        """Execute commands that may be repeated in one trip per server, as `Client.execute_each` does."""
        if not self.factory.clustered:
            return self._client.execute_each(commands, give_up_s=self._give_up_s)
        nodes = [self._node(command) for command in commands]
        problems = {node: self._problem(node) for node in {*nodes}}
        asked = [at for at, node in enumerate(nodes) if problems[node] is None]
        answers = self._client.execute_each(
            [self._at_once(commands[at]) for at in asked],
            give_up_s=self._give_up_s,
            within_s=self._within_s,
        )
        for at, answer in zip(asked, answers, strict=True):
            self._note_slot(commands[at], answer)
        results: dict[int, Any] = dict(zip(asked, answers, strict=True))
        failures = {
            nodes[at]: at for at in asked if self._blames(results[at], commands[at], nodes[at])
        }
        for node in {nodes[at] for at in asked}:
            if node in failures:
                self._note(node, commands[failures[node]], results[failures[node]])
            else:
                self._away.served(node)
        for at, node in enumerate(nodes):
            results.setdefault(at, problems[node])
        return [results[at] for at in range(len(nodes))]

    def _at_once(self, command: Command[T]) -> Command[T]:
        """Make a command fail at once if no node served its slot before."""
        if not self._unserved or command.key is None:
            return command
        return command.at_once() if slot_of(command.key) in self._unserved else command

    def _note_slot(self, command: Command[Any], result: object) -> None:
        if command.key is None:
            return
        if isinstance(result, QworkerError) and of_one_slot(result):
            self._unserved.add(slot_of(command.key))
        elif self._unserved:
            self._unserved.discard(slot_of(command.key))

    def _node(self, command: Command[Any]) -> Address | None:
        return command.node or self.factory.last_node(command.key)

    def _problem(self, node: Address | None) -> ServerError | None:
        """The error of a node that is left alone now."""
        try:
            self._away.check(node, float("-inf"))
        except LeftAloneError as error:
            return error.error
        return None

    def _note(self, node: Address | None, command: Command[Any], error: QworkerError) -> None:
        if node is not None and self._blames(error, command, node):
            self._away.failed(node, error)

    def _blames(
        self, result: object, command: Command[Any], node: Address | None
    ) -> TypeGuard[ServerError]:
        """Say whether a result is an error of the node: not if the slot is now elsewhere, or no node serves it."""
        return is_of_server(result) and self._node(command) == node
