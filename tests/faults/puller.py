"""A consumer without the framework: receives, handles and acks by the calls of a queue, until it is stopped.

python -m tests.faults.puller
"""

from __future__ import annotations

import os
import signal

from qworker import QWorker
from qworker.errors import ServerError
from tests.faults.history import History
from tests.faults.hooks import key_of

__all__: list[str] = []


def main() -> None:
    """Pull until SIGTERM."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    history = History(os.environ["FAULTS_HISTORY"])
    app = QWorker(os.environ["FAULTS_NAMESPACE"])
    queue = app.queue("load")
    while not stopped:
        try:
            messages = queue.receive(20, wait="200ms")
            keys = {message.id: key_of(message.body) for message in messages}
            for message in messages:
                history.note("started", keys[message.id], message.receive_count)
                history.note("done", keys[message.id])
            acked = [keys[message.id] for message in queue.ack(*messages)]
        except ServerError:
            continue
        if acked:
            history.note("acked", *acked, synced=True)
    app.close()


if __name__ == "__main__":
    main()
