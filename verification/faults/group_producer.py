"""A producer of messages of groups: each send is of one group, in turn.

    python -m verification.faults.group_producer NAME '{"rate": …}'

A key is `<producer>/<kind>-<number>`; its kind says what its group promises. The producer ends at SIGTERM, with the
send on its way.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from typing import Final

import msgspec

from qworker import QWorker
from qworker.client.queue import Queue
from qworker.errors import QworkerError
from verification.faults.history import History
from verification.faults.producer import Sending, in_doubt, steadily

__all__ = ["CAPPED", "ORDERED", "RATED"]

#: Kinds of keys: of one ordered group each, of the group with a concurrency, of the one with a rate.
ORDERED: Final = "ordered"
CAPPED: Final = "capped"
RATED: Final = "rated"
_ORDERED_GROUPS, _FAIR_GROUPS, _CHILDREN = 40, 8, 12


def main() -> None:
    """Send until SIGTERM."""
    name, text = sys.argv[1:]
    sending = msgspec.json.decode(text, type=Sending)
    app = QWorker(os.environ["FAULTS_NAMESPACE"])
    producer = Producer(name, app.queue(sending.queue), sending)
    for _ in steadily(sending, app.queue(sending.queue)):
        producer.send()
    app.close()


class Producer:
    """Sends, and notes what became of each send. The groups of producers are apart, but for capped and rated."""

    def __init__(self, name: str, queue: Queue, sending: Sending) -> None:
        self._name, self._queue, self._sending = name, queue, sending
        self._history = History(os.environ["FAULTS_HISTORY"])
        self._sent: Counter[str] = Counter()
        self._chance = random.Random(name)

    def send(self) -> None:
        """Send one chunk to one group."""
        kind, group, ordered = self._next()
        producer, number = f"{self._name}/{kind}", self._sending.chunk
        first = self._sent[kind] + 1
        self._sent[kind] += number
        last = self._sent[kind]
        nap_ms = self._sending.nap_ms
        bodies = [
            {"task": "member", "args": [f"{producer}-{n}", nap_ms]} for n in range(first, last + 1)
        ]
        self._history.note("sending", producer, first, last, synced=True)
        try:
            self._queue.send_many(bodies, None, group=group, ordered=ordered)
        except QworkerError as error:
            self._history.note("doubt" if in_doubt(error) else "refused", producer, first, last)
            time.sleep(0.02)
        else:
            self._history.note("sent", producer, first, last, synced=True)

    def _next(self) -> tuple[str, str | None, bool]:
        """Return a kind of key, the group of the message, and whether that is ordered."""
        drawn = self._chance.random()
        if drawn < 0.4:
            number = self._chance.randrange(_ORDERED_GROUPS)
            # Half of them share a parent with fair groups.
            parent = "tenant/" if number % 2 else ""
            return f"{ORDERED}{number}", f"{parent}{self._name}{number}", True
        if drawn < 0.65:
            return CAPPED, CAPPED, False
        if drawn < 0.7:
            return RATED, RATED, False
        if drawn < 0.8:
            return "child", f"tenant/c{self._chance.randrange(_CHILDREN)}", False
        if drawn < 0.9:
            return "fair", f"fair{self._chance.randrange(_FAIR_GROUPS)}", False
        return "plain", None, False


if __name__ == "__main__":
    main()
