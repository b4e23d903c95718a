"""`qworker task`: list, pause, resume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from qworker.cli.framework.commands import CommandGroup, json_option
from qworker.cli.framework.output import Output, Table
from qworker.cli.framework.suggestions import did_you_mean
from qworker.cli.framework.terminal import Cell, Column, note

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session

__all__ = ["command"]

_COLUMNS: Final = (Column("TASK", wide=True), Column("WORKERS", number=True), Column("PAUSED"))


@click.group(cls=CommandGroup)
def command() -> None:
    """List tasks; pause and resume single tasks."""


@command.command("ls")
@json_option
@click.pass_obj
def list_all(session: Session) -> Output:
    """List the tasks of running workers: how many workers have each, and which are paused."""
    from qworker.client.namespace.paused_tasks import read_paused_tasks
    from qworker.formats import ago

    known = _known(session)
    paused = read_paused_tasks(session.client.execute, session.namespace)
    names = sorted({*known, *paused})
    tasks = [
        {"task": name, "workers": known.get(name, 0), "paused_ms": paused.get(name)}
        for name in names
    ]
    now_ms = session.now_ms()
    rows = [
        [
            name,
            str(known.get(name, 0)),
            Cell(ago(paused[name], now_ms), "warn") if name in paused else "",
        ]
        for name in names
    ]
    none = f"no worker of namespace {session.namespace!r} reports its tasks: qworker worker ls"
    return Output({"tasks": tasks}, Table(_COLUMNS, rows, none))


@command.command("pause")
@click.argument("task", metavar="TASK")
@json_option
@click.pass_obj
def pause(session: Session, task: str) -> Output:
    """Pause a task: workers start no call of it until it is resumed. Running calls finish.

    Workers follow within 2 seconds. Messages of the task stay in their queue, uncounted: each is tried again after 2
    seconds to a minute, so that other tasks of the queue are served. They may come back in another order, except
    those of an ordered group. To pause a whole queue: qworker queue pause.
    """
    from qworker.client.namespace.paused_tasks import pause_task
    from qworker.errors import InvalidOptionError
    from qworker.wire.names import check_task

    check_task(task)
    known = _known(session)
    if known and task not in known:
        limit = did_you_mean(task, known, "see qworker task ls")
        raise InvalidOptionError("TASK", f"no worker knows {task!r}", limit)
    now_ms = session.now_ms()
    changed = pause_task(session.client.execute, session.namespace, task, now_ms)
    if not known:
        note("no worker reports its tasks: the name was not checked")
    return Output(
        {"task": task, "paused": True, "changed": changed},
        f"{task}: {'paused' if changed else 'already paused'}",
    )


@command.command("resume")
@click.argument("task", metavar="TASK")
@json_option
@click.pass_obj
def resume(session: Session, task: str) -> Output:
    """Resume a paused task; its messages are received within about a minute, not always in their old order."""
    from qworker.client.namespace.paused_tasks import read_paused_tasks, resume_task
    from qworker.errors import InvalidOptionError

    if not resume_task(session.client.execute, session.namespace, task):
        paused = sorted(read_paused_tasks(session.client.execute, session.namespace))
        limit = f"paused are {', '.join(paused[:8])}" if paused else "no task is paused"
        raise InvalidOptionError("TASK", f"{task!r} is not paused", limit)
    return Output({"task": task, "paused": False, "changed": True}, f"{task}: resumed")


def _known(session: Session) -> dict[str, int]:
    """Map each task to the number of living workers that know it."""
    from qworker.client.namespace.workers import read_workers

    known: dict[str, int] = {}
    for worker in read_workers(session):
        for name in () if worker.is_gone else worker.described.tasks or ():
            known[name] = known.get(name, 0) + 1
    return known
