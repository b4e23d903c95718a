"""A producer of messages that a concurrency limits: to the queue `load` and, in turn, to `aload`.

    python -m verification.faults.slots_producer NAME '{"rate": …}'

A key is `<producer>/slot-<number>`. The producer ends at SIGTERM, with the send on its way. With `ordered_groups` it
sends to that many ordered groups of `load` instead, a chunk to each in turn; their keys are those of `group_producer`.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Final

import msgspec

from qworker import QWorker
from qworker.client.queue import Queue
from qworker.errors import QworkerError
from verification.faults.group_producer import ORDERED
from verification.faults.history import History
from verification.faults.producer import Sending, in_doubt, is_behind, steadily

__all__ = ["PARENT", "SLOT"]

SLOT: Final = "slot"
#: Of all groups whose messages share the slots.
PARENT: Final = "capped/"
_GROUPS: Final = 5


def main() -> None:
    """Send until SIGTERM."""
    name, text = sys.argv[1:]
    sending = msgspec.json.decode(text, type=Sending)
    app = QWorker(os.environ["FAULTS_NAMESPACE"])
    producer = Producer(name, History(os.environ["FAULTS_HISTORY"]), sending)
    queues = [app.queue("load"), app.queue("aload")]
    for turn, first in enumerate(steadily(sending, queues[0])):
        if sending.ordered_groups:
            producer.send_in_order(queues[0], turn)
        elif turn % 2 == 0 or not is_behind(sending, queues[1]):
            producer.send_to_slots(queues[turn % 2], first, turn)
    app.close()


class Producer:
    """Sends chunks, and notes what became of each."""

    def __init__(self, name: str, history: History, sending: Sending) -> None:
        self._name, self._history, self._sending = name, history, sending

    def send_to_slots(self, queue: Queue, first: int, turn: int) -> None:
        """Send a chunk to one of the groups that share the slots."""
        task = "slot" if queue.name == "load" else "aslot"
        group = f"{PARENT}{turn // 2 % _GROUPS}"
        self._send(queue, task, f"{self._name}/{SLOT}", first, group=group, ordered=False)

    def send_in_order(self, queue: Queue, turn: int) -> None:
        """Send the next chunk of an ordered group."""
        round_, number = divmod(turn, self._sending.ordered_groups)
        key, group = f"{self._name}/{ORDERED}{number}", f"{self._name}{number}"
        self._send(
            queue, "member", key, round_ * self._sending.chunk + 1, group=group, ordered=True
        )

    def _send(
        self, queue: Queue, task: str, producer: str, first: int, *, group: str, ordered: bool
    ) -> None:
        last = first + self._sending.chunk - 1
        bodies = [
            {"task": task, "args": [f"{producer}-{number}", self._sending.nap_ms]}
            for number in range(first, last + 1)
        ]
        self._history.note("sending", producer, first, last, synced=True)
        try:
            queue.send_many(bodies, None, group=group, ordered=ordered)
        except QworkerError as error:
            self._history.note("doubt" if in_doubt(error) else "refused", producer, first, last)
            time.sleep(0.02)
        else:
            self._history.note("sent", producer, first, last, synced=True)


if __name__ == "__main__":
    main()
