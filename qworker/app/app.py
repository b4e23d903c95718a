"""The app: a namespace with tasks, schedules and queues."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from difflib import get_close_matches
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    overload,
)

from qworker.app.connected import ConnectedApp
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
from qworker.config.fields import kinds_of, unknown_option
from qworker.errors import InvalidNameError, InvalidOptionError, UnknownTaskError, shown
from qworker.wire.keyring import Keyring
from qworker.wire.names import check_app, check_schedule, check_task

if TYPE_CHECKING:
    from qworker.durations import Duration

__all__ = ["QWorker", "ScheduledTask"]

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


class QWorker(ConnectedApp):
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
        super().__init__(namespace, url=url, keys=keys, give_up=give_up)
        self.name = None if name is None else check_app(name)
        self.tasks: dict[str, Task[..., Any]] = {}
        self.schedules: dict[str, ScheduledTask] = {}
        self.middleware: list[Middleware] = []
        #: Items after which loops of runs are interrupted; set by `qworker.testing.drain`.
        self.loop_limit: int | None = None

    def __repr__(self) -> str:
        return f"QWorker({self.namespace!r}, tasks={sorted(self.tasks)})"

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
        arguments that returns one · limit_key: the key whose limits hold for its messages, or a function that returns
        one; `qworker limit set <queue> <key>/` sets them · ordered: messages of a group run one at a time, in order.

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

        Does not check that the message exists; `task.handle(message_id)` gives results of the declared type. Raises
        `InvalidNameError`.
        """
        return Handle(self, queue, message_id)


def _line_of(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)
