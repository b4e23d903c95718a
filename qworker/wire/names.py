"""Names and their rules: one place, used by every public call, the CLI and the configuration."""

from __future__ import annotations

import re
from typing import Final

from qworker.errors import InvalidNameError

__all__ = ["check_namespace", "check_queue", "check_schedule", "check_task"]

# No glob characters (ACL patterns), no colon or brace (key structure), no upper case (one spelling).
_QUEUE: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_TASK: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
_RESERVED: Final = frozenset({"queues", "reaper", "workers"})

_QUEUE_LIMIT: Final = (
    "1 to 64 of a-z, 0-9, '.', '_' and '-', the first one a letter or digit; "
    "not 'queues', 'reaper' or 'workers'"
)
_TASK_LIMIT: Final = "1 to 128 of A-Z, a-z, 0-9, '.', '_' and '-', the first one a letter or '_'"


def check_queue(name: object, field: str = "queue") -> str:
    """Return `name` if it is a valid queue name; raise `InvalidNameError` otherwise."""
    return _check(name, field, _QUEUE, _QUEUE_LIMIT)


def check_namespace(name: object, field: str = "namespace") -> str:
    """Return `name` if it is a valid namespace; raise `InvalidNameError` otherwise."""
    return _check(name, field, _QUEUE, _QUEUE_LIMIT)


def check_task(name: object, field: str = "task") -> str:
    """Return `name` if it is a valid task name; raise `InvalidNameError` otherwise."""
    return _check(name, field, _TASK, _TASK_LIMIT, reserved=frozenset())


def check_schedule(name: object, field: str = "schedule") -> str:
    """Return `name` if it is a valid schedule name; raise `InvalidNameError` otherwise."""
    return _check(name, field, _TASK, _TASK_LIMIT, reserved=frozenset())


def _check(
    name: object,
    field: str,
    rule: re.Pattern[str],
    limit: str,
    reserved: frozenset[str] = _RESERVED,
) -> str:
    if not isinstance(name, str):
        raise InvalidNameError(field, f"is {type(name).__name__}, not str", limit)
    if rule.fullmatch(name) is None:
        # repr escapes control characters: a name never reaches a terminal or a log raw.
        shown = ascii(name if len(name) <= 80 else name[:77] + "...")
        raise InvalidNameError(field, f"{shown} is not a valid name", limit)
    if name in reserved:
        raise InvalidNameError(field, f"{name!r} is reserved", limit)
    return name
