"""`qworker workflow`: where runs stand, what they have recorded; signal, cancel and redrive them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import click

from qworker.cli.framework.commands import CommandGroup, dry_run_option, json_option, yes_option
from qworker.cli.framework.output import Output
from qworker.cli.framework.paging import cut_notes, limit_option
from qworker.cli.framework.parameters import QUEUE, queue_option
from qworker.cli.framework.terminal import note
from qworker.cli.workflow.tables import (
    gathered,
    run_document,
    run_listing,
    run_text,
    step_document,
)
from qworker.wire.states import RUN_STATES

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session
    from qworker.client.inspect.runs import RunStatus
    from qworker.client.queue import Queue

__all__ = ["command"]

#: Runs that are read at a time to find those in a state.
_PAGE: Final = 1000
_queue_option: Final = queue_option("Search this queue only. [default: all queues]")


@click.group(cls=CommandGroup)
def command() -> None:
    """List and show runs of workflows; signal, cancel and redrive them."""


@command.command("ls")
@click.argument("queue", type=QUEUE, required=False)
@click.option("--state", type=click.Choice(RUN_STATES), help="List runs in this state only.")
@limit_option
@json_option
@click.pass_obj
def list_runs(session: Session, queue: str | None, state: str | None, limit: int) -> Output:
    """List runs that have not ended: what each waits for, and since when.

    A run is listed once it has recorded a step, slept or waited; a run started with `id=`, from its start. Without
    QUEUE, lists the runs of all queues.
    """
    runs: list[RunStatus] = []
    cut: list[str] = []
    for opened in session.queues.searched(queue):
        found = _listed(opened, state, limit + 1)
        runs += found[:limit]
        cut += [opened.name] if len(found) > limit else []
    wanted = f"{state} run" if state else "run"
    without = f"no {wanted} in {queue or f'namespace {session.namespace!r}'}"
    return Output(
        {"runs": [run_document(run) for run in runs]},
        itertools.chain(run_listing(runs, without), cut_notes(cut, limit)),
    )


@command.command("show")
@click.argument("run_id", metavar="ID")
@_queue_option
@json_option
@click.pass_obj
def show(session: Session, run_id: str, queue: str | None) -> Output:
    """Show a run: its state, and the steps, signals and positions that it has recorded, with their times."""
    from qworker.cli.calls import group_document

    opened, run = _find(session, run_id, queue)
    steps, calls = opened.run_steps(run.id) or [], gathered(opened, run)
    document = {**run_document(run), "steps": [step_document(step) for step in steps]}
    document["calls"] = group_document(calls) if calls else None
    return Output(document, run_text(run, steps, calls))


@command.command("signal")
@click.argument("run_id", metavar="ID")
@click.argument("name", metavar="NAME")
@click.argument("value", metavar="[JSON]", default="null")
@_queue_option
@click.option("--replace", is_flag=True, help="Replace the value that a dead run was given before.")
@json_option
@click.pass_obj
def signal(
    session: Session, run_id: str, name: str, value: str, queue: str | None, replace: bool
) -> Output:
    """Give a run a signal: if it waits for the signal, it continues; otherwise it finds the signal when it waits.

    NAME is the type that the run waits for, or the name of the wait; JSON is the value, null by default.

    The first value counts. If a run is dead because it could not use that, replace it, and redrive the run.
    """
    from qworker.errors import InvalidBodyError
    from qworker.wire.codec import decode

    try:
        given = decode(value.encode())
    except InvalidBodyError as error:
        raise error.at("JSON") from error
    opened, run = _find(session, run_id, queue)
    opened.signal(run.id, name, given, replace=replace)
    redrive = f"; to continue it: qworker workflow redrive {run.id}" if run.state == "dead" else ""
    if run.state == "waiting" and run.waits_for != name:
        note(f"note: {run.id} waits for the signal {run.waits_for}, and goes on waiting")
    return Output(
        {"id": run.id, "queue": run.queue, "signal": name, "value": given},
        f"gave {run.id} of {run.queue} the signal {name}{redrive}",
    )


@command.command("cancel")
@click.argument("run_id", metavar="ID")
@_queue_option
@click.option("--calls", is_flag=True, help="Also cancel the calls that it gathers.")
@dry_run_option
@yes_option
@json_option
@click.pass_obj
def cancel(
    session: Session, run_id: str, queue: str | None, calls: bool, dry_run: bool, yes: bool
) -> Output:
    """Cancel a run: end it if it sleeps or waits, ask its handler to stop if it runs.

    Completed steps are not undone. To stop a handler at once, use qworker message cancel --running, or --kill.
    """
    from qworker.cli.framework.confirm import confirm

    opened, run = _find(session, run_id, queue)
    name, answer = f"{run.id} of {run.queue}", ""
    if run.ended:
        raise click.ClickException(f"too late: run {name} has ended ({run.state})")
    if run.state == "dead":
        queue = run.queue.partition("/")[0]
        raise click.ClickException(
            f"run {name} is dead: end it by qworker dead drop {queue} --id {run.id}, or continue it by "
            f"qworker workflow redrive {run.id}"
        )
    text = f"would cancel {name} ({run.state}); nothing was changed"
    if not dry_run:
        confirm(f"Cancel {run.state} run {name}?", yes=yes)
        answer = opened.cancel(run.id, calls=calls)
        if answer.too_late:
            raise click.ClickException(
                f"run {name} was not cancelled: it has ended meanwhile, or is dead"
            )
        text = f"{answer} {name}"
    return Output({"id": run.id, "queue": run.queue, "state": run.state, "answer": answer}, text)


@command.command("redrive")
@click.argument("run_id", metavar="ID")
@_queue_option
@dry_run_option
@json_option
@click.pass_obj
def redrive(session: Session, run_id: str, queue: str | None, dry_run: bool) -> Output:
    """Redrive a dead run: it continues after its last recorded step, with fresh counts."""
    opened, run = _find(session, run_id, queue)
    name = f"{run.id} of {run.queue}"
    if run.state != "dead":
        raise click.ClickException(f"run {name} is not dead, but {run.state}")
    if not dry_run and not opened.redrive(ids={run.id}):
        raise click.ClickException(f"run {name} is no longer dead; run this again")
    text = f"redrove {name}: it continues after its last step"
    return Output(
        {"id": run.id, "queue": run.queue, "redriven": not dry_run},
        f"would redrive {name}; nothing was changed" if dry_run else text,
    )


def _listed(opened: Queue, state: str | None, count: int) -> list[RunStatus]:
    """Read the oldest runs of a queue; of a state, in as many pages as it takes to find them."""
    found: list[RunStatus] = []
    size = _PAGE if state else min(count, _PAGE)
    for read in itertools.count(0, size):
        page = opened.runs(size, skip=read)
        found += [run for run in page if state in (None, run.state)]
        if len(page) < size or len(found) >= count:
            return found
    return found


def _find(session: Session, run_id: str, queue: str | None) -> tuple[Queue, RunStatus]:
    from qworker.wire.names import check_message_id

    check_message_id(run_id, "ID")
    found = session.queues.find(queue, lambda opened: opened.run_status(run_id))
    if found is None:
        raise click.ClickException(
            f"run {run_id} not found in {session.queues.scope(queue)}: it ended long ago, its id is wrong, or it is "
            "not a run"
        )
    return found
