"""A consumer without the framework: receives, handles and acks by the calls of a queue, until it is stopped.

python -m verification.faults.puller QUEUE,…
"""

from __future__ import annotations

import os
import signal
import sys

from qworker import QWorker
from qworker.errors import RefusedError, ServerError
from verification.faults.history import History
from verification.faults.hooks import key_of

__all__: list[str] = []


def main() -> None:
    """Pull until SIGTERM."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    history = History(os.environ["FAULTS_HISTORY"])
    app = QWorker(os.environ["FAULTS_NAMESPACE"])
    queues = {name: app.queue(name) for name in sys.argv[1].split(",")}
    queue, *others = queues.values()
    while not stopped:
        try:
            messages = queue.receive(20, wait="200ms", then=others)
            for message in messages:
                key = key_of(message.body)
                history.note("started", key, message.receive_count)
                history.note("done", key)
            for name, each in queues.items():
                acked = each.ack(*(message for message in messages if message.queue == name))
                if acked:
                    history.note("acked", *(key_of(each.body) for each in acked), synced=True)
        except (ServerError, RefusedError):
            continue
    app.close()


if __name__ == "__main__":
    main()
