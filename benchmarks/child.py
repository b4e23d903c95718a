"""child: what a message costs a child in CPU time of its process, beside the floor in the same process.

Unlike a rate this hardly moves with what else runs on the machine, so it shows what a change of the hot path is worth.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks.rounds import Contender, environment, run_rounds, table
from qworker import QWorker
from qworker.consumer.board.board import Board
from qworker.consumer.child.assembly import assemble
from qworker.consumer.child.queue_settings import open_client
from qworker.consumer.manifest import ChildConfig, slots_for
from qworker.store.connections import ConnectionFactory
from qworker.store.embedded.store import PrivateStore

__all__ = ["child"]

_PAD = "x" * 56
_QUEUE = "child"
_FLOOR = "redis-py LPOP 100, msgspec"


def _noop(number: int, pad: str) -> None:
    """Do nothing."""


async def _anoop(number: int, pad: str) -> None:
    """Do nothing, as a coroutine."""


def _bnoop(items: list[tuple[int, str]]) -> None:
    """Do nothing with many."""


class _Call(msgspec.Struct):
    args: tuple[int, str]


def child(messages: int, rounds: int, *, say: Callable[[str], None]) -> dict[str, object]:
    """Measure; returns one JSON object. Rates are messages per second of CPU time, ratios those to the floor."""
    with PrivateStore() as store:
        contenders = [
            Contender("sync", "at least once", lambda: _ours(store.url, messages, _noop, 1)),
            Contender(
                "sync, 4 threads", "at least once", lambda: _ours(store.url, messages, _noop, 4)
            ),
            Contender("async", "at least once", lambda: _ours(store.url, messages, _anoop, 100)),
            Contender(
                "batch of 100",
                "at least once",
                lambda: _ours(store.url, messages, _bnoop, 1, batch=100),
            ),
            Contender(_FLOOR, "none: no acks", lambda: _floor(store.url, messages)),
        ]
        run_rounds(contenders, rounds, say)
        return {
            "benchmark": "child",
            "messages": messages,
            "rounds": rounds,
            "server": f"{store.engine.name} {store.engine.version}",
            "environment": environment(),
            "us_per_message": {
                contender.name: round(1e6 / contender.median, 2) for contender in contenders
            },
            "rows": table(contenders, _FLOOR),
        }


def _ours(
    url: str,
    messages: int,
    function: Callable[..., object],
    concurrency: int,
    *,
    batch: int | None = None,
) -> float:
    app = QWorker("bench-child")
    app.connect_with(ConnectionFactory(url))
    app.queue(_QUEUE).remove()
    options: dict[str, Any] = {} if batch is None else {"batch": batch}
    declare: Any = app.task
    task = declare(name="noop", queue=_QUEUE, **options)(function)
    call = task.call((1, _PAD)) if batch else task.call(1, _PAD)
    task.send_many([call] * messages)
    board = Board.create(slots_for(concurrency))
    config = ChildConfig(
        app="",
        url=app.client.factory.url,
        number=0,
        board=-1,
        control=-1,
        slots=slots_for(concurrency),
        concurrency=concurrency,
        queues=[_QUEUE],
        weights={},
        burst=True,
        max_messages=0,
        max_batch=0,
        visibility_ms=None,
        unknown_wait_ms=0,
        takes_suspects=True,
        log_format="auto",
        log_level="warning",
    )
    with open_client(app.client.factory) as client:
        broker = assemble(app, [_QUEUE], board, config, client)
    begun = time.process_time()
    broker.run()
    seconds = time.process_time() - begun
    seen = app.queue(_QUEUE).inspect()
    board.close()
    app.close()
    if seen.stats["acked"] != messages:
        raise RuntimeError(f"{seen.stats} after {messages} messages")
    return messages / seconds


def _floor(url: str, messages: int) -> float:
    redis = ConnectionFactory(url).redis()
    body = msgspec.json.encode({"task": "noop", "args": [1, _PAD]})
    for first in range(0, messages, 1000):
        redis.rpush("floor", *[body] * min(1000, messages - first))
    decode = msgspec.json.Decoder(_Call).decode
    begun, left = time.process_time(), messages
    while left:
        items: Any = redis.lpop("floor", 100)
        for item in items or ():
            _noop(*decode(item).args)
            left -= 1
    seconds = time.process_time() - begun
    redis.close()
    return messages / seconds
