"""Refusals of scripts as named errors."""

from __future__ import annotations

from typing import Any

from qworker.errors import (
    BodyTooLargeError,
    BrokenQueueError,
    GhostSendError,
    GroupFullError,
    IdTakenError,
    InvalidOptionError,
    LeaseUsedError,
    QueueExistsError,
    QueueFullError,
    QueueNotFoundError,
    QueuePausedError,
    ShardDrainingError,
    TooLateError,
    TooManyLimitsError,
)
from qworker.wire.groups import shown
from qworker.wire.shards import ReshardMark

__all__ = ["accepted", "accepted_id", "group_in_shards"]


def group_in_shards(group: str, queue: str, shards: int) -> tuple[str, str]:
    """Say why a message that no sender places cannot have a group in a divided queue, and what to do."""
    return (
        f"is {shown(group)!r}, and queue '{queue}' is divided into {shards} shards",
        "a group lives in one of them, which only a sender chooses; let a task without a group send the message, "
        f"or use a queue that is not divided: qworker queue shards {queue} 1",
    )


def accepted_id(reply: Any, queue: str, chosen_id: str, other: str) -> list[Any]:
    """Return the reply of a script that starts something under an id. Raises `IdTakenError`, and as `accepted` does."""
    if reply[0] == b"TAKEN":
        raise IdTakenError(queue, chosen_id, other)
    return accepted(reply, queue)


def accepted(reply: Any, queue: str, lane: str = "", sequence: int = 0) -> list[Any]:
    """Return the reply of a script that did its work, or raise the error of its refusal.

    Raises `BrokenQueueError`, `QueuePausedError`, `QueueFullError`, `ShardDrainingError`, `QueueExistsError`,
    `QueueNotFoundError`, `GhostSendError`, `LeaseUsedError`, `TooLateError`, `BodyTooLargeError`, `GroupFullError`,
    `TooManyLimitsError`, and `InvalidOptionError` for an argument that this library never sends.
    """
    code = reply[0]
    if code in (b"OK", b"DUPLICATE"):
        return list(reply)
    words = [word.decode("utf-8", "replace") if isinstance(word, bytes) else word for word in reply]
    match words:
        case ["BROKEN", key, kind]:
            raise BrokenQueueError(key, kind)
        case ["PAUSED"]:
            raise QueuePausedError(queue)
        case ["FULL", stored, maxlen]:
            raise QueueFullError(queue, int(stored), int(maxlen))
        case ["DIVIDED", name, shards]:
            raise InvalidOptionError("group", *group_in_shards(str(name), queue, int(shards)))
        case ["GROUPFULL", name, most]:
            raise GroupFullError(queue, shown(str(name)), int(most))
        case ["MANY", number]:
            raise TooManyLimitsError(queue, int(number))
        case ["RESHARD", written]:
            mark = ReshardMark.parse(str(written).encode())
            raise ShardDrainingError(queue, mark.active, mark.epoch)
        case ["GONE"]:
            raise QueueNotFoundError(queue)
        case ["EXISTS"]:
            raise QueueExistsError(queue)
        case ["GHOST"]:
            raise GhostSendError(lane, sequence)
        case ["TOOLATE", message_id, half_ms]:
            raise TooLateError(queue, message_id, int(half_ms))
        case ["LEASEUSED", lease_id]:
            raise LeaseUsedError(lease_id)
        case ["TOOLARGE", size, maxsize]:
            raise BodyTooLargeError("body", int(size), int(maxsize))
    raise InvalidOptionError(
        f"argument {words[1] if len(words) > 1 else '?'}",
        "was refused by the script",
        "see the header of the script for its range",
    )
