"""Commands on single messages that wait, given as they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from qworker.client.commands.arguments import given, standard_keys
from qworker.client.commands.command import Command
from qworker.client.commands.replies import accepted
from qworker.store.scripts import load_script
from qworker.wire.keys import QueueKeys

__all__ = ["MAX_PICKED", "NEVER_MS", "delete", "enqueue", "hold"]

#: Messages that one call takes.
MAX_PICKED: Final = 100
#: The due time of held messages: the largest integer that a score keeps.
NEVER_MS: Final = 2**53


def hold(
    keys: QueueKeys, items: Sequence[bytes], *, now_ms: int | None = None
) -> Command[list[bool]]:
    """Make up to `MAX_PICKED` ready or delayed messages wait without a due time; whether each is held now."""
    return _command("hold", keys, items, now_ms)


def enqueue(
    keys: QueueKeys, items: Sequence[bytes], *, now_ms: int | None = None
) -> Command[list[bool]]:
    """Put up to `MAX_PICKED` delayed or held messages to the tail of ready; whether each was."""
    return _command("enqueue", keys, items, now_ms)


def delete(
    keys: QueueKeys, items: Sequence[bytes], *, now_ms: int | None = None
) -> Command[list[bool]]:
    """Delete up to `MAX_PICKED` ready or delayed messages; whether each was."""
    return _command("delete", keys, items, now_ms)


def _command(
    script: str, keys: QueueKeys, items: Sequence[bytes], now_ms: int | None
) -> Command[list[bool]]:
    def decode(reply: Any) -> list[bool]:
        return [each == 1 for each in accepted(reply, keys.queue)[3:]]

    now = given(now_ms)
    return Command(load_script(script), standard_keys(keys), (now, *items), decode)
