"""Reads of the data source: raw replies, the next page in flight while one is decoded, retries while a server is away.

Replies are as hiredis makes them: redis-py's clients would turn every entry of a stream into a dict, which costs more
than reading it. Reads may be repeated. So if a page in flight fails (the server is gone, the slot of the queue is
moving), a `Client` sends the command again, which waits and finds the server; later pages are read there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from redis.exceptions import RedisError

from qworker.client.execute.sync import Client
from qworker.client.plan import Plan
from qworker.engine.command import Command
from qworker.engine.raw import raw
from qworker.errors import QworkerError, ServerError
from qworker.store.connections import ConnectionFactory, ServerConnection, map_error
from qworker.store.url import ServerURL

__all__ = ["Reader", "Words"]

Words = Sequence[str | int]

#: Calls in flight: the server makes the next reply while the last one is decoded.
_AHEAD: Final = 2
#: Commands per round trip.
_TOGETHER: Final = 256
_GIVE_UP_S: Final = 30.0

T = TypeVar("T")


class Reader:
    """Sends commands that may be repeated, and returns their raw replies. Connects at the first one.

    Continues through a restart, a failover or a move of slots for up to `give_up_s` seconds without any reply.
    """

    def __init__(self, server: ServerURL, *, give_up_s: float = _GIVE_UP_S) -> None:
        self._factory = ConnectionFactory(server, reply_timeout_s=10.0, name="qworker-spark")
        self._client = Client(self._factory, give_up_s=give_up_s)
        #: The connection of `replies`, to the server of the queue that it reads.
        self._server: ServerConnection | None = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the next command opens new ones."""
        self._drop()
        self._client.close()

    def execute(self, *words: str | int) -> Any:
        """Send one command and return its reply. Raises the matching `ServerError`."""
        return self._client.execute(_command(words))

    def run(self, plan: Plan[T]) -> T:
        """Execute a plan. Raises the matching `ServerError`."""
        return self._client.run(plan)

    def execute_all(self, commands: Iterable[Words]) -> list[Any]:
        """Send commands, of any queues, in one round trip per server and 256 commands; returns their replies."""
        sent, replies = [_command(words) for words in commands], list[Any]()
        for first in range(0, len(sent), _TOGETHER):
            for reply in self._client.execute_each(sent[first : first + _TOGETHER]):
                if isinstance(reply, QworkerError):
                    raise reply
                replies.append(reply)
        return replies

    def replies(self, commands: Iterable[Words]) -> Iterator[Any]:
        """Yield the replies to commands of one queue in order, with two of them in flight.

        Raises the matching `ServerError`. Exhaust or close the iterator: else replies are left on the connection.
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
        """Send a command if there is a connection to its server; else `_receive` sends all that wait."""
        server = self._server
        if server is not None and self._factory.node(command.key) != server.address:
            self._drop()
        elif server is not None:
            try:
                _send(server, command)
            except (RedisError, OSError) as error:
                self._failed(error)

    def _receive(self, waiting: deque[Command[Any]]) -> Any:
        """Read the reply to the first that waits."""
        try:
            if self._server is None:
                self._server = self._factory.open(self._factory.locate(waiting[0].key))
                for command in waiting:
                    _send(self._server, command)
            reply = self._server.connection.read_response(disable_decoding=True)
        except (RedisError, OSError, ServerError) as error:
            self._failed(error)
            reply = self._client.execute(waiting[0])
        waiting.popleft()
        return reply

    def _failed(self, error: Exception) -> None:
        """Learn from an error which server has the slot; drop a connection that broke."""
        server = self._server
        if server is not None and self._factory.failed(map_error(error, sent=True), server.address):
            self._drop()

    def _drop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.connection.disconnect()


def _command(words: Words) -> Command[Any]:
    return raw(*words)


def _send(server: ServerConnection, command: Command[Any]) -> None:
    server.connection.send_packed_command([command.packed()])
