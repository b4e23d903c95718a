"""Faults of consumers: killed, frozen, slow, poisoned, stopped."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from tests.consumer.workers import Worker
from verification.faults.load import Load
from verification.faults.producer import Sending
from verification.faults.row import Row, at_least, at_most, within
from verification.faults.stage import Stage

__all__ = [
    "AFTER_GAP",
    "BETWEEN_GAPS",
    "KILLED",
    "LONG",
    "REDELIVERY",
    "ROWS",
    "kill_children",
    "nothing",
]

#: Visibility, tick and a second: how soon what a lost worker held begins again.
REDELIVERY = within("redelivery_p99_s", 2.0 + 0.2 + 1.0)


def nothing(stage: Stage) -> None:
    """Let the load run."""
    for _ in stage.goes_on():
        pass


def kill_children(stage: Stage) -> None:
    """Kill a child every quarter of a second."""
    for _ in stage.goes_on(0.25, kills=2):
        stage.kill_child()


def kill_workers(stage: Stage) -> None:
    """Kill a whole worker every six seconds, and a child now and then.

    That is longer than a message is away: held by a second worker that dies, unstarted, it waits once more.
    """
    for turn, _ in enumerate(stage.goes_on(0.5, worker_kills=1)):
        if turn % 12 == 3:
            stage.kill_worker()
        else:
            stage.kill_child()


def mind(stage: Stage, *spared: Worker) -> None:
    """Workers crash by themselves; another one takes the place of each. Those that are `spared` do not crash."""
    for _ in stage.goes_on(0.2, kills=1):
        stage.mind()
        stage.measured["kills"] = len(stage.notes("crashed"))
    stage.environ.pop("FAULTS_CRASH")
    # The remaining workers would continue to crash, and the queue has to be drained.
    for worker in [each for each in stage.workers if each not in spared]:
        if worker.process.poll() is None:
            worker.stop()
        stage.replace(worker)


def mind_beside_one(stage: Stage) -> None:
    """Do so beside a worker that does not crash: messages of the others wait for their leases only."""
    spec = stage.environ.pop("FAULTS_CRASH")
    spare = stage.worker()
    stage.environ["FAULTS_CRASH"] = spec
    _await_work(stage, spare)
    mind(stage, spare)


def crash(point: str, who: str, every: int) -> Callable[[Stage], None]:
    """Let workers crash at a point, see `crashes.py`."""

    def before(stage: Stage) -> None:
        stage.environ["FAULTS_CRASH"] = f"{point} {who} {every}"

    return before


def freeze_workers(stage: Stage) -> None:
    """Stop a whole worker for two visibility timeouts, until one has been stopped with handlers at work."""
    for _ in stage.goes_on(0.5, stale_seen=1):
        stage.measured["stale_seen"] = stage.queue().inspect().stats.get("stale", 0)
        pids = stage.freeze(stage.chance.choice(stage.victims))
        time.sleep(2 * stage.load.visibility_s)
        stage.thaw(pids)
        stage.add("freezes", 1)


def freeze_children(stage: Stage) -> None:
    """Stop one child for two visibility timeouts: its supervisor keeps its leases."""
    for _ in stage.goes_on(0.5):
        pid = stage.chance.choice(stage.children())
        os.kill(pid, signal.SIGSTOP)
        time.sleep(2 * stage.load.visibility_s)
        stage.thaw([pid])
        stage.add("freezes", 1)


def stop_workers(stage: Stage) -> None:
    """Stop a worker gracefully under load every second, and start another."""
    for _ in stage.goes_on(1.0):
        worker = stage.chance.choice(stage.victims)
        _await_work(stage, worker)
        begun = time.monotonic()
        stage.add("bad_exits", float(worker.stop() != 0))
        stage.most("exit_s", round(time.monotonic() - begun, 2))
        stage.add("stops", 1)
        stage.replace(worker)


def _await_work(stage: Stage, worker: Worker) -> None:
    stage.until(lambda: stage.spoken(worker.children()), "child at work")


def cut_off_workers(stage: Stage) -> None:
    """Tell a worker to stop and kill it a moment later, its handlers still at work."""
    for _ in stage.goes_on(1.0, kills=2):
        worker = stage.chance.choice(stage.victims)
        _await_work(stage, worker)
        pids = [worker.process.pid, *worker.children()]
        worker.process.terminate()
        time.sleep(0.1)
        stage.lose(*pids)
        worker.process.kill()
        worker.process.wait(30)
        stage.add("kills", 1)
        stage.replace(worker)


#: After a gap (no reaper, a clock that jumped, a server that was frozen) leases that were good before it are reaped
#: 6 s later at the earliest: by then living workers have extended theirs. So 6 s, a tick and a second.
AFTER_GAP = within("redelivery_p99_s", 6.0 + 0.2 + 1.0)
#: The same where one gap may follow another: without the time of all gaps, until their leases may be reaped.
BETWEEN_GAPS = within("redelivery_outside_gaps_p99_s", 2.0 + 0.2 + 1.0)
#: So long that no lease runs out where a supervisor has to wait for a core: what a dead child held is back at once.
LONG = "10s"
#: Handlers that are at work whenever something happens to their process.
BUSY = Sending(rate=150, chunk=10, naps=0.5, nap_ms=20, backlog=200)
#: Many handlers, and one at work in most children at any time.
KILLED = Sending(rate=400, naps=0.3, nap_ms=10, backlog=1000)

#: The same of all that a worker held which crashed by itself, prefetched or begun: the longest, and there was some.
HELD = (at_least("held_again", 1), within("held_longest_s", 2.0 + 0.2 + 1.0))

ROWS = [
    Row(
        name="F0",
        fault="nothing",
        course=nothing,
        load=Load(sending=Sending(rate=6000, chunk=500, nap_ms=1, naps=0.001, backlog=10_000)),
        bounds=(at_most("duplicates", 0), at_most("stale_acks", 0), at_most("dead", 0)),
        seconds=120,
    ),
    Row(
        name="F1",
        fault="a child is killed every 250 ms, if one is at work",
        course=kill_children,
        load=Load(sending=KILLED, visibility=LONG, fewest=2),
        bounds=(at_least("kills", 2), at_most("duplicates", "killed_running"), REDELIVERY),
        seconds=15,
        commit_s=1,
    ),
    Row(
        name="F1t",
        fault="a child of eight threads is killed every 250 ms",
        course=kill_children,
        load=Load(flags=("--concurrency", "8"), sending=KILLED, visibility=LONG, fewest=2),
        bounds=(at_least("kills", 2), at_most("duplicates", "killed_running"), REDELIVERY),
    ),
    Row(
        name="F1a",
        fault="a child of a hundred coroutines is killed every 250 ms",
        course=kill_children,
        load=Load(
            queues="aload",
            visibility=LONG,
            fewest=2,
            sending=Sending(task="ahandle", queue="aload", rate=400, naps=0.3, nap_ms=10),
        ),
        bounds=(at_least("kills", 2), at_most("duplicates", "killed_running"), REDELIVERY),
    ),
    Row(
        name="F1w",
        fault="workers are killed, supervisors with all their children",
        course=kill_workers,
        load=Load(sending=KILLED, visibility="4s", fewest=2),
        bounds=(
            at_least("worker_kills", 1),
            at_most("unexplained", 0),
            within("redelivery_p99_s", 4.0 + 0.2 + 1.0),
        ),
        seconds=15,
        commit_s=1,
    ),
    Row(
        name="F2",
        fault="a child dies between the reply of its receive and the first start",
        before=crash("after_receive", "child", 40),
        course=mind,
        bounds=(at_least("kills", 1), at_most("duplicates", 0)),
    ),
    Row(
        name="F2w",
        fault="a whole worker dies between the reply of a receive and the first start",
        before=crash("after_receive", "worker", 80),
        course=mind_beside_one,
        load=Load(fewest=2),
        bounds=(at_least("kills", 1), at_most("unexplained", 0), *HELD),
    ),
    Row(
        name="F3",
        fault="a child dies after handlers have ended, before it reports them",
        before=crash("before_ack", "child", 40),
        course=mind,
        bounds=(at_least("kills", 1), at_most("duplicates", 0)),
    ),
    Row(
        name="F4",
        fault="a whole worker dies with acks of a batch of 100 pending",
        before=crash("before_ack", "worker", 80),
        course=mind_beside_one,
        load=Load(fewest=2, flags=("--batch", "100"), sending=Sending(nap_ms=0, rate=500)),
        bounds=(at_least("kills", 1), at_most("unexplained", 0), *HELD),
    ),
    Row(
        name="F9",
        fault="a worker is frozen for two visibility timeouts, and continues",
        course=freeze_workers,
        load=Load(sending=BUSY, fewest=2),
        bounds=(
            at_least("freezes", 1),
            at_least("stale_acks", 1),
            at_most("unexplained", 0),
            REDELIVERY,
        ),
        seconds=15,
        commit_s=1,
    ),
    Row(
        name="F9c",
        fault="a child is frozen for two visibility timeouts, its supervisor is not",
        course=freeze_children,
        load=Load(sending=BUSY, fewest=2),
        bounds=(at_least("freezes", 1), at_most("duplicates", 0)),
    ),
    Row(
        name="F15",
        fault="SIGTERM under load, with messages prefetched",
        course=stop_workers,
        load=Load(
            fewest=2,
            visibility=LONG,
            flags=("--grace", "3s"),
            sending=Sending(naps=0.2, nap_ms=10, rate=300),
        ),
        bounds=(
            at_least("stops", 1),
            at_most("bad_exits", 0),
            at_most("duplicates", 0),
            at_most("latest_receives", 1),
            within("exit_s", 3.0 + 1.0),
        ),
        commit_s=2,
    ),
    Row(
        name="F16",
        fault="SIGTERM, and SIGKILL before the handlers have ended",
        course=cut_off_workers,
        # Handlers so slow that a batch is one message, which is to blame if its worker is lost.
        load=Load(fewest=2, sending=Sending(rate=1.5, chunk=1, naps=0.5, nap_ms=1500)),
        # Every other child may be at a handler of 1.5 s when a message comes back.
        bounds=(
            at_least("kills", 2),
            at_most("unexplained", 0),
            within("redelivery_p99_s", 2.0 + 0.2 + 1.0 + 1.5),
        ),
    ),
]
