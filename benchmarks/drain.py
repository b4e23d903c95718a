"""drain: how fast one consumer process empties a full queue with a handler that does nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.apps import aio, app
from benchmarks.rounds import Contender, environment, run_rounds, table
from qworker import QWorker
from qworker.commands import Command
from qworker.connection import ConnectionFactory
from qworker.keys import workers_key
from qworker.queue import Queue
from qworker.store import PrivateStore

__all__ = ["drain"]

_PAD = "x" * 56
_FLOOR = "redis-py LPOP 100, json.loads"
_TYPED_FLOOR = "redis-py LPOP 100, msgspec"


def drain(
    messages: int, rounds: int, procs: int, *, is_async: bool, say: Callable[[str], None]
) -> dict[str, object]:
    """Measure; returns one JSON object with a row per contender and ratios to the floor."""
    chosen, name = (aio, "aio") if is_async else (app, "app")
    with PrivateStore() as store:
        contenders = [
            Contender(
                f"qworker, {procs} process{'es' if procs > 1 else ''}{', async' if is_async else ''}",
                "at least once",
                lambda: _qworker(store.url, chosen, f"benchmarks.apps:{name}", messages, procs),
            ),
            Contender(_FLOOR, "none: no acks", lambda: _floor(store.url, messages, "json")),
            Contender(
                _TYPED_FLOOR, "none: no acks", lambda: _floor(store.url, messages, "msgspec")
            ),
        ]
        run_rounds(contenders, rounds, say)
        return {
            "benchmark": "drain",
            "messages": messages,
            "rounds": rounds,
            "procs": procs,
            "async": is_async,
            "server": f"{store.engine.name} {store.engine.version}",
            "environment": environment(),
            "rows": table(contenders, _FLOOR),
            "ratio": round(contenders[0].median / contenders[1].median, 3),
            "ratio_to_msgspec": round(contenders[0].median / contenders[2].median, 3),
        }


def _qworker(url: str, chosen: QWorker, spec: str, messages: int, procs: int) -> float:
    chosen.connect_with(ConnectionFactory(url))
    queue = chosen.queue("drain")
    queue.remove()
    task = chosen.tasks["noop"]
    queue.pause("out")
    task.send_many(task.call(number, _PAD) for number in range(messages))
    with _worker(url, chosen.namespace, spec, procs) as worker:
        while not _ready(queue):
            _check_alive(worker)
            time.sleep(0.05)
        time.sleep(0.5)
        queue.resume()
        begun = time.perf_counter()
        while (seen := queue.inspect()).stored:
            _check_alive(worker)
            time.sleep(0.005)
        seconds = time.perf_counter() - begun
        if seen.stats["acked"] != messages:
            raise RuntimeError(f"{seen.stats} after {messages} messages")
    return messages / seconds


def _ready(queue: Queue) -> list[bytes]:
    """The workers that have said that they are there."""
    key = workers_key(queue.operations.namespace)
    documents = queue.client.execute(Command(None, (), ("HVALS", key), list))
    return [each for each in documents if b'"state":"running"' in each]


def _check_alive(worker: subprocess.Popen[bytes]) -> None:
    if worker.poll() is not None:
        raise RuntimeError(f"the worker ended with code {worker.returncode}")


@contextmanager
def _worker(url: str, namespace: str, spec: str, procs: int) -> Iterator[subprocess.Popen[bytes]]:
    environ = dict(os.environ, QWORKER_URL=url, QWORKER_NAMESPACE=namespace)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "qworker", "run", spec),
            *("--procs", str(procs), "--metrics-port", "0"),
        ],
        env=environ,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _floor(url: str, messages: int, decoder: str) -> float:
    task = app.tasks["noop"]
    redis = ConnectionFactory(url).redis()
    body = task.signature.encode((1, _PAD), {})
    for first in range(0, messages, 1000):
        redis.rpush("floor", *[body] * min(1000, messages - first))
    redis.close()
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.floor", url, "floor", str(messages), decoder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    out, _ = process.communicate("go\n")
    return messages / float(out)
