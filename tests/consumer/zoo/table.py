"""A row of the zoo: a handler, what it does, and everything that is visible from outside.

    @row("returns", "is acked", section="Ordinary")
    def returns() -> None: ...

Each row has a task and a queue named after its function, so that counters, dead letters, log lines and metrics of rows
never mix. All rows run in one process, one after another or concurrently: a row that spoils its process for the next
one is a defect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from qworker import QWorker

__all__ = ["ROWS", "Refused", "Row", "Rows", "acked", "crashed", "dead", "failed"]

#: Outcomes and end of a message: `counted` are the queue's counters, `measured` those of /metrics by outcome.
Counts = Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class End:
    """How a message ends, everywhere it is reported. Anything not named must be absent.

    `counted`: the queue's counters, without `sent`. `measured`: `qworker_handled_total` by outcome. `dead_letter`:
    class of the dead letter's error, and a part of its text. `reason`: that of the dead letter. `logged`: log events
    that name the task, in order. `noted`: notes of the handler, in order.
    """

    says: str
    counted: Counts
    measured: Counts
    dead_letter: tuple[str, str] | None = None
    reason: str = ""
    logged: tuple[str, ...] = ()
    noted: tuple[Any, ...] = ()


def acked(*noted: Any, logged: tuple[str, ...] = (), messages: int = 1, says: str = "") -> End:
    """Every message is acked, and the handler notes `noted`."""
    return End(
        says=says or "acked",
        counted={"received": messages, "acked": messages},
        measured={"acked": messages},
        noted=noted,
        logged=logged,
    )


def failed(
    error: str,
    words: str = "",
    *noted: Any,
    logged: tuple[str, ...] = ("message_failed",),
    says: str = "",
) -> End:
    """The only try of the row fails: the message is dead with this error class and text."""
    return End(
        says=says or f"failed: `{error}`",
        counted={"received": 1, "nacked": 1, "dead": 1, "dead:max_receives": 1},
        measured={"buried": 1},
        dead_letter=(error, words),
        reason="max_receives",
        logged=logged,
        noted=noted,
    )


def dead(
    reason: str, dead_letter: tuple[str, str], *noted: Any, logged: tuple[str, ...] = ()
) -> End:
    """The message is dead for its own reason."""
    return End(
        says=f"dead at once: `{reason}`",
        counted={"received": 1, "dead": 1, f"dead:{reason}": 1},
        measured={"buried": 1},
        dead_letter=dead_letter,
        reason=reason,
        logged=logged,
        noted=noted,
    )


def crashed(
    words: str,
    *noted: Any,
    error: str = "WorkerDiedError",
    measured: Counts | None = None,
    logged: tuple[str, ...] = ("message_failed",),
) -> End:
    """The process ends with only this message running: the message is dead with this text."""
    return End(
        says=f"failed, counted as a timeout: `{error}`",
        counted={"received": 1, "timeouts": 1, "dead": 1, "dead:max_receives": 1},
        measured=measured or {"crashed": 1},
        dead_letter=(error, words),
        reason="max_receives",
        logged=logged,
        noted=noted,
    )


@dataclass(frozen=True, kw_only=True)
class Row:
    """A handler, and what happens to its message and its process.

    `does`: what it does, for the page. `child`: what happens to the process, '' for nothing. `ends_child`: it ends the
    process, so the row runs in another worker. `calls`: the arguments of each message. `only`: runs only `inline` or on
    `threads`; '' for both.
    """

    name: str
    section: str
    does: str
    end: End
    child: str = ""
    ends_child: bool = False
    calls: tuple[tuple[Any, ...], ...] = ((),)
    only: str = ""
    is_async: bool = False
    function: Callable[..., Any] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Refused:
    """A function that cannot be a task: `make` declares it, and is refused with this text."""

    does: str
    words: str
    make: Callable[[QWorker], object] = field(repr=False, compare=False)


@dataclass
class Rows:
    """The rows in their order, and the functions that are refused at declaration."""

    rows: dict[str, Row] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)


ROWS: Final = Rows()
