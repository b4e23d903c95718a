"""The common part of the sync and the async client: their state, and the steps of a plan as calls. No I/O here.

Each client performs the calls in its own way: `Client._perform`, `AsyncClient._perform`.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from typing import Any, Final, Generic, TypeVar

from qworker.client.execute.backoff import AWAY, AwayServers, IndexWrites
from qworker.client.execute.settle_replay import RecentSettles
from qworker.client.plan import Plan
from qworker.client.unreturned import Unreturned
from qworker.engine.attempt import GIVE_UP_S, LEAST_S
from qworker.engine.command import Brief, Command, Pause, PerQueue, Soon, Together
from qworker.engine.send import SendCall
from qworker.engine.settle import Settled, settle
from qworker.errors import QworkerError, RetryRule, ServerError, is_of_server
from qworker.store.connections import ConnectionFactory
from qworker.store.nodes import Address
from qworker.telemetry.logger import logger
from qworker.wire.ids import IdSource, new_lane_id
from qworker.wire.keyring import NO_KEYS, Keyring

__all__ = ["BaseClient", "Calls", "Lane"]

C = TypeVar("C")
T = TypeVar("T")

_log = logger(__name__)

#: Seconds that a step gets which may fail.
_BRIEF_S: Final = 0.2
#: Seconds that an interrupted call takes to give back its messages.
_GIVE_BACK_S: Final = 0.5

#: Yields calls, each with the seconds after which it is given up, is sent their results, and returns its own.
Calls = Generator[tuple[Command[Any] | SendCall | Together | Pause, float], Any, T]


class Lane(Generic[C]):
    """One ordered stream of sends, with at most one connection to each server; see `lua/send/send.lua`."""

    __slots__ = ("connections", "id", "sequence")

    def __init__(self, connections: C) -> None:
        self.id = new_lane_id()
        self.sequence = 0
        self.connections = connections


class BaseClient:
    """The state of a client, and how it runs plans.

    `give_up_s`: seconds after which a call that keeps failing raises its error. Transient errors are retried until
    then; refusals and permanent errors are raised at once. No step of a call, such as connecting, waits longer than
    the rest of it for a server that does not answer.
    """

    def __init__(
        self,
        factory: ConnectionFactory,
        *,
        give_up_s: float = GIVE_UP_S,
        keyring: Keyring = NO_KEYS,
    ) -> None:
        self.factory = factory
        self.ids = IdSource()
        #: Signs and encrypts what its queues send, verifies and decrypts what they receive and show.
        self.keyring = keyring
        self.give_up_s = give_up_s
        #: Leases with messages that no caller has seen.
        self.unreturned = Unreturned()
        self._away = AwayServers()
        self._recent = RecentSettles(factory)
        self._index = IndexWrites()

    def _calls_of(self, plan: Plan[T], limit_s: float) -> Calls[T]:
        """Make calls of the steps of a plan. Calls that fail one after the other share `limit_s`.

        A server that failed a trip is left out of later trips, until the plan pauses.
        """
        failing_s = 0.0
        away: dict[Address | None, ServerError] = {}
        try:
            step = next(plan)
            while True:
                began = time.monotonic()
                left_s = max(LEAST_S, limit_s - failing_s) if failing_s else limit_s
                try:
                    if isinstance(step, Brief):
                        result = yield from self._try_briefly(step)
                    elif isinstance(step, Soon):
                        result = yield from self._call_soon(step)
                    elif isinstance(step, Together):
                        result = yield from self._call_together(step, left_s, away)
                    else:
                        if isinstance(step, Pause):
                            away.clear()
                        result = yield step, left_s
                except QworkerError as error:
                    if isinstance(error, ServerError) and not isinstance(step, Soon):
                        failing_s += time.monotonic() - began
                    step = plan.throw(error)
                else:
                    failing_s = 0.0
                    step = plan.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            plan.close()

    def _try_briefly(self, step: Brief[T]) -> Calls[T | None]:
        """Call what may fail; returns None if it did."""
        if step.index_write and self._index.paused:
            return None
        try:
            result: T = yield step.command, _BRIEF_S
        except QworkerError as error:
            if step.index_write:
                self._index.failed(error)
            return None
        if step.index_write:
            self._index.succeeded()
        return result

    def _call_soon(self, step: Soon[T]) -> Calls[T]:
        """Call a server that must not hold others up. Raises `LeftAloneError` if it failed a moment ago."""
        address = self.factory.last_node(step.command.key)
        self._away.check(address, step.since)
        try:
            result: T = yield step.command, step.within_s
        except ServerError as error:
            self._away.failed(address, error)
            raise
        self._away.served(address)
        return result

    def _call_together(
        self, step: Together, limit_s: float, away: dict[Address | None, ServerError]
    ) -> Calls[list[Any]]:
        """Make the calls of a trip, except those to servers that are `away`; adds to these."""
        nodes = [self.factory.last_node(command.key) for command in step.commands]
        asked = [at for at, node in enumerate(nodes) if node not in away]
        results: list[Any] = [away.get(node) for node in nodes]
        if asked:
            answers = yield Together([step.commands[at] for at in asked]), limit_s
            for at, answer in zip(asked, answers, strict=True):
                results[at] = answer
                node = self.factory.last_node(step.commands[at].key)
                if isinstance(answer, AWAY) and is_of_server(answer) and nodes[at] in (None, node):
                    away[node] = answer
        return results

    def _check_served(
        self, per_queue: PerQueue[Any], failed: Mapping[int, QworkerError], servers: int
    ) -> None:
        """Raise an error of a command of many queues unless some of its `servers` may serve the others.

        An error that no repetition cures is about its queue alone, and so is a slot that no node serves.
        """
        first = next(iter(failed.values()))
        away: set[Address] = set()
        refused = 0
        for index, error in failed.items():
            if not isinstance(error, ServerError):
                raise error
            if error.retry is RetryRule.NEVER:
                refused += 1
            elif (
                is_of_server(error)
                and (node := self.factory.last_node(per_queue.commands[index].key)) is not None
            ):
                away.add(node)
        if len(away) >= max(1, servers) or refused == len(per_queue.commands):
            raise first

    def _release_unreturned(self) -> Calls[None]:
        """Release messages that were received for a caller that is gone. The next receive releases failed ones."""
        for keys in self.unreturned.queues():
            outcomes = self.unreturned.outcomes(keys)
            try:
                settled: Settled = yield settle(keys, outcomes), _GIVE_BACK_S
            except QworkerError as error:
                _log.warning("messages_not_given_back", queue=keys.queue, error=str(error))
            else:
                self.unreturned.settled(keys, outcomes, settled.per_lease)
