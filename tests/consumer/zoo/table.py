"""What a row of the zoo says: a handler, what it does, and everything that can be seen of it from outside.

    @row("returns", "is acked", section="Ordinary")
    def returns() -> None: ...

Each row has a task and a queue named after its function, so that counters, dead letters, log lines and metrics of rows
never mix. All rows run in one process one after another, or beside each other: a row that spoils its process for the
next one is a defect.
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
    """How a message ends, in the places where that is told. Whatever is not named must not be there.

    `counted`: the queue's counters, without `sent`. `measured`: `qworker_handled_total` by outcome. `letter`: class and
    words that the dead letter's error has. `reason`: that of the dead letter. `logged`: events of the log that name the
    task, in order. `noted`: what the handler noted, in order.
    """

    says: str
    counted: Counts
    measured: Counts
    letter: tuple[str, str] | None = None
    reason: str = ""
    logged: tuple[str, ...] = ()
    noted: tuple[Any, ...] = ()


def acked(*noted: Any, logged: tuple[str, ...] = (), messages: int = 1, says: str = "") -> End:
    """Every message is acked, and the handler notes this."""
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
    """The one try that the row has fails: the message is dead with this class and these words."""
    return End(
        says=says or f"failed: `{error}`",
        counted={"received": 1, "nacked": 1, "dead": 1, "dead:max_receives": 1},
        measured={"buried": 1},
        letter=(error, words),
        reason="max_receives",
        logged=logged,
        noted=noted,
    )


def dead(reason: str, letter: tuple[str, str], *noted: Any, logged: tuple[str, ...] = ()) -> End:
    """The message is dead for a reason of its own."""
    return End(
        says=f"dead at once: `{reason}`",
        counted={"received": 1, "dead": 1, f"dead:{reason}": 1},
        measured={"buried": 1},
        letter=letter,
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
    """The process ends with the message in hand, alone: the message is dead with these words."""
    return End(
        says=f"failed, counted as a timeout: `{error}`",
        counted={"received": 1, "timeouts": 1, "dead": 1, "dead:max_receives": 1},
        measured=measured or {"crashed": 1},
        letter=(error, words),
        reason="max_receives",
        logged=logged,
        noted=noted,
    )


@dataclass(frozen=True, kw_only=True)
class Row:
    """A handler, and what becomes of its message and of its process.

    `does`: what it does, for the page. `child`: what becomes of the process, '' for nothing. `ends_child`: it costs the
    process, so the row runs in another worker. `calls`: the arguments of each message. `only`: where it runs, `inline`
    or `threads`; '' for both.
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
    """A function that cannot be a task: `make` declares it, and is refused with these words."""

    does: str
    words: str
    make: Callable[[QWorker], object] = field(repr=False, compare=False)


@dataclass
class Rows:
    """The rows in their order, and those that are refused when they are declared."""

    rows: dict[str, Row] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)


ROWS: Final = Rows()
