"""`qworker schedule`: list, show, pause, resume, run, remove."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.framework.commands import CommandGroup, dry_run_option, json_option, yes_option
from qworker.cli.framework.output import Fields, Note, Output, Table
from qworker.cli.framework.parameters import queue_option
from qworker.cli.framework.suggestions import did_you_mean
from qworker.cli.framework.terminal import Cell, Column

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session
    from qworker.daemon.schedule_listing import ListedSchedule
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
_NO_APP: Final = "none: added at run time"


_queue_option: Final = queue_option("Queue, if several have a schedule of this name.")


@click.group(cls=CommandGroup)
def command() -> None:
    """List, pause, run and remove schedules."""


@command.command("ls")
@json_option
@click.pass_obj
def list_all(session: Session) -> Output:
    """List the schedules: what each sends, when it fires next and when it last fired.

    They are stored in Redis: `qworker run` writes those of its app, and every reaper fires them. They keep firing for
    up to 7 days without a worker of the app. Schedules that a program added at run time fire until they are removed.
    """
    schedules, now_ms = _all(session), session.now_ms()
    none = (
        f"no schedule in namespace {session.namespace!r}: define one with @app.schedule, and qworker run "
        "registers it"
    )
    return Output(
        {"schedules": [_document(schedule) for schedule in schedules]},
        Table(_COLUMNS, [_row(schedule, now_ms) for schedule in schedules], none),
    )


@command.command("show")
@click.argument("name", metavar="SCHEDULE")
@_queue_option
@json_option
@click.pass_obj
def show(session: Session, name: str, queue: str | None) -> Output:
    """Show one schedule: its times, task and app, and whether it fires."""
    from qworker.formats import ago

    schedule, now_ms = _find(session, name, queue), session.now_ms()
    seen = "not recorded" if schedule.app_seen_ms is None else ago(schedule.app_seen_ms, now_ms)
    fields = {
        "schedule": schedule.name,
        "queue": schedule.queue,
        "task": schedule.task,
        "when": schedule.spec,
        "next": _due(schedule, now_ms),
        "last": "never" if schedule.last_ms is None else ago(schedule.last_ms, now_ms),
        "running": schedule.running,
        "app": f"{schedule.app} (its last worker seen: {seen})" if schedule.app else _NO_APP,
    }
    return Output(_document(schedule), Fields(fields))


@command.command("pause")
@click.argument("name", metavar="SCHEDULE")
@_queue_option
@json_option
@click.pass_obj
def pause(session: Session, name: str, queue: str | None) -> Output:
    """Pause a schedule until it is resumed, even if workers restart."""
    from qworker.daemon.schedule_changes import pause

    schedule = _find(session, name, queue)
    changed = pause(session.client, _keys(session, schedule), schedule.name)
    return _changed(schedule, "paused", changed, "already paused")


@command.command("resume")
@click.argument("name", metavar="SCHEDULE")
@_queue_option
@json_option
@click.pass_obj
def resume(session: Session, name: str, queue: str | None) -> Output:
    """Resume a paused schedule from its next slot; slots that have passed are skipped."""
    from qworker.daemon.schedule_changes import resume

    schedule = _find(session, name, queue)
    changed = resume(session.client, _keys(session, schedule), schedule.name)
    return _changed(schedule, "resumed", changed, "not paused")


@command.command("run")
@click.argument("name", metavar="SCHEDULE")
@_queue_option
@json_option
@click.pass_obj
def run(session: Session, name: str, queue: str | None) -> Output:
    """Send the message of a schedule now, even while it is paused. Prints the message id."""
    from qworker.daemon.schedule_changes import run_now
    from qworker.daemon.schedules import read_schedules

    schedule = _find(session, name, queue)
    written = read_schedules(session.client.execute, _keys(session, schedule)).get(schedule.name)
    stored = None if written is None else written.stored
    if stored is None:
        raise click.ClickException(f"schedule {schedule.name} of {schedule.queue} cannot be read")
    session.queues.names()
    message_id = run_now(session.client, session.queues.ref(schedule.queue), schedule.name, stored)
    document = {"schedule": schedule.name, "queue": schedule.queue, "id": message_id}
    return Output(document, message_id)


@command.command("rm")
@click.argument("names", nargs=-1, metavar="[SCHEDULE...]")
@_queue_option
@click.option("--app", help="All schedules of this app, as named by `qworker schedule ls`.")
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
) -> Iterator[Output]:
    """Remove schedules, or all of an app that was renamed or deleted.

    An app that still runs registers its schedules again when its next worker starts: remove them from its code, or
    pause them.
    """
    from qworker.cli.framework.confirm import confirm
    from qworker.daemon.schedule_changes import remove_chosen

    if bool(names) == bool(app):
        raise click.UsageError("name schedules, or pass --app")
    chosen = (
        _of_app(session, app)
        if app
        else [_find(session, name, queue) for name in dict.fromkeys(names)]
    )
    if not dry_run:
        listing = ", ".join(f"{schedule.name} of {schedule.queue}" for schedule in chosen[:5])
        more = f" and {len(chosen) - 5} more" if len(chosen) > 5 else ""
        confirm(f"Remove schedule {listing}{more}?", yes=yes)
        by_queue: dict[str, list[str]] = {}
        for schedule in chosen:
            by_queue.setdefault(schedule.queue, []).append(schedule.name)
        remove_chosen(session.client, session.namespace, by_queue)
    word = "would remove" if dry_run else "removed"
    yield Output(
        {
            "schedules": [
                {"schedule": schedule.name, "queue": schedule.queue} for schedule in chosen
            ],
            "removed": not dry_run,
        },
        [f"{word} {schedule.name} of {schedule.queue}" for schedule in chosen],
    )
    running = _apps_that_run(session)
    if any(schedule.app in running for schedule in chosen):
        advice = "their app is running: its next worker registers them again; pause them instead"
        yield Output(text=Note(advice))


# -- finding -----------------------------------------------------------------------------------


def _all(session: Session) -> list[ListedSchedule]:
    from qworker.daemon.schedule_listing import list_schedules

    return list_schedules(session.client, session.namespace, session.queues.names())


def _find(session: Session, name: str, queue: str | None) -> ListedSchedule:
    from qworker.errors import InvalidOptionError

    schedules = [one for one in _all(session) if queue in (None, one.queue)]
    named = [schedule for schedule in schedules if schedule.name == name]
    if len(named) == 1:
        return named[0]
    shown = f"{ascii(name)[:80]}"
    if named:
        queues = ", ".join(schedule.queue for schedule in named)
        raise InvalidOptionError(
            "SCHEDULE", f"several queues have a schedule {shown}", f"pass --queue: {queues}"
        )
    known = [schedule.name for schedule in schedules]
    limit = did_you_mean(name, known, "see qworker schedule ls")
    where = f"queue {queue!r}" if queue else f"namespace {session.namespace!r}"
    raise InvalidOptionError("SCHEDULE", f"{shown} does not exist in {where}", limit)


def _of_app(session: Session, app: str) -> Sequence[ListedSchedule]:
    from qworker.errors import InvalidOptionError

    schedules = _all(session)
    chosen = [schedule for schedule in schedules if schedule.app == app]
    if not chosen:
        apps = ", ".join(sorted({schedule.app for schedule in schedules})[:8])
        limit = f"apps with schedules: {apps}" if apps else "there is no schedule"
        raise InvalidOptionError("--app", f"{ascii(app)[:80]} has no schedule", limit)
    return chosen


def _apps_that_run(session: Session) -> set[str]:
    from qworker.client.namespace.workers import read_workers

    return {worker.described.app for worker in read_workers(session) if not worker.is_gone}


def _keys(session: Session, schedule: ListedSchedule) -> QueueKeys:
    from qworker.wire.keys import QueueKeys

    return QueueKeys(session.namespace, schedule.queue)


# -- printing ----------------------------------------------------------------------------------


def _changed(schedule: ListedSchedule, state: str, changed: bool, unchanged: str) -> Output:
    name, queue = schedule.name, schedule.queue
    document = {"schedule": name, "queue": queue, "state": state, "changed": changed}
    return Output(document, f"{name} of {queue}: {state if changed else unchanged}")


def _document(schedule: ListedSchedule) -> dict[str, Any]:
    return {**dataclasses.asdict(schedule), "fires": schedule.fires}


def _due(schedule: ListedSchedule, now_ms: int) -> Cell | str:
    from qworker.formats import ago

    if schedule.problem:
        return Cell(f"never: {schedule.problem}", "bad")
    if schedule.paused_ms is not None:
        return Cell(f"paused {ago(schedule.paused_ms, now_ms)}", "warn")
    if schedule.orphaned and schedule.app_seen_ms is not None:
        return Cell(f"never: app seen {ago(schedule.app_seen_ms, now_ms)}", "bad")
    if schedule.next_ms is None:
        return Cell("never", "warn")
    if schedule.waits:
        return Cell(f"waits for {schedule.running}", "warn")
    return ago(schedule.next_ms, now_ms)


def _row(schedule: ListedSchedule, now_ms: int) -> list[Cell | str]:
    from qworker.formats import ago

    last = ago(schedule.last_ms, now_ms) if schedule.last_ms is not None else Cell("never", "dim")
    return [
        schedule.name, schedule.queue, schedule.task, schedule.spec, _due(schedule, now_ms), last,
        schedule.app or Cell(_NO_APP, "dim"),
    ]  # fmt: skip
