"""All actions, by their paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from qworker.web.actions.action import Action
from qworker.web.actions.calls import CALL_ACTIONS
from qworker.web.actions.dead import DEAD_ACTIONS
from qworker.web.actions.limits import LIMIT_ACTIONS
from qworker.web.actions.message import MESSAGE_ACTIONS
from qworker.web.actions.queue import QUEUE_ACTIONS
from qworker.web.actions.runs import RUN_ACTIONS
from qworker.web.actions.schedules import SCHEDULE_ACTIONS
from qworker.web.actions.workers import WORKER_ACTIONS

__all__ = ["ACTIONS"]

ACTIONS: Final[Mapping[str, Action]] = {
    **QUEUE_ACTIONS,
    **MESSAGE_ACTIONS,
    **LIMIT_ACTIONS,
    **DEAD_ACTIONS,
    **WORKER_ACTIONS,
    **SCHEDULE_ACTIONS,
    **RUN_ACTIONS,
    **CALL_ACTIONS,
}
