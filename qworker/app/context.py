"""What a handler can know of the message it runs for, and ask of it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Context", "Contextual", "current", "running"]


class Losable(Protocol):
    """What a delivery is part of: it may run out."""

    @property
    def lost(self) -> bool:
        """Whether it has run out."""


class Context:
    """One delivery, as its handler sees it. Times are ms since 1970 by the server's clock.

    `receive_count` is 1 at the first delivery, and one more for each that a handler was started for, however it ended:
    also one that was cut off with its process, or released. What came back before it was started does not count.
    `attempt` counts what max receives counts. `lost` says that the lease has run out meanwhile: what the handler
    still does will be done again by somebody else.
    """

    __slots__ = (
        "_lease",
        "body",
        "flags",
        "message_id",
        "nacks",
        "queue",
        "receive_count",
        "sent_ms",
        "task",
        "timeouts",
    )

    def __init__(
        self,
        queue: str,
        task: str,
        message_id: str,
        *,
        sent_ms: int,
        receive_count: int,
        nacks: int,
        timeouts: int,
        flags: Mapping[str, str],
        body: bytes,
        lease: Losable | None = None,
    ) -> None:
        self.queue = queue
        self.task = task
        self.message_id = message_id
        self.sent_ms = sent_ms
        self.receive_count = receive_count
        self.nacks = nacks
        self.timeouts = timeouts
        self.flags = flags
        self.body = body
        self._lease = lease

    def __repr__(self) -> str:
        return f"Context({self.task!r}, {self.message_id!r}, receive_count={self.receive_count})"

    @property
    def attempt(self) -> int:
        """The number of this try that counts against max receives, from 1: released deliveries do not count."""
        return self.nacks + self.timeouts + 1

    @property
    def lost(self) -> bool:
        """Whether the lease has run out: another worker may run the message now."""
        return self._lease is not None and self._lease.lost

    @property
    def trace(self) -> str | None:
        """The W3C `traceparent` that the sender carried along, if any."""
        return self.flags.get("w")


class Contextual(Protocol):
    """What has a context when it is asked for it."""

    def context(self) -> Context:
        """What the handler can know of its message."""


#: The delivery that runs in this thread or coroutine.
running: ContextVar[Contextual | None] = ContextVar("qworker_running", default=None)


def current() -> Context | None:
    """Return the delivery that runs here; None outside of handlers and in batch handlers."""
    delivery = running.get()
    return None if delivery is None else delivery.context()
