"""Faults of a part: a shard that is broken, a node that is away, a queue beside others, a fork that outlives its child.

Each has a bystander: everything that does not need the broken part continues as if nothing had happened.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from verification.faults.consumers import LONG, nothing
from verification.faults.load import Load
from verification.faults.producer import Sending
from verification.faults.row import Row, at_least, at_most, exactly, within
from verification.faults.stage import Stage

__all__ = ["ROWS", "longest_gap_s"]

SHARDS = 3
HANGING = 3
#: Messages that are sent in one piece with each that hangs.
BEHIND = 200
#: Messages that a load of one queue among several sends a second.
CALM = Sending(rate=200, chunk=1, mixed=False, naps=0)


@contextmanager
def _broken(stage: Stage, key: str) -> Iterator[None]:
    """Let a key hold a value of another program for a while, and put the old value back afterwards."""
    client, aside = stage.server.redis(), f"{key}:aside"
    if client.exists(key):
        client.rename(key, aside)
    client.set(key, "a stranger's")
    try:
        yield
    finally:
        client.delete(key)
        if client.exists(aside):
            client.rename(aside, key)


def longest_gap_s(stage: Stage, word: str, begun: int, ended: int) -> float:
    """The longest time (s) between two notes of a word from `begun` to `ended` (ns), both ends included."""
    moments = [event.at for event in stage.notes(word) if begun <= event.at <= ended]
    return max(later - earlier for earlier, later in pairwise([begun, *moments, ended])) / 1e9


def break_shard(stage: Stage) -> None:
    """Divide the queue, and let the last shard's list hold a value of another program for most of the time."""
    queue = stage.queue()
    queue.divide(SHARDS)
    stage.measured["shards"] = len(queue.division().shards)
    with _broken(stage, queue.ref.shard_of(SHARDS - 1).keys.ready[0]):
        begun = time.monotonic_ns()
        nothing(stage)
        _take_gaps(stage, begun)


def break_neighbour(stage: Stage) -> None:
    """Let consumers by low-level calls, and a worker, receive from a queue beside one that is broken."""
    with _broken(stage, stage.queue("aload").keys.ready[0]):
        stage.pull("load,aload")
        begun = time.monotonic_ns()
        nothing(stage)
        _take_gaps(stage, begun)


def _take_gaps(stage: Stage, begun: int) -> None:
    ended = time.monotonic_ns()
    for word in ("sent", "started"):
        stage.measured[f"gap_{word}_s"] = round(longest_gap_s(stage, word, begun, ended), 2)


def exceed_limits(stage: Stage) -> None:
    """Send messages that run at most once and hang beyond their time limit, in the middle of others.

    The load's own messages run at least once: of them the child learns to take many at a time.
    """
    for number in range(HANGING):
        name = f"behind{number}"
        bodies = [{"task": "once", "args": [f"{name}-{n}"]} for n in range(1, BEHIND + 1)]
        bodies.insert(BEHIND // 2, {"task": "hang_once", "args": [f"hanging-{number}"]})
        stage.notebook.note("sending", name, 1, BEHIND)
        stage.queue().send_many(bodies)
        stage.notebook.note("sent", name, 1, BEHIND, synced=True)
    nothing(stage)
    stage.stop_producers()
    stage.drain()
    # Acked before their start, so none of them comes back.
    stage.measured["hung"] = len(stage.notes("poisoned"))


def outlive(stage: Stage) -> None:
    """Kill children whose handlers have forked processes that live on: those must hear nothing of the server."""
    for _ in stage.goes_on(0.5, kills=3):
        if stage.notes("outlives"):
            stage.kill_child()
    stage.stop_producers()
    stage.drain()
    stage.measured["longest_wait_s"] = round(stage.waits_s()[-1], 2)


#: A send, and the start of a message, come without a pause of a second; a machine that is shared adds its own.
WITHOUT_PAUSE = (within("gap_sent_s", 1.0), within("gap_started_s", 1.0))

ROWS = [
    Row(
        name="F60",
        fault="a shard of the queue holds a value of another program, the others do not",
        course=break_shard,
        load=Load(sending=CALM, visibility=LONG),
        bounds=(exactly("shards", SHARDS), *WITHOUT_PAUSE, exactly("dead", 0)),
        seconds=6,
    ),
    Row(
        name="F61",
        fault="consumers receive from two queues in one call, and the second is broken",
        course=break_neighbour,
        load=Load(sending=CALM, workers=1, queues="load,aload"),
        bounds=(*WITHOUT_PAUSE, exactly("dead", 0), exactly("latest_receives", 1)),
        seconds=6,
    ),
    Row(
        name="F62",
        fault="messages of a task that runs at most once hang beyond its time limit, beside others",
        course=exceed_limits,
        load=Load(
            workers=1,
            procs=1,
            visibility=LONG,
            sending=Sending(rate=400, chunk=50, mixed=False, naps=0),
        ),
        unfinished="hung",
        bounds=(exactly("hung", HANGING), exactly("dead", 0), at_most("duplicates", 0)),
        seconds=6,
    ),
    Row(
        name="F63",
        fault="children are killed, and processes that their handlers have forked live on",
        course=outlive,
        load=Load(
            visibility=LONG,
            fewest=2,
            sending=Sending(task="fork_on", rate=10, chunk=1, naps=0.5, nap_ms=50, mixed=False),
        ),
        bounds=(
            at_least("kills", 3),
            at_most("duplicates", "killed_running"),
            exactly("dead", 0),
            # No test waits for the deadline of a lease of a dead connection.
            within("longest_wait_s", 3.0),
        ),
        seconds=8,
    ),
]
