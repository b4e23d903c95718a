"""Faults of reapers: none left, several at once, stopped and woken late, killed between two calls, far behind."""

from __future__ import annotations

import os
import signal
import time

from qworker.wire.envelope import head, tail
from verification.faults.consumers import AFTER_GAP, BETWEEN_GAPS, KILLED, REDELIVERY, nothing
from verification.faults.load import Load
from verification.faults.producer import Sending
from verification.faults.row import Row, at_least, at_most, exactly, within
from verification.faults.stage import Stage

__all__ = ["ROWS"]

DUE = 500_000
_HOUR_MS = 3_600_000


def without_reaper(stage: Stage) -> None:
    """Kill the only reaper: ready messages are handled, and due ones wait for the next reaper."""
    time.sleep(1.0)
    _kill(stage)
    stage.kill_worker()
    before = stage.acked
    for _ in stage.goes_on(acked_meanwhile=1):
        stage.measured["acked_meanwhile"] = stage.acked - before
    waiting = stage.queue().inspect()
    stage.measured["waiting"] = waiting.delayed + waiting.leases
    daemon = stage.daemon()
    # The grace after a gap is 6 s, the daemon's start aside.
    stage.until(lambda: stage.spoken([daemon.process.pid]), "first pass of the daemon")
    stage.until(lambda: _ticks(stage, daemon.process.pid), "note of that")
    stage.losses = {pid: _ticks(stage, daemon.process.pid)[:1] for pid in stage.losses}
    stage.until(lambda: stage.queue().inspect().leases <= 4, "reaped lease")


def _ticks(stage: Stage, pid: int) -> list[int]:
    """When the daemon `pid` has noted that it made a pass, ns."""
    return [note.at for note in stage.notes("ticked") if note.pid == pid]


def _kill(stage: Stage) -> None:
    for daemon in stage.daemons:
        daemon.kill()
    stage.ended += stage.daemons
    stage.daemons.clear()


def race(stage: Stage) -> None:
    """Let three reapers race, kill one every second and start another; workers are killed meanwhile."""
    for _ in range(2):
        stage.daemon()
    for turn, _ in enumerate(stage.goes_on(1.0, reaper_kills=3)):
        # One is spared: how soon a lost message is back says nothing where no reaper is.
        victim = stage.chance.choice(stage.daemons[1:])
        victim.kill()
        stage.replace(victim)
        stage.add("reaper_kills", 1)
        if turn % 3 == 0:
            stage.kill_worker()


def freeze_reaper(stage: Stage) -> None:
    """Stop one of two reapers for three seconds, whatever it is about to do; workers are killed meanwhile."""
    stage.daemon()
    for _ in stage.goes_on(0.5, freezes=2):
        pid = stage.chance.choice(stage.daemons).process.pid
        os.kill(pid, signal.SIGSTOP)
        stage.kill_worker()
        time.sleep(3.0)
        os.kill(pid, signal.SIGCONT)
        stage.add("freezes", 1)


def crash_reapers(stage: Stage) -> None:
    """Reapers die between two of their calls; another one starts."""
    stage.environ["FAULTS_CRASH"] = "mid_tick reaper 100"
    stage.daemon()
    for turn, _ in enumerate(stage.goes_on(0.2, reaper_kills=3)):
        stage.mind()
        stage.measured["reaper_kills"] = len(stage.notes("crashed"))
        stage.note_gaps()
        if turn % 20 == 10:
            del stage.environ["FAULTS_CRASH"]
            stage.kill_worker()
            stage.environ["FAULTS_CRASH"] = "mid_tick reaper 100"
    del stage.environ["FAULTS_CRASH"]
    _kill(stage)
    stage.daemon()


def all_due_at_once(stage: Stage) -> None:
    """Let very many messages be due at once beside a small queue, whose delayed messages must not be late."""
    client, keys = stage.server.redis(), stage.queue("big").keys
    stage.queue("big").send(b"{}", delay="1h")
    written = f"{keys.delayed}:written"
    client.copy(keys.delayed, written)
    now_ms = int(client.time()[0]) * 1000
    for first in range(0, DUE, 5000):
        items = {
            f"{head(f'big{number}')}{now_ms} 0 0 0 0".encode() + tail(b"{}"): now_ms - _HOUR_MS
            for number in range(first, first + 5000)
        }
        client.zadd(written, items)
    begun = time.monotonic_ns()
    # No reaper has seen any of them until all are there, and due.
    with client.pipeline(transaction=True) as call:
        call.rename(written, keys.delayed)
        call.hincrby(keys.stats, "stored", DUE)
        call.execute()
    stage.until(lambda: stage.queue("big").inspect().delayed == 1, "promoted messages")
    ended = time.monotonic_ns()
    took_s = (ended - begun) / 1e9
    stage.measured["promotion_s"] = round(took_s, 1)
    stage.measured["promoted_per_s"] = round(DUE / took_s)
    nothing(stage)
    time.sleep(2.0)
    # Of what was sent while the large queue was promoted, and all of it has begun by now.
    waits = stage.waits_s(within_ns=(begun, ended))
    stage.measured["small_queue_sends"] = len(waits)
    stage.measured["small_queue_p99_s"] = round(waits[int(len(waits) * 0.99)], 2)
    stage.queue("big").purge("ready")
    stage.queue("big").purge("delayed")


ROWS = [
    Row(
        name="F17",
        fault="the only reaper is killed, and none is left for a while",
        course=without_reaper,
        load=Load(fewest=2, visibility="4s", sending=KILLED),
        # From the start of the next reaper, which finds a gap.
        bounds=(at_least("acked_meanwhile", 1), at_most("unexplained", 0), AFTER_GAP),
        seconds=8,
        commit_s=1,
    ),
    Row(
        name="F18",
        fault="three reapers race, one is killed every second, and workers too",
        course=race,
        load=Load(fewest=2, sending=KILLED),
        bounds=(at_least("reaper_kills", 3), at_most("unexplained", 0), REDELIVERY),
        seconds=15,
    ),
    Row(
        name="F19",
        fault="a reaper is frozen and wakes late, and workers are killed",
        course=freeze_reaper,
        load=Load(fewest=2, sending=KILLED),
        bounds=(at_least("freezes", 2), at_most("unexplained", 0), REDELIVERY),
    ),
    Row(
        name="F20",
        fault="reapers die between two of their calls, and workers are killed",
        course=crash_reapers,
        load=Load(fewest=2, daemons=0, sending=KILLED),
        # A reaper that takes 2 s to start leaves a gap behind the one that died; one gap may follow another.
        bounds=(at_least("reaper_kills", 3), at_most("unexplained", 0), BETWEEN_GAPS),
    ),
    Row(
        name="F41",
        fault=f"{DUE:,} messages are due at once, beside a small queue",
        course=all_due_at_once,
        load=Load(sending=Sending(rate=100, chunk=5, options={"delay": "300ms"}, mixed=False)),
        bounds=(
            at_least("promoted_per_s", 5000),
            at_least("small_queue_sends", 50),
            within("small_queue_p99_s", 0.3 + 0.2 + 0.5),
            exactly("dead", 0),
        ),
        seconds=5,
    ),
]
