"""Set and remove limits of groups; end the wait that a handler asked of one."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from qworker.client.manage.limits import read_value, remove_limit, resume_group, set_limit
from qworker.web.access import OPERATE
from qworker.web.actions.action import Action, Doing, Done

__all__ = ["LIMIT_ACTIONS"]


def _set(doing: Doing) -> Done:
    given: dict[str, Any] = {}
    for field in ("concurrency", "rate", "burst", "weight", "max_waiting"):
        if text := doing.form.get(field, "").strip():
            given[field] = read_value(field, text)
    ref = doing.namespace.queues.get(doing.queue).ref
    limit = doing.namespace.client.run(set_limit(ref, doing.form.get("name", "").strip(), **given))
    return _done(doing, limit.text)


def _remove(doing: Doing) -> Done:
    ref = doing.namespace.queues.get(doing.queue).ref
    removed = doing.namespace.client.run(remove_limit(ref, doing.form.get("name", "")))
    return _done(doing, "limits removed" if removed else "it had no limits")


def _resume(doing: Doing) -> Done:
    ref = doing.namespace.queues.get(doing.queue).ref
    resumed = doing.namespace.client.run(resume_group(ref, doing.form.get("name", "")))
    return _done(doing, "resumed" if resumed else "no handler's RateLimited makes it wait")


def _done(doing: Doing, outcome: str) -> Done:
    return Done(outcome, f"/queues/{quote(doing.queue)}/groups")


LIMIT_ACTIONS: Final = {
    "/queues/{queue}/groups/set": Action("limit set", OPERATE, _set),
    "/queues/{queue}/groups/rm": Action("limit rm", OPERATE, _remove),
    "/queues/{queue}/groups/resume": Action("limit resume", OPERATE, _resume),
}
