"""One connection for reads: raw replies, several calls on their way, and patience with a server that is away.

Replies are as hiredis makes them: redis-py's clients would turn every entry of a stream into a dict, which costs more
than reading it. Reads may be repeated, so whatever is unanswered when a connection breaks is sent again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from redis.exceptions import RedisError

from qworker.errors import RetryRule, ServerError
from qworker.store.connection import ConnectionFactory, map_error
from qworker.store.url import ServerURL

__all__ = ["Reader", "Words"]

Words = Sequence[str | int]

#: Calls on their way: the server makes the next reply while the last one is decoded.
_AHEAD: Final = 2
_GIVE_UP_S: Final = 30.0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0


class Reader:
    """Sends commands that may be repeated, and returns their raw replies. Connects at the first one.

    Goes on through a server's restart for up to `give_up_s` seconds without any reply.
    """

    def __init__(
        self,
        server: ServerURL,
        *,
        give_up_s: float = _GIVE_UP_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._factory = ConnectionFactory(server, reply_timeout_s=10.0, name="qworker-spark")
        self._give_up_s = give_up_s
        self._sleep = sleep
        self._connection: Any = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next command opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def ask(self, *words: str | int) -> Any:
        """Send one command and return its reply. Raises the `ServerError` that fits."""
        return next(self.replies([words]))

    def ask_all(self, commands: Iterable[Words]) -> list[Any]:
        """Send commands together and return their replies."""
        return list(self.replies(commands, ahead=256))

    def replies(self, commands: Iterable[Words], *, ahead: int = _AHEAD) -> Iterator[Any]:
        """Yield the replies of commands in order, with up to `ahead` of them on their way.

        Raises the `ServerError` that fits. To be exhausted, or closed: else replies are left on the connection.
        """
        waiting: deque[Words] = deque()
        try:
            for words in commands:
                waiting.append(words)
                self._transmit(words)
                if len(waiting) >= ahead:
                    yield self._receive(waiting)
            while waiting:
                yield self._receive(waiting)
        finally:
            if waiting:
                self.close()

    def _transmit(self, words: Words) -> None:
        """Send a command where there is a connection; else, or where that breaks, `_receive` sends all that wait."""
        if self._connection is not None:
            try:
                self._send([words])
            except ServerError:
                self.close()

    def _receive(self, waiting: deque[Words]) -> Any:
        """Read the reply of the first that waits; connects again while the server is away."""
        since, pause_s = time.monotonic(), 0.0
        while True:
            try:
                if self._connection is None:
                    self._connection = self._factory.connect()
                    self._send(waiting)
                reply = self._read()
            except ServerError as error:
                self.close()
                if error.retry is RetryRule.NEVER or time.monotonic() - since >= self._give_up_s:
                    raise
                self._sleep(pause_s)
                pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            else:
                waiting.popleft()
                return reply

    def _send(self, commands: Iterable[Words]) -> None:
        connection = self._connection
        try:
            for words in commands:
                connection.send_packed_command(connection.pack_command(*words))
        except (RedisError, OSError) as error:
            raise map_error(error, sent=True) from error

    def _read(self) -> Any:
        try:
            return self._connection.read_response(disable_decoding=True)
        except (RedisError, OSError) as error:
            raise map_error(error, sent=True) from error
