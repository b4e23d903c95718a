"""Faults in real processes: poison, stalls of the server, handlers that outlast their lease, stops, orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from qworker import QueueAttributes
from qworker.engine import identify, probe, server_command, server_environment
from tests import servers
from tests.consumer.driving import until
from tests.consumer.workers import Lab

# -- poison ------------------------------------------------------------------------------------

POISON = """
@app.task
def poison() -> None:
    note("poison")
    ctypes.string_at(0)

@app.task
def handle(n: int) -> None:
    note("started", n)
    time.sleep(0.005)

@app.task
async def apoison() -> None:
    note("poison")
    await asyncio.sleep(0)
    ctypes.string_at(0)

@app.task
async def ahandle(n: int) -> None:
    note("started", n)
    await asyncio.sleep(0.005)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prefix", "flags"),
    [("", ()), ("", ("--concurrency", "8")), ("a", ())],
    ids=["inline", "threads", "async"],
)
def test_a_message_that_crashes_its_worker_is_dead_after_max_receives(
    lab: Lab, prefix: str, flags: tuple[str, ...]
) -> None:
    """A segmentation fault costs its message a receive each time, and those that ran beside it one start at most."""
    lab.app(POISON)
    with lab.worker(*flags) as worker:
        sent = 0
        while not lab.queue().inspect().dead:
            lab.send(f"{prefix}handle", sent)
            sent += 1
            if sent == 20:
                until(lambda: lab.queue().inspect().stored == 0)
                lab.send(f"{prefix}poison")
            time.sleep(0.005)
        until(lambda: lab.queue().inspect().stored == 0)
    starts = Counter(n for (n,) in lab.noted("started"))

    assert len(lab.notes("poison")) == 5
    assert set(starts) == set(range(sent))
    assert starts.total() - sent < 10
    (letter,) = lab.queue().dead()
    assert (letter.reason, letter.error_class) == ("max_receives", "WorkerDiedError")
    assert letter.error.startswith("the process was ended by signal 11 (SIGSEGV)")
    assert "in poison" in letter.error or "in apoison" in letter.error
    assert letter.message is not None
    assert letter.message.receives == 5
    ended = worker.events("child_ended")
    assert [(e["reason"], e["code"]) for e in ended[:-1]] == [("crashed", -signal.SIGSEGV)] * 5


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("--concurrency", "8"), ()], ids=["threads", "async"])
def test_poison_that_leaves_no_word_is_found_out_all_the_same(
    lab: Lab, flags: tuple[str, ...]
) -> None:
    """A process that just vanishes says nothing: after two deaths in company its messages run alone, and one dies."""
    prefix = "" if flags else "a"
    lab.app(POISON.replace("ctypes.string_at(0)", "os.kill(os.getpid(), signal.SIGKILL)"))
    lab.queue().configure(QueueAttributes(max_receives=2))
    with lab.worker(*flags):
        until(lambda: lab.queue().inspect().stats.get("received", 0) == 0)
        for n in range(20):
            lab.send(f"{prefix}handle", n)
            if n == 10:
                lab.send(f"{prefix}poison")
        until(lambda: lab.queue().inspect().dead == 1)
        until(lambda: lab.queue().inspect().stored == 0)
    (letter,) = lab.queue().dead()
    assert letter.message is not None
    assert b"poison" in letter.message.body
    # Two in company at the most, then max receives of them alone.
    assert 2 <= len(lab.notes("poison")) <= 4
    assert {n for (n,) in lab.noted("started")} == set(range(20))


# -- leases ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "nap", ["time.sleep(5)", "ctypes.PyDLL(None).sleep(5)"], ids=["sleeping", "holding the GIL"]
)
@pytest.mark.parametrize("flags", [(), ("--concurrency", "2")], ids=["inline", "threads"])
def test_a_handler_that_outlasts_its_visibility_timeout_runs_once(
    lab: Lab, nap: str, flags: tuple[str, ...]
) -> None:
    """A handler of five visibility timeouts keeps its lease, even if it lets no other thread of its process run."""
    lab.app(f"""
@app.task
def nap() -> None:
    note("started", current().receive_count)
    {nap}
    note("ended")
""")
    lab.send("nap")
    with lab.worker("--visibility", "1s", *flags), lab.reaper():
        until(lambda: lab.notes("ended"))
        until(lambda: lab.queue().inspect().stored == 0)
    assert lab.noted("started") == [[1]]
    stats = lab.queue().inspect().stats
    assert (stats["acked"], stats.get("timeouts", 0), stats.get("stale", 0)) == (1, 0, 0)


