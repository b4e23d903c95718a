"""An import is killed again and again while workers handle what it moved: each message is handled exactly once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter

import psutil
import pytest

from tests.cli.conftest import clean_environment
from tests.consumer.forkserver import Order, start_module
from tests.importers.keys import add_celery, add_rq, add_rsmq
from tests.timing import DEADLINE_S

pytestmark = pytest.mark.slow

COUNT = 4000
KILLS = 3


def start(other, shop, tmp_path, *words):
    """Start an import in a separate process, which writes to the files `out` and `err`."""
    environ = clean_environment(QWORKER_URL=shop.url, QWORKER_NAMESPACE=shop.namespace)
    arguments = ["import", *words, "--from", other.url, "--yes"]
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        return start_module(Order("qworker", arguments, str(tmp_path), environ), out, err)


def handle(shop, seen):
    """Receive and ack all messages."""
    queue = shop.queue("jobs")
    while messages := queue.receive(1000):
        queue.ack(*messages)
        seen.update(message.body for message in messages)


def kill_within(process, other, size, left, after_s):
    """Kill the process some time after it has begun to move; returns whether it was still running."""
    while size(other) == left and process.poll() is None:
        time.sleep(0.0005)
    time.sleep(after_s)
    running = process.poll() is None
    process.kill()
    process.wait(DEADLINE_S)
    return running


SYSTEMS = {
    "rsmq": lambda client, at: (
        add_rsmq(client, "jobs", [b"%d" % n for n in range(COUNT)]) if at == 0 else None
    ),
    "rq": lambda client, at: add_rq(client, "jobs", f"job-{at}", "add", at),
    "celery": lambda client, at: add_celery(client, "jobs", f"job-{at}", at),
}
SIZES = {
    "rsmq": lambda other: other.redis.zcard("rsmq:jobs"),
    "rq": lambda other: other.redis.llen("rq:queue:jobs"),
    "celery": lambda other: other.redis.llen("jobs"),
}


@pytest.mark.parametrize(
    "system",
    [
        "rsmq",
        *(
            pytest.param(
                name, marks=pytest.mark.nightly("test_kill_loses_nothing_and_doubles_nothing")
            )
            for name in ("rq", "celery")
        ),
    ],
)
def test_kill_loses_nothing_and_doubles_nothing(system, other, shop, tmp_path):
    """At random times, for each system."""
    pipe = other.redis.pipeline(transaction=False)
    for at in range(COUNT):
        SYSTEMS[system](other.redis if system == "rsmq" else pipe, at)
    pipe.execute()
    size, seen, kills, seed = SIZES[system], Counter(), 0, random.randrange(10**6)
    chance = random.Random(seed)
    for _ in range(KILLS):
        process = start(other, shop, tmp_path, system)
        kills += kill_within(process, other, size, size(other), chance.uniform(0, 0.15))
        handle(shop, seen)
    process = start(other, shop, tmp_path, system)
    assert process.wait(DEADLINE_S) == 0, (tmp_path / "err").read_text()

    handle(shop, seen)

    out = (tmp_path / "out").read_text()
    assert (len(seen), seen.total()) == (COUNT, COUNT), f"seed {seed}, {kills} kills: {out}"
    assert size(other) == 0
    assert kills >= 1, f"seed {seed}: it was never killed while it moved"


def test_interrupt_says_how_far_it_came(other, shop, tmp_path):
    """Ctrl-C: exit code 130, and the same command continues."""
    add_rsmq(other.redis, "jobs", [b"x" * 1000] * 2000)
    process = start(other, shop, tmp_path, "rsmq")
    while other.redis.zcard("rsmq:jobs") == 2000:
        time.sleep(0.0005)
    psutil.Process(process.pid).suspend()
    os.kill(process.pid, signal.SIGINT)
    psutil.Process(process.pid).resume()
    assert process.wait(DEADLINE_S) == 130
    assert "nothing is lost: run it again to continue" in (tmp_path / "err").read_text()
    assert start(other, shop, tmp_path, "rsmq").wait(DEADLINE_S) == 0
    seen = Counter()
    handle(shop, seen)
    assert seen.total() == 2000
