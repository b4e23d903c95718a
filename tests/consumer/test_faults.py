"""Faults in real processes: handlers that outlast their leases, workers and servers that freeze or vanish."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from qworker import QueueAttributes
from qworker.client.queue import Queue
from qworker.store.embedded.engines import identify, probe, server_command, server_environment
from tests import servers
from tests.consumer.driving import until
from tests.consumer.workers import Lab, Worker

pytestmark = pytest.mark.slow

# -- leases ------------------------------------------------------------------------------------


def test_a_handler_that_outlasts_its_visibility_timeout_runs_once(lab: Lab) -> None:
    """A handler of two visibility timeouts keeps its lease, even if it lets no other thread of its process run."""
    lab.app("""
@app.task(queue="sleeping")
def sleep() -> None:
    note("started", "sleep", current().receive_count)
    time.sleep(11)
    note("ended", "sleep")

@app.task(queue="holding")
def hold() -> None:
    note("started", "hold", current().receive_count)
    ctypes.PyDLL(None).sleep(11)  # with the GIL
    note("ended", "hold")
""")
    lab.send("sleep", queue="sleeping")
    lab.send("hold", queue="holding")
    with (
        lab.worker("--visibility", "5s", "--queues", "sleeping", "--concurrency", "2"),
        lab.worker("--visibility", "5s", "--queues", "holding"),
        lab.reaper(),
    ):
        until(lambda: len(lab.notes("ended")) == 2)
        until(lambda: not any(map(stored_in, (lab.queue("sleeping"), lab.queue("holding")))))
    assert sorted(lab.noted("started")) == [["hold", 1], ["sleep", 1]]
    for name in ("sleeping", "holding"):
        stats = lab.queue(name).inspect().stats
        assert (stats["acked"], stats.get("timeouts", 0), stats.get("stale", 0)) == (1, 0, 0)


def stored_in(queue: Queue) -> int:
    """Messages that a queue has to do with still."""
    return queue.inspect().stored


def test_a_frozen_worker_loses_its_messages_and_does_not_get_them_back(lab: Lab) -> None:
    """A worker that is frozen for two visibility timeouts is overtaken; its late ack changes nothing."""
    lab.app("""
@app.task
def handle() -> None:
    note("started", current().receive_count)
    if current().receive_count == 1:
        time.sleep(1)
    note("ended", current().receive_count, current().lost)
""")
    lab.queue().configure(QueueAttributes(visibility="3s"))
    lab.send("handle")
    with lab.reaper():
        frozen = lab.start("--no-reaper")
        until(lambda: lab.notes("started"))
        pids = [frozen.process.pid, *frozen.children()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        with lab.worker("--no-reaper"):
            until(lambda: [2, False] in lab.noted("ended"))
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        until(lambda: len(lab.notes("ended")) == 2)
        frozen.stop()
    assert lab.noted("started") == [[1], [2]]
    stats = lab.queue().inspect().stats
    assert (stats["acked"], stats["stored"]) == (1, 0)


# -- a server that is frozen ----------------------------------------------------------------


def test_a_frozen_server_makes_no_message_a_suspect(own_lab: Lab) -> None:
    """A server stopped for two visibility timeouts under load: nothing is lost, buried, suspected or run again."""
    lab = own_lab
    lab.app("""
@app.task(queue="inline")
def handle(n: int) -> None:
    note("inline", n, current().receive_count)
    time.sleep(0.02)

@app.task(queue="loop")
async def ahandle(n: int) -> None:
    note("loop", n, current().receive_count)
    await asyncio.sleep(0.5)
