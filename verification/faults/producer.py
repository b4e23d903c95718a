"""A producer: sends calls in atomic chunks until it is stopped, and notes what became of each chunk.

    python -m verification.faults.producer NAME '{"task": …}'

It ends at SIGTERM, with the chunk on its way. It keeps to its rate, and waits while more than `backlog`
messages are stored.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator

import msgspec

from qworker import QWorker
from qworker.client.queue import Queue
from qworker.errors import (
    AccessDeniedError,
    InDoubtError,
    NotReplicatedError,
    QworkerError,
    UnfinishedError,
    server_refused,
)
from verification.faults.history import History

__all__ = ["Sending", "in_doubt", "is_behind", "steadily"]


class Sending(msgspec.Struct, frozen=True, kw_only=True):
    """What a producer sends. `rate` is messages a second; of them a `naps` share takes `nap_ms`.

    `mixed`: some chunks are delayed, or of higher priority. `options` are of every send. `ordered_groups`: see
    `slots_producer`.
    """

    task: str = "handle"
    queue: str = "load"
    rate: float = 1000
    chunk: int = 20
    backlog: int = 2000
    naps: float = 0.05
    nap_ms: int = 5
    mixed: bool = True
    options: dict[str, int | str] = {}
    ordered_groups: int = 0


_LOOK_S = 0.2


def main() -> None:
    """Send until SIGTERM."""
    name, text = sys.argv[1:]
    sending = msgspec.json.decode(text, type=Sending)
    history = History(os.environ["FAULTS_HISTORY"])
    app = QWorker(os.environ["FAULTS_NAMESPACE"])
    queue = app.queue(sending.queue)
    chance = random.Random(name)
    for first in steadily(sending, queue):
        _send(queue, history, name, first, first + sending.chunk - 1, sending, chance)
    app.close()


def steadily(sending: Sending, queue: Queue) -> Iterator[int]:
    """Yield the number of the first message of each chunk, at the rate of `sending`, until SIGTERM."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    number, look_at, due = 1, 0.0, time.monotonic()
    while not stopped:
        if time.monotonic() >= look_at:
            look_at = time.monotonic() + _LOOK_S
            if is_behind(sending, queue):
                time.sleep(_LOOK_S / 2)
                look_at, due = 0.0, time.monotonic()
                continue
        yield number
        number += sending.chunk
        # What could not be sent in time is not made up for by a burst.
        due = max(due + sending.chunk / sending.rate, time.monotonic() - 1)
        time.sleep(max(0.0, due - time.monotonic()))


def _send(
    queue: Queue,
    history: History,
    name: str,
    first: int,
    last: int,
    sending: Sending,
    chance: random.Random,
) -> None:
    naps = sending.nap_ms
    bodies = [
        {
            "task": sending.task,
            "args": [f"{name}-{n}", naps if chance.random() < sending.naps else 0],
        }
        for n in range(first, last + 1)
    ]
    options: dict[str, int | str] = dict(sending.options)
    if sending.mixed:
        drawn = chance.random()
        if drawn < 0.1:
            options["delay"] = "300ms"
        elif drawn < 0.15:
            options["priority"] = 3
    history.note("sending", name, first, last, synced=True)
    try:
        queue.send_many(bodies, None, **options)
    except QworkerError as error:
        history.note("doubt" if in_doubt(error) else "refused", name, first, last)
        time.sleep(0.02)
    else:
        history.note("sent", name, first, last, synced=True)


def in_doubt(error: QworkerError) -> bool:
    """Whether messages may be stored in spite of an error.

    An error of no known kind may come from the middle of a script, such as a right that is missing for one of its
    commands: what the script did before stays done.
    """
    kinds = (InDoubtError, UnfinishedError, NotReplicatedError, AccessDeniedError)
    return isinstance(error, kinds) or server_refused(error)


def is_behind(sending: Sending, queue: Queue) -> bool:
    """Whether more messages wait than the load allows."""
    try:
        seen = queue.inspect()
    except QworkerError:
        return False
    return seen.ready + seen.delayed > sending.backlog


if __name__ == "__main__":
    main()
