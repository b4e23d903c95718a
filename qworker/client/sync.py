"""The sync client: executes command values over pooled connections, each with a lane of its own.

Safe to use from many threads, and after a fork: a child drops the inherited connections and lanes and makes its own.
Nothing is connected before the first call.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import structlog

from qworker.client.away import AwayServers
from qworker.client.calling import call, call_all, settle_again
from qworker.client.commands.command import (
    GIVE_UP_S,
    LEAST_S,
    Apart,
    Attempt,
    Brief,
    Command,
    Pause,
    Soon,
)
from qworker.client.commands.sending import SendCall, Sent
from qworker.client.commands.settling import Settled, settle
from qworker.client.plan import Plan
from qworker.client.quiet import WITHIN_S, Quiet
from qworker.client.recent import RecentSettles
from qworker.client.unreturned import Unreturned
from qworker.errors import InDoubtError, QworkerError, RetryRule, ServerError
from qworker.store.connection import ConnectionFactory
from qworker.store.lines import Lines
from qworker.store.nodes import Address
from qworker.wire.ids import IdSource, new_lane_id
from qworker.wire.keyring import NO_KEYS, Keyring

__all__ = ["Client", "call"]

T = TypeVar("T")

_log = structlog.get_logger(__name__)

_POOLED: Final = 64
#: Seconds that an interrupted call takes to give back what it has received.
_GIVE_BACK_S: Final = 0.5


class _Lane:
    """One ordered stream of sends, with at most one line to each server; see `lua/send.lua`."""

    __slots__ = ("id", "lines", "sequence")

    def __init__(self, lines: Lines) -> None:
        self.id = new_lane_id()
        self.sequence = 0
        self.lines = lines


class Client:
    """Executes commands; sends are repeated safely on their lane.

    `give_up_s`: seconds after which a call that keeps failing raises its error (transient errors are tried again
    until then; refusals and permanent errors are raised at once). No step of a call, such as connecting, waits longer
    than what is left of it for a server that does not answer.
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
        #: Leases that hold messages which no caller has seen.
        self.unreturned = Unreturned()
        self._away = AwayServers()
        self._free: list[_Lane] = []
        self._recent = RecentSettles(factory)
        self._quiet = Quiet()
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def execute(self, command: Command[T], *, give_up_s: float | None = None) -> T:
        """Execute a command until it succeeds, is refused, or `give_up_s` is over.

        Raises `RefusedError` (definite, nothing written) or `ServerError`; of these `InDoubtError` leaves open whether
        the command ran, and `UnfinishedError` says that it may have run in part. A `give_up_s` given here ends the
        tries, but not the wait for a reply.
        """
        bounded = give_up_s is None
        return self._execute(command, self.give_up_s if bounded else give_up_s or 0.0, bounded)

    def _execute(self, command: Command[T], limit_s: float, bounded: bool) -> T:
        lane = self._take()
        try:
            if command.apart is not None and self.factory.clustered:
                return self._apart(lane, command.apart(), limit_s, bounded)
            return self._attempt(lane, command, limit_s, bounded)
        finally:
            self._give_back(lane)

    def execute_each(
        self, commands: Sequence[Command[T]], *, give_up_s: float | None = None
    ) -> list[T | QworkerError]:
        """Execute commands that may be repeated in one trip per server; returns of each its result or its error.

        What failed in the trip is executed again by itself, as `execute` does; a server that serves nobody is waited
        for once. No command may be one over several queues.
        """
        bounded = give_up_s is None
        limit_s = self.give_up_s if bounded else give_up_s or 0.0
        lane = self._take()
        try:
            results = call_all(self.factory, lane.lines, commands)
            outcomes: list[T | QworkerError] = []
            dead: dict[Address | None, ServerError] = {}
            for number, command in enumerate(commands):
                if number in results:
                    outcomes.append(results[number])
                    continue
                place = self.factory.place(command.key)
                try:
                    outcomes.append(
                        dead.get(place) or self._attempt(lane, command, limit_s, bounded)
                    )
                except QworkerError as error:
                    if isinstance(error, ServerError) and error.retry is not RetryRule.NEVER:
                        dead[place] = error
                    outcomes.append(error)
            return outcomes
        finally:
            self._give_back(lane)

    def send(
        self,
        make: Callable[..., Command[Sent]],
        *,
        give_up_s: float | None = None,
        elsewhere: bool = False,
    ) -> Sent:
        """Execute a send once, whatever happens to its replies. `make` is given `lane` and `sequence`.

        `elsewhere`: an error after which certainly nothing is stored is raised at once.
        """
        limit_s = self.give_up_s if give_up_s is None else give_up_s
        lane = self._take()
        lane.sequence += 1
        try:
            result = self._attempt(
                lane,
                make(lane=lane.id, sequence=lane.sequence),
                limit_s,
                bounded=True,
                elsewhere=elsewhere,
            )
        except BaseException as error:
            # A call in doubt must be settled before anything newer; nobody will repeat this one,
            # so its lane ends here. A definite refusal leaves the lane as it was.
            if isinstance(error, InDoubtError) or not isinstance(error, QworkerError):
                lane.lines.close()
                lane = self._new_lane()
            raise
        finally:
            self._give_back(lane)
        return result

    def run(self, plan: Plan[T], *, give_up_s: float | None = None) -> T:
        """Execute the commands and sends of a plan one after the other, and return its result.

        An error is raised in the plan, which may go on; its calls that fail one after the other have `give_up_s`
        together. What an interrupted plan has received is given back.
        """
        limit_s = self.give_up_s if give_up_s is None else give_up_s
        failing_s = 0.0
        try:
            step = next(plan)
            while True:
                began = time.monotonic()
                try:
                    result = self._step(step, limit_s, failing_s)
                except QworkerError as error:
                    if isinstance(error, ServerError) and not isinstance(step, Soon):
                        failing_s += time.monotonic() - began
                    step = plan.throw(error)
                else:
                    failing_s = 0.0
                    step = plan.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        except QworkerError:
            raise
        except BaseException:
            plan.close()
            self._give_back_unreturned()
            raise

    def _step(
        self,
        step: Command[Any] | Brief[Any] | Soon[Any] | SendCall | Pause,
        limit_s: float,
        failing_s: float,
    ) -> Any:
        left_s = limit_s if not failing_s else max(LEAST_S, limit_s - failing_s)
        if isinstance(step, Command):
            return self._execute(step, left_s, bounded=True)
        if isinstance(step, SendCall):
            return self.send(step.make, give_up_s=left_s, elsewhere=step.elsewhere)
        if isinstance(step, Pause):
            return time.sleep(step.seconds)
        if isinstance(step, Brief):
            return self.briefly(step)
        return self._soon(step)

    def briefly(self, step: Brief[T]) -> T | None:
        """Execute what may fail, for a fraction of a second; returns None where it did."""
        if step.quiet and self._quiet.now:
            return None
        try:
            result = self._execute(step.command, WITHIN_S, bounded=True)
        except QworkerError as error:
            if step.quiet:
                self._quiet.failed(error)
            return None
        if step.quiet:
            self._quiet.succeeded()
        return result

    def _soon(self, step: Soon[T]) -> T:
        address = self.factory.place(step.command.key)
        self._away.check(address, step.since)
        try:
            result = self._execute(step.command, step.within_s, bounded=True)
        except ServerError as error:
            self._away.failed(address, error)
            raise
        self._away.served(address)
        return result

    def _give_back_unreturned(self) -> None:
        """Release what was received for a caller that is gone. What cannot be now goes with the next receive."""
        for keys in self.unreturned.queues():
            outcomes = self.unreturned.outcomes(keys)
            try:
                settled: Settled = self._execute(settle(keys, outcomes), _GIVE_BACK_S, bounded=True)
            except QworkerError as error:
                _log.warning("messages_not_given_back", queue=keys.queue, error=str(error))
            else:
                self.unreturned.settled(keys, outcomes, settled.per_lease)

    def close(self) -> None:
        """Close the idle connections. The client may be used again."""
        while self._free:
            self._free.pop().lines.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _attempt(
        self,
        lane: _Lane,
        command: Command[T],
        give_up_s: float,
        bounded: bool,
        *,
        elsewhere: bool = False,
    ) -> T:
        attempt = Attempt(command, give_up_s, elsewhere=elsewhere)
        while True:
            address = attempt.detour or command.node
            within_s = attempt.within_s(self.factory.reply_timeout_s) if bounded else None
            try:
                if address is None:
                    address = self.factory.locate(command.key, within_s)
                line, asking = lane.lines.to(address, within_s), attempt.detour is not None
                reply = call(line.connection, attempt.command, asking=asking, within_s=within_s)
                result = attempt.command.decode(reply)
            except QworkerError as error:
                # After a lost reply the connection is of no use; and where the server cannot serve
                # (a replica, a server that loads) another one may answer at the same address soon.
                if isinstance(error, ServerError) and address is not None:
                    self._failed(lane, error, address)
                time.sleep(attempt.failed(error))
            except BaseException:
                # Interrupted between call and reply: what comes next on this connection is not ours.
                lane.lines.close()
                raise
            else:
                self._recent.note(command, line)
                return result

    def _apart(self, lane: _Lane, apart: Apart[T], give_up_s: float, bounded: bool) -> T:
        """Make one call per queue, those to one node in one trip. A node that does not serve is waited for once."""
        results = call_all(self.factory, lane.lines, apart.commands)
        dead: dict[Address | None, ServerError] = {}
        for number, command in enumerate(apart.commands):
            if number in results:
                continue
            place = self.factory.place(command.key)
            try:
                if place in dead:
                    raise dead[place]
                results[number] = self._attempt(lane, command, give_up_s, bounded)
            except ServerError as error:
                dead[place] = error
                if apart.unserved is None or len(dead) >= len(self.factory.masters()):
                    raise
                results[number] = apart.unserved(number, error)
        return apart.merge([results[number] for number in range(len(apart.commands))])

    def _failed(self, lane: _Lane, error: ServerError, address: Address) -> None:
        if self.factory.failed(error, address):
            lane.lines.drop(address)

    def _new_lane(self) -> _Lane:
        return _Lane(Lines(self.factory, lambda line: settle_again(self._recent, line)))

    def _take(self) -> _Lane:
        if os.getpid() != self._pid:
            self._forked()
        try:
            return self._free.pop()
        except IndexError:
            return self._new_lane()

    def _give_back(self, lane: _Lane) -> None:
        if len(self._free) < _POOLED:
            self._free.append(lane)
        else:
            lane.lines.close()

    def _forked(self) -> None:
        with self._lock:
            if os.getpid() != self._pid:
                # The sockets are the parent's too: dropped without a word on them.
                self._free = []
                self._recent = RecentSettles(self.factory)
                self._pid = os.getpid()
