"""scrape: what /metrics costs with ten thousand queues, and of a worker with two thousand tasks and queues."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable

import psutil

from benchmarks.figures import Figure, at_most, measured
from benchmarks.prober import probing
from benchmarks.rounds import interleave
from benchmarks.stand import NAMESPACE, PAD, Background, Plan, Stand, wait_until
from qworker.daemon.queue_metrics import OTHER
from qworker.wire.keys import QueueKeys

__all__ = ["scrape"]

#: Queues of the daemon for one of the worker, and messages in each.
_SHARE = 5
_HELD = 3
#: No pass of a reaper is at its first walk after that.
_SETTLE_S = 3.0
_GOAL_S = 2.0
_MEASURES = (
    ("first", "first scrape", "s", at_most(_GOAL_S)),
    ("kept", "the next one, of figures that are kept", "s", at_most(_GOAL_S)),
    ("bytes", "size", "MB", None),
    ("own_s", "CPU of the process", "s", at_most(1.5)),
    ("commands", "commands", "/queue", at_most(30)),
    ("cpu_us", "server CPU", "µs/queue", None),
    ("others_ms", "p99 of other clients meanwhile", "ms", None),
)


def scrape(plan: Plan) -> list[Figure]:
    """Measure scrapes of a daemon and of a worker; `messages` of the plan are the daemon's queues."""
    worker = max(1, plan.messages // _SHARE)
    contenders: dict[str, Callable[[], dict[str, float]]] = {
        f"daemon, {plan.messages:,} queues": lambda: _of_daemon(plan.messages),
        f"worker, {worker:,} tasks and queues": lambda: _of_worker(worker),
    }
    samples = interleave(contenders, plan.rounds, plan.say)
    return [
        measured("scrape", f"{who}: {words}", samples.of(who, measure), unit, goal)
        for who in contenders
        for measure, words, unit, goal in _MEASURES
    ]


def _of_daemon(queues: int) -> dict[str, float]:
    with Stand() as stand:
        _fill(stand, queues, "nobody")
        with stand.qworker("daemon", "--durability", "off", QWORKER_LOG_FORMAT="json") as daemon:
            return _scraped(stand, daemon, queues)


def _of_worker(queues: int) -> dict[str, float]:
    with Stand() as stand:
        words = ("run", "benchmarks.apps:crowd", "--procs", "1")
        environ = {"QWORKER_LOG_FORMAT": "json", "QWORKER_BENCH_TASKS": str(queues)}
        with stand.qworker(*words, **environ) as worker:
            _fill(stand, queues, "crowd")
            last = QueueKeys(NAMESPACE, f"q{queues - 1:05}")
            wait_until(lambda: not stand.redis.exists(last.ready[0], last.unacked))
            return _scraped(stand, worker, queues)


def _fill(stand: Stand, queues: int, task: str) -> None:
    """Send to each queue, by a client right beside the server."""
    for number in range(queues):
        name = f"q{number:05}"
        bodies = [{"task": f"{task}{number:05}", "args": [index, PAD]} for index in range(_HELD)]
        stand.near(name).send_many(bodies)


def _scraped(stand: Stand, running: Background, queues: int) -> dict[str, float]:
    url, process = running.metrics_url(), psutil.Process(running.process.pid)
    time.sleep(_SETTLE_S)
    with probing(stand) as probes:
        before, own, begun = stand.spent(), process.cpu_times(), time.monotonic()
        text = _read(url)
        ended, now = time.monotonic(), process.cpu_times()
        spent = stand.spent() - before
    again = time.monotonic()
    _read(url)
    kept_s = time.monotonic() - again
    sent = sum(
        float(line.rpartition(b" ")[2])
        for line in text.splitlines()
        if line.startswith(b"qworker_sent_total")
    )
    if sent != _HELD * queues:
        raise RuntimeError(f"{sent:g} messages were told of, {OTHER} included")
    per_queue = spent.per(queues)
    return {
        "first": ended - begun,
        "kept": kept_s,
        "bytes": len(text) / 1e6,
        # With that of threads that ended with the scrape.
        "own_s": now.user + now.system - own.user - own.system,
        # Those of the prober, one each few ms, and of the reaper's passes are among these.
        "commands": per_queue["commands"],
        "cpu_us": per_queue["cpu_us"],
        "others_ms": probes.p99_ms(begun, ended),
    }


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url) as answer:
        text: bytes = answer.read()
    return text
