"""Readings for single screens, made when they are asked for: schedules, runs, durability, paused tasks, stacks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from qworker.client.calls import CallGroup
from qworker.client.execute.backoff import AWAY
from qworker.client.inspect.runs import RunStatus
from qworker.client.namespace.paused_tasks import read_paused_tasks
from qworker.client.namespace.queues import holding
from qworker.client.namespace.requests import ask_workers
from qworker.client.per_shard import of_one_key
from qworker.daemon.durability import Durability, inspect_server
from qworker.daemon.schedule_listing import ListedSchedule, list_schedules
from qworker.errors import QworkerError, ServerError
from qworker.wire.keys import QueueKeys

if TYPE_CHECKING:
    from qworker.monitor.namespace import Namespace

__all__ = ["Handler", "ListedCalls", "ListedRuns", "Readings", "SharedReading", "Stacks"]

T = TypeVar("T")

#: Seconds for which a reading is kept at least and at most, and as a multiple of what it took the server and this
#: process.
_KEPT_S: Final = 4.0
_LONGEST_S: Final = 60.0
_REST: Final = 150
#: Seconds for which the settings of the server are kept.
_SERVER_S: Final = 15.0
#: Seconds for which the stacks of a worker are those of a moment ago; workers that are asked at the same time.
_STACKS_S: Final = 2.0
_ASKED: Final = 4
_KNOWN: Final = 100
#: Runs that are read of each queue, and of all; messages of a queue up to which those of its runs are searched for.
_OF_QUEUE: Final = 100
_OF_ALL: Final = 500
_SEARCHED: Final = 20_000


class SharedReading(Generic[T]):
    """A reading of a namespace: made when a viewer asks and the last one is old; viewers who ask meanwhile share it.

    `partial`: whether a node of a Cluster is away: the reading is soon made again then. `spent_s`: what the
    readings of a thread have taken so far, see `Namespace.spent_s`.
    """

    def __init__(
        self,
        read: Callable[[], T],
        *,
        for_s: float = _KEPT_S,
        partial: Callable[[], bool],
        spent_s: Callable[[], float],
    ) -> None:
        self._read = read
        self._spent_s = spent_s
        self._partial = partial
        self._for_s = for_s
        self._lock = threading.Lock()
        self._kept: tuple[T] | None = None
        self._until_s = 0.0

    def get(self) -> T:
        """Return the reading: the last one while the server is away. Raises `ServerError` if there is none."""
        with self._lock:
            if self._kept is None or time.monotonic() >= self._until_s:
                started_s = self._spent_s()
                try:
                    self._kept = (self._read(),)
                except ServerError:
                    # A viewer does not wait for the server again and again.
                    self._until_s = time.monotonic() + self._for_s
                    if self._kept is None:
                        raise
                    return self._kept[0]
                rest_s = min(_LONGEST_S, _REST * (self._spent_s() - started_s))
                if self._partial():
                    rest_s = 0.0
                self._until_s = time.monotonic() + max(self._for_s, rest_s)
            return self._kept[0]

    def forget(self) -> None:
        """Read again at the next question: something was changed."""
        with self._lock:
            self._until_s = 0.0


@dataclass(frozen=True, slots=True)
class ListedRuns:
    """Runs that have not ended, the oldest first; `cut`: there are more.

    `unsearched`: queues so long that their runs which neither sleep nor wait are `ACTIVE`.
    """

    runs: Sequence[RunStatus]
    cut: bool
    unsearched: Sequence[str]


@dataclass(frozen=True, slots=True)
class ListedCalls:
    """Groups of calls that wait, the oldest first; `cut`: there are more."""

    groups: Sequence[CallGroup]
    cut: bool


@dataclass(frozen=True, slots=True)
class Handler:
    """A running handler of a worker and its stack, the most recent call first; '' if that cannot be read."""

    pid: int
    task: str
    id: str
    seconds: float
    stack: str


class Stacks:
    """Stacks of the running handlers of workers: one question at a time to each, for any number of viewers."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._lock = threading.Lock()
        #: Threads that ask or wait: an answer may take seconds.
        self._asking = threading.BoundedSemaphore(_ASKED)
        self._locks: dict[str, threading.Lock] = {}
        self._kept: dict[str, tuple[float, Sequence[Handler] | None]] = {}

    def of(self, worker: str) -> Sequence[Handler] | None:
        """Ask a living worker; None if it does not answer, or too many are being asked. Takes up to 12 seconds."""
        came_s = time.monotonic()
        if not self._asking.acquire(blocking=False):
            return None
        try:
            with self._lock:
                if len(self._kept) > _KNOWN:
                    self._kept, self._locks = {}, {}
                lock = self._locks.setdefault(worker, threading.Lock())
            with lock:
                at_s, handlers = self._kept.get(worker, (0.0, None))
                # An answer that another viewer got meanwhile counts, and so does the lack of one.
                if at_s < came_s - (_STACKS_S if handlers is not None else 0.0):
                    handlers = self._ask(worker)
                    self._kept[worker] = (time.monotonic(), handlers)
                return handlers
        finally:
            self._asking.release()

    def _ask(self, worker: str) -> Sequence[Handler] | None:
        for answer in ask_workers(self._namespace, [worker], "stack"):
            running = answer.data.get("handlers")
            if answer.done and isinstance(running, list):
                return [_handler(one) for one in running if isinstance(one, dict)]
        return None


