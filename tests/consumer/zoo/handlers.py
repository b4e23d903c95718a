"""The rows of the zoo, and the app whose tasks they are.

A worker imports it as `tests.consumer.zoo.handlers`, with its namespace in ZOO_NAMESPACE and the file for notes in
ZOO_HISTORY; a test imports it to read the rows.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from qworker import Bury, Discard, QWorker
from tests.consumer.zoo.table import ROWS, End, Refused, Row, acked, crashed, dead, failed

app = QWorker(os.environ.get("ZOO_NAMESPACE", "zoo"))


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


@row("returns, whatever it returns", acked("ran"), section="What it returns")
def returns() -> object:
    note("returns", "ran")
    return object()


@row("is a coroutine function that returns", acked("ran"))
async def returns_async() -> object:
    await asyncio.sleep(0)
    note("returns_async", "ran")
    return object()


# -- what it raises ----------------------------------------------------------------------------


@row(
    "raises any exception",
    failed("ValueError", "ValueError: of no use"),
    section="What it raises",
)
def raises() -> None:
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


# -- what it does to its process ---------------------------------------------------------------


@row(
    "calls `os._exit`, or its process is killed",
    crashed("exited with code 7"),
    section="What it does to its process",
    child="is replaced",
    ends_child=True,
)
def leaves_process() -> None:
    os._exit(7)


@row(
    "runs past its time limit, as a plain function",
    crashed(
        "ran past its time limit",
        error="TimeLimitError",
        logged=("time_limit_exceeded",),
    ),
    child="is ended and replaced",
    ends_child=True,
    time_limit="50ms",
)
def hangs() -> None:
    time.sleep(60)


# -- what cannot be a task ---------------------------------------------------------------------


@refused("a lambda without `name=`", "'<lambda>' is not a valid name")
def a_lambda(app: QWorker) -> object:
    return app.task(lambda: None)
