"""Queues and messages of another system, as values that are the same for every system.

A `SourceKey` holds messages in an order: a list, a sorted set. It is read from its front in pages; messages that cannot
be moved stay, and the next page begins behind them. Times are relative to the server of the key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

from qworker.errors import BodyTooLargeError, InvalidError
from qworker.wire.codec import check_size

__all__ = [
    "MAX_BODY",
    "Content",
    "RefusedMessageError",
    "Source",
    "SourceKey",
    "SourceMessage",
    "SourceQueue",
    "State",
]


#: No queue takes a larger body, in bytes.
MAX_BODY: Final = 64 * 2**20


class State(StrEnum):
    """Where a message waits in its own system."""

    READY = "ready"
    DELAYED = "delayed"
    IN_FLIGHT = "in_flight"


class RefusedMessageError(Exception):
    """A message that cannot be moved: `reason` in one word, `detail` as text. Not raised outside this package."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The converted message: its body, and the values for its envelope.

    `delay_ms` until it is ready, `ttl_ms` until it expires (None: our queue's), `age_ms` since it was sent. `function`
    is the other system's name of the task, '' if it has none.
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
class SourceMessage:
    """A message of another system.

    `name` is its id there, for display. `mark` identifies it for as long as it exists there and is never used for
    another one. `handle` is for the key that removes it. `content` is None if it cannot be moved: `reason` is one
    word for the count, `detail` says more.
    """

    name: str
    mark: str
    handle: Any
    state: State
    content: Content | None = None
    reason: str = ""
    detail: str = ""

    @classmethod
    def of(
        cls, name: str, mark: str, handle: Any, state: State, read: Callable[[], Content]
    ) -> SourceMessage:
        """Make a message with the content that `read` returns, or with the reason why it raises."""
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


class SourceKey(Protocol):
    """One key that holds messages."""

    #: The priority of its messages in our queue, 0-9.
    priority: int

    def size(self) -> int:
        """Count the messages."""

    def read(self, start: int, count: int) -> list[SourceMessage]:
        """Read up to `count` messages after the first `start`; fewer at the end."""

    def remove_originals(self, messages: Sequence[SourceMessage]) -> int:
        """Remove messages; returns how many were still there. May be repeated."""


@dataclass(frozen=True, slots=True)
class SourceQueue:
    """A queue of another system: its keys, in the order in which it serves them.

    `attributes` of the queue as fields of our `meta`; `left` counts messages of keys that are not read, by reason.
    """

    name: str
    keys: Sequence[SourceKey]
    attributes: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)


class Source(Protocol):
    """One system on one server."""

    system: str

    def queues(self) -> list[str]:
        """Return the names of its queues, sorted."""

    def queue(self, name: str) -> SourceQueue:
        """Open a queue."""

    def consumers(self) -> int | None:
        """Count the consumers that seem to be alive; None if the keys do not show that."""
