"""What every peer's driver does: send jobs, or work them, as its command line says. Standard library only.

    python -m benchmarks.peers.driver NAME about                       its settings, on one line
    python -m benchmarks.peers.driver NAME send FIRST JOBS             one at a time; prints the seconds
    python -m benchmarks.peers.driver NAME bulk FIRST JOBS             with its bulk call; prints the seconds
    python -m benchmarks.peers.driver NAME pace FIRST JOBS SECONDS     one each SECONDS; prints when, as monotonic times
    python -m benchmarks.peers.driver NAME FLOW FIRST JOBS             one at a time, of chain, group or result, as send
    python -m benchmarks.peers.driver NAME work                        until it is ended

Where: QWORKER_BENCH_URL. Marks: QWORKER_BENCH_MARKS. A job waits QWORKER_BENCH_SLEEP_S, with
QWORKER_BENCH_CONCURRENCY of them at once where this is not 0. A worker with such a setting takes QWORKER_BENCH_BATCH
jobs at a time where this is not 0.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.marks import Marks

__all__ = [
    "GROUP_CALLS",
    "PAD",
    "SLEEP_S",
    "URL",
    "Driver",
    "batch",
    "concurrency",
    "execute",
    "mark",
    "port",
]

URL = os.environ.get("QWORKER_BENCH_URL", "redis://127.0.0.1:6379/0")
PAD = "x" * 56
SLEEP_S = float(os.environ.get("QWORKER_BENCH_SLEEP_S", "0"))
_BULK = 500
#: Calls of a group, as of `benchmarks.flows`.
GROUP_CALLS = 10


@dataclass(frozen=True)
class Driver:
    """How to drive a peer. Functions may be coroutine functions; `work` may return only when the worker ends.

    `enter` is called once before sending, in the same loop. `flows` start a chain of five jobs, whose last one is
    marked, a group of jobs, whose callback is marked, or a job whose result is kept.
    """

    settings: str
    send: Callable[[int], Any]
    work: Callable[[], Any]
    bulk: Callable[[Sequence[int]], Any] | None = None
    enter: Callable[[], Any] | None = None
    flows: Mapping[str, Callable[[int], Any]] = field(default_factory=dict)

    def run(self, role: str, *words: str) -> None:
        """Do what the command line says."""
        if role == "about":
            print(self.settings)
        elif role == "work":
            found = self.work()
            if inspect.isawaitable(found):
                asyncio.run(_awaited(found))
        else:
            asyncio.run(self._send(role, *words))

    async def _send(self, role: str, first: str, jobs: str, pause: str = "0") -> None:
        if self.enter is not None:
            await _awaited(self.enter())
        numbers = range(int(first), int(first) + int(jobs))
        begun, times = time.perf_counter(), []
        if role == "bulk":
            if self.bulk is None:
                print("none")
                return
            for at in range(0, len(numbers), _BULK):
                await _awaited(self.bulk(numbers[at : at + _BULK]))
        else:
            send = self.flows.get(role, self.send)
            asynchronous = inspect.iscoroutinefunction(send)
            for number in numbers:
                times.append(time.monotonic())
                if asynchronous:
                    await send(number)
                else:
                    send(number)
                if role == "pace":
                    time.sleep(float(pause))
        seconds = time.perf_counter() - begun
        print(*(times if role == "pace" else [seconds]))


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def mark(number: int) -> None:
    """Note that a job has started."""
    _marks().started(number)


@cache
def _marks() -> Marks:
    return Marks(Path(os.environ["QWORKER_BENCH_MARKS"]))


def concurrency(best: int) -> int:
    """Say how many jobs run at once: what the benchmark asks for, or what is best for a handler that does nothing."""
    return int(os.environ.get("QWORKER_BENCH_CONCURRENCY", "0")) or best


def batch(best: int) -> int:
    """Say how many jobs a worker takes at a time: what the benchmark asks for, or what is best."""
    return int(os.environ.get("QWORKER_BENCH_BATCH", "0")) or best


def port() -> int:
    """Give the port of the server, on the loopback."""
    return int(URL.rpartition(":")[2].partition("/")[0])


def execute(*words: str, **environ: str) -> None:
    """Become `python -m words…`."""
    os.environ.update(environ)
    os.execv(sys.executable, [sys.executable, "-m", *words])


if __name__ == "__main__":
    # Not the peer's module itself: the names of its jobs have to be those that its worker imports.
    import_module(f"benchmarks.peers.{sys.argv[1]}").DRIVER.run(*sys.argv[2:])
