"""Stop the handler of a message in its worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from qworker.client.inspect.peek import delivered
from qworker.client.namespace.requests import ask_workers
from qworker.client.namespace.workers import read_workers

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.client.message import Stored
    from qworker.client.namespace.workers import Asks
    from qworker.client.queue_ref import QueueRef

    class _Namespace(Asks, Protocol):
        @property
        def client(self) -> Client: ...


__all__ = ["Stopped", "stop_handler"]

_DROPPED: Final = "the message will be dropped if it is requeued"


@dataclass(frozen=True, slots=True)
class Stopped:
    """Whether a handler was stopped, or has ended, and in words how, or why not."""

    done: bool
    text: str


def stop_handler(namespace: _Namespace, queue: QueueRef, message: Stored, *, kill: bool) -> Stopped:
    """Ask the workers of a queue to stop the handler of a cancelled message. Takes up to 6 seconds."""
    assert message.receipt is not None
    name = message.queue.partition("/")[0]
    workers = [worker.name for worker in read_workers(namespace) if worker.listens_to(name)]
    receipt = message.receipt
    answered = 0
    for answer in ask_workers(
        namespace, workers, "cancel", lease=receipt.lease_id, index=receipt.index, kill=kill
    ):
        answered += 1
        if answer.done:
            return Stopped(True, f"{answer.text} by {answer.worker}")
        if answer.data.get("found"):
            text = f"{answer.worker} did not stop {message.id}: {answer.text}; {_DROPPED}"
            return Stopped(False, text)
    if namespace.client.run(delivered(queue, receipt)) is None:
        return Stopped(True, "its handler has ended")  # by the tombstone, at a heartbeat
    silent = len(workers) - answered
    answers = f" ({silent} did not answer)" if silent else ""
    return Stopped(
        False,
        f"no handler of {message.id} runs in the {len(workers)} workers of {message.queue}{answers}: it may "
        f"not have started, have just ended, or run in another program; {_DROPPED}",
    )
