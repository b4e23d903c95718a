"""Contenders: what the server spends on a message from send to ack, in batches of a given size or one by one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from types import MappingProxyType

from benchmarks.apps import app
from benchmarks.figures import Figure, Goal, measured, ratio
from benchmarks.peers.contest import WARM_UP, acking, life, rivals
from benchmarks.rounds import Samples
from benchmarks.stand import PAD, Plan, Stand, wait_until

__all__ = [
    "BODY",
    "CANCELLED",
    "Command",
    "Contender",
    "bare",
    "of_ours",
    "of_peers",
    "spent",
    "to_peers",
]

#: A command of Redis, in words.
Command = tuple[str | bytes | int, ...]
#: A contender: handles its messages, and returns what the server spent on each.
Contender = Callable[[], dict[str, float]]

_MEASURES = (
    ("cpu_us", "server CPU", "µs/message"),
    ("round_trips", "round trips", "/message"),
    ("commands", "commands", "/message"),
)
#: A contender whose queue has the tombstone of another message.
CANCELLED = "qworker, beside a tombstone"
#: The body of each message, as bare commands store it.
BODY = app.tasks["noop"].signature.encode((1, PAD), {})


def of_ours(messages: int, batch: int, *, cancelled: int = 0) -> dict[str, float]:
    """Send `batch` messages a call while a worker of one process is frozen, then let it receive as many at a time.

    So many messages that are not in the queue were cancelled before: their tombstones stay.
    Returns what the server spent on each message: `cpu_us`, `round_trips`, `commands`.
    """
    with Stand() as stand:
        app.connect_with(stand.factory)
        queue = app.queue("drain")
        words = ("run", "benchmarks.apps:app", "--procs", "1", "--batch", str(batch))
        with stand.qworker(*words) as worker:
            _send(WARM_UP, batch)
            wait_until(lambda: not stand.stored(queue))
            for number in range(cancelled):
                queue.cancel(f"other{number}")
            worker.signal(signal.SIGSTOP)
            before = stand.spent()
            _send(messages, batch)
            worker.signal(signal.SIGCONT)
            wait_until(lambda: not stand.stored(queue), step_s=0.05)
            spent = stand.spent() - before
            acked = queue.inspect().stats["acked"]
        app.close()
    if acked != WARM_UP + messages:
        raise RuntimeError(f"{acked} acked of {WARM_UP + messages} messages")
    return spent.per(messages)


def _send(messages: int, batch: int) -> None:
    task = app.tasks["noop"]
    for first in range(0, messages, batch):
        last = min(first + batch, messages)
        task.send_many([task.call(number, PAD) for number in range(first, last)])


def bare(messages: int, batch: int, *phases: tuple[Command, ...]) -> dict[str, float]:
    """Run the commands of each phase for `batch` messages a trip, one command after the other."""
    with Stand() as stand:
        stand.redis.ping()
        before = stand.spent()
        for commands in phases:
            for first in range(0, messages, batch):
                for words in commands:
                    with stand.redis.pipeline(transaction=False) as pipeline:
                        for _ in range(first, min(first + batch, messages)):
                            pipeline.execute_command(*words)  # type: ignore[no-untyped-call]
                        pipeline.execute()
        return (stand.spent() - before).per(messages)


def of_peers(plan: Plan) -> dict[str, Contender]:
    """Make a contender of each peer of a plan, at their usual settings."""
    return {peer.name: lambda peer=peer: life(peer, plan) for peer in rivals(plan)}  # type: ignore[misc]


def spent(
    name: str, samples: Samples, contender: str, goals: Mapping[str, Goal] = MappingProxyType({})
) -> Iterator[Figure]:
    """Tell what the server spent on a contender's messages; goals by measure."""
    for measure, words, unit in _MEASURES:
        values = samples.of(contender, measure)
        yield measured(name, f"{contender}: {words}", values, unit, goals.get(measure))


def to_peers(
    name: str, plan: Plan, samples: Samples, ours: str, best: Goal, others: Goal | None = None
) -> Iterator[Figure]:
    """Compare our server CPU with that of the best peer with acks, and with the others if they have a goal."""
    cpu = samples.of(ours, "cpu_us")
    peers = acking(plan, samples, "cpu_us")
    peers.sort(key=lambda peer: median(samples.of(peer, "cpu_us")))
    for peer in peers[: None if others else 1]:
        is_best = peer == peers[0]
        words = f"the best peer with acks, {peer}" if is_best else peer
        theirs = samples.of(peer, "cpu_us")
        yield ratio(name, f"server CPU to {words}", cpu, theirs, best if is_best else others)