@pytest.mark.slow
def test_a_frozen_worker_loses_its_messages_and_does_not_get_them_back(lab: Lab) -> None:
    """A worker that stands still for two visibility timeouts is overtaken; its late ack changes nothing."""
    lab.app("""
@app.task
def handle() -> None:
    note("started", current().receive_count)
    if current().receive_count == 1:
        time.sleep(1)
    note("ended", current().receive_count, current().lost)
""")
    lab.queue().configure(QueueAttributes(visibility="1s"))
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


# -- a server that stands still ----------------------------------------------------------------


@pytest.fixture
def own_lab(namespace: str, tmp_path: Path) -> Iterator[Lab]:
    """A lab whose server the test may stop."""
    with servers.start("valkey") as server:
        lab = Lab(server.url, namespace, tmp_path)
        (tmp_path / "pid").write_text(str(server.pid))
        yield lab
        lab.close()


def server_pid(lab: Lab) -> int:
    """The server of `own_lab`."""
    return int((lab.directory / "pid").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(("prefix", "flags"), [("", ()), ("a", ())], ids=["inline", "async"])
def test_a_server_that_stands_still_makes_nobody_a_suspect(
    own_lab: Lab, prefix: str, flags: tuple[str, ...]
) -> None:
    """A server stopped for two visibility timeouts under load: nothing is lost, buried, suspected or run again."""
    lab = own_lab
    lab.app("""
@app.task
def handle(n: int) -> None:
    note("started", n, current().receive_count)
    time.sleep(0.02)

@app.task
async def ahandle(n: int) -> None:
    note("started", n, current().receive_count)
    await asyncio.sleep(0.5)
""")
    lab.queue().configure(QueueAttributes(visibility="2s"))
    lab.send_all(f"{prefix}handle", 300 if not prefix else 3000)
    with lab.worker("--procs", "2", *flags):
        until(lambda: len(lab.notes("started")) > 50)
        os.kill(server_pid(lab), signal.SIGSTOP)
        time.sleep(4)
        os.kill(server_pid(lab), signal.SIGCONT)
        returned = time.monotonic()
        seen = len(lab.notes("started"))
        until(lambda: len(lab.notes("started")) > seen)
        assert time.monotonic() - returned < 5
        until(lambda: lab.queue().inspect().stored == 0, 40)
    stats = lab.queue().inspect().stats
    assert stats["acked"] == stats["sent"]
    assert {name: stats.get(name, 0) for name in ("timeouts", "nacked", "dead", "stale")} == {
        "timeouts": 0,
        "nacked": 0,
        "dead": 0,
        "stale": 0,
    }
    assert len(lab.notes("started")) == stats["sent"]


@pytest.mark.slow
def test_workers_find_a_server_that_was_killed_and_came_back(own_lab: Lab) -> None:
    """After a crash and restart of the server, every worker is at work again within seconds, and nothing is lost."""
    lab = own_lab
    lab.app("""
@app.task
def handle(n: int) -> None:
    note("started", n)
    time.sleep(0.01)
""")
    lab.send_all("handle", 300)
    with lab.worker("--procs", "2") as worker:
        until(lambda: len(lab.notes("started")) > 50)
        os.kill(server_pid(lab), signal.SIGKILL)
        time.sleep(0.5)
        with restarted(lab):
            returned = time.time()
            until(lambda: lab.queue().inspect().stored == 0)
            # Both children, not only the one that found it first.
            late = [note for note in lab.notes("started") if note.at > returned]
            assert {note.pid for note in late} == set(worker.children())
            firsts = [min(n.at for n in late if n.pid == pid) for pid in worker.children()]
            assert max(firsts) - returned < 3
            assert worker.stop() == 0
            starts = Counter(n for (n,) in lab.noted("started"))
            stats = lab.queue().inspect().stats
    assert set(starts) == set(range(300))
    # Acks of the last second may have died with the server: appendfsync is everysec.
    assert starts.total() - 300 < 150
    assert stats.get("dead", 0) == 0


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
        process.wait(10)


# -- stopping ----------------------------------------------------------------------------------

STOPPING = """
@app.task
def block(n: int) -> None:
    note("started", n)
    time.sleep(60)

@app.task
def brief(n: int) -> None:
    note("started", n)
    time.sleep(0.7)
    note("ended", n)

@app.task
def quick(n: int) -> None:
    note("started", n)
    if n == 300:
        time.sleep(60)

@app.task
async def wait(n: int) -> None:
    note("started", n)
    await asyncio.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "flags", "running"),
    [
        ("block", (), 1),
        ("quick", (), 1),
        ("block", ("--concurrency", "3"), 3),
        ("wait", ("--concurrency", "5"), 5),
    ],
)
def test_a_stop_gives_back_what_has_not_started_at_once(
    lab: Lab, task: str, flags: tuple[str, ...], running: int
) -> None:
    """After SIGTERM unstarted messages are ready within half a second, uncounted, also beside a blocked handler."""
    lab.app(STOPPING)
    lab.queue().pause("out")
    lab.send_all(task, 600)
    worker = lab.start("--grace", "2s", *flags)
    until(lambda: worker.events("child_started"))
    lab.queue().resume()
    if task == "quick":
        until(lambda: [300] in lab.noted("started"))
    else:
        until(lambda: len(lab.notes("started")) == running)
    stopped = time.monotonic()
    worker.process.terminate()

    def unstarted_are_back() -> bool:
        return lab.queue().inspect().ready == 600 - len(lab.notes("started"))

    until(unstarted_are_back, 1.0)
    assert time.monotonic() - stopped < 0.6
    assert {each.receives for each in lab.queue().peek(1000)} == {0}
    assert worker.process.wait(5) == 0
    assert time.monotonic() - stopped < 3.0
    # What was cut off at the end of the grace time is back as well, uncounted.
    seen = lab.queue().inspect()
    done = len(lab.notes("started")) - running
    assert (seen.ready, seen.unacked, seen.stats.get("acked", 0)) == (600 - done, 0, done)
    assert {each.receives for each in lab.queue().peek(1000)} == {0}


def test_a_stop_waits_for_what_runs(lab: Lab) -> None:
    """Within the grace time a running handler ends its work and is acked; nothing new is started."""
    lab.app(STOPPING)
    lab.send_all("brief", 5)
    worker = lab.start("--grace", "10s")
    until(lambda: lab.notes("started"))
    stopped = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - stopped < 3
    assert lab.noted("started") == lab.noted("ended") == [[0]]
    seen = lab.queue().inspect()
    assert (seen.stats["acked"], seen.ready, seen.unacked) == (1, 4, 0)


def test_a_second_signal_cuts_the_grace_time_short(lab: Lab) -> None:
    """Whoever asks twice does not wait: what runs is cut off and given back."""
    lab.app(STOPPING)
    lab.send("block", 0)
    worker = lab.start("--grace", "60s")
    until(lambda: lab.notes("started"))
    worker.process.terminate()
    time.sleep(0.2)
    stopped = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - stopped < 2
    assert lab.queue().inspect().ready == 1


@pytest.mark.slow
def test_a_stop_without_a_server_takes_no_longer_than_the_grace_time(own_lab: Lab) -> None:
    """A worker whose server does not answer ends in time as well, and lets its handler end first."""
    lab = own_lab
    lab.app(STOPPING.replace("time.sleep(0.7)", "time.sleep(1.5)"))
    lab.send("brief", 0)
    worker = lab.start("--grace", "3s", "--concurrency", "2")
    until(lambda: lab.notes("started"))
    os.kill(server_pid(lab), signal.SIGSTOP)
    stopped = time.monotonic()
    worker.stop()
    assert time.monotonic() - stopped < 4.2
    assert lab.noted("ended") == [[0]]
    os.kill(server_pid(lab), signal.SIGCONT)


def test_an_idle_worker_stops_at_once(lab: Lab) -> None:
    """With nothing in hand a stop takes a moment, also while children are still importing."""
    lab.app("@app.task\ndef handle() -> None: ...")
    worker = lab.start("--procs", "2")
    until(lambda: len(worker.children()) == 2)
    stopped = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - stopped < 1.5


# -- orphans -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "nap",
    ["time.sleep(60)", "ctypes.PyDLL(None).sleep(60)", "None"],
    ids=["sleeping", "holding the GIL", "idle"],
)
def test_a_child_ends_with_its_supervisor(lab: Lab, nap: str) -> None:
    """When a supervisor is killed, its children end within a second, whatever their handlers do."""
    lab.app(f"""
@app.task
def nap() -> None:
    note("started")
    {nap}
""")
    lab.send("nap")
    worker = lab.start("--procs", "2")
    until(lambda: lab.notes("started"))
    children = [psutil.Process(pid) for pid in worker.children()]
    assert len(children) == 2
    worker.kill()
    until(lambda: not any(map(is_alive, children)), 1.5)


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs; one that only waits to be collected by init does not."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
