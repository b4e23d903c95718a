"""Feeds: entries that a handler publishes while it runs, such as progress, or tokens as a model produces them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from qworker.engine.feed import MAX_APPENDED, append_to_feed
from qworker.errors import InvalidBodyError
from qworker.wire.codec import encode
from qworker.wire.feed import MAX_ENTRY, write_entry

if TYPE_CHECKING:
    from qworker.app.app_parts import RunApp
    from qworker.engine.command import Command
    from qworker.wire.keys import QueueKeys

__all__ = ["Feed"]

#: How long the feed of a message without a result is kept after the last append, in ms.
_KEEP_MS: Final = 3_600_000


class Feed:
    """The feed of one message: `current().feed.append({"done": 3, "of": 10})`; read it by `handle.feed()`.

    The 1,000 newest entries are kept for as long as the result of the message, 1 h without one, after the last append.
    A handler that is started again appends again.
    """

    __slots__ = ("_app", "_keep_ms", "_keys", "message_id")

    def __init__(self, app: RunApp, keys: QueueKeys, message_id: str, keep_ms: int | None) -> None:
        self._app = app
        self._keys = keys
        self._keep_ms = keep_ms or _KEEP_MS
        self.message_id = message_id

    def append(self, *values: object) -> list[str]:
        """Append 1 to 100 values, JSON of up to 16 KiB each; returns their entry ids. One call to Redis.

        Raises `InvalidBodyError` before anything is appended, and `ServerError`.
        """
        return self._app.queue(self._keys.name).client.execute(self._command(values))

    async def aappend(self, *values: object) -> list[str]:
        """Append in async code, as `append` does."""
        return await self._app.aqueue(self._keys.name).client.execute(self._command(values))

    def _command(self, values: tuple[object, ...]) -> Command[list[str]]:
        if not 1 <= len(values) <= MAX_APPENDED:
            raise InvalidBodyError(
                "feed", f"got {len(values)} values", f"append 1 to {MAX_APPENDED} at a time"
            )
        names = self._app.namespace, self._keys.name, self.message_id
        bodies = []
        for number, value in enumerate(values):
            body = encode(value)
            if len(body) > MAX_ENTRY:
                raise InvalidBodyError(
                    f"feed value {number}",
                    f"has {len(body):,} bytes of JSON",
                    "at most 16 KiB: store it elsewhere and append a reference",
                )
            bodies.append(write_entry(body, self._app.keyring, *names))
        return append_to_feed(self._keys, self.message_id, self._keep_ms, bodies)
