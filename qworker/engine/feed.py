"""The command that appends to the feed of a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from qworker.engine.command import Command
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.wire.keys import QueueKeys

__all__ = ["MAX_APPENDED", "append_to_feed"]

#: Values of one call.
MAX_APPENDED: Final = 100


def append_to_feed(
    keys: QueueKeys, message_id: str, keep_ms: int, values: Sequence[bytes]
) -> Command[list[str]]:
    """Append up to `MAX_APPENDED` values; returns their entry ids. If the reply is lost, a repetition appends again."""

    def decode(reply: Any) -> list[str]:
        return [entry.decode() for entry in accepted(reply, keys.queue)[1:]]

    return Command(load_script("feed"), (keys.feed(message_id),), (keep_ms, *values), decode)
