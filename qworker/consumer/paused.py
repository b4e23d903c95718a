"""Tells children which of their tasks operators have paused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from qworker.client.paused_tasks import read_paused_tasks
from qworker.consumer.board import boot_time
from qworker.errors import AccessDeniedError

if TYPE_CHECKING:
    from qworker.client.sync import Client
    from qworker.consumer.process import ChildProcess

__all__ = ["PausedTasks", "since_of"]

_log = structlog.get_logger(__name__)

_GIVE_UP_S: Final = 2.0
#: Since when something is paused that is paused from now on: 0 is not paused.
_EARLIEST: Final = 1e-9


def since_of(tasks: Sequence[str], paused_s: Mapping[str, float]) -> list[float]:
    """Say for each task since when it is paused, by `boot_time()`, given for how long; 0.0 for not paused."""
    now = boot_time()
    return [max(now - paused_s[name], _EARLIEST) if name in paused_s else 0.0 for name in tasks]


class PausedTasks:
    """What is paused in a namespace. Not thread-safe."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._execute = partial(client.execute, give_up_s=_GIVE_UP_S)
        self._namespace = namespace
        self._known: frozenset[str] = frozenset()
        self._forbidden = False

    def look(self, children: Sequence[ChildProcess], now_ms: int) -> None:
        """Read the paused tasks, and tell the children; `now_ms` by the server's clock. Raises `ServerError`."""
        if self._forbidden:
            return
        try:
            paused = read_paused_tasks(self._execute, self._namespace)
        except AccessDeniedError as error:
            # An ACL of an older version: no worker fails for that.
            self._forbidden = True
            _log.warning("paused_tasks_forbidden", error=str(error))
            return
        if self._known != paused.keys():
            self._known = frozenset(paused)
            _log.info("paused_tasks_changed", tasks=sorted(paused))
        paused_s = {task: max(0, now_ms - at_ms) / 1000 for task, at_ms in paused.items()}
        for child in children:
            if child.tasks:
                child.board.orders.pause(since_of([task.name for task in child.tasks], paused_s))
