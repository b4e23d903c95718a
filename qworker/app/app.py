"""The app: a namespace with tasks, schedules and queues."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from difflib import get_close_matches
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    overload,
)

from qworker.app.functions import check_function, default_name, replaces
from qworker.app.handle import Handle
from qworker.app.middleware import Middleware, check_hooks
from qworker.app.options import TaskOptions, TaskOptionsDict, check_option_names
from qworker.app.runs.run import Run
from qworker.app.runs.sync_run import SyncRun
from qworker.app.runs.workflow import Workflow, workflow_options
from qworker.app.schedule import Schedule, schedule_of
from qworker.app.task import BatchTask, Task
from qworker.app.task_schedule import check_overlap
from qworker.client.execute.aio import AsyncClient
from qworker.client.execute.sync import Client
from qworker.client.inspect.scan import QueueLength, aiterate, iterate, scan_queues
from qworker.client.namespace.queues import list_queues
from qworker.client.queue import AsyncQueue, Queue
from qworker.config.fields import kinds_of, unknown_option
from qworker.config.files import ConfigFile, file_for_apps
from qworker.errors import InvalidNameError, InvalidOptionError, UnknownTaskError, shown
from qworker.store.connections import ConnectionFactory
from qworker.store.options import check_give_up, url_of_file
from qworker.store.same_server import same_server
from qworker.store.url import ServerURL
from qworker.telemetry.logger import logger
from qworker.wire.key_options import keys_of_environment
from qworker.wire.keyring import Keyring
from qworker.wire.names import check_app, check_namespace, check_schedule, check_task

if TYPE_CHECKING:
    from qworker.durations import Duration

__all__ = ["QWorker", "ScheduledTask"]

_log = logger(__name__)
_NO_FILE: Final = ConfigFile()
#: A queue's name, and how many seconds to try its calls; None: as long as the app's.
_QueueKey = tuple[str, float | None]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _Workflows(Protocol):
    """The decorator that `QWorker.workflow` with options returns."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Run, P], Coroutine[Any, Any, T]], /
    ) -> Workflow[P, Coroutine[Any, Any, T]]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[SyncRun, P], R], /) -> Workflow[P, R]: ...


class ScheduledTask:
    """A task that is sent by a schedule, without arguments."""

    __slots__ = ("name", "schedule", "task")

    def __init__(self, name: str, task: Task[..., Any], schedule: Schedule) -> None:
        self.name = name
        self.task = task
        self.schedule = schedule


