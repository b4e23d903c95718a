"""Drain workers, change their number of processes; pause and resume tasks."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from qworker.client.namespace.paused_tasks import pause_task, resume_task
from qworker.client.namespace.requests import ask_workers, change_of, drain_workers
from qworker.client.namespace.workers import Worker, read_workers
from qworker.errors import InvalidOptionError
from qworker.formats import count, safe
from qworker.web.access import OPERATE
from qworker.web.actions.action import Action, Doing, Done

__all__ = ["WORKER_ACTIONS"]


def _drain(doing: Doing) -> Done:
    worker = _alive(doing)
    drain_workers(doing.namespace, [worker.name], doing.namespace.now_ms())
    last = count(len(worker.running), "running handler")
    return Done(f"exits after {last}", _path(worker.name))


def _scale(doing: Doing) -> Done:
    change = change_of(doing.form.get("processes", "").strip(), "processes")
    worker = _alive(doing)
    for answer in ask_workers(doing.namespace, [worker.name], "scale", **change):
        if not answer.done:
            raise InvalidOptionError("processes", "were not changed", safe(answer.text))
        wanted, before = answer.data.get("processes"), answer.data.get("before")
        if not (isinstance(wanted, int) and isinstance(before, int)):
            break
        outcome = f"{count(wanted, 'process', 'processes')} (was {before})"
        return Done(outcome, _path(worker.name), f"{worker.name} {doing.form['processes'].strip()}")
    raise InvalidOptionError(
        "worker", "did not answer", "it is unreachable, or runs an older version"
    )


def _pause(doing: Doing) -> Done:
    namespace = doing.namespace
    task, now_ms = doing.form.get("name", ""), namespace.now_ms()
    known = {
        name
        for worker in read_workers(namespace, now_ms)
        if not worker.is_gone
        for name in worker.described.tasks or ()
    }
    if known and task not in known:
        raise InvalidOptionError("task", f"no worker knows {ascii(task)[:80]}", "see the list")
    changed = pause_task(namespace.client.execute, namespace.namespace, task, now_ms)
    return Done("paused: workers start no call of it" if changed else "already paused", "/workers")


def _resume(doing: Doing) -> Done:
    namespace, task = doing.namespace, doing.form.get("name", "")
    if not resume_task(namespace.client.execute, namespace.namespace, task):
        raise InvalidOptionError("task", f"{ascii(task)[:80]} is not paused", "see the list")
    return Done("resumed: its messages are received within about a minute", "/workers")


def _alive(doing: Doing) -> Worker:
    name, namespace = doing.form.get("name", ""), doing.namespace
    for worker in read_workers(namespace, namespace.now_ms()):
        if worker.name == name and not worker.is_gone:
            return worker
    raise InvalidOptionError("worker", f"{ascii(name)[:80]} is not running", "it may have ended")


def _path(worker: str) -> str:
    return f"/worker?name={quote(worker, safe='')}"


WORKER_ACTIONS: Final = {
    "/workers/drain": Action("worker drain", OPERATE, _drain),
    "/workers/scale": Action("worker scale", OPERATE, _scale),
    "/tasks/pause": Action("task pause", OPERATE, _pause),
    "/tasks/resume": Action("task resume", OPERATE, _resume),
}
