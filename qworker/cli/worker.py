"""`qworker worker`: list, drain, scale, stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

import click

from qworker.cli.formats import safe, word
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
    """List workers, drain them, and change how many processes they have."""


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
@click.option("--host", help="All workers of this host, by the name that the host has for itself.")
@click.option("--all", "everybody", is_flag=True, help="All workers of the namespace; no daemon.")
@json_option
@click.pass_obj
def drain(
    session: Session, names: tuple[str, ...], host: str | None, everybody: bool, as_json: bool
) -> None:
    """Drain workers: they receive nothing new, let running handlers finish, without a grace time, and exit.

    A worker looks every 2 seconds whether it is to leave. It exits with 0: a service manager that always restarts it
    brings it back. SIGTERM makes a leaving worker stop within its grace time. A daemon, by the name of
    its log, ends after its pass; it may as well be stopped at any time.
    """
    from qworker.cli.presence import read_workers
    from qworker.wire.keys import leaving_key

    now_ms = session.now_ms()
    present = {each.name: each for each in read_workers(session, now_ms) if not each.is_gone}
    if bool(names) + bool(host) + everybody != 1:
        raise click.UsageError("give the names of workers, --host or --all (qworker worker ls)")
    if host:
        names = _workers_of(host, list(present.values()))
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


@command.command("scale", context_settings={"ignore_unknown_options": True})
@click.argument("name", metavar="WORKER")
@click.argument("processes", metavar="N|+N|-N")
@json_option
@click.pass_obj
def scale(session: Session, name: str, processes: str, as_json: bool) -> None:
    """Change how many processes a running worker has: to N, by +N or by -N.

    It holds until the worker ends; --procs says what it begins with. A process that is too many receives nothing
    new, and exits when what runs has finished.
    """
    from qworker.cli.control import ask_workers

    arguments = _change_of(processes)
    _check_worker(session, name)
    for answer in ask_workers(session, [name], "scale", **arguments):
        if not answer.done:
            raise click.ClickException(f"{name}: {answer.text}")
        wanted, before = answer.data.get("processes"), answer.data.get("before")
        if as_json:
            print_json({"worker": name, "processes": wanted, "before": before})
        else:
            print_line(f"{name}: {wanted} processes (before: {before})")
        return
    raise click.ClickException(f"{name} has not answered: it is away, or of an older version")


@command.command("stack")
@click.argument("name", metavar="[WORKER]", required=False)
@json_option
@click.pass_obj
def stack(session: Session, name: str | None, as_json: bool) -> None:
    """Show where each running handler of a worker is, or of all workers: its frames, the most recent call first.

    Works also for a handler that hangs in C or holds the GIL. At most 50 handlers of a worker, the oldest first.
    """
    from qworker.cli.control import ask_workers
    from qworker.cli.formats import span
    from qworker.cli.presence import read_workers

    if name is not None:
        _check_worker(session, name)
    names = (
        [name]
        if name is not None
        else [each.name for each in read_workers(session, session.now_ms()) if not each.is_gone]
    )
    answers = {each.worker: each for each in ask_workers(session, names, "stack")}
    silent = [each for each in names if each not in answers or not answers[each].done]
    if as_json:
        handlers = {
            each: answers[each].data.get("handlers") for each in names if each not in silent
        }
        print_json({"workers": handlers, "silent": silent})
    else:
        for each in names:
            for handler in answers[each].data.get("handlers") or () if each not in silent else ():
                age = span(int(handler["seconds"]))
                print_line(
                    f"{each}  pid {handler['pid']}  {handler['task']}  {handler['id']}  {age}"
                )
                for line in (handler["stack"] or "  (its stack could not be read)").splitlines():
                    print_line(f"  {line}")
        if not names:
            note(f"no worker in namespace {session.namespace!r}")
        elif len(silent) < len(names) and not any(
            answers[each].data.get("handlers") for each in names if each not in silent
        ):
            note("no handler is running")
    if silent:
        raise click.ClickException(
            f"{', '.join(silent)} did not answer: away, or of a version that does not know the question"
        )


def _change_of(text: str) -> dict[str, int]:
    from qworker.errors import InvalidOptionError

    digits = text.lstrip("+-")
    if (
        len(text) - len(digits) > 1
        or not (digits.isascii() and digits.isdigit())
        or len(digits) > 6
    ):
        raise InvalidOptionError(
            "N|+N|-N", f"{ascii(text)[:40]} is not a number", "write 4, +1 or -1"
        )
    if text == digits:
        return {"to": int(digits)}
    return {"by": int(text)}


def _check_worker(session: Session, name: str) -> None:
    """Raise `InvalidOptionError` for a name that no worker has that is alive."""
    from qworker.cli.presence import read_workers
    from qworker.errors import InvalidOptionError

    alive = [each.name for each in read_workers(session) if not each.is_gone]
    if name not in alive:
        near = get_close_matches(name, alive, 1) or alive[:5] or ["none is alive"]
        raise InvalidOptionError(
            "WORKER", f"{ascii(name)[:80]} is not a worker here", ", ".join(near)
        )


def _workers_of(host: str, workers: Sequence[Worker]) -> tuple[str, ...]:
    from qworker.errors import InvalidOptionError

    names = tuple(each.name for each in workers if each.text("host") == host)
    if not names:
        hosts = sorted({each.text("host") for each in workers})
        known = f"hosts with workers: {', '.join(hosts[:8])}" if hosts else "no worker is alive"
        raise InvalidOptionError("--host", f"{ascii(host)[:80]} has no worker", known)
    return names


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
            raise InvalidOptionError("WORKER", problem, safe(near))
        carrier = carriers.get(name.rpartition(":")[0])
        if carrier is not None:
            raise InvalidOptionError(
                "WORKER", f"{name} is carried by a worker", f"drain {word(carrier)}"
            )


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
