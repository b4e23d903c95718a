"""What can be a task: kinds of functions, names, and functions that are redefined."""

from __future__ import annotations

import asyncio
import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qworker import InvalidNameError, InvalidOptionError, Middleware, QWorker, every
from qworker.app.functions import is_async, wraps_async
from qworker.app.options import TaskOptions, TaskOptionsDict
from qworker.config.fields import kinds_of
from tests.tables import each


async def coroutine(n: int) -> None: ...


def function(n: int) -> None: ...


class Handler:
    """An object with handlers."""

    async def __call__(self, n: int) -> None: ...

    async def handle(self, n: int) -> None: ...

    @staticmethod
    def alone(n: int) -> None: ...


class Plain:
    """An object that is called as a function."""

    def __call__(self, n: int) -> None: ...


@functools.wraps(coroutine)
def runs_it(n: int) -> Any:
    return asyncio.run(coroutine(n))


@functools.wraps(function)
async def awaits_it(n: int) -> None:
    function(n)


@each(
    "handler, awaited, wraps",
    [
        (function, False, False),
        (coroutine, True, False),
        (Handler(), True, False),
        (Plain(), False, False),
        (Handler().handle, True, False),
        (Handler.alone, False, False),
        (functools.partial(coroutine, 1), True, False),
        (functools.partial(functools.partial(Handler()), 1), True, False),
        (staticmethod(coroutine), True, False),
        (runs_it, False, True),
        (functools.partial(runs_it), False, True),
        (awaits_it, True, False),
    ],
)
def test_the_function_that_runs_decides_whether_calls_are_awaited(
    handler: Callable[..., Any], awaited: bool, wraps: bool
) -> None:
    """A handler is async if the function that a call reaches is, whatever a decorator says that it wraps."""
    assert (is_async(handler), wraps_async(handler)) == (awaited, wraps)


@each("handler", [Handler(), Plain(), Handler().handle, functools.partial(function)])
def test_annotations_of_every_kind_of_handler_are_read(handler: Callable[..., Any]) -> None:
    """Parameters of objects, methods and partials are typed like those of functions."""
    assert str(QWorker("shapes").task(name="handle")(handler).signature) == "handle(n: int)"


def test_a_partial_is_named_after_its_function() -> None:
    """A partial without `name=` has the name of its function."""
    assert QWorker("shapes").task(functools.partial(function, 1)).name == "function"


def test_attributes_of_a_function_do_not_become_those_of_its_task() -> None:
    """A function's `name`, `queue` or `send` do not replace the task's; its docstring is the task's."""

    def handle() -> None:
        """Do it."""

    vars(handle).update(name="other", send=None, queue="elsewhere", app=None, signature=None)
    app = QWorker("shapes")
    task = app.task(queue="mail")(handle)
    assert (task.name, task.queue, task.app, task.__doc__) == ("handle", "mail", app, "Do it.")
    assert callable(task.send)


def test_a_task_of_two_apps_belongs_to_each() -> None:
    """`@b.task @a.task` makes two tasks of one function, one per app."""
    first, second = QWorker("first"), QWorker("second")
    inner = first.task(name="one")(coroutine)
    outer = second.task(name="two")(inner)
    assert (inner.app, inner.name) == (first, "one")
    assert (outer.app, outer.name, outer.is_async) == (second, "two", True)
    assert outer.function is coroutine


# -- redefined ---------------------------------------------------------------------------------


def run_cell(app: QWorker, source: str, number: int) -> None:
    """Run a cell as a notebook does: in one module, from its own file."""
    scope = {"app": app, "__name__": "__main__", "every": every}
    exec(compile(source, f"/tmp/ipykernel_1/{number}.py", "exec"), scope)


def test_a_cell_that_is_run_again_replaces_its_tasks() -> None:
    """When a cell is run again, changed or not, the newer function becomes the task."""
    app = QWorker("cells")
    run_cell(app, "@app.task\ndef handle(n: int): return 1", 1)
    first = app.tasks["handle"]
    run_cell(app, "# changed\n@app.task(queue='mail')\ndef handle(n: int): return 2", 2)
    assert (app.tasks["handle"](0), app.tasks["handle"].queue) == (2, "mail")
    assert first(0) == 1


def test_a_schedule_of_a_cell_that_is_run_again_is_replaced() -> None:
    """The task of a schedule and the schedule are replaced together."""
    app = QWorker("cells")
    for number, interval in enumerate(("1m", "2m")):
        run_cell(app, f"@app.schedule(every({interval!r}))\ndef sweep(): ...", number)
    assert app.schedules["sweep"].schedule == every("2m")
    assert app.schedules["sweep"].task is app.tasks["sweep"]


