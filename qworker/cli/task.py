"""`qworker task`: list, pause, resume."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

import click

from qworker.cli.screen import Cell, Column, note, print_json, print_line, print_table
from qworker.cli.verbs import Verbs, json_option

if TYPE_CHECKING:
    from qworker.cli.session import Session

__all__ = ["command"]

_COLUMNS: Final = (Column("TASK", wide=True), Column("WORKERS", number=True), Column("PAUSED"))


@click.group(cls=Verbs)
def command() -> None:
    """List tasks; pause one without its queue, and resume it."""


@command.command("ls")
@json_option
@click.pass_obj
def list_all(session: Session, as_json: bool) -> None:
    """List the tasks that workers know, how many workers know each, and since when one is paused."""
    from qworker.cli.formats import ago
    from qworker.client.paused_tasks import read_paused_tasks

    known = _known(session)
    paused = read_paused_tasks(session.client.execute, session.namespace)
    names = sorted({*known, *paused})
    if as_json:
        tasks = [
            {"task": name, "workers": known.get(name, 0), "paused_ms": paused.get(name)}
            for name in names
        ]
        print_json({"tasks": tasks})
    elif not names:
        note(f"no worker of namespace {session.namespace!r} tells its tasks: qworker worker ls")
    else:
        now_ms = session.now_ms()
        print_table(
            _COLUMNS,
            [
                [
                    name,
                    str(known.get(name, 0)),
                    Cell(ago(paused[name], now_ms), "warn") if name in paused else "",
                ]
                for name in names
            ],
        )


@command.command("pause")
@click.argument("task", metavar="TASK")
@json_option
@click.pass_obj
def pause(session: Session, task: str, as_json: bool) -> None:
    """Pause a task: no worker starts a call of it until it is resumed. Calls that run are not stopped.

    Workers follow within 2 seconds. Its messages stay in their queue and are not counted: each is looked at again after
    2 seconds to a minute, so that the other tasks of the queue go on. To stop all of a queue: qworker queue pause.
    """
    from qworker.client.paused_tasks import pause_task
    from qworker.errors import InvalidOptionError
    from qworker.wire.names import check_task

    check_task(task)
    known = _known(session)
    if known and task not in known:
        near = get_close_matches(task, known, 1)
        limit = f"did you mean {near[0]!r}?" if near else "see qworker task ls"
        raise InvalidOptionError("TASK", f"no worker knows {task!r}", limit)
    now_ms = session.now_ms()
    changed = pause_task(session.client.execute, session.namespace, task, now_ms)
    if as_json:
        print_json({"task": task, "paused": True, "changed": changed})
    else:
        print_line(f"{task}: paused{'' if changed else '; it was so before'}")
    if not known:
        note("no worker tells its tasks, so the name was not checked")


@command.command("resume")
@click.argument("task", metavar="TASK")
@json_option
@click.pass_obj
def resume(session: Session, task: str, as_json: bool) -> None:
    """Resume a paused task; its messages come back within about a minute."""
    from qworker.client.paused_tasks import read_paused_tasks, resume_task
    from qworker.errors import InvalidOptionError

    if not resume_task(session.client.execute, session.namespace, task):
        paused = sorted(read_paused_tasks(session.client.execute, session.namespace))
        limit = f"paused are {', '.join(paused[:8])}" if paused else "none is paused"
        raise InvalidOptionError("TASK", f"{task!r} is not paused", limit)
    if as_json:
        print_json({"task": task, "paused": False, "changed": True})
    else:
        print_line(f"{task}: resumed")


def _known(session: Session) -> dict[str, int]:
    """Task → number of workers that are alive and know it."""
    from qworker.cli.presence import read_workers

    known: dict[str, int] = {}
    for worker in read_workers(session):
        for name in () if worker.is_gone else worker.tasks or ():
            known[name] = known.get(name, 0) + 1
    return known
