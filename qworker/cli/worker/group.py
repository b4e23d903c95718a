"""`qworker worker`: list, drain, scale, stack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.framework.commands import CommandGroup, json_option
from qworker.cli.framework.output import Note, Output, Table
from qworker.cli.framework.suggestions import did_you_mean
from qworker.cli.framework.terminal import Cell, Column
from qworker.formats import safe, word

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session
    from qworker.client.namespace.workers import Worker

__all__ = ["command", "last_seen", "stack_lines"]

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


@click.group(cls=CommandGroup)
def command() -> None:
    """List workers, drain them, and change their number of processes."""


@command.command("ls")
@json_option
@click.pass_obj
def list_workers(session: Session) -> Output:
    """List the workers (each is a `qworker run`) and when they were last seen.

    A worker that is silent for 15 seconds is gone: its unacked messages are requeued after their visibility timeout.
    """
    from qworker.client.namespace.workers import read_workers

    session.waits_once = True
    now_ms = session.now_ms()
    workers = read_workers(session, now_ms)
    none = f"no worker in namespace {session.namespace!r}: start one with qworker run MODULE"
    return Output(
        {"now_ms": now_ms, "workers": [worker.document() for worker in workers]},
        Table(_COLUMNS, [_row(worker) for worker in workers], none),
    )


@command.command("drain")
@click.argument("names", nargs=-1, metavar="[WORKER...]")
@click.option("--host", help="All workers on this host, named as by `hostname`.")
@click.option(
    "--all", "everybody", is_flag=True, help="All workers of the namespace; daemons keep running."
)
@json_option
@click.pass_obj
def drain(session: Session, names: tuple[str, ...], host: str | None, everybody: bool) -> Output:
    """Drain workers: stop receiving, let running handlers finish, then exit.

    Handlers get as long as they need; SIGTERM makes a draining worker stop within its grace time. Workers check for the
    request every 2 seconds, and exit with 0: a service manager that always restarts them brings them back. A daemon,
    named as in its log, exits after its current pass; it may also be stopped at any time.
    """
    from qworker.client.namespace.requests import drain_workers
    from qworker.formats import count

    now_ms = session.now_ms()
    workers = {worker.name: worker for worker in _alive(session, now_ms)}
    if bool(names) + bool(host) + everybody != 1:
        raise click.UsageError("name workers, or pass --host or --all (qworker worker ls)")
    if host:
        names = _workers_of(host, list(workers.values()))
    unknown = [name for name in names if name not in workers]
    if unknown:
        _check_daemons(session, unknown, workers, now_ms)
    chosen = list(dict.fromkeys(names)) or list(workers)
    drain_workers(session, chosen, now_ms)
    lines = []
    for name in chosen:
        worker = workers.get(name)
        last = count(len(worker.running), "running handler") if worker else "its current pass"
        lines.append(f"{name}: exits after {last}")
    return Output(
        {"leaving": chosen}, lines or Note(f"no worker in namespace {session.namespace!r}")
    )


@command.command("scale", context_settings={"ignore_unknown_options": True})
@click.argument("name", metavar="WORKER")
@click.argument("processes", metavar="N|+N|-N")
@json_option
@click.pass_obj
def scale(session: Session, name: str, processes: str) -> Output:
    """Change the number of processes of a running worker: to N, by +N or by -N.

    The change lasts until the worker exits; --procs sets the initial number. A process that is removed stops
    receiving, and exits when its handlers have finished.
    """
    from qworker.client.namespace.requests import ask_workers, change_of
    from qworker.formats import count

    arguments = change_of(processes, "N|+N|-N")
    _check_worker(session, name)
    for answer in ask_workers(session, [name], "scale", **arguments):
        if not answer.done:
            raise click.ClickException(f"{name}: {answer.text}")
        wanted, before = answer.data["processes"], answer.data["before"]
        return Output(
            {"worker": name, "processes": wanted, "before": before},
            f"{name}: {count(wanted, 'process', 'processes')} (was {before})",
        )
    raise click.ClickException(
        f"{name} did not answer: it is unreachable, or runs an older version"
    )


@command.command("stack")
@click.argument("name", metavar="[WORKER]", required=False)
@json_option
@click.pass_obj
def stack(session: Session, name: str | None) -> Iterator[Output]:
    """Show the stack of each running handler of a worker, or of all workers, the most recent call first.

    Works even if a handler hangs in C or holds the GIL. Shows up to 50 handlers per worker, the oldest first. Prints
    the stacks of a worker as soon as it answers; exit code 1 if one does not answer within 6 seconds.
    """
    session.waits_once = True
    if name is not None:
        _check_worker(session, name)
    asked = _Stacks(session, [name] if name is not None else _names_alive(session))
    yield Output(asked.document, asked.lines())
    if asked.silent:
        raise click.ClickException(asked.problem)


class _Stacks:
    """The answers of workers that are asked for the stacks of their handlers: printed, or read as a whole."""

    def __init__(self, session: Session, names: Sequence[str]) -> None:
        self._session = session
        self._names = names
        self._handlers: dict[str, Any] = {}
        #: Why workers were not asked, or could not answer.
        self._refused: dict[str, str] = {}

    def lines(self) -> Iterator[str | Note]:
        """Ask, and write what comes."""
        from qworker.client.namespace.requests import ask_workers

        if not self._names:
            yield Note(f"no worker in namespace {self._session.namespace!r}")
            return
        running = False
        for answer in ask_workers(self._session, self._names, "stack"):
            if not answer.done:
                self._refused[answer.worker] = answer.text
                continue
            self._handlers[answer.worker] = answer.data.get("handlers")
            for line in stack_lines({answer.worker: answer.data.get("handlers")}):
                running = True
                yield line
        if self._handlers and not running:
            yield Note("no handler is running")

    def document(self) -> dict[str, Any]:
        """Ask, and return the answers."""
        for _ in self.lines():
            pass
        handlers = {name: self._handlers[name] for name in self._names if name in self._handlers}
        return {"workers": handlers, "silent": self.silent}

    @property
    def silent(self) -> list[str]:
        """The workers without an answer."""
        return [name for name in self._names if name not in self._handlers]

    @property
    def problem(self) -> str:
        """Say why some workers did not answer."""
        refused = [f"{name} {text}" for name, text in self._refused.items()]
        silent = [name for name in self.silent if name not in self._refused]
        if silent:
            refused.append(f"{', '.join(silent)} did not answer: unreachable, or an older version")
        return "; ".join(refused)


def stack_lines(handlers: Mapping[str, Any]) -> Iterator[str]:
    """Write the stacks of workers as they answered, each with its handler."""
    from qworker.formats import span

    for name, running in handlers.items():
        for handler in running or ():
            age = span(int(handler["seconds"]))
            yield f"{name}  pid {handler['pid']}  {handler['task']}  {handler['id']}  {age}"
            for line in (handler["stack"] or "  (its stack cannot be read)").splitlines():
                yield f"  {line}"


def _alive(session: Session, now_ms: int | None = None) -> list[Worker]:
    from qworker.client.namespace.workers import read_workers

    return [worker for worker in read_workers(session, now_ms) if not worker.is_gone]


def _names_alive(session: Session) -> list[str]:
    return [worker.name for worker in _alive(session)]


def _check_worker(session: Session, name: str) -> None:
    """Raise `InvalidOptionError` for a name that no living worker has, if the list of workers can be read."""
    from qworker.errors import InvalidOptionError

    found = session.workers()
    if found is None:
        return
    alive = [worker.name for worker in found if not worker.is_gone]
    if name not in alive:
        known = f"workers are {', '.join(alive[:5])}" if alive else "no worker is alive"
        limit = safe(did_you_mean(name, alive, known))
        raise InvalidOptionError("WORKER", f"{ascii(name)[:80]} is not running", limit)


def _workers_of(host: str, workers: Sequence[Worker]) -> tuple[str, ...]:
    from qworker.errors import InvalidOptionError

    names = tuple(worker.name for worker in workers if worker.described.host == host)
    if not names:
        hosts = sorted({worker.described.host for worker in workers})
        known = f"hosts with workers: {', '.join(hosts[:8])}" if hosts else "no worker is alive"
        raise InvalidOptionError("--host", f"{ascii(host)[:80]} has no worker", known)
    return names


def _check_daemons(
    session: Session, names: Sequence[str], workers: Mapping[str, Worker], now_ms: int
) -> None:
    """Raise `InvalidOptionError` for an unknown daemon."""
    from qworker.client.namespace.workers import read_reapers
    from qworker.errors import InvalidOptionError

    reapers = {reaper.name for reaper in read_reapers(session, now_ms) if not reaper.is_gone}
    carriers = {
        f"{worker.described.host}:{worker.described.pid}": worker.name
        for worker in workers.values()
    }
    for name in names:
        if name not in reapers:
            problem = f"no worker or daemon of this name is running: {ascii(name)[:80]}"
            known = ", ".join([*workers, *reapers][:5]) or "none is alive"
            raise InvalidOptionError("WORKER", problem, safe(known))
        carrier = carriers.get(name.rpartition(":")[0])
        if carrier is not None:
            raise InvalidOptionError(
                "WORKER", f"{name} runs inside a worker", f"drain {word(carrier)}"
            )


def last_seen(worker: Worker) -> Cell | str:
    """Say when a worker was last seen."""
    from qworker.formats import span

    text = f"{span(worker.age_ms // 1000)} ago"
    if worker.is_gone:
        return Cell(f"gone, {text}", "bad")
    return Cell(f"leaving, {text}", "warn") if worker.described.leaving else text


def _row(worker: Worker) -> list[Cell | str]:
    from qworker.formats import count, rate, size

    return [
        worker.name,
        worker.described.app,
        ",".join(worker.described.queues),
        str(len(worker.described.children)),
        str(len(worker.running)),
        rate(worker.described.handled_per_s),
        count(worker.failed),
        size(worker.rss_bytes),
        last_seen(worker),
    ]
