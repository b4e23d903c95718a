"""Faults of handlers: slow ones, those that end their process or never end, that fork, that leak."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable

import psutil

from qworker import SendOptions
from verification.faults import system
from verification.faults.consumers import LONG, nothing
from verification.faults.load import Load
from verification.faults.producer import Sending
from verification.faults.row import Row, at_least, at_most, exactly, within
from verification.faults.stage import Stage

__all__ = ["ROWS"]

#: Deliveries of a message that kills its worker.
RECEIVES = 3
POISONS = 3
#: Of a millisecond each: more than one child can do while the row lasts.
BACKLOG = 15_000


def outlast(stage: Stage) -> None:
    """Send handlers of five visibility timeouts."""
    for number in range(4):
        stage.notebook.note("sending", "slow", number, number)
        stage.send("handle", f"slow-{number}", int(5000 * stage.load.visibility_s))
        stage.notebook.note("sent", "slow", number, number)
    nothing(stage)


def poison(*kinds: str) -> Callable[[Stage], None]:
    """Send messages that end the process of their handler, or never end."""

    def course(stage: Stage) -> None:
        number = POISONS if stage.load.procs > 1 else 1
        keys = [f"poison-{kind}-{index}" for kind in kinds for index in range(number)]
        for key in keys:
            options = SendOptions(max_receives=RECEIVES)
            stage.send("poison", key, key.split("-")[1], options=options)
        seen = 0
        while len(stage.dead_keys()) < len(keys):
            time.sleep(0.05)
            poisoned = stage.notes("poisoned")
            for event in poisoned[seen:]:
                if event.rest[1] in ("spin", "gil", "deadlock"):
                    psutil.wait_procs(_of(event.pid), 60)
                    stage.most("to_kill_s", round((time.monotonic_ns() - event.at) / 1e9, 2))
            seen = len(poisoned)
        nothing(stage)
        starts = Counter(event.rest[0] for event in stage.notes("poisoned"))
        stage.measured["fewest_starts"] = min(starts[key] for key in keys)
        stage.measured["most_starts"] = max(starts.values())
        reasons = Counter(dead_letter.reason for dead_letter in stage.queue().dead(1000))
        stage.measured["buried"] = reasons["max_receives"]
        stage.measured["poisons"] = len(keys)

    return course


def _of(pid: int) -> list[psutil.Process]:
    try:
        return [psutil.Process(pid)]
    except psutil.NoSuchProcess:
        return []


POISONED = (
    exactly("fewest_starts", RECEIVES),
    exactly("most_starts", RECEIVES),
    exactly("buried", "poisons"),
    exactly("dead", "poisons"),
    at_most("duplicates", "killed_running"),
)


def exhaust_memory(stage: Stage) -> None:
    """Let handlers allocate more than the system gives them."""
    with system.memory_group(64 << 20) as directory:
        stage.environ["FAULTS_CGROUP"] = directory
        for worker in list(stage.workers):
            worker.stop()
            stage.replace(worker)
        poison("memory")(stage)
        for worker in stage.workers:
            worker.stop()
    stage.mind()
    codes = {event["code"] for event in stage.logged("child_ended")}
    stage.measured["killed_by_system"] = -signal.SIGKILL in codes


def starve(stage: Stage) -> None:
    """Let a queue with a large backlog stand before one in which a message comes now and then."""
    bodies = [{"task": "handle", "args": [f"hot-{number}", 1]} for number in range(1, BACKLOG + 1)]
    stage.notebook.note("sending", "hot", 1, BACKLOG)
    stage.queue("load").send_many(bodies)
    stage.notebook.note("sent", "hot", 1, BACKLOG, synced=True)
    begun = time.monotonic_ns()
    nothing(stage)
    ended = time.monotonic_ns()
    time.sleep(2.0)
    # Of what was sent beside the backlog, which is there even now, when all of that has begun.
    stage.measured["backlog_left"] = stage.queue("load").inspect().ready
    waits = stage.waits_s("p0", within_ns=(begun, ended))
    stage.measured["cold_sends"] = len(waits)
    stage.measured["cold_p99_s"] = round(waits[int(len(waits) * 0.99)], 2)


def count_connections(stage: Stage) -> None:
    """Count the connections of the server: each forked process opens its own, and leaves none behind."""
    client = stage.server.redis()
    before = client.info("stats")["total_connections_received"]
    for _ in stage.goes_on(0.05):
        stage.most("connections", len(client.client_list()))
    stage.stop_producers()
    stage.drain()
    forked = {event.pid for event in stage.notes("sending")} - set(stage.children())
    # Producers of the load have theirs from before.
    stage.measured["forks"] = len(forked) - stage.load.producers
    stage.measured["connected"] = client.info("stats")["total_connections_received"] - before
    stage.measured["connections_left"] = len(client.client_list())
    load, children = stage.load, stage.load.workers * stage.load.procs
    # A child has one to receive by, one to wait by and one for its handlers; the two others are this process's.
    rest = 3 * children + load.workers + load.daemons + 2
    stage.measured["connections_at_rest"] = rest
    stage.measured["connections_at_work"] = rest + load.producers + 2 * children


def leak(stage: Stage) -> None:
    """Look how large children grow that leak with every message."""
    for _ in stage.goes_on(0.2, recycled=1):
        reasons = Counter(event["reason"] for event in stage.logged("child_ended"))
        stage.measured["recycled"] = reasons["rss"]
        for pid in stage.children():
            try:
                stage.most("rss_mb", round(psutil.Process(pid).memory_info().rss / 2**20))
            except psutil.NoSuchProcess:
                continue


ROWS = [
    Row(
        name="F8",
        fault="handlers last five visibility timeouts",
        course=outlast,
        bounds=(at_most("duplicates", 0), at_most("stale_acks", 0)),
        load=Load(visibility="1s"),
        seconds=8,
    ),
    Row(
        name="F10",
        fault="one handler of a hundred lasts one and a half visibility timeouts",
        course=nothing,
        load=Load(sending=Sending(rate=40, chunk=10, naps=0.01, nap_ms=3000)),
        bounds=(at_most("duplicates", 0), at_most("stale_acks", 0)),
    ),
    Row(
        name="F11",
        fault="messages that end their process by a segmentation fault",
        course=poison("segfault"),
        load=Load(visibility=LONG),
        bounds=POISONED,
        commit_s=1,
    ),
    Row(
        name="F12",
        fault="messages whose process the system kills because memory runs out",
        course=exhaust_memory,
        bounds=(*POISONED, exactly("killed_by_system", 1)),
        needs=system.memory_reason,
        seconds=8,
    ),
    Row(
        name="F13",
        fault="handlers that never end: in Python, and in C with the interpreter lock",
        course=poison("spin", "gil"),
        bounds=(*POISONED, within("to_kill_s", 1.0 + 1.0)),
        seconds=8,
    ),
    Row(
        name="F14",
        fault="handlers that raise SystemExit and KeyboardInterrupt, or call os._exit and kill",
        course=poison("exit", "interrupt", "_exit", "kill"),
        bounds=POISONED,
        seconds=8,
    ),
    Row(
        name="F42",
        fault=f"a backlog of {BACKLOG:,} beside a queue in which a message comes now and then",
        course=starve,
        load=Load(
            producers=1,
            workers=1,
            procs=1,
            queues="load,aload",
            flags=("--weights", "load=1,aload=1"),
            sending=Sending(task="ahandle", queue="aload", rate=20, chunk=1, naps=0, mixed=False),
        ),
        bounds=(
            within("cold_p99_s", 1.0),
            at_least("cold_sends", 50),
            at_least("backlog_left", 1),
            at_most("duplicates", 0),
        ),
        seconds=6,
    ),
    Row(
        name="F43",
        fault="handlers fork, and the forked processes send over the client that they inherit",
        course=count_connections,
        load=Load(sending=Sending(task="forked", rate=100, naps=0.02, nap_ms=1)),
        bounds=(
            at_least("forks", 10),
            at_least("connected", "forks"),
            at_most("connections", "connections_at_work"),
            at_most("connections_left", "connections_at_rest"),
            at_most("duplicates", 0),
        ),
        seconds=8,
    ),
    Row(
        name="F44",
        fault="handlers wait for a lock that is never released",
        course=poison("deadlock"),
        load=Load(flags=("--concurrency", "2")),
        bounds=(
            exactly("fewest_starts", RECEIVES),
            # Who runs beside another one that is to blame is given back uncounted.
            at_most("most_starts", 2 * RECEIVES),
            exactly("buried", "poisons"),
            within("to_kill_s", 1.0 + 1.0),
        ),
        seconds=8,
    ),
    Row(
        name="F45",
        fault="handlers leak 256 KiB each",
        course=leak,
        load=Load(
            flags=("--max-rss", "120MiB"), sending=Sending(task="leak", rate=100, nap_ms=0, chunk=5)
        ),
        bounds=(at_least("recycled", 1), at_most("duplicates", 0), at_most("rss_mb", 120 + 80)),
    ),
]
