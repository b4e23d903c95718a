"""Ends of workers: asked for, asked for twice, without a server, and with a supervisor that is just gone."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from tests.consumer.driving import until
from tests.consumer.workers import Lab
from tests.timing import Watch

pytestmark = pytest.mark.slow

GRACE_S = 2
#: A shared machine may freeze as a whole: a time has to be kept in one of so many rounds.
ROUNDS = 3
#: How much later than its grace time a worker may end; it needs 0.5 s to say its last words to a server that is away.
LATE_S = 3.0
UNSTARTED = pytest.mark.nightly("test_a_stop_gives_back_unstarted_messages_at_once")

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
def held(n: int) -> None:
    note("started", n)
    while not os.path.exists("go"):
        time.sleep(0.01)
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


@pytest.mark.parametrize(
    ("task", "flags", "running"),
    [
        ("block", (), 1),
        pytest.param("quick", (), 1, marks=UNSTARTED),
        pytest.param("block", ("--concurrency", "3"), 3, marks=UNSTARTED),
        ("wait", ("--concurrency", "5"), 5),
    ],
)
def test_a_stop_gives_back_unstarted_messages_at_once(
    lab: Lab, task: str, flags: tuple[str, ...], running: int
) -> None:
    """After SIGTERM unstarted messages are ready within half a second, uncounted, also beside a blocked handler."""
    lab.app(STOPPING)
    times = []
    for _ in range(ROUNDS):
        times.append(stop_at_work(lab, task, flags, running))
        back_s, end_s = times[-1]
        if back_s <= 0.5 and end_s <= GRACE_S + LATE_S:
            return
    pytest.fail(f"seconds until messages were back, and until the end: {times}")


def stop_at_work(lab: Lab, task: str, flags: tuple[str, ...], running: int) -> tuple[float, float]:
    """Stop a worker with a full hand; returns the seconds until its messages were back, and until it had ended."""
    lab.queue().purge()
    lab.history.write_text("")
    lab.queue().pause("out")
    lab.send_many(task, 600)
    worker = lab.start("--grace", f"{GRACE_S}s", *flags)
    until(lambda: worker.events("child_started"))
    lab.queue().resume()
    if task == "quick":
        until(lambda: [300] in lab.noted("started"))
    else:
        until(lambda: len(lab.notes("started")) == running)
    watch = Watch(os.getpid(), lab.server_pid, *worker.pids())
    worker.process.terminate()
    unstarted = 600 - len(lab.notes("started"))
    # Looks may be so far apart that what was running is back as well.
    until(lambda: lab.queue().inspect().ready >= unstarted)
    back_s = watch.passed_s()
    waiting = [message.receives for message in lab.queue().peek(1000)]
    assert waiting.count(0) == unstarted
    end_s = watch.end_s(worker.process)
    assert worker.wait() == 0
    # What was cut off at the end of the grace time is back as well: not counted against max receives, but a delivery.
    seen = lab.queue().inspect()
    done = len(lab.notes("started")) - running
    assert (seen.ready, seen.unacked) == (600 - done, 0)
    left = list(lab.queue().peek(1000))
    assert sum(envelope.receives for envelope in left) == running
    assert {(each.nacks, each.timeouts) for each in left} == {(0, 0)}
    return back_s, end_s


def test_a_stop_waits_for_running_handlers(lab: Lab) -> None:
    """Within the grace time a running handler ends its work and is acked; nothing new is started."""
    lab.app(STOPPING)
    lab.send_many("held", 5)
    worker = lab.start("--grace", "60s")
    until(lambda: lab.notes("started"))
    worker.process.terminate()
    until(lambda: lab.queue().inspect().ready == 4)
    (lab.directory / "go").touch()
    assert worker.wait() == 0
    assert worker.events("child_cut_off") == []
    assert lab.noted("started") == lab.noted("ended") == [[0]]
    seen = lab.queue().inspect()
    assert (seen.stats["acked"], seen.ready, seen.unacked) == (1, 4, 0)


def test_a_second_signal_cuts_the_grace_time_short(lab: Lab) -> None:
    """A second signal does not wait: running messages are cut off and given back."""
    lab.app(STOPPING)
    lab.send("block", 0)
    worker = lab.start("--grace", "10m")
    until(lambda: lab.notes("started"))
    worker.process.terminate()
    until(lambda: worker.events("worker_stopping"))
    assert worker.stop() == 0
    assert lab.queue().inspect().ready == 1


@pytest.mark.parametrize("away", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.nightly("test_a_stop_without_a_server_takes_no_longer_than_the_grace_time")
def test_a_worker_ends_soon_after_its_children_also_without_a_server(
    own_lab: Lab, away: signal.Signals
) -> None:
    """What it would still say to a server that is away is not waited for, however much of the grace time is left."""
    lab = own_lab
    lab.app("""
@app.task
def slow(n: int) -> None:
    note("started", n)
    time.sleep(4)
