"""Workers killed at random under load: nothing is lost, nothing is made up, nothing is done again after its ack.

The account is kept outside of Redis, in a file to which every process appends and which it syncs. The checks are those
of Jepsen's total-queue, and two more: nothing starts after a successful ack, and nothing is acked twice.

QWORKER_KILL_SECONDS (default 5) says how long the killing lasts.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from qworker import QueueAttributes
from tests.consumer.driving import DEADLINE_S, until
from tests.consumer.workers import Lab, Worker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KILL_S = float(os.environ.get("QWORKER_KILL_SECONDS", "5"))
EVERY_S = 0.25
PRODUCERS = 3

APP = """
def synced(*words):
    note(*words)
    os.fsync(HISTORY)

@app.task(retry=Retry.fixed("100ms"))
def handle(key: str) -> None:
    synced("started", current().message_id, key)
    time.sleep(0.002)

@app.task(retry=Retry.fixed("100ms"))
async def ahandle(key: str) -> None:
    synced("started", current().message_id, key)
    await asyncio.sleep(0.002)
"""

PRODUCER = """
import sys, time
from jobs import *

task, producer, ending = app.tasks[sys.argv[1]], sys.argv[2], time.time() + float(sys.argv[3])
number = 0
while time.time() < ending:
    number += 1
    synced("sending", f"{producer}-{number}")
    synced("sent", f"{producer}-{number}", task.send(f"{producer}-{number}"))
    time.sleep(0.01)
"""


@dataclass(frozen=True)
class Account:
    """What the history comes to."""

    sent: int
    lost: set[str]
    unexpected: set[str]
    acked_twice: set[str]
    started_after_ack: set[str]
    duplicates: int


def account_of(lab: Lab) -> Account:
    """Read the history in its order."""
    attempted, sent = set(), set()
    acked: Counter[str] = Counter()
    starts: Counter[str] = Counter()
    late = set()
    for note in lab.notes():
        match [note.word, *note.rest]:
            case ["sending", key]:
                attempted.add(key)
            case ["sent", key, _]:
                sent.add(key)
            case ["started", message_id, key]:
                starts[key] += 1
                if message_id in acked:
                    late.add(key)
            case ["acked", message_id]:
                acked[message_id] += 1
    return Account(
        sent=len(sent),
        lost=sent - starts.keys(),
        unexpected=starts.keys() - attempted,
        acked_twice={message_id for message_id, times in acked.items() if times > 1},
        started_after_ack=late,
        duplicates=starts.total() - len(starts),
    )


class Load:
    """Producers at work, and workers that note every ack."""

    def __init__(self, lab: Lab, task: str, seconds: float) -> None:
        lab.app(APP)
        (lab.directory / "producer.py").write_text(PRODUCER)
        hook = Path(__file__).with_name("sitecustomize_for_faults.py").read_text()
        (lab.directory / "hooks").mkdir()
        (lab.directory / "hooks" / "sitecustomize.py").write_text(hook)
        lab.queue().configure(QueueAttributes(visibility="2s", max_receives=50))
        self._lab = lab
        self._producers = [
            subprocess.Popen(
                [sys.executable, "producer.py", task, str(number), str(seconds)],
                cwd=lab.directory,
                env=lab.environ,
            )
            for number in range(PRODUCERS)
        ]

    def worker(self, *flags: str) -> Worker:
        """Start a worker that notes its acks."""
        lab = self._lab
        environ = {
            "FAULTS_HISTORY": str(lab.history),
            "PYTHONPATH": f"{lab.directory / 'hooks'}:{lab.environ['PYTHONPATH']}",
        }
        return lab.start("--procs", "2", *flags, environ=environ)

    @property
    def sending(self) -> bool:
        """Whether a producer is still at work."""
        return any(each.poll() is None for each in self._producers)

    def settle(self) -> Account:
        """Wait until everything has ended, and return the account."""
        for each in self._producers:
            assert each.wait(DEADLINE_S) == 0
        until(lambda: self._lab.queue().inspect().stored == 0, 2 * DEADLINE_S)
        return account_of(self._lab)


def kill_now_and_then(load: Load, kill: Callable[[random.Random], None]) -> int:
    """Kill something every quarter of a second while producers are at work; returns how often."""
    chance = random.Random(int(os.environ.get("QWORKER_KILL_SEED", time.time_ns() % 10_000)))
    kills = 0
    while load.sending:
        time.sleep(EVERY_S)
        kill(chance)
        kills += 1
    return kills


def check(account: Account, lab: Lab, kills: int) -> None:
    """What holds whatever is killed."""
    print(f"{kills} kills, {account.sent} sent, {account.duplicates} duplicates")  # shown by -rP
    assert account.sent > 100
    assert account.lost == set()
    assert account.unexpected == set()
    assert account.acked_twice == set()
    assert account.started_after_ack == set()
    stats = lab.queue().inspect().stats
    assert (stats["acked"], stats.get("dead", 0)) == (stats["sent"], 0)


@pytest.mark.parametrize(
    ("task", "flags"),
    [("handle", ()), ("handle", ("--concurrency", "8")), ("ahandle", ())],
    ids=["inline", "threads", "async"],
)
def test_children_killed_at_random_lose_nothing(
    lab: Lab, task: str, flags: tuple[str, ...]
) -> None:
    """A child is killed every 250 ms: all is handled, and again only what ran in a child when it was killed."""
    load = Load(lab, task, KILL_S)
    workers = [load.worker(*flags), load.worker(*flags)]

    def kill(chance: random.Random) -> None:
        pids = [pid for worker in workers for pid in worker.children()]
        if pids:
            os.kill(chance.choice(pids), signal.SIGKILL)

    kills = kill_now_and_then(load, kill)
    account = load.settle()
    ended = [event for worker in workers for event in worker.events("child_ended")]
    for worker in workers:
        assert worker.stop() == 0

    check(account, lab, kills)
    assert kills > 5
    assert account.duplicates <= sum(event.get("running", 0) for event in ended)


def test_workers_killed_at_random_lose_nothing(lab: Lab) -> None:
    """Supervisors are killed too, and their children with them: a reaper elsewhere brings back what they held."""
    with lab.reaper():
        load = Load(lab, "handle", KILL_S)
        workers = [load.worker("--no-reaper"), load.worker("--no-reaper")]
        held = 0

        def kill(chance: random.Random) -> None:
            nonlocal held
            number = chance.randrange(2)
            if chance.random() < 0.3:
                held += lab.queue().inspect().unacked
                workers[number].kill()
                workers[number] = load.worker("--no-reaper")
            elif pids := workers[number].children():
                held += 1
                os.kill(chance.choice(pids), signal.SIGKILL)

        kills = kill_now_and_then(load, kill)
        account = load.settle()
        for worker in workers:
            worker.stop()

    check(account, lab, kills)
    assert account.duplicates <= held


def test_what_a_killed_worker_held_is_back_within_the_visibility_timeout(lab: Lab) -> None:
    """When a whole worker dies, another one starts its message within visibility timeout, tick and a second."""
    visibility_s, tick_s = 2.0, 0.2
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
        with lab.worker("--no-reaper"):
            lab.send("ping")
            until(lambda: lab.notes("ping"))
            time.sleep(1.0)  # an extension or two
            killed = time.time()
            first.kill()
            until(lambda: len(lab.notes("started")) == 2)
    again = lab.notes("started")[1]
    assert again.rest == [2]
    assert again.at - killed < visibility_s + tick_s + 1.0
