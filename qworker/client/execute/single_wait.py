"""Clients that look at a Cluster and do not wait again and again for a node that does not serve."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import structs

from qworker.client.execute.distance import Distances
from qworker.client.execute.lanes import Lane
from qworker.client.execute.sync import Client
from qworker.engine.attempt import Patience
from qworker.errors import QworkerError, ServerError, is_of_server

if TYPE_CHECKING:
    from qworker.engine.command import Command
    from qworker.store.nodes import Address

__all__ = ["SingleWaitClient", "WatchingClient"]

T = TypeVar("T")

#: Seconds between two tries of a node that is away, and how long such a try lasts.
_AGAIN_S: Final = 5.0
_TRY_S: Final = 0.5


class SingleWaitClient(Client):
    """Waits once for a node of a Cluster that does not serve: later calls to it raise its error at once.

    No call waits for a reply for longer than the client's `give_up_s`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._problems: dict[Address, ServerError] = {}

    @property
    def away(self) -> Mapping[Address, ServerError]:
        """The nodes that did not serve when they were last asked, each with its error."""
        return dict(self._problems)

    def _patience(self, give_up_s: float | None, within_s: float | None) -> Patience:
        return super()._patience(give_up_s, self.give_up_s if within_s is None else within_s)

    def _attempt(
        self, lane: Lane, command: Command[T], patience: Patience, *, elsewhere: bool = False
    ) -> T:
        node = self._node(command)
        if (problem := self._problem(node)) is not None:
            raise problem
        try:
            result = super()._attempt(lane, command, patience, elsewhere=elsewhere)
        except QworkerError as error:
            # A client that has just read the map knows the node only now.
            self._note(node or self._node(command), error)
            raise
        self._note(node, result)
        return result

    def _trip(
        self, lane: Lane, commands: Sequence[Command[T]], patience: Patience
    ) -> list[T | QworkerError]:
        nodes = [self._node(command) for command in commands]
        problems = {node: self._problem(node) for node in {*nodes}}
        asked = [at for at, node in enumerate(nodes) if problems[node] is None]
        results: list[Any] = [problems[node] for node in nodes]
        answers = super()._trip(lane, [commands[at] for at in asked], patience)
        for at, answer in zip(asked, answers, strict=True):
            self._note(nodes[at] or self._node(commands[at]), answer)
            results[at] = answer
        return results

    def _node(self, command: Command[Any]) -> Address | None:
        return command.node or self.factory.last_node(command.key)

    def _problem(self, node: Address | None) -> ServerError | None:
        """Return the error of a node that is not asked now."""
        return None if node is None else self._problems.get(node)

    def _note(self, node: Address | None, result: object) -> None:
        """Learn from the result, or the error, of a call."""
        if node is not None and self.factory.clustered and is_of_server(result):
            self._problems.setdefault(node, result)


class WatchingClient(SingleWaitClient):
    """For screens, which look at a namespace again and again, from several threads.

    Waits `give_up_s` seconds for a node of a Cluster that does not serve, then tries it for half a second every five;
    other calls to it raise its error at once. A call that any node can answer goes to one that serves.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        #: When the next try of a node is due.
        self._due_s: dict[Address, float] = {}
        self._distances = Distances()

    @property
    def busy_s(self) -> float:
        """Seconds for which the calls of this thread have kept servers busy so far, without the network's part."""
        return self._distances.busy_s

    def _answered(self, nodes: Iterable[Address], seconds: float) -> None:
        self._distances.note(nodes, seconds)

    def _attempt(
        self, lane: Lane, command: Command[T], patience: Patience, *, elsewhere: bool = False
    ) -> T:
        if not self.factory.clustered or command.key is not None or command.node is not None:
            known = self._node(command) in self._problems
            return super()._attempt(
                lane, command, self._tried(patience) if known else patience, elsewhere=elsewhere
            )
        nodes = [*self.factory.masters()]
        nodes.sort(key=self._problems.__contains__)
        for node in nodes[:-1]:
            try:
                return super()._attempt(lane, structs.replace(command, node=node), patience)
            except ServerError as error:
                if not is_of_server(error):
                    raise
        return super()._attempt(lane, structs.replace(command, node=nodes[-1]), patience)

    def _trip(
        self, lane: Lane, commands: Sequence[Command[T]], patience: Patience
    ) -> list[T | QworkerError]:
        tried: set[Address] = set()
        for command in commands if self._problems else ():
            node = self._node(command)
            if node in self._problems and node not in tried:
                tried.add(node)
                # A short wait for this node must not become one for those that serve.
                with suppress(QworkerError):
                    self._attempt(lane, command, patience)
        return super()._trip(lane, commands, patience)

    def _problem(self, node: Address | None) -> ServerError | None:
        problem = super()._problem(node)
        if problem is None or node is None:
            return None
        now_s = time.monotonic()
        if now_s < self._due_s.get(node, 0.0):
            return problem
        # The caller tries it; others do not wait meanwhile.
        self._due_s[node] = now_s + _AGAIN_S
        return None

    def _note(self, node: Address | None, result: object) -> None:
        if node is None or not self.factory.clustered:
            return
        if is_of_server(result):
            self._problems[node] = result
            self._due_s[node] = time.monotonic() + _AGAIN_S
        elif self._problems.pop(node, None) is not None:
            self._due_s.pop(node, None)

    @staticmethod
    def _tried(patience: Patience) -> Patience:
        """Return the patience with a node that was away a moment ago."""
        within_s = _TRY_S if patience.within_s is None else min(_TRY_S, patience.within_s)
        return Patience(min(_TRY_S, patience.give_up_s), within_s, ends_waits=patience.ends_waits)
