"""`qworker worker`: list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from qworker.cli.screen import Cell, Column, note, print_json, print_table
from qworker.cli.verbs import Verbs, json_option

if TYPE_CHECKING:
    from qworker.cli.presence import Worker
    from qworker.cli.session import Session

__all__ = ["command", "seen"]

# A worker's name holds its host and pid.
_COLUMNS: Final = (
    Column("WORKER", wide=True),
    Column("APP", wide=True),
    Column("QUEUES", wide=True),
    Column("PROCS", number=True),
    Column("RUNNING", number=True),
    Column("PER S", number=True),
    Column("FAILED", number=True),
    Column("MEMORY", number=True),
    Column("SEEN"),
)


@click.group(cls=Verbs)
def command() -> None:
    """List workers."""


@command.command("ls")
@json_option
@click.pass_obj
def list_workers(session: Session, as_json: bool) -> None:
    """List the workers (each a `qworker run`) and when each was seen last.

    One that has been silent for 15 seconds is gone: what it had in hand comes back after its visibility timeout.
    """
    from qworker.cli.presence import read_workers

    now_ms = session.now_ms()
    workers = read_workers(session, now_ms)
    if as_json:
        print_json({"now_ms": now_ms, "workers": [each.document() for each in workers]})
    elif not workers:
        note(f"no worker in namespace {session.namespace!r}: start one with qworker run MODULE")
    else:
        print_table(_COLUMNS, [_row(each) for each in workers])


def seen(worker: Worker) -> Cell | str:
    """Say when a worker was seen last."""
    from qworker.cli.formats import span

    text = f"{span(worker.age_ms // 1000)} ago"
    return Cell(f"gone, {text}", "bad") if worker.is_gone else text


def _row(worker: Worker) -> list[Cell | str]:
    from qworker.cli.formats import count, rate, size

    return [
        worker.name,
        worker.text("app"),
        ",".join(worker.queues),
        str(len(worker.children)),
        str(len(worker.running)),
        rate(worker.handled_per_s),
        count(worker.total("failed")),
        size(worker.rss_bytes),
        seen(worker),
    ]
