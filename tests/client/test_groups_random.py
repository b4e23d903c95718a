"""Random verbs on a queue with groups, limits, order and unique keys: nothing is left that holds anything up."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis

from qworker import QueueAttributes, QWorker
from qworker.client.message import Message
from qworker.client.queue import Queue
from qworker.engine.settle import Outcomes, settle
from qworker.errors import GroupFullError, StaleReceiptError
from qworker.fsck.check import check
from tests.consumer.driving import redis_of
from tests.effort import examples

STEPS = 120
FAIR = ["a", "b", "acme/x", "acme/y"]
ORDERED = ["o", "acme/o"]
LIMITS: list[dict[str, Any]] = [
    {"concurrency": 1},
    {"concurrency": 2},
    {"concurrency": None},
    {"rate": "1000/s"},
    {"weight": 3},
    {"max_waiting": 3},
]
UNIQUE: list[dict[str, Any]] = [
    {},
    {"unique_until": "started"},
    {"unique_for": "20ms"},
    {"debounce": "5ms"},
    {"debounce": "5ms", "debounce_max": "8ms"},
]


@pytest.fixture
def app(store_url: str, namespace: str) -> Iterator[QWorker]:
    """An app of nothing but queues."""
    app = QWorker(namespace, url=store_url)
    yield app
    app.close()


class Verbs:
    """Does one verb at random, to messages at random."""

    def __init__(self, queue: Queue, raw: redis.Redis, rng: random.Random) -> None:
        self._queue, self._raw, self._rng = queue, raw, rng
        self._held: list[Message] = []
        self._sent = 0

    def step(self) -> None:
        """Do something; a group that is full and a receipt that is stale are answers like others."""
        verb: Callable[[], None] = self._rng.choice(
            [self.send] * 4
            + [self.receive] * 4
            + [self.settle] * 5
            + [self.refuse, self.move, self.expire, self.limit, self.tidy, self.dead_letters]
        )
        with suppress(GroupFullError, StaleReceiptError):
            verb()

    def send(self) -> None:
        """To fair and ordered groups and without one; some with a key, some delayed, some that expire."""
        rng, options = self._rng, dict[str, Any]()
        if rng.random() < 0.35:
            options |= {"group": rng.choice(ORDERED), "ordered": True}
        elif rng.random() < 0.85:
            options["group"] = rng.choice(FAIR)
        self._sent += 3
        if rng.random() < 0.3:
            self._queue.send(self._sent, unique=rng.choice("uv"), **options, **rng.choice(UNIQUE))
            return
        if rng.random() < 0.2:
            options["delay"] = rng.choice(["1ms", "1h"])
        if rng.random() < 0.1:
            options["ttl"] = rng.choice(["5ms", "1h"])
        self._queue.send_many([self._sent - each for each in range(rng.randrange(1, 4))], **options)

    def receive(self) -> None:
        """Or take over what others received."""
        if self._rng.random() < 0.2:
            self._held += self._queue.claim(self._rng.randrange(1, 4), elapsed=0)
        else:
            self._held += self._queue.receive(self._rng.randrange(1, 6))

    def settle(self) -> None:
        """End some of what was received, or give it back."""
        rng = self._rng
        rng.shuffle(self._held)
        number = rng.randrange(1, 4)
        some, self._held = self._held[:number], self._held[number:]
        delay = rng.choice(["0s", "1ms", "1h"])
        match rng.choice(["ack", "ack", "nack", "nack", "release", "bury"]):
            case _ if not some:
                pass
            case "ack":
                self._queue.ack(*some)
            case "nack":
                self._queue.nack(*some, delay=delay)
            case "release":
                self._queue.release(*some, delay=delay)
            case "bury":
                self._queue.bury(*some)

    def refuse(self) -> None:
        """Let a handler say that it is rate limited, or discard its message."""
        if not self._held:
            return
        receipt = self._held.pop().receipt
        outcomes = Outcomes(receipt.lease_id)
        if self._rng.random() < 0.5:
            outcomes.discard(receipt.index)
        else:
            outcomes.limit(receipt.index, self._rng.choice([1, 20]))
        self._queue.client.execute(settle(self._queue.keys, [outcomes]))

    def move(self) -> None:
        """Cancel, delete, hold or enqueue any message."""
        waiting = self._queue.peek(10, state=self._rng.choice(["ready", "delayed", "held"]))
        ids = [each.id for each in waiting] + [each.id for each in self._held]
        if ids:
            verb = self._rng.choice(["cancel", "delete", "hold", "enqueue"])
            getattr(self._queue, verb)(self._rng.choice(ids))

    def expire(self) -> None:
        """Let a lease run out."""
        if self._held:
            lease = self._rng.choice(self._held).receipt.lease_id
            self._raw.zadd(self._queue.keys.unacked, {lease: 1}, xx=True)
            self._queue.reap()

    def limit(self) -> None:
        """Set or remove limits while messages wait and run."""
        name = self._rng.choice(["*", "a", "acme/", "acme/*", "*/", "acme/o", "o"])
        if self._rng.random() < 0.3:
            self._queue.remove_limit(name)
        else:
            of_parent, in_parent = name.endswith("/"), "/" in name[:-1]
            without = {"max_waiting"} if of_parent else {"weight"} if in_parent else set()
            chosen = [one for one in LIMITS if not without & one.keys()]
            self._queue.set_limit(name, **self._rng.choice(chosen))

    def tidy(self) -> None:
        """Reap, purge, or pause."""
        match self._rng.randrange(4):
            case 0:
                self._queue.purge(self._rng.choice(["ready", "delayed", "dead"]))
            case 1:
                self._queue.pause(self._rng.choice(["out", "none"]))
            case _:
                time.sleep(0.003)  # what is delayed by a ms, or expires, does
                self._queue.reap()

    def dead_letters(self) -> None:
        """Redrive or drop them."""
        if self._rng.random() < 0.7:
            self._queue.redrive(everything=True)
        else:
            self._queue.drop_dead(everything=True)


@pytest.mark.parametrize(
    "number",
    [
        0,
        1,
        *(
            pytest.param(
                number,
                marks=pytest.mark.nightly("test_whatever_happens_no_slot_and_no_place_is_left"),
            )
            for number in range(2, examples(15))
        ),
    ],
)
@pytest.mark.slow
def test_whatever_happens_no_slot_and_no_place_is_left(app: QWorker, number: int) -> None:
    """fsck finds nothing at any time, and everything that waits runs once its limits are gone."""
    rng = random.Random(f"groups {number}")
    queue = app.queue("q")
    queue.configure(QueueAttributes(visibility="1h", max_receives=rng.choice([2, 3, 50])))
    with redis_of(app) as raw:
        verbs = Verbs(queue, raw, rng)
        for step in range(STEPS):
            verbs.step()
            if step % 20 == 19:
                assert list(check(app.client, app.namespace)) == [], (number, step)
        queue.pause("none")
        for name in queue.limits():
            queue.remove_limit(name)
        left = STEPS
        while left and (queue.inspect().ready or queue.inspect().delayed or queue.inspect().leases):
            left -= 1
            for state in ("delayed", "held"):
                for message in queue.peek(100, state=state):
                    queue.enqueue(message.id)
            leases: Any = raw.zrange(queue.keys.unacked, 0, -1)
            for lease in leases:
                raw.zadd(queue.keys.unacked, {lease: 1}, xx=True)
            queue.reap()
            while messages := queue.receive(50):
                queue.ack(*messages)
        assert left, queue.inspect()
        assert queue.groups() == []
        assert not raw.exists(queue.keys.slots)
    assert list(check(app.client, app.namespace)) == []
