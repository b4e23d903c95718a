"""A unique key while children are killed: two of its messages never run beside each other, and nothing stays locked."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from qworker.engine.raw import raw
from tests.consumer.driving import until
from tests.consumer.test_shared_limits import most_at_once
from tests.consumer.workers import Lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KILLS = int(os.environ.get("QWORKER_UNIQUE_KILLS", "3"))
KEYS = 4


def test_a_key_is_held_over_kills_and_free_in_the_end(lab: Lab) -> None:
    """Every key is sent again and again while its messages run and their children die."""
    lab.app("""
@app.task(max_receives=50)
def handle(key: int) -> None:
    note("start", key)
    time.sleep(0.15)
    note("end", key)
""")
    killed: dict[int, float] = {}
    rng = random.Random(1)
    with lab.worker("--procs", "3", "--concurrency", "2") as worker:
        while len(killed) < KILLS:
            for key in range(KEYS):
                lab.send("handle", key, unique=f"shop-{key}")
            starts = lab.notes("start")
            pid = starts[-1].pid if len(starts) >= 8 * (len(killed) + 1) else 0
            if pid and rng.random() < 0.5 and pid in worker.children():
                # Its handlers have run until now, if not longer; others may start between the kill and the next line.
                killed[pid] = time.time()
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        until(lambda: lab.queue().inspect().stored == 0)
    ends: dict[tuple[int, int], list[float]] = {}
    for note in lab.notes("end"):
        ends.setdefault((note.pid, note.rest[0]), []).append(note.at)
    for key in range(KEYS):
        spans = [
            (
                note.at,
                next(
                    (at for at in ends.get((note.pid, key), []) if at >= note.at),
                    killed.get(note.pid, 0.0),
                ),
            )
            for note in lab.notes("start")
            if note.rest[0] == key
        ]
        assert len(spans) > 1
        assert most_at_once(spans) == 1
    assert lab.sender.client.execute(raw("HLEN", lab.queue().keys.unique, decode=int)) == 0
