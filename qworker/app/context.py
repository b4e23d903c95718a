"""The context of a handler: the message that it handles, and its lease."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from qworker.app.feed import Feed

__all__ = ["Context", "Contextual", "current", "running"]


class HeldLease(Protocol):
    """A lease."""

    @property
    def lost(self) -> bool:
        """Whether it has expired."""

    def cancelled_at(self, position: int) -> bool:
        """Whether the message at a position was cancelled."""


class Context:
    """A delivery, as its handler sees it. Times are ms since 1970 by the server's clock.

    `receive_count` is 1 at the first delivery, plus one for every earlier delivery whose handler started, even if it
    was released or its process died. `nacks` and `timeouts` count those that failed; together they count against max
    receives.
    """

    __slots__ = (
        "_feed",
        "_lease",
        "_position",
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
        lease: HeldLease | None = None,
        position: int = 0,
        feed: Callable[[], Feed] | None = None,
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
        self._position = position
        self._feed = feed

    def __repr__(self) -> str:
        return f"Context({self.task!r}, {self.message_id!r}, receive_count={self.receive_count})"

    @property
    def attempt(self) -> int:
        """The number of this try as max receives counts it, from 1: released deliveries do not count."""
        return self.nacks + self.timeouts + 1

    @property
    def lost(self) -> bool:
        """Whether the lease has expired: another worker may be running the message."""
        return self._lease is not None and self._lease.lost

    @property
    def cancelled(self) -> bool:
        """Whether the message was cancelled while its handler runs: stop the work, and `raise Cancel`.

        The worker learns of it within a heartbeat (5 s). Cheap: check often. A coroutine need not: it is cancelled.
        """
        return self._lease is not None and self._lease.cancelled_at(self._position)

    @property
    def feed(self) -> Feed:
        """The feed of the message, for progress: `current().feed.append({"done": 3})`, read by `handle.feed()`."""
        assert self._feed is not None
        return self._feed()

    @property
    def trace(self) -> str | None:
        """The W3C `traceparent` of the sender, if any."""
        return self.flags.get("w")


class Contextual(Protocol):
    """A delivery, which makes its context on demand."""

    def context(self) -> Context:
        """Return the message of the running handler."""


#: The delivery whose handler runs in this thread or coroutine.
running: ContextVar[Contextual | None] = ContextVar("qworker_running", default=None)


def current() -> Context | None:
    """Return the delivery whose handler is running; None outside of handlers and in batch handlers."""
    delivery = running.get()
    return None if delivery is None else delivery.context()
