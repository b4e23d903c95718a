"""`qworker import`: import waiting messages from RSMQ, RQ or Celery."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.framework.commands import (
    CommandGroup,
    dry_run_option,
    json_option,
    stacked,
    yes_option,
)
from qworker.cli.framework.output import Output

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session
    from qworker.cli.importing.options import ImportSelection
    from qworker.importers.task_names import TaskNames

__all__ = ["command"]

_source_options: Final = stacked(
    click.option(
        "--from",
        "origin",
        metavar="URL",
        envvar="QWORKER_FROM",
        help="Server of the other system. [default: that of qworker; env: QWORKER_FROM]",
    ),
    click.option(
        "--queue",
        "queues",
        multiple=True,
        metavar="NAME",
        help="Import only this queue; repeatable.",
    ),
    click.option(
        "--queue-map",
        "queue_pairs",
        multiple=True,
        metavar="THEIRS=OURS",
        help="Import a queue under another name; repeatable.",
    ),
    dry_run_option,
    yes_option,
    json_option,
)
_call_options: Final = stacked(
    click.option(
        "--task-map",
        "task_pairs",
        multiple=True,
        metavar="FUNCTION=TASK",
        help="Task that replaces a function; repeatable. [default: the last part of its name]",
    ),
    click.option(
        "--full-names", is_flag=True, help="Name tasks like their functions, dots included."
    ),
    click.option(
        "--in-flight",
        is_flag=True,
        help="Also import messages that a worker has taken; stop all workers first.",
    ),
    click.option(
        "--drop-callbacks",
        is_flag=True,
        help="Also import messages with callbacks, chains, chords or repetitions, and drop these.",
    ),
)


@click.group(cls=CommandGroup)
def command() -> None:
    """Import waiting messages from RSMQ, RQ or Celery.

    Each message is copied, then deleted from the other system. If the import is interrupted, run it again: nothing is
    lost or moved twice. Stop the consumers of the other system first. Messages that cannot be moved stay there and are
    listed; the exit code is then 3.
    """


@command.command("rsmq")
@click.option(
    "--task",
    "tasks",
    multiple=True,
    metavar="[QUEUE=]TASK",
    help="Make each message a call of this task with one argument; repeatable.",
)
@click.option("--text", is_flag=True, help="Pass the argument as text, even if it is JSON.")
@click.option(
    "--no-attributes", is_flag=True, help="Do not copy vt, delay and maxsize of the queues."
)
@click.option("--prefix", default="rsmq", metavar="NS", help="RSMQ's ns. [default: rsmq]")
@_source_options
@click.pass_obj
def import_rsmq(
    session: Session,
    /,
    tasks: tuple[str, ...],
    text: bool,
    no_attributes: bool,
    prefix: str,
    **flags: Any,
) -> Iterator[Output]:
    """Import messages of RSMQ.

    Without --task, bodies are copied byte for byte, and a task can take only those that are calls. With --task, a JSON
    object or array is the argument, and any other body is passed as text. Messages in flight are delayed until RSMQ
    would show them again.

    \b
      qworker import rsmq --task emails=send_email --dry-run
    """
    from qworker.cli.importing.run import import_messages
    from qworker.importers.rsmq import Rsmq, as_call, as_it_is

    by_queue = _tasks_by_queue(tasks)

    def bodies(queue: str) -> Callable[[bytes], bytes]:
        task = by_queue.get(queue, by_queue.get(""))
        return as_it_is if task is None else as_call(task, text=text)

    return import_messages(
        session,
        lambda redis: Rsmq(redis, bodies, prefix),
        _choice(flags, attributes=not no_attributes),
    )


@command.command("rq")
@_call_options
@_source_options
@click.pass_obj
def import_rq(session: Session, /, **flags: Any) -> Iterator[Output]:
    """Import queued and scheduled jobs of RQ.

    Pickled arguments are read without running code: plain values, dates and times. Jobs with other arguments stay, and
    so do failed and deferred jobs.

    \b
      qworker import rq --from redis://old:6379/1 --dry-run \\
        --task-map shop.mail.send=send_email
    """
    from qworker.cli.importing.run import import_messages
    from qworker.importers.rq import Rq

    names, how = _calls(flags)
    return import_messages(session, lambda redis: Rq(redis, names, **how), _choice(flags), names)


@command.command("celery")
@click.option("--prefix", default="", metavar="TEXT", help="Celery's global_keyprefix.")
@_call_options
@_source_options
@click.pass_obj
def import_celery(session: Session, /, prefix: str, **flags: Any) -> Iterator[Output]:
    """Import messages of Celery's Redis broker.

    Messages with JSON bodies are moved; those with pickle or other bodies stay. An eta becomes a delay, and expires a
    time to live. Workers hold messages with an eta: stop them gracefully first, so that they return them.

    \b
      qworker import celery --from redis://old:6379/0 --dry-run \\
        --task-map shop.tasks.mail=send_email
    """
    from qworker.cli.importing.run import import_messages
    from qworker.importers.celery import Celery

    names, how = _calls(flags)
    return import_messages(
        session, lambda redis: Celery(redis, names, prefix=prefix, **how), _choice(flags), names
    )


def _choice(flags: dict[str, Any], *, attributes: bool = False) -> ImportSelection:
    from qworker.cli.importing.options import ImportSelection

    return ImportSelection(attributes=attributes, **flags)


def _calls(flags: dict[str, Any]) -> tuple[TaskNames, dict[str, bool]]:
    from qworker.importers.task_names import TaskNames

    names = TaskNames(flags.pop("task_pairs"), full=flags.pop("full_names"))
    return names, {name: flags.pop(name) for name in ("in_flight", "drop_callbacks")}


def _tasks_by_queue(given: tuple[str, ...]) -> dict[str, str]:
    from qworker.wire.names import check_task

    by_queue = {}
    for pair in given:
        queue, _, task = pair.rpartition("=")
        by_queue[queue] = check_task(task, "--task")
    return by_queue
