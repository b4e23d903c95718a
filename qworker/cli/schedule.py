"""`qworker schedule`: list."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import click

from qworker.cli.screen import Cell, Column, note, print_json, print_table
from qworker.cli.verbs import Verbs, json_option

if TYPE_CHECKING:
    from qworker.cli.session import Session
    from qworker.daemon.schedules import ListedSchedule

__all__ = ["command"]

_COLUMNS: Final = (
    Column("SCHEDULE"),
    Column("QUEUE"),
    Column("TASK", wide=True),
    Column("WHEN", wide=True),
    Column("NEXT"),
    Column("LAST"),
    Column("APP", wide=True),
)


@click.group(cls=Verbs)
def command() -> None:
    """List schedules."""


@command.command("ls")
@json_option
@click.pass_obj
def list_all(session: Session, as_json: bool) -> None:
    """List the schedules: what each sends, when it is due next and when it fired last.

    They stand in Redis: `qworker run` writes those of its app, and every reaper fires them.
    """
    from qworker.daemon.schedules import list_schedules

    found = list_schedules(session.client, session.namespace)
    if as_json:
        print_json({"schedules": [dataclasses.asdict(each) for each in found]})
    elif not found:
        note(
            f"no schedule in namespace {session.namespace!r}: @app.schedule makes one, and qworker run "
            "writes it here"
        )
    else:
        now_ms = session.now_ms()
        print_table(_COLUMNS, [_row(each, now_ms) for each in found])


def _row(schedule: ListedSchedule, now_ms: int) -> list[Cell | str]:
    from qworker.cli.formats import ago

    if schedule.problem:
        due: Cell | str = Cell(f"never: {schedule.problem}", "bad")
    else:
        due = (
            ago(schedule.next_ms, now_ms) if schedule.next_ms is not None else Cell("never", "warn")
        )
    last = ago(schedule.last_ms, now_ms) if schedule.last_ms is not None else Cell("never", "dim")
    return [
        schedule.name, schedule.queue, schedule.task, schedule.spec, due, last, schedule.app
    ]  # fmt: skip
