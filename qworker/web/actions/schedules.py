"""Pause, resume, run and remove schedules."""

from __future__ import annotations

from typing import Final

from qworker.daemon.schedule_changes import pause, remove_chosen, resume, run_now
from qworker.daemon.schedules import read_schedules
from qworker.errors import InvalidOptionError
from qworker.web.access import DESTROY, OPERATE
from qworker.web.actions.action import Action, Doing, Done
from qworker.wire.keys import QueueKeys
from qworker.wire.names import check_queue

__all__ = ["SCHEDULE_ACTIONS"]


def _pause(doing: Doing) -> Done:
    keys, name = _schedule(doing)
    changed = pause(doing.namespace.client, keys, name)
    return _done(doing, "paused until it is resumed" if changed else "already paused")


def _resume(doing: Doing) -> Done:
    keys, name = _schedule(doing)
    changed = resume(doing.namespace.client, keys, name)
    return _done(doing, "resumed from its next slot" if changed else "not paused")


def _run(doing: Doing) -> Done:
    keys, name = _schedule(doing)
    namespace = doing.namespace
    stored = read_schedules(namespace.client.execute, keys)[name].stored
    if stored is None:
        raise InvalidOptionError("schedule", "cannot be read", "start a worker of its app")
    message_id = run_now(namespace.client, namespace.queues.ref(keys.queue), name, stored)
    return _done(doing, f"sent its message {message_id}")


def _remove(doing: Doing) -> Done:
    keys, name = _schedule(doing)
    remove_chosen(doing.namespace.client, doing.namespace.namespace, {keys.queue: [name]})
    return _done(doing, "removed")


def _schedule(doing: Doing) -> tuple[QueueKeys, str]:
    """Return the schedule that the form names. Raises `InvalidOptionError` if there is none."""
    queue, name = doing.form.get("queue", ""), doing.form.get("name", "")
    keys = QueueKeys(doing.namespace.namespace, check_queue(queue))
    if name not in read_schedules(doing.namespace.client.execute, keys):
        raise InvalidOptionError(
            "schedule",
            f"{ascii(name)[:80]} is not in queue {queue!r}",
            "it may have been removed",
        )
    return keys, name


def _done(doing: Doing, outcome: str) -> Done:
    return Done(outcome, "/schedules", f"{doing.form['queue']} {doing.form['name']}")


SCHEDULE_ACTIONS: Final = {
    "/schedules/pause": Action("schedule pause", OPERATE, _pause),
    "/schedules/resume": Action("schedule resume", OPERATE, _resume),
    "/schedules/run": Action("schedule run", OPERATE, _run),
    "/schedules/rm": Action("schedule rm", DESTROY, _remove),
}
