"""All pages, by their paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from qworker.web.pages.calls import call_group, call_groups, confirm_abandon, confirm_cancel_group
from qworker.web.pages.dead import confirm_drop, confirm_redrive, dead, edit, letter
from qworker.web.pages.durability import durability
from qworker.web.pages.health import audit, health
from qworker.web.pages.limits import confirm_remove_limit, groups_and_limits
from qworker.web.pages.message import confirm_cancel, confirm_delete, message
from qworker.web.pages.messages import find, messages
from qworker.web.pages.overview import overview, queues
from qworker.web.pages.queue import queue
from qworker.web.pages.run import confirm_cancel_run, run
from qworker.web.pages.runs import runs
from qworker.web.pages.schedules import confirm_remove, schedules
from qworker.web.pages.workers import confirm_drain, worker, workers

if TYPE_CHECKING:
    from qworker.web.page_request import Page, PageRequest

__all__ = ["PAGES"]

PAGES: Final[Mapping[str, Callable[[PageRequest], Page]]] = {
    "/": overview,
    "/queues": queues,
    "/queues/{queue}": queue,
    "/queues/{queue}/messages": messages,
    "/queues/{queue}/messages/{message}": message,
    "/queues/{queue}/messages/{message}/cancel": confirm_cancel,
    "/queues/{queue}/messages/{message}/delete": confirm_delete,
    "/queues/{queue}/groups": groups_and_limits,
    "/queues/{queue}/groups/rm": confirm_remove_limit,
    "/queues/{queue}/dead": dead,
    "/queues/{queue}/dead/redrive": confirm_redrive,
    "/queues/{queue}/dead/drop": confirm_drop,
    "/queues/{queue}/dead/edit": edit,
    "/queues/{queue}/dead/{entry:path}": letter,
    "/workers": workers,
    "/workers/drain": confirm_drain,
    "/worker": worker,
    "/schedules": schedules,
    "/schedules/rm": confirm_remove,
    "/runs": runs,
    "/runs/{queue}/{message}": run,
    "/runs/{queue}/{message}/cancel": confirm_cancel_run,
    "/calls": call_groups,
    "/calls/{queue}/{message}": call_group,
    "/calls/{queue}/{message}/abandon": confirm_abandon,
    "/calls/{queue}/{message}/cancel": confirm_cancel_group,
    "/find": find,
    "/durability": durability,
    "/health": health,
    "/audit": audit,
}
