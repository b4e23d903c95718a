"""A client for one look at a Cluster: it waits once for a node that does not serve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from qworker.client.execute.recurring import is_of_server
from qworker.client.execute.sync import Client, Lane
from qworker.engine.command import Patience
from qworker.errors import QworkerError, ServerError

if TYPE_CHECKING:
    from qworker.engine.command import Command
    from qworker.store.nodes import Address

__all__ = ["SingleWaitClient"]

T = TypeVar("T")


class SingleWaitClient(Client):
    """Waits once for a node of a Cluster that does not serve: later calls to it raise its error at once.

    No reply is waited for longer than the client's `give_up_s`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._problems: dict[Address, ServerError] = {}

    def _patience(self, give_up_s: float | None, within_s: float | None) -> Patience:
        return super()._patience(give_up_s, self.give_up_s if within_s is None else within_s)

    def _attempt(
        self, lane: Lane, command: Command[T], patience: Patience, *, elsewhere: bool = False
    ) -> T:
        node = self._node(command)
        if node in self._problems:
            raise self._problems[node]
        try:
            return super()._attempt(lane, command, patience, elsewhere=elsewhere)
        except QworkerError as error:
            self._note(node, error)
            raise

    def _trip(
        self, lane: Lane, commands: Sequence[Command[T]], patience: Patience
    ) -> list[T | QworkerError]:
        nodes = [self._node(command) for command in commands]
        asked = [at for at, node in enumerate(nodes) if node not in self._problems]
        results: list[Any] = [self._problems.get(node) for node in nodes]  # type: ignore[arg-type]
        answers = super()._trip(lane, [commands[at] for at in asked], patience)
        for at, answer in zip(asked, answers, strict=True):
            self._note(nodes[at], answer)
            results[at] = answer
        return results

    def _node(self, command: Command[Any]) -> Address | None:
        return command.node or self.factory.last_node(command.key)

    def _note(self, node: Address | None, result: object) -> None:
        if node is not None and self.factory.clustered and is_of_server(result):
            self._problems.setdefault(node, result)