class Readings:
    """The readings of a namespace."""

    def __init__(self, namespace: Namespace) -> None:
        client, name, queues = namespace.client, namespace.namespace, namespace.queues

        def kept(read: Callable[[], T], for_s: float = _KEPT_S) -> SharedReading[T]:
            return SharedReading(
                read, for_s=for_s, partial=lambda: queues.away, spent_s=namespace.spent_s
            )

        self.schedules: SharedReading[list[ListedSchedule]] = kept(
            lambda: list_schedules(client, name, [*queues.list()])
        )
        self.paused_tasks: SharedReading[dict[str, int]] = kept(
            lambda: read_paused_tasks(client.execute, name)
        )
        self.runs: SharedReading[ListedRuns] = kept(lambda: _list_runs(namespace))
        self.calls: SharedReading[ListedCalls] = kept(lambda: _list_calls(namespace))
        self.durability: SharedReading[Durability] = kept(lambda: inspect_server(client), _SERVER_S)
        self.stacks = Stacks(namespace)

    def forget(self) -> None:
        """Read all again when asked."""
        for kept in (self.schedules, self.paused_tasks, self.runs, self.calls):
            kept.forget()


def _list_runs(namespace: Namespace) -> ListedRuns:
    """Read runs of the queues that have any; of a queue that cannot be read none, which its page says."""
    names = _queues_with(namespace, lambda keys: keys.runs)
    runs: list[RunStatus] = []
    cut, unsearched = False, []
    for name in names:
        if len(runs) >= _OF_ALL:
            cut = True
            break
        try:
            queue = namespace.queues.get(name)
            inspection = queue.inspect()
            short = inspection.stored + inspection.dead <= _SEARCHED
            found = queue.runs(_OF_QUEUE, search=short)
        except QworkerError as error:
            if not _is_passed_over(error, namespace):
                raise
            continue
        runs += found
        cut = cut or len(found) >= _OF_QUEUE
        unsearched += [] if short else [name]
    runs.sort(key=lambda run: run.started_ms or run.now_ms)
    return ListedRuns(runs, cut, unsearched)


def _list_calls(namespace: Namespace) -> ListedCalls:
    """Read the groups of calls of the queues that have any."""
    groups: list[CallGroup] = []
    cut = False
    for name in _queues_with(namespace, lambda keys: keys.joins):
        if len(groups) >= _OF_ALL:
            cut = True
            break
        try:
            found = namespace.queues.get(name).calls(_OF_QUEUE)
        except QworkerError as error:
            if not _is_passed_over(error, namespace):
                raise
            continue
        groups += found
        cut = cut or len(found) >= _OF_QUEUE
    groups.sort(key=lambda group: group.began_ms or 0)
    return ListedCalls(groups, cut)


def _is_passed_over(error: QworkerError, namespace: Namespace) -> bool:
    """Say whether a list leaves out a queue with this error: a broken key of it, or its node of a Cluster is away."""
    if of_one_key(error):
        return True
    return isinstance(error, AWAY) and namespace.client.factory.clustered


def _queues_with(namespace: Namespace, part: Callable[[QueueKeys], str]) -> list[str]:
    """Name the queues that have a key in one of their shards."""
    shards = namespace.queues.list()
    every = [
        QueueKeys(namespace.namespace, shard)
        for name in shards
        for shard in shards[name].names(name)
    ]
    return [*dict.fromkeys(keys.name for keys in holding(namespace.client.execute, every, part))]


def _handler(fields: dict[str, Any]) -> Handler:
    """Read a worker's description of a handler; other versions describe handlers differently."""

    def word(name: str) -> str:
        value = fields.get(name)
        return value if isinstance(value, str) else ""

    def number(name: str) -> float:
        value = fields.get(name)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else 0.0

    return Handler(int(number("pid")), word("task"), word("id"), number("seconds"), word("stack"))
