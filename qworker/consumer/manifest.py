"""The configuration that a supervisor gives its child at the start, and the manifest of the app that it gets.

The child sends the manifest as JSON over the control socket, once it has imported the app. The supervisor never imports
user code; this is all that it knows about it.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from qworker.config.files import file_for_apps
from qworker.consumer.app_names import default_name, find_module, no_module
from qworker.errors import AppLoadError, InvalidOptionError
from qworker.store.options import url_of_file
from qworker.store.url import ServerURL
from qworker.wire.schedule import StoredSchedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qworker.app.app import QWorker, ScheduledTask
    from qworker.app.task import Task

__all__ = [
    "ASYNC_SLOTS",
    "CONFIG_VARIABLE",
    "STACKS",
    "STOP",
    "SYNC_SLOTS",
    "ChildConfig",
    "Manifest",
    "ManifestTask",
    "load_app",
    "manifest_of",
    "name_of",
    "slots_for",
]

#: Where a child finds its configuration.
CONFIG_VARIABLE: Final = "QWORKER_CHILD"
#: What a supervisor sends over the control socket: stop; write the stacks of threads and coroutines.
STOP: Final = b"s"
STACKS: Final = b"t"
#: Characters of the traceback of an import, and the files whose first frames are left out.
_MAX_TEXT: Final = 8192
_NOT_THE_APPS: Final = (__file__, importlib.__file__, "<frozen importlib")
#: Handlers that run at a time in a child unless `concurrency` says how many.
SYNC_SLOTS: Final = 1
ASYNC_SLOTS: Final = 100


class ManifestTask(msgspec.Struct, frozen=True):
    """One task; its number on the board is its index in the list."""

    name: str
    queue: str
    is_async: bool
    max_receives: int | None
    batch: int
    max_wait_s: float


class Manifest(msgspec.Struct, frozen=True):
    """Describes an app; if it could not be imported, `error` says why, and the rest is empty.

    `app`: its name, see `name_of`. `queues`: those that the child receives from. `shards`: theirs, as `queue/3`; their
    numbers on the board are their indexes in the list. `schedules`: by name. `url`: the one that the app was made with,
    else that of the configuration file, with passwords as ***, or its error; empty without one.
    """

    namespace: str = ""
    app: str = ""
    queues: list[str] = []
    shards: list[str] = []
    tasks: list[ManifestTask] = []
    schedules: dict[str, StoredSchedule] = {}
    error: str = ""
    url: str = ""


class ChildConfig(msgspec.Struct, frozen=True):
    """The configuration of a child: JSON in one environment variable."""

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
    #: Descriptor of the file for stacks, -1 for none.
    stacks: int = -1
    loop: str = "auto"
    #: How long runs wait for a worker that knows their task or key; None: for any time.
    unknown_run_wait_ms: int | None = None


def slots_for(concurrency: int) -> int:
    """Running slots that the child of any app needs; `concurrency` 0 means 1 for sync and 100 for async handlers."""
    return (concurrency or SYNC_SLOTS) + (concurrency or ASYNC_SLOTS)


def load_app(spec: str) -> QWorker:
    """Import `module[:attribute]` (or a path to a .py file) and return the app in it.

    Raises `AppLoadError` with the end of the traceback, or with the names of apps in the module.
    """
    from qworker.app.app import QWorker

    named, _, attribute = spec.partition(":")
    module_name = find_module(named)
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and error.name == module_name:
            raise no_module(module_name) from error
        text = _import_text(error)
        raise AppLoadError(f"{module_name!r} cannot be imported:\n{text}") from error
    if attribute:
        app = module
        for part in attribute.split("."):
            if not hasattr(app, part):
                raise AppLoadError(f"module {module_name!r} has no {attribute!r}; {_hint(module)}")
            app = getattr(app, part)
        if not isinstance(app, QWorker):
            raise AppLoadError(
                f"{spec!r} is of type {type(app).__name__}, not a QWorker; {_hint(module)}"
            )
        return app
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
    """The traceback of an import, from the frames of the module on, in at most `_MAX_TEXT` characters."""
    below = error.__traceback__
    while below is not None and below.tb_frame.f_code.co_filename.startswith(_NOT_THE_APPS):
        below = below.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, below)).strip()
    except Exception:  # noqa: BLE001 - the text of the user's class
        return type(error).__name__
    return text if len(text) <= _MAX_TEXT else f"…{text[-_MAX_TEXT:]}"


def _hint(module: Any) -> str:
    from qworker.app.app import QWorker

    names = sorted(name for name, value in vars(module).items() if isinstance(value, QWorker))
    return f"the module holds {', '.join(names)}" if names else "the module holds none"


def name_of(app: QWorker, spec: str) -> str:
    """Name an app that was loaded as `module[:attribute]`: by its own name, or else after its module."""
    from qworker.app.app import QWorker

    if app.name is not None:
        return app.name
    named = spec.partition(":")[0]
    is_path = named.endswith(".py") or "/" in named
    module = sys.modules.get(Path(named).name.removesuffix(".py") if is_path else named)
    values = vars(module).values() if module else ()
    return default_name(spec, len({id(value) for value in values if isinstance(value, QWorker)}))


def manifest_of(
    app: QWorker, queues: Sequence[str], shards: Sequence[str], *, spec: str = ""
) -> Manifest:
    """Describe an app that was loaded as `spec`, and the queues and shards that the child receives from."""
    tasks = [_manifest_task(task) for _, task in sorted(app.tasks.items())]
    name = name_of(app, spec) if spec else app.name or ""
    schedules = {
        scheduled.name: _stored(app, name, scheduled) for scheduled in app.schedules.values()
    }
    return Manifest(
        app.namespace, name, list(queues), list(shards), tasks, schedules, url=_url_of(app)
    )


def _url_of(app: QWorker) -> str:
    """Return the URL that the app uses in other processes; "" if the environment decides."""
    try:
        url = app.given_url
        if url is None and "QWORKER_URL" not in os.environ:
            url = url_of_file(file_for_apps())
        return "" if url is None else str(ServerURL.parse(url))
    except InvalidOptionError as error:
        return str(error)


def _manifest_task(task: Task[..., Any]) -> ManifestTask:
    options = task.task_options
    return ManifestTask(
        task.name,
        task.queue,
        task.is_async,
        options.max_receives,
        options.batch or 0,
        options.max_wait_ms / 1000,
    )


def _stored(app: QWorker, name: str, scheduled: ScheduledTask) -> StoredSchedule:
    task, body = scheduled.task, scheduled.task.signature.encode((), {})
    return StoredSchedule(
        app=name,
        spec=scheduled.schedule.spec,
        task=task.name,
        queue=task.queue,
        body=body.decode(),
        priority=task.task_options.priority,
        ttl_ms=task.default_options.ttl_ms,
        max_receives=task.task_options.max_receives,
        group=task.group_of((), {}),
        signature=app.keyring.sign_schedule(app.namespace, task.queue, scheduled.name, body),
    )
