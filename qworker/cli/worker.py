"""`qworker worker`: list, drain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from qworker.cli.screen import Cell, Column, note, print_json, print_line, print_table
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
    """List workers, and let them leave."""


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


@command.command("drain")
@click.argument("names", nargs=-1, metavar="[WORKER...]")
@click.option("--all", "everybody", is_flag=True, help="All workers of the namespace; no daemon.")
@json_option
@click.pass_obj
def drain(session: Session, names: tuple[str, ...], everybody: bool, as_json: bool) -> None:
    """Let workers leave: they take nothing new, and end when what runs has ended, without a grace time.

    A worker looks every 2 seconds whether it is to leave. It exits with 0: a service manager that always restarts it
    brings it back. SIGTERM makes a leaving worker stop within its grace time. A daemon, by the name of
    its log, ends after its pass; it may as well be stopped at any time.
    """
    from qworker.cli.presence import read_workers
    from qworker.wire.keys import leaving_key

    now_ms = session.now_ms()
    present = {each.name: each for each in read_workers(session, now_ms) if not each.is_gone}
    if everybody == bool(names):
        raise click.UsageError("give the names of workers, or --all (qworker worker ls)")
    unknown = [name for name in names if name not in present]
    if unknown:
        _check_daemons(session, unknown, present, now_ms)
    chosen = list(dict.fromkeys(names)) or list(present)
    if chosen:
        fields = [word for name in chosen for word in (name, now_ms)]
        session.ask("HSET", leaving_key(session.namespace), *fields)
    if as_json:
        print_json({"leaving": chosen})
    elif not chosen:
        note(f"no worker in namespace {session.namespace!r}")
    else:
        for name in chosen:
            worker = present.get(name)
            end = f"its {len(worker.running)} running handlers end" if worker else "its pass ends"
            print_line(f"{name}: leaves when {end}")


def _check_daemons(
    session: Session, names: Sequence[str], workers: Mapping[str, Worker], now_ms: int
) -> None:
    """Raise `InvalidOptionError` for a name that is no daemon's."""
    from qworker.cli.presence import read_reapers
    from qworker.errors import InvalidOptionError

    reapers = {each.name for each in read_reapers(session, now_ms) if not each.is_gone}
    carriers = {f"{each.text('host')}:{each.text('pid')}": each.name for each in workers.values()}
    for name in names:
        problem = f"{ascii(name)[:80]} is no worker or daemon here"
        if name not in reapers:
            near = ", ".join([*workers, *reapers][:5]) or "there is none"
            raise InvalidOptionError("WORKER", problem, near)
        carrier = carriers.get(name.rpartition(":")[0])
        if carrier is not None:
            raise InvalidOptionError("WORKER", f"{name} is carried by a worker", f"drain {carrier}")


def seen(worker: Worker) -> Cell | str:
    """Say when a worker was seen last."""
    from qworker.cli.formats import span

    text = f"{span(worker.age_ms // 1000)} ago"
    if worker.is_gone:
        return Cell(f"gone, {text}", "bad")
    return Cell(f"leaving, {text}", "warn") if worker.is_leaving else text


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
