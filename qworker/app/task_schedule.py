"""Schedules of calls: the policies that a task's schedule may have, and what Redis stores of one added at run time."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from qworker.engine.options import SendOptions
from qworker.errors import InvalidOptionError
from qworker.wire.names import check_schedule
from qworker.wire.schedule import StoredSchedule

if TYPE_CHECKING:
    from qworker.app.call_message import CallMessages
    from qworker.app.definition import Definition
    from qworker.app.schedule import Schedule

__all__ = ["check_overlap", "stored_schedule"]

#: The options of a send that the messages of a schedule take.
_SCHEDULED: Final = ("priority", "ttl", "max_receives", "group", "ordered")


def stored_schedule(
    sender: CallMessages[..., Any],
    name: str,
    schedule: Schedule,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> StoredSchedule:
    """Make what Redis stores of a schedule that sends a call with these arguments.

    Raises `ArgumentsError`, `InvalidBodyError`, `InvalidNameError` and `InvalidOptionError`.
    """
    task, options = sender.task, sender.options_of_sends
    check_schedule(name)
    for field in fields(SendOptions):
        if (
            field.init
            and field.name not in _SCHEDULED
            and field.default != getattr(options, field.name)
        ):
            raise InvalidOptionError(
                field.name,
                "is set for a schedule",
                f"its messages take {', '.join(_SCHEDULED)}; leave it out",
            )
    check_overlap(schedule, task)
    keyring = task.app.keyring
    if keyring.encrypts and (args or kwargs):
        raise InvalidOptionError(
            "schedule",
            "has arguments, which are stored unencrypted",
            "let it send a task without arguments, which looks up the work to do",
        )
    body = task.signature.encode(args, kwargs)
    return StoredSchedule(
        app="",
        spec=schedule.spec,
        task=task.name,
        queue=task.queue,
        body=body.decode(),
        priority=options.priority,
        ttl_ms=options.ttl_ms,
        max_receives=options.max_receives,
        group=sender.group_of(args, kwargs),
        signature=keyring.sign_schedule(task.app.namespace, task.queue, name, body),
    )


def check_overlap(schedule: Schedule, task: Definition[..., Any]) -> None:
    """Raise `InvalidOptionError` if the policy of a schedule cannot hold for its task."""
    if schedule.overlap != "allow" and task.task_options.at_most_once:
        raise InvalidOptionError(
            "overlap",
            f"is {schedule.overlap!r} on a schedule of {task.name!r}, which is at_most_once",
            "its messages end before the handler starts, so none is seen to run; leave one of them out",
        )
