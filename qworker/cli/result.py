"""`qworker result`: results of messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qworker.cli.framework.commands import CommandGroup, json_option
from qworker.cli.framework.output import Output
from qworker.cli.framework.parameters import DURATION, QUEUE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qworker.cli.framework.context import Session
    from qworker.wire.result import Outcome

__all__ = ["command"]


@click.group(cls=CommandGroup)
def command() -> None:
    """Show the results of messages whose tasks keep them (`@app.task(result="1h")`)."""


@command.command("show")
@click.argument("queue", type=QUEUE)
@click.argument("message_id", metavar="ID")
@click.option(
    "--wait", type=DURATION, metavar="DURATION", help="Wait this long for the message to end."
)
@json_option
@click.pass_obj
def show(session: Session, queue: str, message_id: str, wait: str | None) -> Iterator[Output]:
    """Show the result of a message: the value that its handler returned.

    Exit code 1 if there is no value, and nothing but the error is printed: the message is dead or has ended otherwise
    (--json prints how, and which step of a chain), it has not ended, its task keeps no results, or its result has
    expired. Exit code 2 if the queue does not exist either.
    """
    from qworker.cli.message.bodies import body_lines
    from qworker.client.queue import Queue
    from qworker.client.results.wait import Awaited, Gone, wait_for_result
    from qworker.durations import duration_ms
    from qworker.errors import TaskEndedError, TaskFailedError
    from qworker.formats import word
    from qworker.wire.names import check_message_id

    check_message_id(message_id, "ID")
    # Results outlive their queues, so it need not exist.
    opened = Queue(session.client, session.namespace, queue)
    seconds = 0.0 if wait is None else duration_ms(wait, "--wait") / 1000
    outcome = wait_for_result(opened, Awaited(message_id), seconds)
    if outcome is None or isinstance(outcome, Gone):
        session.queues.get(queue)
        raise click.ClickException(
            f"no result of message {message_id} of {queue} is kept: it waits or runs (qworker message show "
            f"{word(message_id)}), its task keeps none, or its result has expired"
        )
    document = {"id": message_id, "queue": queue, **_document(outcome)}
    yield Output(document, body_lines(outcome.value) if outcome.state == "ok" else ())
    where, step, ended_id = outcome.step or (queue, None, message_id)
    if outcome.state == "dead":
        reason, error, text = outcome.reason, outcome.error, outcome.text
        raise TaskFailedError(where, ended_id, reason, error, text, step)
    if outcome.state != "ok":
        raise TaskEndedError(where, ended_id, outcome.state, step)


def _document(outcome: Outcome) -> dict[str, Any]:
    import json

    step = None
    if outcome.step is not None:
        queue, task, message_id = outcome.step
        step = {"queue": queue, "task": task, "id": message_id}
    return {
        "state": outcome.state,
        "value": json.loads(outcome.value) if outcome.state == "ok" else None,
        "reason": outcome.reason or None,
        "error": outcome.error or None,
        "text": outcome.text or None,
        "step": step,
    }
