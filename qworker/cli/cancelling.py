"""Stops the handler of a message that runs in a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from qworker.cli.session import Session
    from qworker.client.message import Stored

__all__ = ["stop_running"]


def stop_running(session: Session, message: Stored, *, kill: bool) -> str:
    """Ask the workers of a queue to stop the handler of a message; returns in words how it was stopped.

    Raises `ClickException` where it was not: then the message is cancelled all the same, should it come back.
    """
    from qworker.cli.control import ask_workers
    from qworker.cli.presence import read_workers

    assert message.receipt is not None
    workers = [
        each.name
        for each in read_workers(session)
        if each.listens_to(message.queue.partition("/")[0])
    ]
    receipt = message.receipt
    answered = 0
    for answer in ask_workers(
        session, workers, "cancel", lease=receipt.lease_id, index=receipt.index, kill=kill
    ):
        answered += 1
        if answer.done:
            return f"{answer.text} by {answer.worker}"
        if answer.data.get("found"):
            raise click.ClickException(
                f"{answer.worker} has not stopped {message.id}: {answer.text}. The message is dropped "
                "should it come back"
            )
    silent = len(workers) - answered
    why = f"; {silent} of them did not answer" if silent else ""
    raise click.ClickException(
        f"no handler of {message.id} runs in the {len(workers)} workers of {message.queue}{why}: it waits "
        "behind others, has just ended, or was received by another program. The message is dropped "
        "should it come back"
    )
