"""Reads of the data source: raw replies, pages on their way while one is decoded, patience with a server that is away.

Replies are as hiredis makes them: redis-py's clients would turn every entry of a stream into a dict, which costs more
than reading it. Reads may be repeated. So what goes wrong among pages that are on their way (the server is gone, the
slot of the queue is being moved) is asked again by a `Client`, which waits and finds the server; then they go on there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from redis.exceptions import RedisError

from qworker.client.commands.command import Command
from qworker.client.plan import Plan
from qworker.client.sync import Client
from qworker.errors import QworkerError, ServerError
from qworker.store.connection import ConnectionFactory, map_error
from qworker.store.lines import Line
from qworker.store.url import ServerURL

__all__ = ["Reader", "Words"]

Words = Sequence[str | int]

#: Calls on their way: the server makes the next reply while the last one is decoded.
_AHEAD: Final = 2
#: Questions that go in one trip.
_TOGETHER: Final = 256
_GIVE_UP_S: Final = 30.0


T = TypeVar("T")


class Reader:
    """Sends commands that may be repeated, and returns their raw replies. Connects at the first one.

    Goes on through a restart, a failover or a move of slots for up to `give_up_s` seconds without any reply.
    """

    def __init__(self, server: ServerURL, *, give_up_s: float = _GIVE_UP_S) -> None:
        self._factory = ConnectionFactory(server, reply_timeout_s=10.0, name="qworker-spark")
        self._client = Client(self._factory, give_up_s=give_up_s)
        #: That of `replies`, to the server of the queue that it reads.
        self._line: Line | None = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the next command opens others."""
        self._drop()
        self._client.close()

    def ask(self, *words: str | int) -> Any:
        """Send one command and return its reply. Raises the `ServerError` that fits."""
        return self._client.execute(_command(words))

    def run(self, plan: Plan[T]) -> T:
        """Execute a plan. Raises the `ServerError` that fits."""
        return self._client.run(plan)

    def ask_all(self, commands: Iterable[Words]) -> list[Any]:
        """Send commands, of several queues as well, in a trip per server and 256; returns their replies."""
        asked, found = [_command(words) for words in commands], list[Any]()
        for first in range(0, len(asked), _TOGETHER):
            for reply in self._client.execute_each(asked[first : first + _TOGETHER]):
                if isinstance(reply, QworkerError):
                    raise reply
                found.append(reply)
        return found

    def replies(self, commands: Iterable[Words]) -> Iterator[Any]:
        """Yield the replies of commands of one queue in order, with two of them on their way.

        Raises the `ServerError` that fits. To be exhausted, or closed: else replies are left on the connection.
        """
        waiting: deque[Command[Any]] = deque()
        try:
            for words in commands:
                waiting.append(_command(words))
                self._transmit(waiting[-1])
                if len(waiting) >= _AHEAD:
                    yield self._receive(waiting)
            while waiting:
                yield self._receive(waiting)
        finally:
            if waiting:
                self._drop()

    def _transmit(self, command: Command[Any]) -> None:
        """Send a command where there is a connection to its server; else `_receive` sends all that wait."""
        line = self._line
        if line is not None and self._factory.place(command.key) != line.address:
            self._drop()
        elif line is not None:
            try:
                _send(line, command)
            except (RedisError, OSError) as error:
                self._failed(error)

    def _receive(self, waiting: deque[Command[Any]]) -> Any:
        """Read the reply of the first that waits."""
        try:
            if self._line is None:
                self._line = self._factory.open(self._factory.locate(waiting[0].key))
                for command in waiting:
                    _send(self._line, command)
            reply = self._line.connection.read_response(disable_decoding=True)
        except (RedisError, OSError, ServerError) as error:
            self._failed(error)
            reply = self._client.execute(waiting[0])
        waiting.popleft()
        return reply

    def _failed(self, error: Exception) -> None:
        """Learn who has the slot from an error of the connection; drop one that broke."""
        line = self._line
        if line is not None and self._factory.failed(map_error(error, sent=True), line.address):
            self._drop()

    def _drop(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.connection.disconnect()


def _command(words: Words) -> Command[Any]:
    return Command(None, (), tuple(words), lambda reply: reply)


def _send(line: Line, command: Command[Any]) -> None:
    line.connection.send_packed_command([command.packed()])
