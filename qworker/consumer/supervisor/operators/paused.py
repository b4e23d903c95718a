"""Informs children which of their tasks are paused."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from qworker.client.namespace.paused_tasks import read_paused_tasks
from qworker.consumer.board.clock import since_of
from qworker.errors import AccessDeniedError

if TYPE_CHECKING:
    from qworker.client.execute.recurring import RecurringCalls
    from qworker.client.execute.sync import Client
    from qworker.consumer.supervisor.processes.process import ChildProcess

__all__ = ["PausedTasks"]

_log = structlog.get_logger(__name__)

_GIVE_UP_S: Final = 2.0


class PausedTasks:
    """The paused tasks of a namespace. Not thread-safe."""

    def __init__(self, client: Client | RecurringCalls, namespace: str) -> None:
        self._execute = partial(client.execute, give_up_s=_GIVE_UP_S)
        self._namespace = namespace
        self._known: frozenset[str] = frozenset()
        self._forbidden = False

    def check(self, children: Sequence[ChildProcess], now_ms: int) -> None:
        """Read the paused tasks and set them on the boards; `now_ms` by the server's clock. Raises `ServerError`."""
        if self._forbidden:
            return
        try:
            paused = read_paused_tasks(self._execute, self._namespace)
        except AccessDeniedError as error:
            # The ACL of an older version does not allow it; no worker fails for that.
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
