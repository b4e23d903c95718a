"""Faults of what stands upon the queues: schedules, the journal, redrive, import, repair, shards."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from qworker.daemon.schedule_listing import list_schedules
from qworker.store.connections import ConnectionFactory
from tests.consumer.workers import Worker
from tests.importers.keys import add_rsmq
from verification.faults.consumers import KILLED
from verification.faults.load import Load
from verification.faults.processes import NAMESPACE
from verification.faults.producer import Sending
from verification.faults.row import Row, at_least, at_most, exactly
from verification.faults.stage import Stage

__all__ = ["DIVIDED", "ROWS"]

LETTERS = 2000
IMPORTED = 2000


def with_schedule(stage: Stage) -> None:
    """Let the app have its schedule."""
    stage.environ["FAULTS_SCHEDULE"] = "1"


def fire_schedules(stage: Stage) -> None:
    """Let three daemons fire a schedule every second, and kill one of them every second: each slot once."""
    for _ in range(2):
        stage.daemon()
    stage.until(lambda: _last_slot(stage), "first slot")
    first, before = _settled(stage)
    for _ in stage.goes_on(1.0, reaper_kills=3, ticked=4):
        stage.measured["ticked"] = (_last_slot(stage) - first) // 1000
        victim = stage.chance.choice(stage.daemons[1:])
        victim.kill()
        stage.replace(victim)
        stage.add("reaper_kills", 1)
    # The daemons stop first: then no slot fires unnoticed.
    for daemon in stage.daemons:
        daemon.stop()
    last, after = _settled(stage)
    stage.measured["slots"] = (last - first) // 1000
    stage.measured["fired"] = after - before
    stage.daemon()


def _settled(stage: Stage) -> tuple[int, int]:
    """The last slot that has fired, and the number of those that were handled by then."""
    while True:
        last = _last_slot(stage)
        stage.drain()
        fired = len({event.rest[0] for event in stage.notes("scheduled")})
        if last == _last_slot(stage):
            return last, fired


def _last_slot(stage: Stage) -> int:
    known = list_schedules(stage.app.client, NAMESPACE)
    return (known[0].last_ms or 0) if known else 0


def lose_journal(stage: Stage) -> None:
    """Delete the journal again and again, and kill children: deliveries do not depend on it."""
    client, keys = stage.server.redis(), stage.queue().keys
    for _ in stage.goes_on(0.5, deletions=5, kills=1):
        client.delete(keys.journal)
        stage.kill_child()
        stage.add("deletions", 1)


def redrive(stage: Stage) -> None:
    """Kill `qworker dead redrive` again and again: each dead letter comes back once."""
    queue = stage.queue()
    stage.until(lambda: stage.queue().inspect().dead >= LETTERS, "dead letters")
    stage.stop_producers()
    stage.drain()
    stage.measured["letters"] = queue.inspect().dead
    before = len(stage.notes("started"))
    while queue.inspect().dead:
        words = ("dead", "redrive", queue.name, "--all", "--yes", "--rate", "2000/s")
        _kill_at_work(stage, stage.command(*words), lambda: queue.inspect().dead)
    stage.drain()
    stage.measured["redriven"] = len(stage.notes("started")) - before


def import_waiting(stage: Stage) -> None:
    """Kill an import again and again, while workers handle what it has moved: each message once."""
    with ConnectionFactory(f"{stage.server.url}?db=1").redis() as client:
        calls = [
            json.dumps({"task": "handle", "args": [f"moved-{number}"]}, separators=(",", ":"))
            for number in range(1, IMPORTED + 1)
        ]
        add_rsmq(client, "load", [call.encode() for call in calls])
        stage.notebook.note("sending", "moved", 1, IMPORTED)
        stage.notebook.note("sent", "moved", 1, IMPORTED)
        words = ("import", "rsmq", "--from", f"{stage.server.url}?db=1", "--yes")
        code = None
        while code is None:
            code = _kill_at_work(stage, stage.command(*words), lambda: client.zcard("rsmq:load"))
    stage.measured["import_code"] = code


def _kill_at_work(stage: Stage, process: Worker, left: Callable[[], Any]) -> int | None:
    """Kill a command a moment after it has begun to work; returns its code if it ended before that."""
    before = left()
    stage.until(lambda: process.process.poll() is not None or left() < before, "work")
    if stage.measured.get("kills"):  # the first one at once: the whole work may be shorter
        time.sleep(stage.chance.uniform(0, 0.3))
    if (code := process.process.poll()) is None:
        process.kill()
        stage.add("kills", 1)
    return code


def repair_meanwhile(stage: Stage) -> None:
    """Run `fsck --repair` all the time while children are killed: it finds nothing and disturbs no worker."""
    repaired = 0
    for _ in stage.goes_on(0.2, checks=3, kills=1):
        stage.kill_child()
        repaired += len(stage.repair())
        stage.add("checks", 1)
    stage.measured["found"] = repaired


def divide_again(stage: Stage) -> None:
    """Divide the queue into another number of shards again and again, while children and daemons are killed."""
    queue, shards = stage.queue(), 1
    for _ in stage.goes_on(0.5, divisions=6, kills=3, reaper_kills=3):
        shards = stage.chance.choice([n for n in range(1, 6) if n != shards])
        stage.kill_child()
        victim = stage.chance.choice(stage.daemons)
        victim.kill()
        stage.replace(victim)
        stage.add("reaper_kills", 1)
        stage.most("shards", queue.divide(shards).active)
        stage.add("divisions", 1)
    queue.divide(1)
    stage.stop_producers()
    stage.drain()
    stage.until(lambda: len(queue.division().shards) == 1, "shards that are given up")


DIVIDED = Row(
    name="F57",
    fault="a queue is divided into other numbers of shards, and children and daemons are killed",
    course=divide_again,
    load=Load(sending=KILLED, daemons=2),
    # Two servers change one after the other, and no message hangs on it.
    miscounts="a daemon is killed between two calls that hand over the totals of a shard",
    bounds=(
        at_least("divisions", 6),
        at_least("shards", 2),
        at_most("duplicates", "killed_running"),
    ),
)

ROWS = [
    DIVIDED,
    Row(
        name="F52",
        fault="three daemons fire a schedule every second, one is killed every second",
        course=fire_schedules,
        before=with_schedule,
        load=Load(producers=0),
        bounds=(at_least("slots", 3), exactly("fired", "slots")),
        seconds=12,
    ),
    Row(
        name="F53",
        fault="the journal is deleted again and again, and children are killed",
        course=lose_journal,
        load=Load(journal="all", sending=KILLED),
        mends=("journal",),
        bounds=(at_least("deletions", 5), at_most("duplicates", "killed_running")),
    ),
    Row(
        name="F54",
        fault="a redrive of dead letters is killed again and again",
        course=redrive,
        load=Load(sending=Sending(task="die_once", rate=500, mixed=False, naps=0)),
        bounds=(at_least("kills", 1), exactly("redriven", "letters")),
        seconds=1,
    ),
    Row(
        name="F55",
        fault="an import of waiting messages is killed again and again",
        course=import_waiting,
        load=Load(sending=Sending(rate=200)),
        bounds=(at_least("kills", 1), exactly("import_code", 0), at_most("duplicates", 0)),
        seconds=1,
    ),
    Row(
        name="F56",
        fault="fsck repairs all the time, and children are killed",
        course=repair_meanwhile,
        load=Load(sending=KILLED),
        bounds=(
            at_least("checks", 3),
            exactly("found", 0),
            at_most("duplicates", "killed_running"),
        ),
    ),
]