""")
    sent = {"inline": 150, "loop": 600}
    for name, task in (("inline", "handle"), ("loop", "ahandle")):
        lab.queue(name).configure(QueueAttributes(visibility="5s"))
        lab.queue(name).pause("out")
        lab.send_many(task, sent[name], queue=name)
    with (
        lab.worker("--procs", "2", "--queues", "inline") as inline,
        lab.worker("--procs", "2", "--queues", "loop") as loop,
    ):
        until(lambda: all(len(worker.events("child_started")) == 2 for worker in (inline, loop)))
        for name in sent:
            lab.queue(name).resume()
        until(lambda: all(len(lab.notes(name)) > 50 for name in sent))
        os.kill(lab.server_pid, signal.SIGSTOP)
        time.sleep(10)
        os.kill(lab.server_pid, signal.SIGCONT)
        until(lambda: not any(stored_in(lab.queue(name)) for name in sent))
    for name, number in sent.items():
        stats = lab.queue(name).inspect().stats
        assert (stats["sent"], stats["acked"]) == (number, number)
        assert {at: stats[at] for at in ("timeouts", "nacked", "dead") if stats.get(at)} == {}
        assert len(lab.notes(name)) == number


@pytest.mark.parametrize(
    "flags",
    [
        (),
        pytest.param(
            ("--no-reaper",),
            marks=pytest.mark.nightly("test_a_worker_soon_reports_that_its_server_is_frozen"),
        ),
    ],
)
def test_a_worker_soon_reports_that_its_server_is_frozen(
    own_lab: Lab, flags: tuple[str, ...]
) -> None:
    """/readyz answers before its caller gives up, and names the problem; it recovers when the server is back."""
    lab = own_lab
    lab.app("@app.task\ndef handle() -> None: ...")
    with lab.worker(*flags) as worker:
        until(lambda: worker.events("metrics_served"))
        port = worker.events("metrics_served")[0]["port"]
        until(lambda: readiness(port)[0] == 200)
        os.kill(lab.server_pid, signal.SIGSTOP)
        until(lambda: readiness(port)[0] == 503)
        assert "the server does not" in readiness(port)[1]
        os.kill(lab.server_pid, signal.SIGCONT)
        until(lambda: readiness(port)[0] == 200)


def readiness(port: int) -> tuple[int, str]:
    """Ask a worker whether it is ready, with the patience of the deployment's probe."""
    connection = HTTPConnection("127.0.0.1", port, timeout=3)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@pytest.mark.nightly("faults/test_commit.py::test_nothing_is_lost")
def test_workers_find_a_server_that_was_killed_and_came_back(own_lab: Lab) -> None:
    """After a crash and restart of the server, every child is at work again, and nothing is lost."""
    if servers.GUARDED:
        pytest.skip("a server that starts again does not know the user of the tests")
    lab = own_lab
    lab.app("""
@app.task
def handle(n: int) -> None:
    note("started", n)
    time.sleep(0.01)

@app.task
def ping() -> None:
    note("ping")
    time.sleep(0.01)
""")
    lab.send_many("handle", 300)
    with lab.worker("--procs", "2") as worker:
        until(lambda: len(lab.notes("started")) > 50)
        os.kill(lab.server_pid, signal.SIGKILL)
        time.sleep(0.5)
        with restarted(lab):
            returned = time.time()
            # Both children, not only the one that found it first.
            until(lambda: all_have_answered(lab, worker, returned))
            until(lambda: lab.queue().inspect().stored == 0)
            assert worker.stop() == 0
            starts = Counter(n for (n,) in lab.noted("started"))
            stats = lab.queue().inspect().stats
    assert [event["reason"] for event in worker.events("child_ended")] == ["stopped"] * 2
    assert set(starts) == set(range(300))
    # Acks of the last second may have died with the server: appendfsync is everysec.
    assert starts.total() - 300 < 150
    assert stats.get("dead", 0) == 0


def all_have_answered(lab: Lab, worker: Worker, since: float) -> bool:
    """Send a ping, and say whether every child has answered one since then."""
    lab.send("ping")
    return {note.pid for note in lab.notes("ping") if note.at > since} == set(worker.children())


@contextmanager
def restarted(lab: Lab) -> Iterator[None]:
    """Start the killed server of `own_lab` again, over the same directory."""
    socket = Path(lab.url.removeprefix("unix://"))
    engine = identify(servers.binary_of("valkey"))
    assert engine is not None
    process = subprocess.Popen(
        server_command(engine, socket.parent, socket),
        env=server_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: probe(lab.url) == "ready")
        yield
    finally:
        process.kill()
        process.wait(60)
