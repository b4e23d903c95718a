"""`qworker schedule`: list, show, pause, resume, run, remove."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.parameters import QUEUE
from qworker.cli.screen import Cell, Column, note, print_json, print_line, print_table
from qworker.cli.verbs import Verbs, dry_run_option, json_option, yes_option

if TYPE_CHECKING:
    from qworker.cli.session import Session
    from qworker.daemon.schedules import ListedSchedule
    from qworker.wire.keys import QueueKeys

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
    """List, pause, run and remove schedules."""


def _queue_option(function: click.decorators.FC) -> click.decorators.FC:
    text = "The queue, where several have a schedule of this name."
    return click.option("--queue", type=QUEUE, help=text)(function)


@command.command("ls")
@json_option
@click.pass_obj
def list_all(session: Session, as_json: bool) -> None:
    """List the schedules: what each sends, when it is due next and when it fired last.

    They are stored in Redis: `qworker run` writes those of its app, and every reaper fires them. They go on while no
    worker of the app runs, for up to 7 days.
    """
    found = _all(session)
    if as_json:
        print_json({"schedules": [_document(each) for each in found]})
    elif not found:
        note(
            f"no schedule in namespace {session.namespace!r}: @app.schedule makes one, and qworker run "
            "writes it here"
        )
    else:
        now_ms = session.now_ms()
        print_table(_COLUMNS, [_row(each, now_ms) for each in found])


@command.command("show")
@click.argument("name", metavar="SCHEDULE")
@_queue_option
@json_option
@click.pass_obj
def show(session: Session, name: str, queue: str | None, as_json: bool) -> None:
    """Show one schedule: its times, its task, its app and whether it fires."""
    from qworker.cli.formats import ago, safe

    found = _find(session, name, queue)
    if as_json:
        print_json(_document(found))
        return
    now_ms = session.now_ms()
    seen = "not recorded" if found.app_seen_ms is None else ago(found.app_seen_ms, now_ms)
    lines = {
        "schedule": found.name,
        "queue": found.queue,
        "task": found.task,
        "when": found.spec,
        "next": _text(_due(found, now_ms)),
        "last": "never" if found.last_ms is None else ago(found.last_ms, now_ms),
        "app": f"{found.app} (a worker of it was last seen: {seen})",
    }
    for label, text in lines.items():
        print_line(f"{label:<9} {safe(text)}")


@command.command("pause")
@click.argument("name", metavar="SCHEDULE")
@_queue_option
@json_option
@click.pass_obj
def pause(session: Session, name: str, queue: str | None, as_json: bool) -> None:
    """Pause a schedule: it fires no more until it is resumed, also when workers start again."""
    from qworker.daemon.schedule_changes import pause

    found = _find(session, name, queue)
    changed = pause(session.client, _keys(session, found), found.name)
    _print_changed(found, "paused", changed=changed, as_json=as_json)


@command.command("resume")
@click.argument("name", metavar="SCHEDULE")
@_queue_option
@json_option
@click.pass_obj
def resume(session: Session, name: str, queue: str | None, as_json: bool) -> None:
    """Resume a paused schedule from its next slot on; those that passed meanwhile are skipped."""
    from qworker.daemon.schedule_changes import resume

    found = _find(session, name, queue)
    changed = resume(session.client, _keys(session, found), found.name)
    _print_changed(found, "resumed", changed=changed, as_json=as_json)


@command.command("run")
@click.argument("name", metavar="SCHEDULE")
@_queue_option
@json_option
@click.pass_obj
def run(session: Session, name: str, queue: str | None, as_json: bool) -> None:
    """Send the message of a schedule now, beside its times; also while it is paused. Prints the message id."""
    from qworker.daemon.schedule_changes import run_now
    from qworker.daemon.schedules import decoded, read_schedules

    found = _find(session, name, queue)
    written = read_schedules(session.client.execute, _keys(session, found)).get(found.name)
    stored = None if written is None else decoded(written.value)
    if stored is None:
        raise click.ClickException(f"schedule {found.name} of {found.queue} cannot be read")
    session.queues()
    message_id = run_now(session.client, session.ref(found.queue), found.name, stored)
    if as_json:
        print_json({"schedule": found.name, "queue": found.queue, "id": message_id})
    else:
        print_line(message_id)


@command.command("rm")
@click.argument("names", nargs=-1, metavar="[SCHEDULE...]")
@_queue_option
@click.option("--app", help="All schedules of this app, by its name in `qworker schedule ls`.")
@dry_run_option
@yes_option
@json_option
@click.pass_obj
def remove(
    session: Session,
    names: tuple[str, ...],
    queue: str | None,
    app: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove schedules, or all those of an app that was renamed or deleted.

    An app that still runs writes its schedules again when its next worker starts: take them out of its code, or pause
    them.
    """
    from qworker.cli.confirm import confirm
    from qworker.daemon.schedules import remove

    if bool(names) == bool(app):
        raise click.UsageError("give the names of schedules, or --app (qworker schedule ls)")
    chosen = (
        _of_app(session, app)
        if app
        else [_find(session, name, queue) for name in dict.fromkeys(names)]
    )
    if not dry_run:
        listing = ", ".join(f"{each.name} of {each.queue}" for each in chosen[:5])
        more = f" and {len(chosen) - 5} more" if len(chosen) > 5 else ""
        confirm(f"Remove schedule {listing}{more}?", yes=yes)
        for each in chosen:
            remove(session.client.execute, _keys(session, each), [each.name])
    running = _apps_that_run(session)
    if as_json:
        removed = [{"schedule": each.name, "queue": each.queue} for each in chosen]
        print_json({"schedules": removed, "removed": not dry_run})
        return
    for each in chosen:
        word = "would remove" if dry_run else "removed"
        print_line(f"{word} {each.name} of {each.queue}")
    if any(each.app in running for each in chosen):
        note("their app runs: the next worker that starts writes them again; pause them instead")


