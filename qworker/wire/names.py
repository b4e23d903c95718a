"""The rules of names, for public calls, the CLI and the configuration."""

from __future__ import annotations

import re
from typing import Final

from qworker.errors import InvalidNameError, shown

__all__ = [
    "MAX_SHARDS",
    "check_app",
    "check_message_id",
    "check_namespace",
    "check_queue",
    "check_queue_or_shard",
    "check_schedule",
    "check_step_name",
    "check_task",
    "shard_name",
    "split_shard_name",
]

#: Shards of one queue.
MAX_SHARDS: Final = 64


# No glob characters (ACL patterns), no colon or brace (key structure), no upper case (one spelling).
_QUEUE: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_SHARD: Final = re.compile(r"([^/]*)/(0|[1-9][0-9]?)")
_TASK: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
_STEP: Final = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.:/-]{0,99}", re.ASCII)
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ID_LIMIT: Final = "1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', as send returned it"
_RESERVED: Final = frozenset({"queues", "reaper", "workers"})

_QUEUE_LIMIT: Final = (
    "1 to 64 of a-z, 0-9, '.', '_' and '-', the first one a letter or digit; "
    "not 'queues', 'reaper' or 'workers'"
)
_STEP_LIMIT: Final = (
    "1 to 100 of A-Z, a-z, 0-9, '_', '.', ':', '/' and '-', the first one not ':', '/' or '-'"
)
_TASK_LIMIT: Final = "1 to 128 of A-Z, a-z, 0-9, '.', '_' and '-', the first one a letter or '_'"


def check_queue(name: object, field: str = "queue") -> str:
    """Return `name` if it is a valid queue name; raise `InvalidNameError` otherwise."""
    return _check(name, field, _QUEUE, _QUEUE_LIMIT, _RESERVED)


def check_queue_or_shard(name: object, field: str = "queue") -> str:
    """Return `name` if it names a queue or, as `queue/0`, a shard of one; raise `InvalidNameError` otherwise."""
    queue, shard = split_shard_name(name) if isinstance(name, str) else (name, 0)
    if shard >= MAX_SHARDS:
        raise InvalidNameError(
            field, f"{name!a} names shard {shard}", f"shards are 0 to {MAX_SHARDS - 1}"
        )
    check_queue(queue, field)
    return str(name)


def split_shard_name(name: str) -> tuple[str, int]:
    """Split `queue/3` into queue and shard number; any other name is a queue, with shard 0."""
    match = _SHARD.fullmatch(name)
    return (name, 0) if match is None else (match[1], int(match[2]))


def shard_name(queue: str, shard: int) -> str:
    """Return the name of a shard: `queue/3`, or `queue` for the first one."""
    return f"{queue}/{shard}" if shard else queue


def check_namespace(name: object, field: str = "namespace") -> str:
    """Return `name` if it is a valid namespace; raise `InvalidNameError` otherwise."""
    return _check(name, field, _QUEUE, _QUEUE_LIMIT, _RESERVED)


def check_task(name: object, field: str = "task") -> str:
    """Return `name` if it is a valid task name; raise `InvalidNameError` otherwise."""
    return _check(name, field, _TASK, _TASK_LIMIT)


def check_app(name: object, field: str = "name") -> str:
    """Return `name` if it is a valid name of an app; raise `InvalidNameError` otherwise."""
    return _check(name, field, _TASK, _TASK_LIMIT)


def check_message_id(name: object, field: str = "message id") -> str:
    """Return `name` if it can be a message id; raise `InvalidNameError` otherwise."""
    return _check(name, field, _ID, _ID_LIMIT)


def check_schedule(name: object, field: str = "schedule") -> str:
    """Return `name` if it is a valid schedule name; raise `InvalidNameError` otherwise."""
    return _check(name, field, _TASK, _TASK_LIMIT)


def check_step_name(name: object, field: str = "step") -> str:
    """Return the name of a step, a signal or a loop of a run; raise `InvalidNameError` for another."""
    return _check(name, field, _STEP, _STEP_LIMIT)


def _check(
    name: object,
    field: str,
    rule: re.Pattern[str],
    limit: str,
    reserved: frozenset[str] = frozenset(),
) -> str:
    if not isinstance(name, str):
        raise InvalidNameError(field, f"is {type(name).__name__}, not str", limit)
    if rule.fullmatch(name) is None:
        raise InvalidNameError(field, f"{shown(name)} is not a valid name", limit)
    if name in reserved:
        raise InvalidNameError(field, f"{name!r} is reserved", limit)
    return name
