"""The sync client: executes commands over pooled connections, each with its own lane.

You can use it from many threads and after a fork: a child drops inherited connections and lanes, and makes its own.
Connects at the first call.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from qworker.client.execute.base import BaseClient, Calls
from qworker.client.execute.lanes import Lane, Lanes
from qworker.client.execute.listener import Listener
from qworker.client.execute.many_calls import call_each
from qworker.client.execute.roundtrip import call, settle_again
from qworker.client.execute.settle_replay import RecentSettles
from qworker.client.plan import Plan
from qworker.engine.attempt import GIVE_UP_S, Attempt, Patience
from qworker.engine.command import Brief, Command, PerQueue, Together, Word
from qworker.engine.note import keep_note
from qworker.engine.raw import raw, server_time
from qworker.engine.send import SendCall, Sent
from qworker.errors import InDoubtError, QworkerError, ServerError
from qworker.store.connection_set import ConnectionSet
from qworker.store.connections import ConnectionFactory
from qworker.store.nodes import Address
from qworker.wire.keyring import NO_KEYS, Keyring

__all__ = ["Client", "call"]

T = TypeVar("T")


class Client(BaseClient):
    """Executes commands; repeats sends safely on their lane.

    `give_up_s`: seconds after which a call that keeps failing raises its error, see `BaseClient`.
    """

    def __init__(
        self,
        factory: ConnectionFactory,
        *,
        give_up_s: float = GIVE_UP_S,
        keyring: Keyring = NO_KEYS,
    ) -> None:
        super().__init__(factory, give_up_s=give_up_s, keyring=keyring)
        self._lanes = Lanes(self._new_lane, self._forked)
        self._lock = threading.Lock()
        self._listener: Listener | None = None

    def execute(
        self,
        command: Command[T],
        *,
        give_up_s: float | None = None,
        within_s: float | None = None,
    ) -> T:
        """Execute a command until it succeeds, is refused, or `give_up_s` is over.

        Raises `RefusedError` (nothing was written) or `ServerError`; `InDoubtError` leaves open whether the command
        ran, and `UnfinishedError` says that it may have run in part. A `give_up_s` given here ends the attempts, but
        not the wait for a reply; `within_s` bounds that for each reply, connecting included.
        """
        return self._execute(command, self._patience(give_up_s, within_s))

    def _patience(self, give_up_s: float | None, within_s: float | None) -> Patience:
        if give_up_s is None:
            return Patience(self.give_up_s)
        return Patience(give_up_s, within_s, ends_waits=False)

    def _execute(self, command: Command[T], patience: Patience) -> T:
        lane = self._lanes.take()
        try:
            if command.per_queue is not None and self.factory.clustered:
                return self._per_queue(lane, command.per_queue(), patience)
            return self._attempt(lane, command, patience)
        finally:
            self._lanes.put_back(lane)

    def ask(self, *words: Word, node: Address | None = None) -> Any:
        """Send one plain command, in a Cluster to `node` or to that of its key; returns its reply."""
        return self.execute(raw(*words, node=node))

    def note(self, verb: str, key: str, *words: Word) -> Any:
        """Send one plain command that a full server takes too, see `keep_note`; returns its reply."""
        return self.execute(keep_note(verb, key, *words))

    def now_ms(self) -> int:
        """Read the server's clock."""
        return self.execute(server_time())

    def execute_each(
        self,
        commands: Sequence[Command[T]],
        *,
        give_up_s: float | None = None,
        within_s: float | None = None,
    ) -> list[T | QworkerError]:
        """Execute commands that may be repeated in one trip per server; returns the result or the error of each.

        Retries commands that failed in the trip, as `execute` does; waits once for a server that does not
        serve. No command may span several queues.
        """
        return self._execute_each(commands, self._patience(give_up_s, within_s))

    def _execute_each(
        self, commands: Sequence[Command[T]], patience: Patience
    ) -> list[T | QworkerError]:
        lane = self._lanes.take()
        try:
            return self._trip(lane, commands, patience)
        finally:
            self._lanes.put_back(lane)

    def _trip(
        self, lane: Lane, commands: Sequence[Command[T]], patience: Patience
    ) -> list[T | QworkerError]:
        return call_each(
            self.factory,
            lane.connections,
            commands,
            patience,
            partial(self._attempt, lane),
            self._answered,
        )

    def _answered(self, nodes: Iterable[Address], seconds: float) -> None:
        """Learn how long nodes took to answer the calls of a trip."""

    def send(
        self,
        make: Callable[..., Command[Sent]],
        *,
        give_up_s: float | None = None,
        elsewhere: bool = False,
    ) -> Sent:
        """Execute a send once, even if replies are lost. `make` gets `lane` and `sequence`.

        `elsewhere`: raise an error at once if nothing was stored for certain.
        """
        limit_s = self.give_up_s if give_up_s is None else give_up_s
        lane = self._lanes.take()
        lane.sequence += 1
        try:
            result = self._attempt(
                lane,
                make(lane=lane.id, sequence=lane.sequence),
                Patience(limit_s),
                elsewhere=elsewhere,
            )
        except BaseException as error:
            # A call in doubt must be settled before anything newer, and this one is not repeated: its lane ends here.
            # After a definite refusal the lane continues.
            if isinstance(error, InDoubtError) or not isinstance(error, QworkerError):
                lane.connections.close()
                lane = self._new_lane()
            raise
        finally:
            self._lanes.put_back(lane)
        return result

    def run(self, plan: Plan[T], *, give_up_s: float | None = None) -> T:
        """Run the steps of a plan one after the other, and return its result.

        Raises errors inside the plan, which may continue; calls that fail one after the other share `give_up_s`. Gives
        back messages that an interrupted plan has received.
        """
        limit_s = self.give_up_s if give_up_s is None else give_up_s
        try:
            return self._perform(self._calls_of(plan, limit_s))
        except QworkerError:
            raise
        except BaseException:
            self._perform(self._release_unreturned())
            raise

    def briefly(self, step: Brief[T]) -> T | None:
        """Execute what may fail, for a fraction of a second; returns None if it did."""
        calls = self._try_briefly(step)
        return self._perform(calls)

    def _perform(self, calls: Calls[T]) -> T:
        try:
            step, limit_s = next(calls)
            while True:
                try:
                    result: Any = None
                    if isinstance(step, Command):
                        result = self._execute(step, Patience(limit_s))
                    elif isinstance(step, SendCall):
                        result = self.send(step.make, give_up_s=limit_s, elsewhere=step.elsewhere)
                    elif isinstance(step, Together):
                        result = self._execute_each(step.commands, Patience(limit_s))
                    else:
                        time.sleep(step.seconds)
                except QworkerError as error:
                    step, limit_s = calls.throw(error)
                else:
                    step, limit_s = calls.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            calls.close()

    @property
    def listener(self) -> Listener:
        """Hears when results can be read; made at first use, and again after a fork."""
        with self._lock:
            if self._listener is None or self._listener.pid != os.getpid():
                self._listener = Listener(self.factory)
            return self._listener

    def close(self) -> None:
        """Close the idle connections. The client may be used again."""
        listener, self._listener = self._listener, None
        if listener is not None and listener.pid == os.getpid():
            listener.close()
        self._lanes.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _attempt(
        self,
        lane: Lane,
        command: Command[T],
        patience: Patience,
        *,
        elsewhere: bool = False,
    ) -> T:
        attempt = Attempt(command, patience.give_up_s, elsewhere=elsewhere)
        while True:
            address = attempt.detour or command.node
            within_s = patience.within_s
            if patience.ends_waits:
                within_s = attempt.within_s(self.factory.reply_timeout_s)
            try:
                if address is None:
                    address = self.factory.locate(command.key, within_s)
                server = lane.connections.idle(address, within_s)
                asking = attempt.detour is not None
                began_s = time.monotonic()
                reply = call(server.connection, attempt.command, asking=asking, within_s=within_s)
                if not command.blocks_s:
                    self._answered((address,), time.monotonic() - began_s)
                result = attempt.command.decode(reply)
            except QworkerError as error:
                # After a lost reply the connection is of no use; and if the server cannot serve (a replica, a server
                # that loads), another one may answer at the same address soon.
                if isinstance(error, ServerError) and address is not None:
                    self._failed(lane, error, address)
                time.sleep(attempt.failed(error))
            except BaseException:
                # Interrupted between call and reply: the next reply on this connection is not ours.
                lane.connections.close()
                raise
            else:
                self._recent.note(command, server)
                return result

    def _per_queue(self, lane: Lane, per_queue: PerQueue[T], patience: Patience) -> T:
        """Make one call per queue, those to one node in one trip. Waits once for a node that does not serve."""
        return self.merged(per_queue, self._trip(lane, per_queue.commands, patience))

    def merged(self, per_queue: PerQueue[T], results: Sequence[Any]) -> T:
        """Make the result of a command of many queues from those of its parts, or raise their error."""
        merged = [*results]
        failed = {at: error for at, error in enumerate(merged) if isinstance(error, QworkerError)}
        if failed:
            if per_queue.unserved is None:
                raise next(iter(failed.values()))
            self._check_served(per_queue, failed, len(self.factory.masters()))
            for at, error in failed.items():
                merged[at] = per_queue.unserved(at, error)  # type: ignore[arg-type]
        return per_queue.merge(merged)

    def _failed(self, lane: Lane, error: ServerError, address: Address) -> None:
        if self.factory.failed(error, address):
            lane.connections.drop(address)

    def _new_lane(self) -> Lane:
        return Lane(ConnectionSet(self.factory, lambda server: settle_again(self._recent, server)))

    def _forked(self) -> None:
        self._recent = RecentSettles(self.factory)
