"""`qworker workflow`: where runs stand, what they have recorded; signal, cancel and redrive them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.framework.commands import CommandGroup, dry_run_option, json_option, yes_option
from qworker.cli.framework.output import Block, Fields, Heading, Hint, Line, Note, Output, Table
from qworker.cli.framework.paging import limit_option
from qworker.cli.framework.parameters import QUEUE, queue_option
from qworker.cli.framework.terminal import Cell, Column

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session
    from qworker.client.calls import CallGroup
    from qworker.client.inspect.runs import RunStatus, RunStep
    from qworker.client.queue import Queue

__all__ = ["command"]

_TONES: Final = {"dead": "bad", "lost": "bad", "running": "good"}


_queue_option: Final = queue_option("Search this queue only. [default: all queues]")


@click.group(cls=CommandGroup)
def command() -> None:
    """List and show runs of workflows; signal, cancel and redrive them."""


@command.command("ls")
@click.argument("queue", type=QUEUE, required=False)
@click.option("--state", metavar="STATE", help="Only this state, such as waiting or dead.")
@limit_option
@json_option
@click.pass_obj
def list_runs(session: Session, queue: str | None, state: str | None, limit: int) -> Output:
    """List runs that have not ended: what each waits for, and since when.

    A run is listed once it has recorded a step, slept or waited; a run started with `id=`, from its start. Without
    QUEUE, lists the runs of all queues.
    """
    runs = [
        run
        for opened in session.queues.searched(queue)
        for run in opened.runs(limit)
        if state is None or run.state == state
    ]
    return Output({"runs": [_document(run) for run in runs]}, _listing(session, runs))


@command.command("show")
@click.argument("run_id", metavar="ID")
@_queue_option
@json_option
@click.pass_obj
def show(session: Session, run_id: str, queue: str | None) -> Output:
    """Show a run: its state, and the steps, signals and positions that it has recorded, with their times."""
    opened, run = _find(session, run_id, queue)
    steps, calls = opened.run_steps(run.id) or [], _gathered(opened, run)
    document = {**_document(run), "steps": [_step_document(step) for step in steps]}
    document["calls"] = calls.id if calls else None
    return Output(document, _text(run, steps, calls))


@command.command("signal")
@click.argument("run_id", metavar="ID")
@click.argument("name", metavar="NAME")
@click.argument("value", metavar="[JSON]", default="null")
@_queue_option
@json_option
@click.pass_obj
def signal(session: Session, run_id: str, name: str, value: str, queue: str | None) -> Output:
    """Give a run a signal: if it waits for the signal, it continues; otherwise it finds the signal when it waits.

    NAME is the type that the run waits for, or the name of the wait; JSON is the value, null by default.
    """
    from qworker.errors import InvalidBodyError
    from qworker.wire.codec import decode

    try:
        given = decode(value.encode())
    except InvalidBodyError as error:
        raise error.at("JSON") from error
    opened, run = _find(session, run_id, queue)
    opened.signal(run.id, name, given)
    return Output(
        {"id": run.id, "queue": run.queue, "signal": name, "value": given},
        f"gave {run.id} of {run.queue} the signal {name}",
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
    text = f"would cancel {name} ({run.state}); nothing was changed"
    if not dry_run:
        confirm(f"Cancel {run.state} run {name}?", yes=yes)
        answer = opened.cancel(run.id, calls=calls)
        if answer.too_late:
            raise click.ClickException(
                f"run {name} was not cancelled: it has ended, or is dead (qworker dead drop)"
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


def _document(run: RunStatus) -> dict[str, Any]:
    return {
        "id": run.id,
        "queue": run.queue,
        "workflow": run.workflow or None,
        "state": run.state,
        "started_ms": run.started_ms,
        "since_ms": run.since_ms,
        "due_ms": run.due_ms,
        "waits_for": run.waits_for or None,
    }


def _step_document(step: RunStep) -> dict[str, Any]:
    return {
        "name": step.name,
        "at_ms": step.at_ms,
        "value": json.loads(step.value) if step.value else None,
        "position": step.position,
        "timed_out": step.name.startswith("!") and not (step.value or step.closed),
        "closed": step.closed or None,
        "lasted_ms": step.lasted_ms or None,
    }


def _what(run: RunStatus) -> str:
    """What a run waits for, in words."""
    from qworker.client.inspect.runs import is_gather
    from qworker.formats import moment_after

    if run.state == "waiting":
        kind = "calls of" if is_gather(run.waits_for) else "signal"
        until = f" until {moment_after(run.due_ms, run.now_ms)}" if run.due_ms else ""
        return f"{kind} {run.waits_for}{until}"
    return moment_after(run.due_ms, run.now_ms) if run.due_ms else ""


def _listing(session: Session, runs: list[RunStatus]) -> Iterator[str | Block]:
    from qworker.formats import ago

    if not runs:
        yield Note(f"no such run in namespace {session.namespace!r}")
        return
    columns = [Column("QUEUE"), Column("ID", wide=True), Column("WORKFLOW"), Column("STATE")]
    columns += [Column("STARTED"), Column("SINCE"), Column("WAITS FOR", wide=True)]
    yield Table(
        columns,
        [
            [
                run.queue,
                run.id,
                run.workflow,
                Cell(run.state, _TONES.get(run.state, "")),
                ago(run.started_ms, run.now_ms) if run.started_ms else "",
                ago(run.since_ms, run.now_ms) if run.since_ms else "",
                _what(run),
            ]
            for run in runs
        ],
    )


def _gathered(opened: Queue, run: RunStatus) -> CallGroup | None:
    """The group of calls that a run waits for."""
    from qworker.client.inspect.runs import is_gather
    from qworker.wire.calls import gather_id

    if run.state != "waiting" or not is_gather(run.waits_for):
        return None
    return opened.call_group(gather_id(run.id, f"!{run.waits_for}"))


def _text(run: RunStatus, steps: list[RunStep], calls: CallGroup | None) -> Iterator[str | Block]:
    from qworker.cli.message.bodies import body_line
    from qworker.client.inspect.runs import is_gather
    from qworker.formats import moment_after, span, word

    fields: dict[str, Cell | str] = {"run": run.id, "queue": run.queue}
    if run.workflow:
        fields["workflow"] = run.workflow
    fields["state"] = Cell(run.state, _TONES.get(run.state, ""))
    for name, at_ms in (("started", run.started_ms), ("since", run.since_ms)):
        if at_ms:
            fields[name] = moment_after(at_ms, run.now_ms)
    if what := _what(run):
        fields["waits for"] = what
    if calls is not None:
        dead = f", {len(calls.dead):,} dead" if calls.dead else ""
        tone = "bad" if calls.state == "blocked" else ""
        fields["calls"] = Cell(f"{calls.size:,}, waits for {calls.left:,}{dead}", tone)
    yield Fields(fields)
    yield Heading("STEPS")
    if not steps:
        yield "none is recorded"
    for step in steps:
        at = moment_after(step.at_ms, run.now_ms) if step.at_ms else "-"
        shown = f"({step.closed})" if step.closed else body_line(step.value)
        if step.name.startswith("!") and not (step.value or step.closed):
            shown = "(not given in time)"
        if step.name.startswith("!") and is_gather(step.name):
            yield f"{at}  {step.name[1:]}  (its calls have ended)"
        elif step.position is not None:
            yield f"{at}  each {step.name[1:]}: {step.progress}"
        else:
            took = f"  (took {span(step.lasted_ms / 1000)})" if step.lasted_ms else ""
            yield f"{at}  {step.name}  {shown}{took}"
    name = word(run.id)
    if run.state == "dead":
        yield Line()
        yield Hint(
            "why it is dead      ", f"qworker dead show {run.queue.partition('/')[0]} {name}"
        )
        yield Hint("after the fix       ", f"qworker workflow redrive {name}")
    elif run.state == "lost":
        yield Line()
        yield Hint("its message is gone ", f"qworker fsck {run.queue.partition('/')[0]} --repair")
    elif calls is not None:
        yield Line()
        yield Hint("what it waits for   ", f"qworker calls show {word(calls.id)}")
    elif run.state == "waiting" and not is_gather(run.waits_for):
        yield Line()
        yield Hint("to let it continue  ", f"qworker workflow signal {name} {run.waits_for} JSON")
    elif run.ended:
        yield Line()
        yield Hint(
            "what it came to     ", f"qworker result show {run.queue.partition('/')[0]} {name}"
        )
