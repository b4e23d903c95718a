"""The rows of the zoo, and the app whose tasks they are.

A worker imports it as `tests.consumer.zoo.handlers`, with its namespace in ZOO_NAMESPACE and the file for notes in
ZOO_HISTORY; a test imports it to read the rows.
"""

from __future__ import annotations

import asyncio
import functools
import json
import locale
import logging.config
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import structlog

from qworker import Bury, Discard, QWorker, Retry, current
from tests.consumer.zoo.table import ROWS, End, Refused, Row, acked, crashed, dead, failed

app = QWorker(os.environ.get("ZOO_NAMESPACE", "zoo"))


#: What a handler leaves running.
left: list[subprocess.Popen[bytes]] = []


def note(name: str, *words: Any) -> None:
    """Write down that a handler came by."""
    line = json.dumps([name, *words]) + "\n"
    file = os.open(os.environ["ZOO_HISTORY"], os.O_APPEND | os.O_WRONLY)
    os.write(file, line.encode())
    os.close(file)


def row(
    does: str,
    end: End,
    *,
    section: str = "",
    child: str = "",
    ends_child: bool = False,
    calls: tuple[tuple[Any, ...], ...] = ((),),
    only: str = "",
    make: Callable[[Callable[..., Any]], Any] = lambda function: function,
    **options: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function a row, and what `make` makes of it a task with one try.

    `section` '': that of the row before.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__
        before = next(reversed(ROWS.rows.values()), None)
        task = app.task(name=name, queue=name, **{"max_receives": 1, **options})(make(function))
        assert section or before is not None
        ROWS.rows[name] = Row(
            name=name,
            section=section or (before.section if before else ""),
            does=does,
            end=end,
            child=child,
            ends_child=ends_child,
            calls=calls,
            only=only,
            is_async=task.is_async,
            function=function,
        )
        return function

    return register


def refused(does: str, words: str) -> Callable[[Callable[[QWorker], object]], None]:
    """Note a function that declares what cannot be a task."""

    def register(make: Callable[[QWorker], object]) -> None:
        ROWS.refused.append(Refused(does, words, make))

    return register


# -- what it returns ---------------------------------------------------------------------------


@row("returns any value", acked("ran"), section="Return values")
def returns() -> object:
    note("returns", "ran")
    return object()


@row("is a coroutine function that returns", acked("ran"))
async def returns_async() -> object:
    await asyncio.sleep(0)
    note("returns_async", "ran")
    return object()


@row("is a lambda that returns a coroutine", acked("ran", True, logged=("awaitable_returned",)),
     make=lambda function: lambda: function())  # fmt: skip
async def returns_coroutine() -> None:
    await asyncio.sleep(0)
    note("returns_coroutine", "ran", current() is not None)


def plainly_decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate without `wraps`, and without `await`."""

    def call(*args: Any) -> Any:
        return function(*args)

    return call


@row(
    "is a coroutine function in a decorator without `wraps`",
    acked("ran", 1, "ran", 2, messages=2, logged=("awaitable_returned",)),
    make=plainly_decorated,
    calls=((1,), (2,)),
)
async def decorated_without_wraps(n: int) -> None:
    await asyncio.sleep(0)
    note("decorated_without_wraps", "ran", n)


@row(
    "is a coroutine function in a plain decorator with `wraps`",
    acked("ran", 1, "ran", 2, messages=2),
    make=lambda function: functools.wraps(function)(plainly_decorated(function)),
    calls=((1,), (2,)),
)
async def decorated_with_wraps(n: int) -> None:
    await asyncio.sleep(0)
    note("decorated_with_wraps", "ran", n)


def run_by_itself(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a plain function of a coroutine function, as many projects do."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return asyncio.run(function(*args))

    return call


@row(
    "is a coroutine function in a decorator that calls `asyncio.run`",
    acked("ran", 1, "ran", 2, messages=2),
    make=run_by_itself,
    calls=((1,), (2,)),
)
async def decorated_with_run(n: int) -> None:
    await asyncio.sleep(0)
    note("decorated_with_run", "ran", n)


def without_await(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate with a coroutine function that forgets to await."""

    @functools.wraps(function)
    async def call(*args: Any) -> Any:
        return function(*args)

    return call


@row("is async, and returns a coroutine without awaiting it", acked("ran"), make=without_await)
async def awaited_late() -> None:
    await asyncio.sleep(0)
    note("awaited_late", "ran")


class Caller:
    """A handler that is an object."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    async def __call__(self, n: int) -> None:
        await self.function(n)


@row("is an object with an async `__call__`", acked("ran", 1), make=Caller, calls=((1,),))
async def calls_object(n: int) -> None:
    note("calls_object", "ran", n)


@row(
    "is a `functools.partial` of a coroutine function",
    acked("ran", 7),
    make=lambda function: functools.partial(function, 7),
)
async def calls_partial(n: int) -> None:
    note("calls_partial", "ran", n)


@row(
    "returns a generator",
    failed("NotRunError", "returned a generator, none of which was run"),
    make=lambda function: lambda: function(),
)
def returns_generator() -> Any:
    note("returns_generator", "ran")
    yield


@row(
    "returns an async generator",
    failed("NotRunError", "returned an async generator, none of which was run"),
    make=lambda function: lambda: function(),
)
async def returns_async_generator() -> Any:
    note("returns_async_generator", "ran")
    yield


@row(
    "takes batches, and returns a coroutine",
    acked(1, logged=("awaitable_returned",)),
    make=lambda function: lambda items: function(items),
    calls=((1,),),
    batch=10,
)
async def returns_coroutine_of_batch(items: list[int]) -> None:
    await asyncio.sleep(0)
    note("returns_coroutine_of_batch", *items)


@row(
    "takes batches, and does not return a list of outcomes",
    failed("BatchResultError", "it returned int"),
    make=lambda function: lambda items: len(items),
    calls=((1,),),
    batch=10,
)
def returns_rubbish_of_batch() -> None: ...


def labelled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function attributes, as frameworks do."""
    vars(function).update(name="other", send=None, queue="other", is_async=True)
    return function


@row(
    "has attributes named `name` and `send`",
    acked("ran"),
    make=labelled,
)
def has_attributes() -> None:
    note("has_attributes", "ran")


@row("is a task of another app", acked("ran", 3), make=QWorker("other").task, calls=((3,),))
def is_task_of_another_app(n: int) -> None:
    note("is_task_of_another_app", "ran", n)


# -- what it raises ----------------------------------------------------------------------------


@row(
    "raises any exception",
    failed("ValueError", "ValueError: of no use"),
    section="Exceptions",
)
def raises() -> None:
    raise ValueError("of no use")


@row(
    "raises an error that its retry policy gives up on",
    dead("not_retried", ("ValueError", "ValueError: of no use"), logged=("message_failed",)),
    retry=Retry.exponential("1s", on=OSError),
    max_receives=5,
)
def raises_unretried() -> None:
    raise ValueError("of no use")


@row("raises `Discard`", End(
    says="done, counted as discarded",
    counted={"received": 1, "discarded": 1},
    measured={"discarded": 1},
    logged=("message_discarded",),
))  # fmt: skip
def raises_discard() -> None:
    raise Discard("no such customer")


@row("raises `Bury`", dead("rejected", ("Bury", "never"), logged=("message_buried",)))
def raises_bury() -> None:
    raise Bury("never")


@row("calls `sys.exit` or raises `SystemExit`", failed("SystemExit"))
def exits() -> None:
    sys.exit(3)


@row("raises `KeyboardInterrupt`", failed("KeyboardInterrupt"))
def raises_interrupt() -> None:
    raise KeyboardInterrupt


class WithoutArguments(Bury):
    """Control flow whose `__init__` does not come as far as its base's."""

    def __init__(self) -> None:
        pass


@row(
    "raises a subclass of `Bury` that never calls its `__init__`",
    dead("rejected", ("Bury", ""), logged=("message_buried",)),
)
def raises_incomplete() -> None:
    raise WithoutArguments


class Unwritten(Retry):
    """Control flow that says nonsense."""

    def __init__(self) -> None:
        super().__init__()
        self.delay_ms = "soon"


@row(
    "raises control flow with an invalid delay",
    failed("Unwritten", "Unwritten", logged=("failure_unreadable",)),
)
def raises_nonsense() -> None:
    raise Unwritten


class UnprintableError(Exception):
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise SystemExit("not to be shown")

    __repr__ = __str__


@row("raises an error whose `__str__` raises", failed("UnprintableError", "UnprintableError"))
def raises_unprintable() -> None:
    raise UnprintableError


@row("raises an error whose `__str__` raises, and is async", failed("UnprintableError"))
async def raises_unprintable_async() -> None:
    await asyncio.sleep(0)
    raise UnprintableError


@row(
    "raises an error whose `__str__` raises, and takes batches",
    failed("UnprintableError"),
    calls=((1,),),
    batch=10,
)
def raises_unprintable_of_batch(items: list[int]) -> None:
    raise UnprintableError


class Anonymous(type):
    """A class of classes that have no name."""

    @property
    def __name__(cls) -> str:
        raise RuntimeError("no name")


class NamelessError(Exception, metaclass=Anonymous):
    """An error that lies about all that is read of it."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")

    @property
    def __traceback__(self) -> Any:
        raise RuntimeError("no traceback")


@row(
    "raises an error without name, class and traceback", failed("NamelessError", "cannot be shown")
)
def raises_nameless() -> None:
    raise NamelessError


class PickyError(Exception):
    """An error that needs arguments."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)


@row("raises an error class without its arguments", failed("TypeError", "2 required positional"))
def raises_without_arguments() -> None:
    raise PickyError


@row("raises an error of 20 MB", failed("ValueError", "..."))
def raises_much() -> None:
    raise ValueError("x" * 20_000_000)


@row("raises an error with a lone surrogate", failed("ValueError", r"\udc80"))
def raises_surrogate() -> None:
    raise ValueError("\udc80")


@row(
    "raises `Bury` with a lone surrogate",
    dead("rejected", ("Bury", r"\udc80"), logged=("message_buried",)),
)
def buries_surrogate() -> None:
    raise Bury("\udc80")


@row("recurses infinitely", failed("RecursionError", "maximum recursion depth"))
def recurses() -> None:
    recurses()


@row("raises `MemoryError`", failed("MemoryError"))
def runs_out_of_memory() -> None:
    raise MemoryError


@row("raises `GeneratorExit`", failed("GeneratorExit"))
def raises_generator_exit() -> None:
    raise GeneratorExit


@row("raises `GeneratorExit`, and is async", failed("GeneratorExit"))
async def raises_generator_exit_async() -> None:
    await asyncio.sleep(0)
    raise GeneratorExit


@row("raises `CancelledError` itself", failed("CancelledError"))
async def raises_cancelled() -> None:
    raise asyncio.CancelledError


@row("raises `SystemExit`, and is async", failed("SystemExit"))
async def exits_async() -> None:
    await asyncio.sleep(0)
    sys.exit(3)


@row("raises a group of errors", failed("ExceptionGroup", "of no use"))
def raises_group() -> None:
    raise ExceptionGroup("several", [ValueError("of no use"), OSError(), UnprintableError()])


@row("fails in a `TaskGroup`", failed("ExceptionGroup", "ValueError: of no use"))
async def fails_in_task_group() -> None:
    async def fail() -> None:
        raise ValueError("of no use")

    async with asyncio.TaskGroup() as group:
        group.create_task(fail())
        group.create_task(asyncio.sleep(60))


@row("raises `Retry` at its last try", failed("Retry", "asked for another try"))
def raises_retry() -> None:
    raise Retry


@row("raises `StopIteration`", failed("StopIteration"))
def raises_stop_iteration() -> None:
    raise StopIteration


@row("raises `StopIteration`, and is async", failed("RuntimeError", "StopIteration"))
async def raises_stop_iteration_async() -> None:
    raise StopIteration


# -- what it binds -----------------------------------------------------------------------------

bound: ContextVar[str] = ContextVar("bound", default="clean")


@row(
    "sets context variables",
    acked("clean", "clean", messages=2),
    section="Context",
    calls=(("a",), ("b",)),
)
def binds(word: str) -> None:
    note("binds", bound.get())
    bound.set(word)


@row(
    "sets context variables, and is async",
    acked(*["clean"] * 6, messages=6),
    calls=tuple((dead_letter,) for dead_letter in "abcdef"),
)
async def binds_async(word: str) -> None:
    note("binds_async", bound.get())
    bound.set(word)
    await asyncio.sleep(0)
    assert bound.get() == word


@row(
    "sets context variables, and takes batches",
    acked("clean", "clean", messages=2),
    calls=(("a",), ("b",)),
    batch=1,
)
def binds_of_batch(words: list[str]) -> None:
    note("binds_of_batch", bound.get())
    bound.set(words[0])


@row(
    "sets context variables, is async and takes batches",
    acked(*["clean"] * 6, messages=6),
    calls=tuple((letter,) for letter in "abcdef"),
    batch=1,
)
async def binds_of_batch_async(words: list[str]) -> None:
    note("binds_of_batch_async", bound.get())
    bound.set(words[0])
    await asyncio.sleep(0)
    assert bound.get() == words[0]


@row(
    "binds fields of structlog",
    acked("clean", "clean", messages=2),
    calls=(("a",), ("b",)),
)
def binds_fields(word: str) -> None:
    note("binds_fields", structlog.contextvars.get_contextvars().get("word", "clean"))
    structlog.contextvars.bind_contextvars(word=word)


# -- what it does to its process ---------------------------------------------------------------


@row(
    "calls `os._exit`, or its process is killed",
    crashed("exited with code 7"),
    section="Its process",
    child="is replaced",
    ends_child=True,
)
def leaves_process() -> None:
    os._exit(7)


@row(
    "exceeds its time limit, as a plain function",
    crashed(
        "past its time limit of 0.05 s",
        error="TimeLimitError",
        measured={"time_limit": 1},
        logged=("time_limit_exceeded", "message_failed"),
    ),
    child="is killed and replaced",
    ends_child=True,
    time_limit="50ms",
)
def hangs() -> None:
    time.sleep(60)


@row(
    "deadlocks on its own lock, with a time limit",
    crashed(
        "past its time limit of 0.05 s",
        error="TimeLimitError",
        measured={"time_limit": 1},
        logged=("time_limit_exceeded", "message_failed"),
    ),
    child="is killed and replaced",
    ends_child=True,
    time_limit="50ms",
)
def deadlocks() -> None:
    lock = threading.Lock()
    with lock:
        lock.acquire()


@row(
    "catches the `CancelledError` of its time limit, and returns",
    acked("caught"),
    time_limit="50ms",
)
async def ignores_time_limit() -> None:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        note("ignores_time_limit", "caught")


@row("forks, and both return", acked("copy", "original"), child="continues; the copy ends")
def forks() -> None:
    copy = os.fork()
    if not copy:
        note("forks", "copy")
        return
    os.waitpid(copy, 0)
    note("forks", "original")


@row("leaves a subprocess behind", acked("began"), child="continues, with the subprocess")
def leaves_subprocess() -> None:
    quiet = subprocess.DEVNULL
    left.append(subprocess.Popen(["sleep", "30"], stdin=quiet, stdout=quiet, stderr=quiet))
    note("leaves_subprocess", "began")


@row("leaves a thread behind", acked("began"), child="continues, with the thread")
def leaves_thread() -> None:
    threading.Thread(target=time.sleep, args=(30,)).start()
    note("leaves_thread", "began")


@row("calls `asyncio.run`", acked("ran"))
def runs_loop() -> None:
    asyncio.run(asyncio.sleep(0))
    note("runs_loop", "ran")


@row("sets an event loop and closes it", acked("set"))
def leaves_loop() -> None:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.close()
    note("leaves_loop", "set")


# -- what it changes for all -------------------------------------------------------------------


@row(
    "closes `sys.stdin` and `sys.stdout`",
    acked("closed"),
    section="Process-wide changes",
    child="continues without them",
)
def closes_streams() -> None:
    sys.stdin.close()
    sys.stdout.close()
    note("closes_streams", "closed")


@row("changes the working directory", acked("/"), child="continues there")
def changes_directory() -> None:
    os.chdir("/")
    note("changes_directory", os.getcwd())


@row("changes the umask and the locale", acked("C"), child="continues with them")
def changes_umask() -> None:
    os.umask(0o077)
    note("changes_umask", locale.setlocale(locale.LC_ALL, "C"))


@row(
    "sets a handler of a signal, or ignores it",
    failed("ValueError", "signal only works in main thread"),
    child="continues: handlers do not run in its main thread",
)
def ignores_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


@row("edits `os.environ`", acked("edited"), child="continues with the change, connected as before")
def edits_environment() -> None:
    os.environ["QWORKER_URL"] = "redis://127.0.0.1:1/0"
    os.environ.pop("PATH", None)
    note("edits_environment", "edited")


@row(
    "reconfigures `logging`, disables it, and raises",
    failed("ValueError", "of no use", "configured"),
    child="continues; its own lines are written as before",
)
def configures_logging() -> None:
    logging.config.dictConfig({"version": 1})
    logging.basicConfig(force=True, level=logging.CRITICAL)
    logging.disable()
    note("configures_logging", "configured")
    raise ValueError("of no use")


# -- what cannot be a task ---------------------------------------------------------------------


@refused("a generator function", "is a generator function: it has a yield")
def a_generator(app: QWorker) -> object:
    @app.task
    def handle() -> Any:
        yield 1

    return handle


@refused("an async generator function", "is an async generator function: it has a yield")
def an_async_generator(app: QWorker) -> object:
    @app.task(name="handle", batch=10)
    async def handle(items: list[int]) -> Any:
        yield items

    return handle


@refused("an object whose `__call__` is a generator function", "is a generator function")
def a_generator_object(app: QWorker) -> object:
    class Handler:
        def __call__(self) -> Any:
            yield 1

    return app.task(name="handle")(functools.partial(Handler()))


@refused("a class", "is a class")
def a_class(app: QWorker) -> object:
    return app.task(type("Handler", (), {}))


@refused("a function with `self` in the body of a class", "is a method")
def a_method(app: QWorker) -> object:
    class Handlers:
        @app.task
        def handle(self) -> None: ...

    return Handlers


@refused("a lambda, a partial of one, or an object, without `name=`", "has no name")
def a_lambda(app: QWorker) -> object:
    return app.task(functools.partial(lambda: None))


@refused("a string: `@app.task('name')`", "is not a function")
def a_name(app: QWorker) -> object:
    return app.task("handle")


@refused("two functions with one name", "is defined twice")
def two_functions(app: QWorker) -> object:
    # In their own app: the first of them is registered.
    other = QWorker("other")
    other.task(name="handle")(print)
    return other.task(name="handle")(repr)