""")
    lab.send_many("slow", 3)
    worker = lab.start("--grace", "40s", "--procs", "2")
    try:
        until(lambda: len(lab.notes("started")) == 2)
        os.kill(lab.server_pid, away)
        worker.process.terminate()
        until(lambda: worker.events("worker_stopped"))
        watch = Watch(*worker.pids())
        worker.wait()
        assert watch.passed_s() < 10.0  # of 40 s of grace
    finally:
        worker.kill()
        if away == signal.SIGSTOP:
            os.kill(lab.server_pid, signal.SIGCONT)


def test_a_stop_without_a_server_takes_no_longer_than_the_grace_time(own_lab: Lab) -> None:
    """A worker whose server does not answer ends in time as well, and lets its handler end first."""
    lab = own_lab
    lab.app(STOPPING.replace("time.sleep(0.7)", "time.sleep(1.5)"))
    times = []
    for n in range(ROUNDS):
        lab.send("brief", n)
        worker = lab.start("--grace", f"{GRACE_S}s", "--concurrency", "2")
        until(lambda n=n: [n] in lab.noted("started"))
        os.kill(lab.server_pid, signal.SIGSTOP)
        watch = Watch(*worker.pids())
        worker.process.terminate()
        times.append(watch.end_s(worker.process))
        os.kill(lab.server_pid, signal.SIGCONT)
        assert [n] in lab.noted("ended")
        if times[-1] <= GRACE_S + LATE_S:
            return
    pytest.fail(f"seconds until the end: {times}")


@pytest.mark.cold
@pytest.mark.nightly("test_a_worker_that_is_stopped_while_it_starts_stops_gracefully")
def test_an_idle_worker_stops_at_once(lab: Lab) -> None:
    """Without messages a stop waits for nothing, also while children are still importing."""
    lab.app("@app.task\ndef handle() -> None: ...")
    worker = lab.start("--procs", "2", "--grace", "10m")
    until(lambda: len(worker.children()) == 2)
    assert worker.stop() == 0
    assert worker.events("child_cut_off") == []
    assert {event["reason"] for event in worker.events("child_ended")} == {"stopped"}


def test_a_stop_does_not_wait_for_a_child_that_still_imports(lab: Lab) -> None:
    """It holds no message, and hears nothing until it has imported the app: it is ended at once, whatever the grace."""
    slow = lab.directory / "slow"
    lab.app(f"""
if os.path.exists({str(slow)!r}):
    note("importing")
    time.sleep(600)

@app.task
def handle() -> None:
    note("handled")
""")
    lab.send("handle")
    worker = lab.start("--grace", "10m")
    until(lambda: lab.notes("handled"))
    slow.touch()
    (child,) = worker.children()
    os.kill(child, signal.SIGKILL)
    until(lambda: lab.notes("importing"))
    assert worker.stop() == 0
    reasons = [event["reason"] for event in worker.events("child_ended")]
    assert reasons == ["crashed", "stopped"]


# -- orphans -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "start",
    [
        "forked",
        pytest.param(
            "started",
            marks=[pytest.mark.cold, pytest.mark.nightly("test_a_child_ends_with_its_supervisor")],
        ),
    ],
)
@pytest.mark.bad_input("time or host: pid used again")
def test_a_child_ends_with_its_supervisor(lab: Lab, start: str) -> None:
    """When a supervisor is killed, its children end at once, asleep, idle, or holding the GIL."""
    lab.app("""
@app.task
def nap() -> None:
    note("started")
    time.sleep(600)

@app.task
def hold() -> None:
    note("started")
    ctypes.PyDLL(None).sleep(600)
""")
    lab.send("nap")
    lab.send("hold")
    worker = lab.start("--procs", "3", "--batch", "1")
    until(lambda: len({note.pid for note in lab.notes("started")}) == 2)
    until(lambda: len(worker.children()) == 3)
    children = [psutil.Process(pid) for pid in worker.children()]
    worker.kill()
    until(lambda: not any(map(is_alive, children)))


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs; one that only waits to be collected by init does not."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.cold
def test_a_worker_that_is_stopped_while_it_starts_stops_gracefully(lab: Lab) -> None:
    """Its children are there before it can act on signals: one that comes meanwhile counts as soon as it can."""
    lab.app("""
@app.task
def handle() -> None: ...
""")
    worker = lab.start()
    until(worker.children)
    worker.process.terminate()
    assert worker.wait() == 0


@pytest.mark.parametrize(
    "ignored",
    [
        False,
        pytest.param(
            True,
            marks=pytest.mark.nightly("daemon/test_service.py::test_nohup_keeps_it_from_sighup"),
        ),
    ],
)
def test_a_worker_whose_terminal_is_closed_stops_gracefully(lab: Lab, ignored: bool) -> None:
    """When its terminal goes away, what runs may end; under nohup the worker continues."""
    lab.app("""
@app.task
def nap():
    note("begun")
    time.sleep(0.5)
    note("ended")
""")
    master, slave = os.openpty()
    program = (
        "import fcntl, os, signal, sys, termios; os.setsid(); "
        f"tty = os.open({os.ttyname(slave)!r}, os.O_RDWR); fcntl.ioctl(tty, termios.TIOCSCTTY, 0); "
        "[os.dup2(tty, each) for each in (0, 1, 2)]; "
        f"{ignored} and signal.signal(signal.SIGHUP, signal.SIG_IGN); "
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    lab.send("nap")
    worker = lab.start(python=("-c", program))
    until(lambda: lab.notes("begun"))
    os.close(slave)
    os.close(master)
    if ignored:
        until(lambda: lab.notes("ended"))
        lab.send("nap")
        until(lambda: len(lab.notes("ended")) == 2)
        assert worker.stop() == 0
    else:
        assert worker.wait() == 0
    stats = lab.queue().inspect().stats
    assert (stats["acked"], stats.get("released", 0)) == (1 + ignored, 0)
