"""A producer of crowds, groups of a thousand calls over four queues: starts one after the other.

    python -m verification.faults.crowd_producer NAME '{"rate": …}'

It ends at SIGTERM, with the start on its way.
"""

from __future__ import annotations

import os
import sys
import time

import msgspec

from qworker import group
from qworker.errors import QworkerError
from verification.faults.crowd_jobs import SIZE, TASKS, app, count
from verification.faults.history import History
from verification.faults.producer import Sending, in_doubt, steadily


def main() -> None:
    """Start crowds until SIGTERM."""
    name, text = sys.argv[1:]
    sending = msgspec.json.decode(text, type=Sending)
    history = History(os.environ["FAULTS_HISTORY"])
    for number in steadily(sending, app.queue(sending.queue)):
        _start(name, number, history)
    app.close()


def _start(name: str, number: int, history: History) -> None:
    """Start a crowd, and note what became of that."""
    calls, callback = f"{name}/c{number}", f"{name}/all"
    ranges = [(calls, 0, SIZE - 1), (callback, number, number)]
    history.note_all("sending", ranges)
    members = [TASKS[n % len(TASKS)].call(f"{calls}-{n}") for n in range(SIZE)]
    try:
        group(members).then(count, f"{callback}-{number}").send()
    except QworkerError as error:
        history.note_all("doubt" if in_doubt(error) else "refused", ranges)
        time.sleep(0.02)
        return
    history.note_all("sent", ranges, synced=True)


if __name__ == "__main__":
    main()
