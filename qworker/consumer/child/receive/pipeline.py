"""Calls in flight over a child's settling connection, each with the function that reads its reply."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from qworker.consumer.child.connection import Connection
    from qworker.engine.command import Command

__all__ = ["Pipeline"]

#: A server that has not replied for this long has stopped: no call waits for its replies any more.
_REPLY_S: Final = 4.0
#: The same in a Cluster, where calls to other nodes wait behind it.
_NODE_REPLY_S: Final = 0.6


class _Call(msgspec.Struct, frozen=True):
    """A call in flight. `finish` reads its reply from the connection; it is expected until `until`."""

    finish: Callable[[], object]
    until: float


class Pipeline:
    """Sends calls now and reads their replies, in order, as they come in."""

    def __init__(self, connection: Connection, *, clustered: bool) -> None:
        self.connection = connection
        self._reply_s = _NODE_REPLY_S if clustered else _REPLY_S
        self._calls: deque[_Call] = deque()

    def __len__(self) -> int:
        return len(self._calls)

    def begin(self, command: Command[Any], finish: Callable[[], object]) -> None:
        """Send a command; `finish` is called once its reply can be read."""
        self._calls.append(_Call(finish, monotonic() + self._reply_s))
        self.connection.begin(command)

    @property
    def overdue_in(self) -> float:
        """Seconds until the wait for the first reply ends. Call it with a call in flight."""
        return max(0.0, self._calls[0].until - monotonic())

    def take(self, ready: set[int]) -> None:
        """Read the replies that are there; `ready` are the descriptors with news. Raises `Abandoned`."""
        if not self._calls:
            return
        if self.connection.fileno() not in ready | {-1}:
            if monotonic() < self._calls[0].until:
                return
            # It may have arrived behind those of a server that has stopped, which `ready` is about.
            if not self.connection.has_reply():
                self.connection.lapse()
        self._finish_first()
        # Replies that arrived in one piece are not announced again.
        while self._calls and self.connection.has_reply():
            self._finish_first()

    def take_arrived(self) -> None:
        """Read the replies that are there, without a poll before. Raises `Abandoned`."""
        arrived = self.connection.has_reply()
        self.take({self.connection.fileno()} if arrived else set())

    def take_begun(self) -> None:
        """Read the replies of all calls begun so far, however long that takes. Raises `Abandoned`."""
        # A reply may begin another call (a glance, a poll), which is not waited for.
        for _ in range(len(self._calls)):
            self._finish_first()

    def take_all(self) -> None:
        """Read all replies, also of calls that they begin, however long that takes. Raises `Abandoned`."""
        while self._calls:
            self._finish_first()

    def _finish_first(self) -> None:
        self._calls.popleft().finish()
