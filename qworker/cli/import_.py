"""`qworker import`: move waiting messages in from RSMQ, RQ or Celery."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.verbs import Verbs, dry_run_option, json_option, yes_option

if TYPE_CHECKING:
    from qworker.cli.import_course import Choice
    from qworker.cli.session import Session
    from qworker.moving.waiting import TaskNames

__all__ = ["command"]

_SOURCE: Final = (
    click.option(
        "--from",
        "origin",
        metavar="URL",
        envvar="QWORKER_FROM",
        help="Server of the other system; without it, ours. [env: QWORKER_FROM]",
    ),
    click.option(
        "--queue",
        "queues",
        multiple=True,
        metavar="NAME",
        help="Only this queue of theirs; repeatable.",
    ),
    click.option(
        "--queue-map",
        "queue_pairs",
        multiple=True,
        metavar="THEIRS=OURS",
        help="Into a queue of another name; repeatable.",
    ),
    dry_run_option,
    yes_option,
    json_option,
)
_CALLS: Final = (
    click.option(
        "--task-map",
        "task_pairs",
        multiple=True,
        metavar="FUNCTION=TASK",
        help="Their function is this task of ours; repeatable. Others: the last part of their name.",
    ),
    click.option(
        "--full-names", is_flag=True, help="Tasks are named like their functions, dots included."
    ),
    click.option(
        "--in-flight", is_flag=True, help="Also what a worker has taken; no worker may run then."
    ),
    click.option(
        "--drop-callbacks",
        is_flag=True,
        help="Also messages with callbacks, chains, chords or repetitions, without these.",
    ),
)


def _options(*groups: tuple[Callable[..., Any], ...]) -> Callable[..., Any]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed([each for group in groups for each in group]):
            function = option(function)
        return function

    return add


@click.group(cls=Verbs)
def command() -> None:
    """Move waiting messages in from RSMQ, RQ or Celery.

    Each message is copied under a mark of its own, then deleted there; whatever interrupts that, the same command goes
    on, and nothing is lost or moved twice. Stop the consumers of the other system first. What cannot be moved stays,
    is counted and named; the exit code is 3 then.
    """


@command.command("rsmq")
@click.option(
    "--task",
    "tasks",
    multiple=True,
    metavar="[QUEUE=]TASK",
    help="Each message becomes a call of this task with one argument; repeatable.",
)
@click.option("--text", is_flag=True, help="The argument is always text, even where it is JSON.")
@click.option(
    "--no-attributes", is_flag=True, help="Do not take over vt, delay and maxsize of their queues."
)
@click.option("--prefix", default="rsmq", metavar="NS", help="RSMQ's ns. [default: rsmq]")
@_options(_SOURCE)
@click.pass_obj
def import_rsmq(
    session: Session,
    /,
    tasks: tuple[str, ...],
    text: bool,
    no_attributes: bool,
    prefix: str,
    **flags: Any,
) -> None:
    """Move messages of RSMQ.

    Without --task a body goes over byte for byte; a task can only take one that is a call. With it, a JSON object or
    array is the argument, any other body is passed as text. Messages that are in flight go over as delayed, to the
    moment at which RSMQ would show them again.

    \b
      qworker import rsmq --task emails=send_email --dry-run
    """
    from qworker.cli.import_course import import_messages
    from qworker.moving.rsmq import Rsmq, as_call, as_it_is

    by_queue = _tasks_by_queue(tasks)

    def bodies(queue: str) -> Callable[[bytes], bytes]:
        task = by_queue.get(queue, by_queue.get(""))
        return as_it_is if task is None else as_call(task, text=text)

    import_messages(
        session,
        lambda redis: Rsmq(redis, bodies, prefix),
        _choice(flags, attributes=not no_attributes),
    )


@command.command("rq")
@_options(_CALLS, _SOURCE)
@click.pass_obj
def import_rq(session: Session, /, **flags: Any) -> None:
    """Move jobs of RQ: those queued and scheduled.

    Pickled arguments are read without running anything of them: plain values, dates and times. Jobs of others stay, and
    so do failed and deferred ones.

    \b
      qworker import rq --from redis://old:6379/1 --task-map shop.mail.send=send_email --dry-run
    """
    from qworker.cli.import_course import import_messages
    from qworker.moving.rq import Rq

    names, how = _calls(flags)
    import_messages(session, lambda redis: Rq(redis, names, **how), _choice(flags), names)


@command.command("celery")
@click.option("--prefix", default="", metavar="TEXT", help="Celery's global_keyprefix.")
@_options(_CALLS, _SOURCE)
@click.pass_obj
def import_celery(session: Session, /, prefix: str, **flags: Any) -> None:
    """Move messages of Celery's Redis broker.

    Bodies in JSON are moved, those in pickle or others stay. A message with an eta is delayed, one with expires keeps
    it. Workers hold messages with an eta themselves: stop them first, gracefully, so that they give them back.

    \b
      qworker import celery --from redis://old:6379/0 --task-map shop.tasks.mail=send_email --dry-run
    """
    from qworker.cli.import_course import import_messages
    from qworker.moving.celery import Celery

    names, how = _calls(flags)
    import_messages(
        session, lambda redis: Celery(redis, names, prefix=prefix, **how), _choice(flags), names
    )


def _choice(flags: dict[str, Any], *, attributes: bool = False) -> Choice:
    from qworker.cli.import_course import Choice

    return Choice(attributes=attributes, **flags)


def _calls(flags: dict[str, Any]) -> tuple[TaskNames, dict[str, bool]]:
    from qworker.moving.waiting import TaskNames

    names = TaskNames(flags.pop("task_pairs"), full=flags.pop("full_names"))
    return names, {name: flags.pop(name) for name in ("in_flight", "drop_callbacks")}


def _tasks_by_queue(given: tuple[str, ...]) -> dict[str, str]:
    from qworker.wire.names import check_task

    found = {}
    for each in given:
        queue, _, task = each.rpartition("=")
        found[queue] = check_task(task, "--task")
    return found
