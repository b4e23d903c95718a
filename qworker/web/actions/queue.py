"""Pause and resume a queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from qworker.client.manage.pauses import PAUSES, change_pauses
from qworker.errors import InvalidOptionError
from qworker.web.access import OPERATE
from qworker.web.actions.action import Action, Doing, Done

__all__ = ["QUEUE_ACTIONS"]

_DIRECTIONS: Final = {"in": {"in"}, "out": {"out"}, "all": {"in", "out"}}


def _pause(doing: Doing) -> Done:
    return _change(doing, close=_direction(doing.form))


def _resume(doing: Doing) -> Done:
    return _change(doing, reopen=_direction(doing.form))


def _change(
    doing: Doing,
    *,
    close: frozenset[str] = frozenset(),
    reopen: frozenset[str] = frozenset(),
) -> Done:
    namespace = doing.namespace
    ref = namespace.queues.ref(doing.queue)
    inspection = namespace.client.run(change_pauses(ref, close=close, reopen=reopen))
    outcome = PAUSES.get(inspection.paused, inspection.paused)
    return Done(outcome, f"/queues/{quote(doing.queue)}")


def _direction(form: Mapping[str, str]) -> frozenset[str]:
    given = form.get("direction", "")
    if given not in _DIRECTIONS:
        raise InvalidOptionError(
            "direction", f"{ascii(given)[:40]} is not a direction", "one of in, out, all"
        )
    return frozenset(_DIRECTIONS[given])


QUEUE_ACTIONS: Final = {
    "/queues/{queue}/pause": Action("queue pause", OPERATE, _pause),
    "/queues/{queue}/resume": Action("queue resume", OPERATE, _resume),
}
