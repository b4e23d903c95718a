"""Driving a child's broker inside the test's own process: no supervisor, no exec, the same code.

    drain(app)                      # receive and handle until nothing is ready
    with running(app) as child:     # a broker in a thread until the block ends
        child.board, child.broker

What needs processes (crashes, signals, time limits of sync handlers) is in `workers.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import redis

from qworker import QWorker
from qworker.client.queue import Queue
from qworker.consumer.board.board import Board
from qworker.consumer.child.assembly import assemble, queues_of
from qworker.consumer.child.loop import Broker
from qworker.consumer.child.queue_settings import open_client, read_shard_names
from qworker.consumer.manifest import ChildConfig, slots_for
from qworker.consumer.options import RunOptions
from qworker.engine import reap
from qworker.store.connections import ConnectionFactory
from qworker.store.url import ServerURL
from qworker.wire.keys import QueueKeys
from tests.timing import DEADLINE_S, looks
from tests.topologies.servers import client_of

__all__ = [
    "DEADLINE_S",
    "HEARD_S",
    "Child",
    "assembled",
    "config_of",
    "drain",
    "history_of",
    "make_due",
    "redis_of",
    "running",
    "until",
]

#: Who starts within this time, where `only_bells` makes waits longer, has heard the bell.
HEARD_S = 30.0


@dataclass(frozen=True)
class Child:
    """A broker at work in a thread, and its board."""

    broker: Broker
    board: Board

    @property
    def waiting(self) -> bool:
        """Whether it waits at the doorbells."""
        return self.broker._fetcher.doorbells.waiting


def config_of(app: QWorker, **given: Any) -> ChildConfig:
    """Configure a child of `app`: one handler at a time if sync, a hundred if async."""
    plain = ChildConfig(
        app="test",
        url=ServerURL.parse(app.url),
        number=0,
        board=-1,
        control=-1,
        slots=slots_for(given.get("concurrency", 0)),
        concurrency=0,
        queues=[],
        weights={},
        burst=False,
        max_messages=0,
        max_batch=0,
        visibility_ms=None,
        unknown_wait_ms=RunOptions().unknown_wait_ms,
        takes_suspects=True,
        log_format="json",
        log_level="info",
    )
    return msgspec.structs.replace(plain, **given)


def _make(app: QWorker, given: dict[str, Any]) -> Child:
    config = config_of(app, **given)
    board = Board.create(config.slots)
    factory = ConnectionFactory(config.url, name="qworker-test")
    with open_client(factory) as client:
        shards = read_shard_names(client, app.namespace, queues_of(app, config))
        return Child(assemble(app, shards, board, config, client), board)


def drain(app: QWorker, **config: Any) -> Board:
    """Handle what is ready and return the board."""
    child = _make(app, {"burst": True, **config})
    try:
        child.broker.run()
    finally:
        child.board.close()
    return child.board


@contextmanager
def assembled(app: QWorker, **config: Any) -> Iterator[Child]:
    """Make a child that does nothing by itself, for a test of one of its parts."""
    child = _make(app, config)
    try:
        yield child
    finally:
        child.broker._fetcher.close()
        child.broker._notifier.close()
        child.board.close()


@contextmanager
def running(app: QWorker, **config: Any) -> Iterator[Child]:
    """Run a broker until the block ends; what it raises, the block raises."""
    child = _make(app, config)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            child.broker.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield child
    finally:
        child.broker.stop("test")
        thread.join(DEADLINE_S)
        child.board.close()
        assert not thread.is_alive()
        if errors:
            # Also where the block has waited in vain: this is why.
            raise errors[0]


def until(
    condition: Callable[[], object],
    deadline_s: float = DEADLINE_S,
    what: str = "the condition",
    *,
    every_s: float = 0.005,
) -> None:
    """Wait until a condition holds; fail at the deadline, and name `what` did not come true."""
    for _ in looks(deadline_s, every_s):
        if condition():
            return
    raise AssertionError(f"{what} did not come true within {deadline_s} s")


def make_due(app: QWorker, queue: str = "default") -> None:
    """Move all delayed messages of a queue to ready, whenever they are due."""
    keys = QueueKeys(app.namespace, queue)
    with redis_of(app) as redis:
        items: Any = redis.zrange(keys.delayed, 0, -1)
        for item in items:
            redis.zadd(keys.delayed, {item: 1})
    app.client.execute(reap.promote(keys))


@contextmanager
def redis_of(app: QWorker) -> Iterator[redis.Redis]:
    """Open a plain client to an app's server."""
    client = client_of(app.url)
    try:
        yield client
    finally:
        client.close()


def history_of(queue: Queue) -> dict[str, int]:
    """The counters of a queue that are not 0, without the reaper's times and its gaps: a slow machine makes some."""
    stats = queue.inspect().stats
    return {
        name: number
        for name, number in sorted(stats.items())
        if number and "_ms" not in name and name != "gaps"
    }
