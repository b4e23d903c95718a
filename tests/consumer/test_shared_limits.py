"""Workers of several queues keep a limit over all of them, while children are killed."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from tests.consumer.driving import until
from tests.consumer.workers import Lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KILLS = int(os.environ.get("QWORKER_LIMIT_KILLS", "2"))
MOST = 3
QUEUES = ("crm", "billing", "mails")


def most_at_once(spans: list[tuple[float, float]]) -> int:
    """The largest number of spans that overlap."""
    edges = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    now = most = 0
    for _, change in edges:
        now += change
        most = max(most, now)
    return most


def test_a_concurrency_over_queues_is_kept_while_children_are_killed(lab: Lab) -> None:
    """Three run at a time, never four; and all run in the end."""
    number = 40 + 20 * KILLS
    tasks = "".join(
        f"""
@app.task(queue={queue!r}, group="api/{queue}", max_receives=50)
def {queue}(number: int) -> None:
    note("start", number)
    time.sleep(0.1)
    note("end", number)
"""
        for queue in QUEUES
    )
    lab.app(tasks)
    lab.queue("crm").set_limit("api/", with_queues=QUEUES[1:], concurrency=MOST)
    for index in range(number):
        lab.send(
            QUEUES[index % 3], index, queue=QUEUES[index % 3], group=f"api/{QUEUES[index % 3]}"
        )
    killed: dict[int, float] = {}
    rng = random.Random(1)
    with lab.worker("--procs", "3", "--concurrency", "2") as worker:
        while len(killed) < KILLS:
            until(lambda: len(lab.notes("start")) >= 15 * (len(killed) + 1))
            pid = rng.choice([note.pid for note in lab.notes("start")][-3:])
            if pid in killed or pid not in worker.children():
                continue
            # Its handlers have run until now, if not longer; after the kill others may start before this test goes on.
            killed[pid] = time.time()
            os.kill(pid, signal.SIGKILL)
        until(lambda: len({note.rest[0] for note in lab.notes("end")}) == number)
    ends = {(note.pid, note.rest[0]): note.at for note in lab.notes("end")}
    spans = [
        (note.at, ends.get((note.pid, note.rest[0]), killed.get(note.pid, 0.0)))
        for note in lab.notes("start")
    ]
    assert all(end for _, end in spans)
    assert most_at_once(spans) == MOST
