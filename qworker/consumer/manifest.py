"""What a supervisor and its child tell each other: the configuration at the start, and the manifest of the app.

The manifest comes as JSON over the control socket after the app was imported. The supervisor never imports user code;
this is all that it knows of it.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from qworker.consumer.app_names import default_name, find_module, no_module
from qworker.errors import AppLoadError
from qworker.store.url import ServerURL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qworker.app.app import QWorker, ScheduledTask
    from qworker.app.task import Task

__all__ = [
    "CONFIG_VARIABLE",
    "STACKS",
    "STOP",
    "ChildConfig",
    "Manifest",
    "ScheduleEntry",
    "TaskEntry",
    "load_app",
    "manifest_of",
    "name_of",
    "slots_for",
]

#: Where a child finds its configuration.
CONFIG_VARIABLE: Final = "QWORKER_CHILD"
#: The words that a supervisor says over the control socket: end; write the stacks of threads and coroutines.
STOP: Final = b"s"
STACKS: Final = b"t"
#: Of a traceback of an import what is shown, and the files whose frames are left out at its beginning.
_MAX_TEXT: Final = 8192
_NOT_THEIRS: Final = (__file__, importlib.__file__, "<frozen importlib")
#: Handlers at a time where nobody says how many.
_SYNC: Final = 1
_ASYNC: Final = 100


class TaskEntry(msgspec.Struct, frozen=True):
    """One task: its number on the board is its place in the list."""

    name: str
    queue: str
    is_async: bool
    time_limit_s: float | None
    max_receives: int | None
    batch: int
    max_wait_s: float


class ScheduleEntry(msgspec.Struct, frozen=True):
    """One schedule, as `qworker.daemon.schedules` registers it."""

    name: str
    spec: str
    task: str
    queue: str
    body: str
    ttl_ms: int | None
    priority: int
    max_receives: int | None
    signature: str = ""


class Manifest(msgspec.Struct, frozen=True):
    """What an app holds; `error` is set, and the rest empty, where it could not be imported.

    `app` names it, see `name_of`. `queues`: those that the child receives from. `shards`: theirs, as `queue/3`; their
    numbers on the board are their places in the list.
    """

    namespace: str = ""
    app: str = ""
    queues: list[str] = []
    shards: list[str] = []
    tasks: list[TaskEntry] = []
    schedules: list[ScheduleEntry] = []
    error: str = ""


class ChildConfig(msgspec.Struct, frozen=True):
    """What the supervisor tells a child at its start, in one environment variable of JSON."""

    app: str
    url: ServerURL
    number: int
    board: int
    control: int
    slots: int
    concurrency: int
    queues: list[str]
    weights: dict[str, float]
    burst: bool
    max_messages: int
    max_batch: int
    visibility_ms: int | None
    unknown_wait_ms: int
    takes_suspects: bool
    log_format: str
    log_level: str
    log_messages: str = "debug"
    #: Descriptor of the file for the stacks of its threads, -1 for none.
    stacks: int = -1
    loop: str = "auto"


def slots_for(concurrency: int) -> int:
    """Running slots that the child of any app needs; `concurrency` 0 means 1 for sync and 100 for async handlers."""
    return (concurrency or _SYNC) + (concurrency or _ASYNC)


def load_app(spec: str) -> QWorker:
    """Import `module[:attribute]` (or a path to a .py file) and return the app in it.

    Raises `AppLoadError` with the end of the traceback, or with the names that were found instead.
    """
    from qworker.app.app import QWorker

    named, _, attribute = spec.partition(":")
    module_name = find_module(named)
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and error.name == module_name:
            raise no_module(module_name) from error
        words = _import_text(error)
        raise AppLoadError(f"{module_name!r} cannot be imported:\n{words}") from error
    if attribute:
        found = module
        for part in attribute.split("."):
            if not hasattr(found, part):
                raise AppLoadError(f"module {module_name!r} has no {attribute!r}; {_hint(module)}")
            found = getattr(found, part)
        if not isinstance(found, QWorker):
            raise AppLoadError(
                f"{spec!r} is {type(found).__name__}, not a QWorker; {_hint(module)}"
            )
        return found
    apps = {name: value for name, value in vars(module).items() if isinstance(value, QWorker)}
    if len({id(app) for app in apps.values()}) == 1:
        return next(iter(apps.values()))
    if not apps:
        raise AppLoadError(
            f'module {module_name!r} holds no QWorker; write app = QWorker("name") at its top level'
        )
    names = ", ".join(sorted(apps))
    raise AppLoadError(
        f"module {module_name!r} holds several apps ({names}); name one: {module_name}:NAME"
    )


def _import_text(error: BaseException) -> str:
    """The traceback of an import, from the module's own lines on, in at most `_MAX_TEXT` characters."""
    below = error.__traceback__
    while below is not None and below.tb_frame.f_code.co_filename.startswith(_NOT_THEIRS):
        below = below.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, below)).strip()
    except Exception:  # noqa: BLE001 - whatever the words of the user's class do
        return type(error).__name__
    return text if len(text) <= _MAX_TEXT else f"…{text[-_MAX_TEXT:]}"


def _hint(module: Any) -> str:
    from qworker.app.app import QWorker

    names = sorted(name for name, value in vars(module).items() if isinstance(value, QWorker))
    return f"the module holds {', '.join(names)}" if names else "the module holds none"


def name_of(app: QWorker, spec: str) -> str:
    """Name an app that was loaded as `module[:attribute]`: by its own name, or else by its module."""
    from qworker.app.app import QWorker

    if app.name is not None:
        return app.name
    named = spec.partition(":")[0]
    is_path = named.endswith(".py") or "/" in named
    module = sys.modules.get(Path(named).name.removesuffix(".py") if is_path else named)
    found = (
        {id(each) for each in vars(module).values() if isinstance(each, QWorker)} if module else ()
    )
    return default_name(spec, len(found))


def manifest_of(
    app: QWorker, queues: Sequence[str], shards: Sequence[str], *, spec: str = ""
) -> Manifest:
    """Describe an app that was loaded as `spec`, and the queues of it that are received from, with their shards."""
    tasks = [_task_entry(task) for _, task in sorted(app.tasks.items())]
    schedules = [_schedule_entry(app, entry) for entry in app.schedules.values()]
    name = name_of(app, spec) if spec else app.name or ""
    return Manifest(app.namespace, name, list(queues), list(shards), tasks, schedules)


def _task_entry(task: Task[..., Any]) -> TaskEntry:
    options = task.task_options
    limit_ms = options.time_limit_ms
    return TaskEntry(
        task.name,
        task.queue,
        task.is_async,
        None if limit_ms is None else limit_ms / 1000,
        options.max_receives,
        options.batch,
        options.max_wait_ms / 1000,
    )


def _schedule_entry(app: QWorker, entry: ScheduledTask) -> ScheduleEntry:
    options, body = entry.task.task_options, entry.task.signature.encode((), {})
    return ScheduleEntry(
        entry.name,
        entry.schedule.spec,
        entry.task.name,
        entry.task.queue,
        body.decode(),
        entry.task.default_options.ttl_ms,
        options.priority,
        options.max_receives,
        app.keyring.sign_schedule(app.namespace, entry.task.queue, entry.name, body),
    )
