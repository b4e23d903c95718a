"""Another client: it asks the server for something small each few milliseconds, and notes how long that takes.

    python -m benchmarks.prober URL

says "ready", probes until a line comes in, and prints for each probe when it began (monotonic) and its seconds.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.spread import quantile
from benchmarks.stand import Stand
from qworker.store.connections import ConnectionFactory

__all__ = ["Probes", "probing"]

_PAUSE_S = 0.002


def main(url: str) -> None:
    """Probe until a line comes in."""
    redis, ended, seconds = ConnectionFactory(url).redis(), threading.Event(), []
    redis.ping()
    threading.Thread(target=_await_line, args=(ended,), daemon=True).start()
    print("ready", flush=True)
    while not ended.wait(_PAUSE_S):
        begun = time.perf_counter()  # the monotonic clock, as elsewhere
        redis.get("probe")
        seconds += [begun, time.perf_counter() - begun]
    print(*seconds)


def _await_line(ended: threading.Event) -> None:
    sys.stdin.readline()
    ended.set()


class Probes:
    """What a prober measured, once it has ended."""

    def __init__(self) -> None:
        self._seconds: list[tuple[float, float]] = []

    def take(self, words: str) -> None:
        """Take in what a prober printed."""
        values = [float(word) for word in words.split()]
        self._seconds = list(zip(values[::2], values[1::2], strict=True))

    def p99_ms(self, begin: float, end: float) -> float:
        """Give the p99 of the probes that were under way between two monotonic times."""
        return 1000 * quantile(self._within(begin, end), 0.99)

    def longest_ms(self, begin: float, end: float) -> float:
        """Give the longest of them."""
        return 1000 * max(self._within(begin, end))

    def _within(self, begin: float, end: float) -> list[float]:
        # A probe more on either side: there is one even in a very short time.
        return [
            took
            for at, took in self._seconds
            if at + took >= begin - 2 * _PAUSE_S and at <= end + 2 * _PAUSE_S
        ]


@contextmanager
def probing(stand: Stand) -> Iterator[Probes]:
    """Probe meanwhile; the probes can be asked afterwards."""
    process, probes = stand.popen("benchmarks.prober", stand.url), Probes()
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield probes
    finally:
        probes.take(process.communicate("end\n")[0])


if __name__ == "__main__":
    main(sys.argv[1])