class QWorker:
    """Tasks, schedules and queues of one namespace.

    `name` identifies the owner of its schedules within the namespace; default the module that `qworker run` loads it
    from, so set a name before you rename or move that module. `url`: the server of the app, and of its workers unless
    their configuration names another; default QWORKER_URL, else `url` of the configuration file, else REDIS_URL.
    `keys`: default those of QWORKER_KEYS_FILE and its like (`qworker.wire.key_options`), else of the file. `give_up`:
    how long calls are tried, default QWORKER_GIVE_UP, else that of the file, else 60 s.

    The file is that of `qworker run`: QWORKER_CONFIG names it, else qworker.toml or pyproject.toml in the current
    directory. One that other users may have put there is ignored, with the log event `config_file_ignored`.

    The first call connects, not the constructor: you can create an app at import and use it after a fork. Thread-safe.
    Raises `InvalidNameError` and `InvalidOptionError`.
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
        #: Items after which loops of runs are interrupted; set by `qworker.testing.drain`.
        self.loop_limit: int | None = None
        self._url = url
        self._keys = keys
        self._give_up_s = None if give_up is None else check_give_up(give_up, {})
        #: The configuration file, once it is read; none for an app with given connections.
        self._config: ConfigFile | None = None
        self._lock = threading.Lock()
        self._factory: ConnectionFactory | None = None
        self._client: Client | None = None
        self._queues: dict[_QueueKey, Queue] = {}
        #: Per event loop, by its id.
        self._async: dict[int, tuple[AsyncClient, dict[_QueueKey, AsyncQueue]]] = {}

    def __repr__(self) -> str:
        return f"QWorker({self.namespace!r}, tasks={sorted(self.tasks)})"

    # -- tasks ---------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self, *, name: str | None = None, **options: Unpack[TaskOptionsDict]
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    @overload
    def task(
        self,
        *,
        name: str | None = None,
        batch: int,
        max_wait: Duration = 0,
        **options: Unpack[TaskOptionsDict],
    ) -> Callable[[Callable[[list[T]], R]], BatchTask[T, R]]: ...

    def task(self, *function: Callable[..., Any], name: str | None = None, **options: Any) -> Any:
        """Register a function as a task. You can still call it as a function.

        name: default the function's name · queue: where calls are sent · retry: wait after a failure, default
        `Retry.exponential("1s", cap="10m")` · max_receives: failures until a message is dead, default the queue's (5)
        · time_limit: 10 ms to 12 h, default 15 min, None for none · ttl: drop calls that have not started by then ·
        priority: 0-9, 9 first · batch: most messages per call (1-1000), the handler takes a list; None for a handler
        of one message · max_wait: how long an incomplete batch waits for more, up to a minute · at_most_once: ack
        before the handler starts, never run it twice · result: how long to keep its return value (1 s to 30 days) for
        handles of `start`, default not at all · group: name of the group of its messages, or a function of the call's
        arguments that returns one · ordered: messages of a group run one at a time, in order.

        A function that is redefined (a notebook cell or a module loaded again) replaces its task; another function
        cannot take its name.

        Raises `InvalidNameError`; `InvalidOptionError` for an option, for a function that a call does not run (a
        generator function), and for parameters that JSON cannot be converted to.
        """
        check_option_names(options)
        task_options = TaskOptions(**options)

        kind: type[Task[..., Any]] = BatchTask if task_options.batch else Task

        def register(decorated: Callable[..., Any]) -> Task[..., Any]:
            return self._register(kind, decorated, name, task_options)

        return register(*function) if function else register

    @overload
    def workflow(
        self, function: Callable[Concatenate[Run, P], Coroutine[Any, Any, T]], /
    ) -> Workflow[P, Coroutine[Any, Any, T]]: ...

    @overload
    def workflow(self, function: Callable[Concatenate[SyncRun, P], R], /) -> Workflow[P, R]: ...

    @overload
    def workflow(
        self, *, name: str | None = None, **options: Unpack[TaskOptionsDict]
    ) -> _Workflows: ...

    def workflow(
        self, *function: Callable[..., Any], name: str | None = None, **options: Any
    ) -> Any:
        """Register a function as a workflow: a task that records its steps, and is resumed after them.

        Its first parameter is the run, a `Run` of an async function and a `SyncRun` of a plain one. Options are those
        of `task` without batch, max_wait and at_most_once; result, for how long the result and the steps are kept after
        the end, is a day by default; time_limit is for each activation; calls do not expire unless a ttl is given.

        Raises what `task` does.
        """
        check_option_names(options)
        task_options = workflow_options(options)

        def register(decorated: Callable[..., Any]) -> Task[..., Any]:
            return self._register(Workflow, decorated, name, task_options)

        return register(*function) if function else register

    def _register(
        self,
        kind: type[Task[..., Any]],
        decorated: Callable[..., Any],
        name: str | None,
        options: TaskOptions,
    ) -> Task[..., Any]:
        # Decorating a task, of this app or another, makes a second task of its function.
        handler = decorated.function if isinstance(decorated, Task) else decorated
        if isinstance(decorated, Workflow):
            handler = decorated.workflow
        check_function(handler, "task" if name is None else f"task {shown(name)}")
        task_name = default_name(handler) if name is None else check_task(name)
        first = self.tasks.get(task_name)
        if first is not None and not replaces(handler, first.function):
            raise InvalidNameError(
                "task",
                f"{task_name!r} is defined twice, at {_line_of(first.function)} and at {_line_of(handler)}",
                "give one of them another name=",
            )
        task = self.tasks[task_name] = kind(self, handler, task_name, options)
        return task

    def schedule(
        self, schedule: Schedule | str, *, name: str | None = None, **options: object
    ) -> Callable[[Callable[[], R] | Task[[], R]], Task[[], R]]:
        """Send a task on a schedule: `@app.schedule("0 4 * * *")`, `cron(…)` or `every("30s")`.

        Text is a cron expression in UTC. A plain function is registered as a task first. A function can have several
        schedules, each with its own `name`; default the task's name. Raises `InvalidNameError` for a name in use,
        and `InvalidOptionError` for anything but a schedule.
        """
        for option in options:
            if option in kinds_of(TaskOptions):
                raise InvalidOptionError(
                    f"schedule option {option}",
                    "is an option of the task",
                    f"write @app.task({option}=…) below @app.schedule(…)",
                )
            raise unknown_option(f"schedule option {option}", option, ("name",))
        due = schedule_of(schedule)

        def register(decorated: Callable[[], R] | Task[[], R]) -> Task[[], R]:
            task = decorated if isinstance(decorated, Task) else self.task(decorated)
            schedule_name = check_schedule(task.name if name is None else name)
            first = self.schedules.get(schedule_name)
            if first is not None and not replaces(task.function, first.task.function):
                raise InvalidNameError(
                    "schedule",
                    f"{schedule_name!r} is defined twice",
                    "give one of them another name=",
                )
            task.signature.check((), {})
            check_overlap(due, task)
            self.schedules[schedule_name] = ScheduledTask(schedule_name, task, due)
            return task

        return register

    def find(self, name: str) -> Task[..., Any]:
        """Return a task by its name. Raises `UnknownTaskError`, which suggests the nearest name."""
        task = self.tasks.get(name)
        if task is None:
            near = get_close_matches(name, self.tasks, 1)
            raise UnknownTaskError(name, near[0] if near else None)
        return task

    def use(self, middleware: Middleware) -> None:
        """Run middleware around every send and handler of the app.

        Raises `InvalidOptionError` for an object that lacks a hook or has an async one.
        """
        check_hooks(middleware)
        self.middleware.append(middleware)

    def handle(self, queue: str, message_id: str) -> Handle[Any]:
        """Return a handle to a message of a queue, by its id; its result is plain JSON.

        Does not look whether there is such a message; `task.handle(message_id)` gives results of the declared type.
        Raises `InvalidNameError`.
        """
        return Handle(self, queue, message_id)

    # -- queues --------------------------------------------------------------------------------

    @property
    def given_url(self) -> str | None:
        """The `url` of the constructor; None if the environment or the configuration file decides."""
        return self._url or None

    @property
    def url(self) -> str:
        """The URL of the server. Raises `InvalidOptionError` if none is set."""
        url = (
            self.given_url
            or os.environ.get("QWORKER_URL")
            or url_of_file(self._file())
            or os.environ.get("REDIS_URL")
        )
        if not url:
            raise InvalidOptionError(
                "url",
                "is not set",
                "set QWORKER_URL to a Redis or Valkey URL such as redis://localhost:6379, or to embedded:, "
                "or start in the directory of your qworker.toml",
            )
        return url

    @property
    def keyring(self) -> Keyring:
        """The keys that sign and encrypt messages; empty by default. Raises `InvalidOptionError` for wrong keys."""
        if self._keys is None:
            self._keys = keys_of_environment(file=self._file())
        return self._keys

    @property
    def give_up_s(self) -> float:
        """How many seconds a call is tried. Raises `InvalidOptionError` for a wrong QWORKER_GIVE_UP."""
        if self._give_up_s is None:
            self._give_up_s = check_give_up(None, os.environ, self._file())
        return self._give_up_s

    def connect_with(self, factory: ConnectionFactory | None) -> None:
        """Use this factory's connections from now on instead of the URL; None goes back to the URL."""
        with self._lock:
            self._factory = factory
            self._config = None if factory is None else _NO_FILE
            self._client = None
            self._queues = {}
            self._async = {}

    @property
    def client(self) -> Client:
        """The sync client, created on first use."""
        with self._lock:
            if self._client is None:
                self._client = Client(
                    self._connections(), give_up_s=self.give_up_s, keyring=self.keyring
                )
            return self._client

    def queue(self, name: str, *, give_up: Duration | None = None) -> Queue:
        """Return a queue. `give_up`: how long its calls are tried, default as long as the app's (100 ms to a day)."""
        key = (name, None if give_up is None else check_give_up(give_up, {}))
        queue = self._queues.get(key)
        if queue is None:
            new = Queue(self.client, self.namespace, name, give_up_s=key[1])
            queue = self._queues.setdefault(key, new)
        return queue

    def aqueue(self, name: str, *, give_up: Duration | None = None) -> AsyncQueue:
        """Return a queue for the running event loop; `give_up` as for `queue`."""
        import asyncio

        loop_id = id(asyncio.get_running_loop())
        if loop_id not in self._async:
            for other, (client, _) in list(self._async.items()):
                if client.loop_closed():
                    del self._async[other]
            self._async[loop_id] = (
                AsyncClient(self._connections(), give_up_s=self.give_up_s, keyring=self.keyring),
                {},
            )
        client, queues = self._async[loop_id]
        key = (name, None if give_up is None else check_give_up(give_up, {}))
        if key not in queues:
            queues[key] = AsyncQueue(client, self.namespace, name, give_up_s=key[1])
        return queues[key]

    def queues(self) -> list[str]:
        """List the names of the queues in the namespace, sorted: created, sent to, or found by a reaper."""
        return self.client.run(list_queues(self.namespace))

    def scan_queues(
        self, *, minlen: int = 0, maxlen: int | None = None, count: int = 100
    ) -> Iterator[QueueLength]:
        """Iterate over queues with `minlen` to `maxlen` ready messages, about `count` queues per call."""
        return iterate(
            self.client,
            lambda cursor: scan_queues(
                self.namespace, cursor, count=count, minlen=minlen, maxlen=maxlen
            ),
        )

    def ascan_queues(
        self, *, minlen: int = 0, maxlen: int | None = None, count: int = 100
    ) -> AsyncIterator[QueueLength]:
        """Iterate over queues as `scan_queues` does, with `async for`."""
        return aiterate(
            self.aqueue("default").client,
            lambda cursor: scan_queues(
                self.namespace, cursor, count=count, minlen=minlen, maxlen=maxlen
            ),
        )

    def pause(self, direction: str = "all", *, strict: bool = False) -> dict[str, str]:
        """Pause all queues as `Queue.pause` does, one by one; returns the pauses by queue."""
        return {name: self.queue(name).pause(direction, strict=strict) for name in self.queues()}

    async def apause(self, direction: str = "all", *, strict: bool = False) -> dict[str, str]:
        """Pause all queues as `pause` does."""
        return {
            name: await self.aqueue(name).pause(direction, strict=strict)
            for name in await self.aqueues()
        }

    async def aqueues(self) -> list[str]:
        """List the names of the queues in the namespace, as `queues` does."""
        return await self.aqueue("default").client.run(list_queues(self.namespace))

    def close(self) -> None:
        """Close the idle connections of the sync client. You can keep using the app."""
        if self._client is not None:
            self._client.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        import asyncio

        client, _ = self._async.pop(id(asyncio.get_running_loop()), (None, None))
        if client is not None:
            await client.close()

    def _file(self) -> ConfigFile:
        if self._config is None:
            self._config = file_for_apps()
            for warning in self._config.warnings if self._config.path is None else ():
                _log.warning("config_file_ignored", problem=warning)
        return self._config

    def _connections(self) -> ConnectionFactory:
        if self._factory is None:
            # Imported late: most processes never need the embedded store.
            from qworker.store.embedded.store import resolve_url

            url = self.url
            self._warn_of_redis_url(url)
            self._factory = ConnectionFactory(resolve_url(url))
        return self._factory

    def _warn_of_redis_url(self, url: str) -> None:
        """Log `redis_url_not_used` if the configuration file decides, and REDIS_URL names another server."""
        other = os.environ.get("REDIS_URL")
        if not other or self._config is None or url != self._config.values.get("url"):
            return
        try:
            if same_server(ServerURL.parse(url), ServerURL.parse(other)):
                return
        except InvalidOptionError:
            pass  # it leads nowhere
        _log.warning(
            "redis_url_not_used", server=str(ServerURL.parse(url)), server_from=self._config.name
        )


def _line_of(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)
