"""What the keys of another system hold, as values: the same for every system.

A *place* is one key in which messages wait in an order: a list, a sorted set. It is read from its front in pages; what
cannot be moved stays in it, and reading goes on behind it. Times are relative to the server that holds the place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

from qworker.errors import BodyTooLargeError, InvalidError, InvalidNameError, InvalidOptionError
from qworker.wire.codec import check_size, encode_call
from qworker.wire.names import check_task

__all__ = [
    "MAX_BODY",
    "Found",
    "Place",
    "RefusedMessageError",
    "Source",
    "SourceQueue",
    "State",
    "TaskNames",
    "Waiting",
]


#: No queue takes a larger body, in bytes.
MAX_BODY: Final = 64 * 2**20


class State(StrEnum):
    """Where a message waits in its own system."""

    READY = "ready"
    DELAYED = "delayed"
    IN_FLIGHT = "in_flight"


class RefusedMessageError(Exception):
    """A message that cannot be moved: `reason` in one word, `detail` for people. Never leaves this package."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A message that can be moved: its body as ours, and what its envelope takes along.

    `delay_ms` until it is ready, `ttl_ms` until it expires (None: what our queue says), `age_ms` since it was sent.
    `function` is what its own system calls the task, '' where that knows none.
    """

    body: bytes
    delay_ms: int = 0
    ttl_ms: int | None = None
    age_ms: int = 0
    receives: int = 0
    first_received_ms: int | None = None
    max_receives: int | None = None
    function: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """One entry of a place.

    `name` is what its own system calls it (for people), `mark` what stays the same for as long as it lives there and is
    never another's, `handle` what the place needs to let go of it. `content` is None where it cannot be moved:
    `reason` is one word for the count, `detail` says more.
    """

    name: str
    mark: str
    handle: Any
    state: State
    content: Waiting | None = None
    reason: str = ""
    detail: str = ""

    @classmethod
    def of(
        cls, name: str, mark: str, handle: Any, state: State, read: Callable[[], Waiting]
    ) -> Found:
        """Make an entry of what `read` returns, or of why it refuses."""
        try:
            content = read()
            check_size(content.body, MAX_BODY)
        except RefusedMessageError as error:
            return cls(name, mark, handle, state, None, error.reason, error.detail)
        except BodyTooLargeError as error:
            return cls(name, mark, handle, state, None, "too_large", error.problem)
        except InvalidError as error:
            return cls(name, mark, handle, state, None, "arguments", str(error))
        return cls(name, mark, handle, state, content)


class Place(Protocol):
    """One key in which messages wait."""

    #: Our priority of what waits there, 0-9.
    priority: int

    def size(self) -> int:
        """Count the entries."""

    def read(self, start: int, count: int) -> list[Found]:
        """Read up to `count` entries behind the first `start`; fewer where there are no more."""

    def let_go(self, entries: Sequence[Found]) -> int:
        """Remove entries; returns how many were still there. May be repeated."""


@dataclass(frozen=True, slots=True)
class SourceQueue:
    """A queue of another system: its places in the order in which it serves them.

    `attributes` are fields of our `meta` for what the queue itself says; `left` counts what is looked at by no place,
    by reason.
    """

    name: str
    places: Sequence[Place]
    attributes: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)


class Source(Protocol):
    """The keys of one system on one server."""

    system: str

    def queues(self) -> list[str]:
        """Name its queues, sorted."""

    def queue(self, name: str) -> SourceQueue:
        """Open one of them."""

    def consumers(self) -> int | None:
        """Count the consumers that seem to be alive; None where their keys do not tell."""


_PAIR: Final = re.compile(r"([^=]+)=(.+)", re.DOTALL)


class TaskNames:
    """Functions of another system and our tasks: as mapped, else the last part of the dotted name.

    `full` keeps the dotted name instead. Two functions never become one task unless both are mapped to it.
    """

    def __init__(self, pairs: Sequence[str] = (), *, full: bool = False) -> None:
        """Take `function=task` pairs. Raises `InvalidOptionError` and `InvalidNameError`."""
        self._full = full
        self._mapped: dict[str, str] = {}
        #: Function → task, of all that were asked for.
        self.used: dict[str, str] = {}
        for pair in pairs:
            match = _PAIR.fullmatch(pair)
            if match is None:
                raise InvalidOptionError(
                    "--task-map", f"{ascii(pair)[:80]} is no pair", "write FUNCTION=TASK"
                )
            self._mapped[match[1]] = check_task(match[2], "--task-map")

    @property
    def unmatched(self) -> list[str]:
        """Functions that were mapped, and that no message asked for so far."""
        return [function for function in self._mapped if function not in self.used]

    def call(self, function: str, args: Sequence[object], kwargs: Mapping[str, object]) -> bytes:
        """Write the call body. Raises `RefusedMessageError` for a name that does not do, `InvalidBodyError`."""
        return encode_call(self.task(function), args, kwargs)

    def task(self, function: str) -> str:
        """Name the task of a function. Raises `RefusedMessageError` (`task_name`, `ambiguous_task`)."""
        if function in self.used:
            return self.used[function]
        task = self._mapped.get(function)
        if task is None:
            task = function if self._full else function.rpartition(".")[2]
            try:
                check_task(task)
            except InvalidNameError as error:
                raise RefusedMessageError(
                    "task_name", f"{function[:200]}: {error.problem}"
                ) from error
            for other, taken in self.used.items():
                if taken == task:
                    raise RefusedMessageError(
                        "ambiguous_task", f"{function} and {other} would both be {task}"
                    )
        self.used[function] = task
        return task
