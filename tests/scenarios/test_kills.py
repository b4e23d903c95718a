"""Workers that are killed: nothing is lost, and what had not started is not touched."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from qworker import QueueAttributes
from tests.scenarios.rig import lives, rig, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

#: Seconds of kills; 15 in a long run.
_KILL_S = float(os.environ.get("QWORKER_KILL_SECONDS", "5"))


def test_children_killed_all_the_time_lose_nothing(namespace: str, tmp_path: Path) -> None:
    """A child is killed every 250 ms: every message is handled and acked once, repeats are those that ran."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with rig(namespace, tmp_path) as it:
        workers = [it.worker(procs=2), it.worker(procs=2)]
        sent, kills = 0, 0
        end = time.monotonic() + _KILL_S
        while time.monotonic() < end:
            it.send("work", *[(sent + number, 0.004) for number in range(100)])
            sent += 100
            victims = [child for worker in workers for child in it.children(worker)]
            if victims:
                chance.choice(victims).send_signal(signal.SIGKILL)
                kills += 1
            time.sleep(0.25)
        until(it.drained, 60, "queue drained")
        seen = it.app.queue("work").inspect()
        history = it.history.read()
        ends, starts = history.count("end"), history.count("start")
    assert set(ends) == set(range(sent))
    assert seen.dead == 0
    assert seen.stats["acked"] == sent
    assert sum(starts.values()) - sent <= kills


def test_a_killed_host_gives_back_within_visibility_and_tick(
    namespace: str, tmp_path: Path
) -> None:
    """Supervisor and children die together: with a reaper alive, what ran comes back when its lease is over."""
    visibility_s, tick_s = 2.0, 0.5
    with rig(namespace, tmp_path) as it:
        it.app.queue("work").configure(QueueAttributes(visibility="2s"))
        it.start("daemon", "--tick", "500ms")
        worker = it.worker("--no-reaper", procs=2)
        it.send("work", *[(number, 30.0) for number in range(2)])
        until(lambda: len(it.history.read().count("start")) == 2, 10, "both run")
        children = it.children(worker)
        worker.kill()
        killed = time.monotonic()
        until(lambda: not any(map(lives, children)), 2, "children ended")
        it.worker("--no-reaper", procs=2)
        until(lambda: sum(it.history.read().count("start").values()) == 4, 20, "both run again")
        again = [times[-1] for times in it.history.read().times("start").values()]
    assert max(again) - killed <= visibility_s + tick_s + 1.0


def test_a_child_ends_with_its_supervisor_even_in_c(namespace: str, tmp_path: Path) -> None:
    """A supervisor killed with SIGKILL leaves no child behind, not even one that holds the GIL."""
    with rig(namespace, tmp_path) as it:
        worker = it.worker()
        it.send("hold_gil", (1, 30))
        until(lambda: it.history.read().count("start"), 10, "it runs")
        child = it.children(worker)[0]
        worker.kill()
        until(lambda: not lives(child), 1, "child ended")


def test_a_message_that_kills_its_process_is_dead_after_max_receives(
    namespace: str, tmp_path: Path
) -> None:
    """It starts exactly max receives times, and its neighbours hardly notice."""
    with rig(namespace, tmp_path) as it:
        it.send("work", *[(number, 0.001) for number in range(100)])
        it.send("segfault", (1000,))
        it.send("work", *[(number, 0.001) for number in range(100, 200)])
        it.worker()
        until(it.drained, 40, "queue drained")
        dead = it.app.queue("work").dead()
        starts = it.history.read().count("start")
    assert starts.pop(1000) == 3
    assert [letter.reason for letter in dead] == ["max_receives"]
    assert dead[0].error_class == "WorkerDiedError"
    assert "SIGSEGV" in dead[0].error
    assert set(starts) == set(range(200))
    assert sum(starts.values()) - 200 < 10


def test_a_poison_message_among_coroutines_is_blamed_alone(namespace: str, tmp_path: Path) -> None:
    """A hundred coroutines die with it at most twice; then it is tried alone until it is dead."""
    with rig(namespace, tmp_path) as it:
        it.send("awork", *[(number, 0.05) for number in range(50)])
        it.send("asegfault", (1000,))
        it.worker("--queues", "aio")
        until(lambda: it.drained("aio"), 60, "queue drained")
        dead = it.app.queue("aio").dead()
        history = it.history.read()
    assert len(dead) == 1
    assert set(history.count("end")) == set(range(50))
    assert max(history.count("start")[number] for number in range(50)) <= 3
