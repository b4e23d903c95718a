"""What a whole worker held when it was killed; kills at random are in `verification/faults`."""

from __future__ import annotations

import os

import pytest

from qworker import QueueAttributes
from tests.consumer.driving import until
from tests.consumer.rows import STARTS
from tests.consumer.workers import Lab
from tests.timing import Watch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("start", STARTS)
def test_what_a_killed_worker_held_is_back_within_the_visibility_timeout(
    lab: Lab, start: str
) -> None:
    """When a whole worker dies, another one starts its message within visibility timeout, tick and a second."""
    visibility_s, tick_s = 8.0, 0.2
    lab.app("""
@app.task
def handle() -> None:
    note("started", current().receive_count)
    if current().receive_count == 1:
        time.sleep(60)

@app.task
def ping() -> None:
    note("ping")
""")
    lab.queue().configure(QueueAttributes(visibility=visibility_s))
    with lab.reaper(tick_s):
        first = lab.start("--no-reaper")
        lab.send("handle")
        until(lambda: lab.notes("started"))
        with lab.worker("--no-reaper") as second:
            lab.send("ping")
            until(lambda: lab.notes("ping"))
            deadline_ms = lab.queue().inspect().next_deadline_ms
            # The first worker has extended its lease.
            until(lambda: lab.queue().inspect().next_deadline_ms != deadline_ms)
            watch = Watch(os.getpid(), lab.server_pid, *second.pids())
            first.kill()
            left = lab.queue().inspect()
            assert left.next_deadline_ms is not None
            assert left.next_deadline_ms - left.now_ms <= visibility_s * 1000
            until(lambda: len(lab.notes("started")) == 2)
            # The rest is for a machine that is busy; a second visibility timeout would be more.
            assert watch.passed_s() < visibility_s + tick_s + 1.0 + 5.0
    assert lab.noted("started") == [[1], [2]]
