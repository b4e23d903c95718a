"""Commands on single messages that wait: given as they are stored, or by id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from qworker.engine.arguments import given, standard_keys
from qworker.engine.command import Command, Word
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.wire.keys import QueueKeys

__all__ = [
    "ANYWHERE",
    "MAX_PICKED",
    "NEVER_MS",
    "SEATS_FROM",
    "cancel",
    "delete",
    "enqueue",
    "hold",
    "location",
]

#: Messages per call.
MAX_PICKED: Final = 100
#: The due time of held messages: the largest integer that a score keeps.
NEVER_MS: Final = 2**53
#: From here to `NEVER_MS` scores of delayed are seats of members that wait in their groups, see lib/groups.lua.
SEATS_FROM: Final = 2**52
#: The location of a message whose position is unknown.
ANYWHERE: Final = "-"


def hold(
    keys: QueueKeys,
    items: Sequence[bytes],
    locations: Sequence[str] = (),
    *,
    now_ms: int | None = None,
) -> Command[list[bool]]:
    """Hold up to `MAX_PICKED` ready or delayed messages without a due time; returns whether each is held now.

    `locations`: where each was read, in the order of its list, which saves a search of the whole queue. A call
    reads a limited number of messages; those beyond it have no result.
    """
    return _command("hold", keys, (" ".join(locations), *items), now_ms)


def enqueue(
    keys: QueueKeys, items: Sequence[bytes], *, now_ms: int | None = None
) -> Command[list[bool]]:
    """Move up to `MAX_PICKED` delayed or held messages to the tail of ready; returns whether each was moved."""
    return _command("enqueue", keys, items, now_ms)


def cancel(
    keys: QueueKeys, message_id: str, kept_ms: int, *, now_ms: int | None = None
) -> Command[int]:
    """Leave a tombstone: a receive within `kept_ms` drops the message. Returns the server's time in ms."""

    def decode(reply: Any) -> int:
        return int(accepted(reply, keys.queue)[1])

    return Command(
        load_script("cancel"),
        (keys.cancelled, keys.meta),
        (given(now_ms), message_id, kept_ms),
        decode,
    )


def delete(
    keys: QueueKeys,
    items: Sequence[bytes],
    locations: Sequence[str] = (),
    *,
    now_ms: int | None = None,
) -> Command[list[bool]]:
    """Delete up to `MAX_PICKED` ready or delayed messages; returns which were deleted. `locations` as of `hold`."""
    return _command("delete", keys, (" ".join(locations), *items), now_ms)


def location(level: int | None, behind: int) -> str:
    """Write the position of a message: its level of ready, None for suspects, and how many messages were behind it."""
    return f"{'s' if level is None else level}:{behind}"


def _command(
    script: str, keys: QueueKeys, args: Sequence[Word], now_ms: int | None
) -> Command[list[bool]]:
    def decode(reply: Any) -> list[bool]:
        return [flag == 1 for flag in accepted(reply, keys.queue)[3:]]

    now = given(now_ms)
    return Command(load_script(script), standard_keys(keys), (now, *args), decode)