def test_a_decorated_function_of_a_cell_is_replaced_too() -> None:
    """A function that another cell's decorator wrapped is recognised."""
    app = QWorker("cells")

    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        return functools.wraps(function)(lambda *args: function(*args))

    for number in (1, 2):
        scope = {"app": app, "__name__": "__main__", "logged": logged}
        source = f"@app.task\n@logged\ndef handle(n: int): return {number}"
        exec(compile(source, f"/tmp/ipykernel_1/{number}.py", "exec"), scope)
    assert app.tasks["handle"](0) == 2


def test_a_module_that_is_loaded_again_replaces_its_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`importlib.reload` of an edited module replaces its tasks."""
    source = tmp_path / "reloaded_jobs.py"
    head = "from tests.app.test_functions import RELOADED as app\n"
    source.write_text(head + "@app.task\ndef handle(): return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = importlib.import_module("reloaded_jobs")
    source.write_text(head + "\n\n@app.task\ndef handle(): return 2\n")
    try:
        importlib.reload(module)
    finally:
        del sys.modules["reloaded_jobs"]
    assert RELOADED.tasks["handle"]() == 2


RELOADED = QWorker("reloaded")


def test_two_functions_of_one_name_in_one_source_are_refused() -> None:
    """A second function of the same name in one module is a mistake: the error names both lines."""
    app = QWorker("twice")

    @app.task
    def handle() -> None: ...

    with pytest.raises(InvalidNameError, match=r"'handle' is defined twice, at .* and at .*"):

        @app.task
        def handle() -> None: ...


def test_a_loop_that_makes_tasks_of_one_name_is_refused() -> None:
    """One definition that runs several times makes functions with different closures."""
    app = QWorker("loop")

    def make(queue: str) -> None:
        @app.task(queue=queue)
        def handle() -> str:
            return queue

    make("a")
    with pytest.raises(InvalidNameError, match="'handle' is defined twice"):
        make("b")
    assert app.tasks["handle"].queue == "a"


# -- middleware --------------------------------------------------------------------------------


def test_async_hooks_are_refused() -> None:
    """An async hook would never run: `use` refuses it."""

    class Hooks(Middleware):
        async def after(self, context: Any, outcome: str, error: Any) -> None:  # type: ignore[override]
            """Never called."""

    app = QWorker("hooks")
    with pytest.raises(InvalidOptionError, match=r"middleware 'Hooks': has an async after\(\)"):
        app.use(Hooks())
    with pytest.raises(InvalidOptionError, match=r"middleware 'object': has no sending\(\)"):
        app.use(object())  # type: ignore[arg-type]
    assert app.middleware == []


# -- options -----------------------------------------------------------------------------------


@each(
    "option, said",
    [
        ({"max_retries": 3}, r"^task option max_retries: is unknown; did you mean max_receives\?$"),
        ({"timeout": 3}, r"^task option timeout: is unknown; did you mean time_limit\?$"),
        ({"quue": "a"}, r"^task option quue: is unknown; did you mean queue\?$"),
        ({"zzz": 1}, r"^task option zzz: is unknown; known are name, queue, retry, max_receives, "),
        (
            {"delay": "1m"},
            r"^task option delay: is an option of a single send; write task.options\(delay=…\)",
        ),
        (
            {"batch": 0},
            r"^batch: 0 is out of range; a number from 1 to 1000, or None for a handler of one",
        ),
        ({"batch": True}, r"^batch: True is out of range"),
        ({"batch": 1001}, r"^batch: 1001 is out of range"),
        ({"max_wait": "1s"}, r"^max_wait: is set without batch"),
        ({"at_most_once": "no"}, r"^at_most_once: 'no' is neither true nor false"),
    ],
)
def test_an_option_that_a_task_does_not_have_is_refused_by_name(
    option: dict[str, Any], said: str
) -> None:
    """Decoration names a wrong option, with the one that is meant or the limit."""
    app = QWorker("options")
    with pytest.raises(InvalidOptionError, match=said):
        app.task(**option)(function)
    assert app.tasks == {}


def test_type_checkers_know_every_option() -> None:
    """`TaskOptionsDict` and the overload for batches name the options of `TaskOptions`."""
    typed = TaskOptionsDict.__annotations__.keys() | {"batch", "max_wait"}
    assert typed == kinds_of(TaskOptions).keys()


def test_batch_none_is_the_default() -> None:
    """`batch=None` is a handler of one message at a time, as without the option."""
    assert QWorker("options").task(batch=None)(function).task_options.batch is None
