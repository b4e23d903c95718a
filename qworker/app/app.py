"""The app: a namespace, its tasks and schedules, and the way to its queues."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from qworker.app.functions import check_function, default_name, replaces
from qworker.app.middleware import Middleware, check_hooks
from qworker.app.schedule import Schedule, schedule_of
from qworker.app.task import TASK_OPTIONS, BatchTask, Task, TaskOptions, unknown_task_option
from qworker.client.aio import AsyncClient
from qworker.client.aqueue import AsyncQueue
from qworker.client.queue import Queue
from qworker.client.registry import list_queues
from qworker.client.scanning import QueueLength, aiterate, iterate, scan_queues
from qworker.client.sync import Client
from qworker.config.fields import unknown_option
from qworker.config.kinds import shown
from qworker.errors import InvalidNameError, InvalidOptionError, UnknownTaskError
from qworker.store.connection import ConnectionFactory
from qworker.store.options import check_give_up
from qworker.wire.key_options import keys_of_environment
from qworker.wire.keyring import Keyring
from qworker.wire.names import check_app, check_namespace, check_schedule, check_task

if TYPE_CHECKING:
    from qworker.app.retry import RetryPolicy
    from qworker.durations import Duration

__all__ = ["QWorker", "ScheduledTask"]

#: By name, and the seconds for which calls are tried where that is not the app's.
_AsyncQueues = dict[tuple[str, float | None], AsyncQueue]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class ScheduledTask:
    """A task that is sent by a schedule, without arguments."""

    __slots__ = ("name", "schedule", "task")

    def __init__(self, name: str, task: Task[..., Any], schedule: Schedule) -> None:
        self.name = name
        self.task = task
        self.schedule = schedule


class QWorker:
    """An application of queues in one namespace.

    `name` says to whom its schedules belong, among the apps of the namespace; None: the module that `qworker run`
    finds it in. Give one before you rename or move that module. `url` None: QWORKER_URL, else REDIS_URL. `keys` None:
    what QWORKER_KEYS_FILE and its like name (`qworker.wire.key_options`). Nothing is connected before the first call,
    so an app may be made at import and used after a fork. Thread-safe.
    """

    def __init__(
        self,
        namespace: str = "qworker",
        *,
        name: str | None = None,
        url: str | None = None,
        keys: Keyring | None = None,
        give_up: Duration | None = None,
    ) -> None:
        self.namespace = check_namespace(namespace)
        self.name = None if name is None else check_app(name)
        self.tasks: dict[str, Task[..., Any]] = {}
        self.schedules: dict[str, ScheduledTask] = {}
        self.middleware: list[Middleware] = []
        self._url = url
        self._keys = keys
        self._give_up_s = None if give_up is None else check_give_up(give_up, {})
        self._lock = threading.Lock()
        self._factory: ConnectionFactory | None = None
        self._client: Client | None = None
        self._queues: dict[tuple[str, float | None], Queue] = {}
        self._async: dict[int, tuple[AsyncClient, _AsyncQueues]] = {}

    def __repr__(self) -> str:
        return f"QWorker({self.namespace!r}, tasks={sorted(self.tasks)})"

    # -- tasks ---------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str = "default",
        retry: RetryPolicy | None = None,
        max_receives: int | None = None,
        time_limit: Duration | None = "15m",
        ttl: Duration | None = None,
        priority: int = 0,
        at_most_once: bool = False,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str = "default",
        retry: RetryPolicy | None = None,
        max_receives: int | None = None,
        time_limit: Duration | None = "15m",
        ttl: Duration | None = None,
        priority: int = 0,
        batch: int,
        max_wait: Duration = 0,
        at_most_once: bool = False,
    ) -> Callable[[Callable[[list[T]], R]], BatchTask[T, R]]: ...

    def task(
        self,
        *function: Callable[..., Any],
        **options: Any,
    ) -> Any:
        """Register a function as a task; the result is still callable as the function.

        name: default the function's name · queue: where calls are sent · retry: the wait after a failure
        (default `Retry.exponential("1s", cap="10m")`) · max_receives: failures until a message is dead (default the
        queue's, 5) · time_limit: default 15 min, None for none · ttl: calls not started by then are dropped ·
        priority: 0-9, 9 first · batch: messages per call at most (1-1000), the handler takes a list; None: one message
        per call, without a list · max_wait: how long a batch may wait to fill up · at_most_once: acked before it
        starts, never run twice.

        A function that is defined anew (a notebook's cell run again, a module loaded again) replaces the task that it
        was; another function under a taken name is refused.

        Raises `InvalidNameError`, and `InvalidOptionError` for a function that a call does not run (a generator
        function), and for parameters that cannot be typed, on decoration.
        """

        name = options.pop("name", None)
        for each in options:
            if each not in TASK_OPTIONS:
                raise unknown_task_option(each)
        checked = TaskOptions.of(**options)

        def register(decorated: Callable[..., Any]) -> Task[..., Any]:
            # A task of another app, or of this one under another name: both run the function.
            handler = decorated.function if isinstance(decorated, Task) else decorated
            check_function(handler, "task" if name is None else f"task {shown(name)}")
            chosen = default_name(handler) if name is None else check_task(name)
            first = self.tasks.get(chosen)
            if first is not None and not replaces(handler, first.function):
                raise InvalidNameError(
                    "task",
                    f"{chosen!r} is defined twice, at {_place(first.function)} and at {_place(handler)}",
                    "give one of them another name=",
                )
            kind: type[Task[..., Any]] = BatchTask if checked.batch else Task
            task = kind(self, handler, chosen, checked)
            self.tasks[chosen] = task
            return task

        return register(*function) if function else register

    def schedule(
        self, schedule: Schedule | str, *, name: str | None = None, **options: object
    ) -> Callable[[Callable[[], R] | Task[[], R]], Task[[], R]]:
        """Send a task at the times of a schedule: `@app.schedule("0 4 * * *")`, or `cron(…)` or `every("30s")`.

        Text is a cron expression in UTC. A plain function is registered as a task first. A function may have several
        schedules, each with a name of its own. Raises `InvalidNameError` for a name that is taken, and
        `InvalidOptionError` for what is not a schedule.
        """
        for each in options:
            if each in TASK_OPTIONS:
                raise InvalidOptionError(
                    f"schedule option {each}",
                    "is an option of the task",
                    f"write @app.task({each}=…) below @app.schedule(…)",
                )
            raise unknown_option(f"schedule option {each}", each, ("name",))
        due = schedule_of(schedule)

        def register(decorated: Callable[[], R] | Task[[], R]) -> Task[[], R]:
            task = decorated if isinstance(decorated, Task) else self.task(decorated)
            chosen = check_schedule(task.name if name is None else name)
            first = self.schedules.get(chosen)
            if first is not None and not replaces(task.function, first.task.function):
                raise InvalidNameError(
                    "schedule", f"{chosen!r} is defined twice", "give one of them another name="
                )
            task.signature.check((), {})
            self.schedules[chosen] = ScheduledTask(chosen, task, due)
            return task

        return register

    def find(self, name: str) -> Task[..., Any]:
        """Return a task by its name. Raises `UnknownTaskError` with the nearest name."""
        task = self.tasks.get(name)
        if task is None:
            near = get_close_matches(name, self.tasks, 1)
            raise UnknownTaskError(name, near[0] if near else None)
        return task

    def use(self, middleware: Middleware) -> None:
        """Run middleware around every send and handler of the app.

        Raises `InvalidOptionError` for what has no such hooks, or hooks that would have to be awaited.
        """
        check_hooks(middleware)
        self.middleware.append(middleware)

    # -- queues --------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The URL of the server. Raises `InvalidOptionError` where none is set."""
        url = self._url or os.environ.get("QWORKER_URL") or os.environ.get("REDIS_URL")
        if not url:
            raise InvalidOptionError(
                "url",
                "is not set",
                "set QWORKER_URL to a Redis or Valkey URL such as redis://localhost:6379, or to embedded:",
            )
        return url

    @property
    def keyring(self) -> Keyring:
        """The keys that sign and encrypt messages; an empty ring without. Raises `InvalidOptionError`."""
        if self._keys is None:
            self._keys = keys_of_environment()
        return self._keys

    @property
    def give_up_s(self) -> float:
        """Seconds for which a call is tried. Raises `InvalidOptionError` for a wrong QWORKER_GIVE_UP."""
        if self._give_up_s is None:
            self._give_up_s = check_give_up(None, os.environ)
        return self._give_up_s

    def connect_with(self, factory: ConnectionFactory | None) -> None:
        """Use connections of this factory from now on, whatever URL is set; None goes back to the URL."""
        with self._lock:
            self._factory = factory
            self._client = None
            self._queues = {}
            self._async = {}

    @property
    def client(self) -> Client:
        """The sync client, made at first use."""
        with self._lock:
            if self._client is None:
                self._client = Client(
                    self._connections(), give_up_s=self.give_up_s, keyring=self.keyring
                )
            return self._client

    def queue(self, name: str, *, give_up: Duration | None = None) -> Queue:
        """The low-level API of a queue. `give_up`: how long its calls are tried, None for as long as the app's."""
        known = (name, None if give_up is None else check_give_up(give_up, {}))
        queue = self._queues.get(known)
        if queue is None:
            made = Queue(self.client, self.namespace, name, give_up_s=known[1])
            queue = self._queues.setdefault(known, made)
        return queue

    def aqueue(self, name: str, *, give_up: Duration | None = None) -> AsyncQueue:
        """The low-level API of a queue for the running event loop; `give_up` as of `queue`."""
        import asyncio

        loop = asyncio.get_running_loop()
        known = self._async.get(id(loop))
        if known is None:
            for each in list(self._async):
                if self._async[each][0].loop_closed():
                    del self._async[each]
            known = self._async[id(loop)] = (
                AsyncClient(self._connections(), give_up_s=self.give_up_s, keyring=self.keyring),
                {},
            )
        client, queues = known
        named = (name, None if give_up is None else check_give_up(give_up, {}))
        queue = queues.get(named)
        if queue is None:
            queue = AsyncQueue(client, self.namespace, name, give_up_s=named[1])
            queues[named] = queue
        return queue

    def queues(self) -> list[str]:
        """Name the queues of the namespace, sorted: those made or sent to, or found by a reaper."""
        return self.client.run(list_queues(self.namespace))

    def scan_queues(
        self, *, minlen: int = 0, maxlen: int | None = None, count: int = 100
    ) -> Iterator[QueueLength]:
        """Go through the queues of which `minlen` to `maxlen` messages are ready, in calls for about `count` each."""
        return iterate(
            self.client,
            lambda cursor: scan_queues(
                self.namespace, cursor, count=count, minlen=minlen, maxlen=maxlen
            ),
        )

    def ascan_queues(
        self, *, minlen: int = 0, maxlen: int | None = None, count: int = 100
    ) -> AsyncIterator[QueueLength]:
        """Go through the queues as `scan_queues` does, with `async for`."""
        return aiterate(
            self.aqueue("default").client,
            lambda cursor: scan_queues(
                self.namespace, cursor, count=count, minlen=minlen, maxlen=maxlen
            ),
        )

    def pause(self, direction: str = "all", *, strict: bool = False) -> dict[str, str]:
        """Pause all queues as `Queue.pause` does, one after the other; returns what is paused of each then."""
        return {name: self.queue(name).pause(direction, strict=strict) for name in self.queues()}

    async def apause(self, direction: str = "all", *, strict: bool = False) -> dict[str, str]:
        """Pause all queues as `pause` does."""
        return {
            name: await self.aqueue(name).pause(direction, strict=strict)
            for name in await self.aqueues()
        }

    async def aqueues(self) -> list[str]:
        """Name the queues of the namespace, as `queues` does."""
        return await self.aqueue("default").client.run(list_queues(self.namespace))

    def close(self) -> None:
        """Close the idle connections of the sync client. The app may be used again."""
        if self._client is not None:
            self._client.close()

    async def aclose(self) -> None:
        """Close the connections that belong to the running event loop."""
        import asyncio

        known = self._async.pop(id(asyncio.get_running_loop()), None)
        if known is not None:
            await known[0].close()

    def _connections(self) -> ConnectionFactory:
        if self._factory is None:
            # Only here: most processes never need the embedded store.
            from qworker.store.embedded import resolve_url

            self._factory = ConnectionFactory(resolve_url(self.url))
        return self._factory


def _place(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)