# -- finding -----------------------------------------------------------------------------------


def _all(session: Session) -> list[ListedSchedule]:
    from qworker.daemon.schedules import list_schedules

    return list_schedules(session.client, session.namespace)


def _find(session: Session, name: str, queue: str | None) -> ListedSchedule:
    from difflib import get_close_matches

    from qworker.errors import InvalidOptionError

    every = _all(session)
    found = [each for each in every if each.name == name and queue in (None, each.queue)]
    if len(found) == 1:
        return found[0]
    shown = f"{ascii(name)[:80]}"
    if found:
        queues = ", ".join(each.queue for each in found)
        raise InvalidOptionError(
            "SCHEDULE", f"{shown} is a schedule of several queues", f"give --queue: {queues}"
        )
    known = [each.name for each in every if queue in (None, each.queue)]
    near = get_close_matches(name, known, 1)
    limit = f"did you mean {near[0]!r}?" if near else "see qworker schedule ls"
    where = f"queue {queue!r}" if queue else f"namespace {session.namespace!r}"
    raise InvalidOptionError("SCHEDULE", f"{shown} is not a schedule of {where}", limit)


def _of_app(session: Session, app: str) -> Sequence[ListedSchedule]:
    from qworker.errors import InvalidOptionError

    every = _all(session)
    found = [each for each in every if each.app == app]
    if not found:
        apps = ", ".join(sorted({each.app for each in every})[:8]) or "there is no schedule"
        raise InvalidOptionError("--app", f"{ascii(app)[:80]} has no schedule", apps)
    return found


def _apps_that_run(session: Session) -> set[str]:
    from qworker.cli.presence import read_workers

    return {each.text("app") for each in read_workers(session) if not each.is_gone}


def _keys(session: Session, schedule: ListedSchedule) -> QueueKeys:
    from qworker.wire.keys import QueueKeys

    return QueueKeys(session.namespace, schedule.queue)


# -- printing ----------------------------------------------------------------------------------


def _print_changed(found: ListedSchedule, word: str, *, changed: bool, as_json: bool) -> None:
    if as_json:
        print_json(
            {"schedule": found.name, "queue": found.queue, "state": word, "changed": changed}
        )
        return
    before = "" if changed else "; nothing was changed: it was not paused"
    if not changed and word == "paused":
        before = "; it was so before"
    print_line(f"{found.name} of {found.queue}: {word}{before}")


def _document(schedule: ListedSchedule) -> dict[str, Any]:
    return {**dataclasses.asdict(schedule), "fires": schedule.fires}


def _due(schedule: ListedSchedule, now_ms: int) -> Cell | str:
    from qworker.cli.formats import ago

    if schedule.problem:
        return Cell(f"never: {schedule.problem}", "bad")
    if schedule.paused_ms is not None:
        return Cell(f"paused {ago(schedule.paused_ms, now_ms)}", "warn")
    if schedule.orphaned and schedule.app_seen_ms is not None:
        return Cell(f"never: app seen {ago(schedule.app_seen_ms, now_ms)}", "bad")
    if schedule.next_ms is None:
        return Cell("never", "warn")
    return ago(schedule.next_ms, now_ms)


def _text(cell: Cell | str) -> str:
    return cell if isinstance(cell, str) else cell.text


def _row(schedule: ListedSchedule, now_ms: int) -> list[Cell | str]:
    from qworker.cli.formats import ago

    last = ago(schedule.last_ms, now_ms) if schedule.last_ms is not None else Cell("never", "dim")
    return [
        schedule.name, schedule.queue, schedule.task, schedule.spec, _due(schedule, now_ms), last,
        schedule.app,
    ]  # fmt: skip
