"""Workers that are asked to stop, and servers that stand still."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from qworker import QueueAttributes
from tests.scenarios.rig import rig, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.mark.parametrize("seconds", [0.01, 30.0], ids=["busy", "blocked"])
def test_sigterm_gives_back_at_once_what_had_not_started(
    namespace: str, tmp_path: Path, seconds: float
) -> None:
    """Unstarted messages are receivable within half a second, uncounted; the process ends within its grace."""
    with rig(namespace, tmp_path) as it:
        queue = it.app.queue("work")
        if seconds > 1:
            # The pace is learned from quick ones, so that a batch waits behind the slow one.
            it.send("work", *[(number, 0.0) for number in range(50)])
        worker = it.worker("--grace", "2s")
        if seconds > 1:
            until(it.drained, 10, "quick ones handled")
        it.send("work", *[(100 + number, seconds) for number in range(300)])
        until(lambda: it.history.read().count("start")[100], 10, "it works")
        begun = time.monotonic()
        worker.send_signal(signal.SIGTERM)
        until(lambda: queue.inspect().unacked <= 1, 0.5, "unstarted messages are back")
        given_back = queue.peek(1)
        assert worker.wait(5) == 0
        took_s = time.monotonic() - begun
        after = queue.inspect()
    assert took_s <= 3.0
    assert given_back[0].receives == 0
    assert after.unacked == 0
    assert after.dead == 0


def test_a_server_that_stands_still_blames_nobody(namespace: str, tmp_path: Path) -> None:
    """Two visibility timeouts without a server: nothing is buried, suspected or lost."""
    with rig(namespace, tmp_path) as it:
        queue = it.app.queue("work")
        queue.configure(QueueAttributes(visibility="1s"))
        it.start("daemon", "--tick", "200ms")
        it.worker(procs=2)
        it.send("work", *[(number, 0.02) for number in range(400)])
        until(lambda: len(it.history.read().count("end")) > 20, 10, "it works")
        os.kill(it.server.pid, signal.SIGSTOP)
        time.sleep(2.0)
        os.kill(it.server.pid, signal.SIGCONT)
        suspected = 0

        def over() -> bool:
            nonlocal suspected
            seen = queue.inspect()
            suspected = max(suspected, seen.suspect)
            return seen.stored == 0

        until(over, 40, "queue drained")
        seen = queue.inspect()
        ends = it.history.read().count("end")
    assert set(ends) == set(range(400))
    assert seen.dead == 0
    assert suspected == 0


@pytest.mark.parametrize("task", ["work", "hold_gil"])
def test_a_handler_of_five_visibility_timeouts_runs_once(
    namespace: str, tmp_path: Path, task: str
) -> None:
    """Its lease is kept from outside of its process: asleep, or in C with the GIL held."""
    with rig(namespace, tmp_path) as it:
        it.app.queue("work").configure(QueueAttributes(visibility="1s"))
        it.start("daemon", "--tick", "200ms")
        it.send(task, (1, 5))
        it.worker(procs=2)
        until(it.drained, 20, "handled")
        history = it.history.read()
    assert history.count("start")[1] == 1
    assert history.count("end")[1] == 1
