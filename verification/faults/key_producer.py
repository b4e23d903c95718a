"""A producer of messages with unique keys, and of schedules whose slots must not overlap.

    python -m verification.faults.key_producer NAME '{"rate": …}'

A key is `<producer>/<kind><number of its unique key>-<number>`; its kind says how its unique key is held. Words of the
history beside those of the checker:

    named KEY ID            the message of a key has this id
    kept KEY ID             it was not stored: the message of this id holds its unique key
    latest PRODUCER NUMBER  the server has confirmed a message that later ones replace
    locked KEYS             no message of this unique key was stored within a minute, although nothing else was sent
    silent NUMBER           a schedule did not fire within a minute

At SIGTERM the producer sends until each key was free once, and each of its schedules has fired once more; then it ends.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from qworker import QWorker, SendOptions, every
from qworker.client.new_message import new_message
from qworker.errors import QworkerError
from verification.faults.history import History, events_of
from verification.faults.key_jobs import app, scheduled_wait, scheduled_work
from verification.faults.key_kinds import KINDS
from verification.faults.producer import Sending, in_doubt, steadily

_OVERLAPS: Final[tuple[Literal["skip", "queue", "cancel"], ...]] = ("skip", "queue", "cancel")
_PATIENCE_S: Final = 60.0


def main() -> None:
    """Send until SIGTERM."""
    name, text = sys.argv[1:]
    sending = msgspec.json.decode(text, type=Sending)
    producer = Producer(name, app, sending)
    producer.schedule()
    for _ in steadily(sending, app.queue(sending.queue)):
        producer.send()
    producer.free_all()
    producer.hear_schedules()
    app.close()


class Producer:
    """Sends one message at a time, and notes what became of each send."""

    def __init__(self, name: str, app: QWorker, sending: Sending) -> None:
        self._name, self._sending = name, sending
        self._queue = app.queue(sending.queue)
        self._directory = Path(os.environ["FAULTS_HISTORY"])
        self._history = History(str(self._directory))
        self._sent: Counter[str] = Counter()
        self._chance = random.Random(name)
        first = int(name.strip("p") or 0) * len(_OVERLAPS)
        self._schedules = {first + place: overlap for place, overlap in enumerate(_OVERLAPS)}

    def send(self) -> None:
        """Send a message of one key."""
        kind = self._chance.choice([*KINDS])
        self._send(kind, self._chance.randrange(KINDS[kind][1]))

    def _send(self, kind: str, number: int) -> bool:
        """Send a message of a key; returns whether it was stored."""
        held, _, is_shared = KINDS[kind]
        producer = f"{self._name}/{kind}{number}"
        self._sent[producer] += 1
        at = self._sent[producer]
        key = f"{producer}-{at}"
        unique = f"{kind}{number}" if is_shared else producer
        options = SendOptions(unique=unique, **held)
        body = {"task": "keyed", "args": [key, self._sending.nap_ms]}
        message = new_message(self._queue.ref, body, options)
        self._history.note("named", key, message.id)
        self._history.note("sending", producer, at, at, synced=True)
        try:
            [stored] = self._queue.store([message], options)
        except QworkerError as error:
            self._history.note("doubt" if in_doubt(error) else "refused", producer, at, at)
            time.sleep(0.02)
            return False
        if stored != message.id:
            self._history.note("refused", producer, at, at)
            self._history.note("kept", key, stored)
        elif "debounce" in held:
            self._history.note("latest", producer, at, synced=True)
        else:
            self._history.note("sent", producer, at, at, synced=True)
        return stored == message.id

    def free_all(self) -> None:
        """Send to each key until a message was stored: whatever held it has ended."""
        left = {(kind, number) for kind, (_, keys, _) in KINDS.items() for number in range(keys)}

        def are_free() -> bool:
            left.difference_update([key for key in left if self._send(*key)])
            return not left

        _within(are_free)
        for kind, number in left:
            self._history.note("locked", f"{kind}{number}")

    # -- schedules -----------------------------------------------------------------------------

    def schedule(self) -> None:
        """Add a schedule for each policy, every second."""
        for number, overlap in self._schedules.items():
            task = scheduled_wait if overlap == "cancel" else scheduled_work
            name, slots = f"{overlap}-{number}", every("1s", overlap=overlap)

            def add(
                task: Any = task, name: str = name, slots: Any = slots, n: int = number
            ) -> bool:
                task.schedule(name, slots, n)
                return True

            _within(_confirmed(add))

    def hear_schedules(self) -> None:
        """Wait until each schedule has fired once more, and remove them."""
        left, now = set(self._schedules), time.monotonic_ns()

        def have_begun() -> bool:
            left.difference_update(_begun_since(self._directory, now))
            return not left

        _within(have_begun, every_s=1.0)
        for number in left:
            self._history.note("silent", number)
        for number, overlap in self._schedules.items():
            task = scheduled_wait if overlap == "cancel" else scheduled_work

            def remove(task: Any = task, name: str = f"{overlap}-{number}") -> bool:
                task.unschedule(name)
                return True

            _within(_confirmed(remove))


def _begun_since(directory: Path, at: int) -> Iterable[int]:
    return [
        int(event.rest[1])
        for event in events_of(directory)
        if event.word == "slot_began" and event.at > at
    ]


def _confirmed(call: Callable[[], bool]) -> Callable[[], bool]:
    """Make a call that fails say False."""

    def confirmed() -> bool:
        try:
            return call()
        except QworkerError:
            return False

    return confirmed


def _within(done: Callable[[], bool], every_s: float = 0.05) -> bool:
    """Try again and again for a minute; returns whether it was done."""
    ending = time.monotonic() + _PATIENCE_S
    while not done():
        if time.monotonic() > ending:
            return False
        time.sleep(every_s)
    return True


if __name__ == "__main__":
    main()
