"""Whatever stands in the keys of a queue: nothing of ours stops at it, blocks another queue or loses a message."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from qworker.client.queue import Queue
from qworker.daemon.queue_metrics import QueueCollector
from qworker.daemon.reaper import Reaper
from tests.consumer.driving import DEADLINE_S, drain
from tests.fuzz.exploring import explore
from tests.fuzz.scribbles import Words, scribbles
from tests.fuzz.world import World

LOOKS = ("stat", "inspect", "dead", "tally_dead", "attributes", "readers", "reader_lags")
SENDS: tuple[dict[str, Any], ...] = (
    {},
    {"unique": "key"},
    {"delay": "1h"},
    {"priority": 3},
    {"ttl": "1h"},
)


def look(world: World, queue: Queue) -> None:
    """Look at a queue as operators do, by the library and by the command line."""
    for name in LOOKS:
        with world.tolerated():
            getattr(queue, name)()
    for state in ("ready", "delayed", "held", "unacked"):
        with world.tolerated():
            for stored in queue.peek(3, state=state):
                queue.details(stored.id)
    with world.tolerated():
        list(queue.scan())
    with world.tolerated():
        queue.pending()
    for verb in (
        "queue ls",
        "queue show orders",
        "queue peek orders",
        "dead ls orders",
        "worker ls",
        "schedule ls",
        "fsck",
    ):
        world.run(*verb.split())
        code, out = world.run(*verb.split(), "--json")
        assert code or json.loads(out) is not None
    world.run("message", "show", "orders", "b1")
    world.run("top", "--once", "--every", "200ms")
    for dead_letter in world.dead_letters():
        world.run("dead", "show", "orders", dead_letter)


def use(world: World, queue: Queue) -> None:
    """Send to a queue, receive from it, and settle what was received."""
    for options in SENDS:
        with world.tolerated():
            queue.send({"new": 1}, **options)
    with world.tolerated():
        endings = [
            queue.ack,
            queue.nack,
            queue.release,
            queue.bury,
            lambda each: queue.extend(each, "1m"),
        ]
        for number, message in enumerate(queue.receive(7)):
            with world.tolerated():
                world.seen |= set(world.names(message.body))
                endings[number % len(endings)](message)
    with world.tolerated():
        queue.claim(3, elapsed=0)
    with world.tolerated():
        queue.redrive(everything=True)
    with world.tolerated():
        queue.cancel("c2")


def reap(world: World) -> None:
    """Two passes of a daemon, and a scrape of what it exports."""
    reaper = Reaper(world.app.client, world.namespace, tick_ms=60_000, budget_ms=60_000)
    for _ in range(2):
        tick = reaper.tick()
        assert {"orders", "healthy"} >= set(tick.broken)
    assert world.healthy.inspect().delayed == 0
    registry = CollectorRegistry()
    registry.register(QueueCollector(world.app.client, lambda: reaper.registry.queues))
    generate_latest(registry)
    reaper.close()


def work(world: World) -> None:
    """A consumer takes what it can get, and ends."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            drain(world.app)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert errors == []


def mend(world: World) -> None:
    """Repair everything; what is found after that, a second repair does not find either."""
    world.run("fsck", "--repair", "--yes")
    code, out = world.run("fsck", "--json")
    document = json.loads(out)
    assert (code, document["findings"]) == (0, []), document


@pytest.mark.slow
@pytest.mark.bad_input("data found: key of another type", "data found: nonsense in other tables")
def test_no_content_of_a_queue_stops_anything(store_url: str) -> None:
    """Every verb, a reaper, a worker and every listing answer; the neighbour continues; nothing of ours is gone; fsck
    repairs it.
    """

    def survive(commands: list[Words]) -> None:
        world = World(store_url)
        try:
            world.scribble(commands)
            before = world.markers()
            queue = world.app.queue("orders")
            look(world, queue)
            reap(world)
            work(world)
            assert {"h1", "h2", "h3"} <= world.handled
            use(world, queue)
            mend(world)
            assert before <= world.markers() | world.handled | world.seen
        finally:
            world.close()

    explore(survive, scribbles, examples=16)
