"""Stop the handler of a message in a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session
    from qworker.client.message import Stored

__all__ = ["stop_running"]

_DROPPED: Final = "the message will be dropped if it is requeued"


def stop_running(session: Session, message: Stored, *, kill: bool) -> str:
    """Ask the workers of a queue to stop the handler of a message; returns in words how it was stopped.

    Raises `ClickException` if it was not; the message stays cancelled.
    """
    from qworker.client.inspect.peek import delivered
    from qworker.client.namespace.requests import ask_workers
    from qworker.client.namespace.workers import read_workers

    assert message.receipt is not None
    queue = message.queue.partition("/")[0]
    workers = [worker.name for worker in read_workers(session) if worker.listens_to(queue)]
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
                f"{answer.worker} did not stop {message.id}: {answer.text}; {_DROPPED}"
            )
    if session.client.run(delivered(session.queues.get(queue).ref, receipt)) is None:
        return "its handler has ended"  # by the tombstone, at a heartbeat
    silent = len(workers) - answered
    answers = f" ({silent} did not answer)" if silent else ""
    raise click.ClickException(
        f"no handler of {message.id} runs in the {len(workers)} workers of {message.queue}{answers}: it may "
        f"not have started, have just ended, or run in another program; {_DROPPED}"
    )
