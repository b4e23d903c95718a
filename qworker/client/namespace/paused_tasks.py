"""Paused tasks: HASH `ns:paused_tasks`, task → since when, in ms by the server's clock.

Workers read it every two seconds. They give messages of a paused task back uncounted, with a delay, so that the other
tasks of its queue run.
"""

from __future__ import annotations

from qworker.client.execute.protocol import Execute
from qworker.engine.note import keep_note
from qworker.engine.raw import raw
from qworker.wire.keys import paused_tasks_key
from qworker.wire.names import check_task
from qworker.wire.numbers import whole

__all__ = ["pause_task", "read_paused_tasks", "resume_task"]


def pause_task(execute: Execute, namespace: str, task: str, now_ms: int) -> bool:
    """Pause a task; returns False if it is paused already. Raises `InvalidNameError`."""
    pause = keep_note("HSETNX", paused_tasks_key(namespace), check_task(task), now_ms, decode=bool)
    return bool(execute(pause))


def resume_task(execute: Execute, namespace: str, task: str) -> bool:
    """Resume a task; returns False if it is not paused. Raises `InvalidNameError`."""
    words = ("HDEL", paused_tasks_key(namespace), check_task(task))
    return bool(execute(raw(*words, decode=bool)))


def read_paused_tasks(execute: Execute, namespace: str) -> dict[str, int]:
    """Read the paused tasks, and since when each is paused, in ms; 0 if the time is invalid."""
    flat: list[bytes] = execute(raw("HGETALL", paused_tasks_key(namespace), decode=list))
    return {
        name.decode("utf-8", "replace"): whole(written) or 0
        for name, written in zip(flat[::2], flat[1::2], strict=True)
    }
