"""Dramatiq with its window limiter: `send <jobs>`, or `work` until it is ended."""

from __future__ import annotations

import os
import sys

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.rate_limits import WindowRateLimiter
from dramatiq.rate_limits.backends import RedisBackend

from benchmarks.peers.driver import PAD, URL, execute, mark

dramatiq.set_broker(RedisBroker(url=URL))
_LIMITER = WindowRateLimiter(
    RedisBackend(url=URL), "api", limit=int(os.environ["QWORKER_BENCH_RATE"]), window=1
)


@dramatiq.actor(queue_name="bench", max_retries=None, min_backoff=100, max_backoff=1000)
def limited(number: int, pad: str) -> None:
    """Note the time if the rate allows it; else it is retried after a while."""
    with _LIMITER.acquire():
        mark(number)


if __name__ == "__main__":
    if sys.argv[1] == "send":
        from benchmarks.peers.limited.dramatiq_limited import limited as job

        for sent in range(int(sys.argv[2])):
            job.send(sent, PAD)
    else:
        execute("dramatiq", "benchmarks.peers.limited.dramatiq_limited", "-p", "1", "-t", "8")
