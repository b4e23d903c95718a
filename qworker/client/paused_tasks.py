"""Tasks that operators have paused: HASH `ns:paused_tasks`, task → since when, in ms by the server's clock.

Workers look every two seconds. What they receive of a paused task goes back uncounted, behind a delay, so the other
tasks of its queue go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qworker.client.commands.command import Command
from qworker.wire.keys import paused_tasks_key
from qworker.wire.names import check_task
from qworker.wire.numbers import whole

__all__ = ["pause_task", "read_paused_tasks", "resume_task"]

Execute = Callable[[Command[Any]], Any]


def pause_task(execute: Execute, namespace: str, task: str, now_ms: int) -> bool:
    """Pause a task; False where it is paused already. Raises `InvalidNameError`."""
    words = ("HSETNX", paused_tasks_key(namespace), check_task(task), now_ms)
    return bool(execute(Command(None, (), words, bool)))


def resume_task(execute: Execute, namespace: str, task: str) -> bool:
    """Resume a task; False where it is not paused. Raises `InvalidNameError`."""
    words = ("HDEL", paused_tasks_key(namespace), check_task(task))
    return bool(execute(Command(None, (), words, bool)))


def read_paused_tasks(execute: Execute, namespace: str) -> dict[str, int]:
    """Read the paused tasks, and since when each is, in ms; 0 where something else is written there."""
    flat: list[bytes] = execute(Command(None, (), ("HGETALL", paused_tasks_key(namespace)), list))
    return {
        name.decode("utf-8", "replace"): whole(written) or 0
        for name, written in zip(flat[::2], flat[1::2], strict=True)
    }
