"""What handlers start: processes that get nothing of their child, and end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from qworker import QueueAttributes, QWorker
from qworker.consumer.board.board import Board
from qworker.consumer.board.clock import boot_time
from qworker.consumer.supervisor.leases.lease_keeper import LeaseKeeper
from qworker.consumer.supervisor.leases.postmortem import Death
from qworker.consumer.supervisor.processes.descendants import end_session
from qworker.engine.receive import settle_receive
from qworker.wire.keys import QueueKeys
from tests.consumer.driving import history_of, until
from tests.consumer.rows import STARTS
from tests.consumer.workers import Lab

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

STARTED = """
import multiprocessing, pty, subprocess

def masks(pid):
    lines = open(f"/proc/{pid}/status").read().splitlines()
    words = dict(line.split(":", 1) for line in lines)
    return [int(words[name], 16) for name in ("SigIgn", "SigBlk")]

def ours(pid):
    ignored, blocked = masks(pid)
    return [n for n in (1, 2, 15) if (ignored | blocked) >> (n - 1) & 1]

def sleeping(pid):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if open(f"/proc/{pid}/cmdline").read().startswith("sleep"):
            return pid
        time.sleep(0.01)
"""


def alive(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("start", STARTS)
def test_what_a_handler_starts_hears_signals_as_usual(lab: Lab, start: str) -> None:
    """Programs and copies that a handler starts end by SIGTERM and SIGINT, at once and from any starter."""
    lab.app(
        STARTED
        + """
def nap():
    time.sleep(1000)

@app.task
def start():
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        process = subprocess.Popen(["sleep", "1000"])
        process.send_signal(signum)
        note("popen", process.wait(), ours(os.getpid()))
    pid = os.posix_spawnp("sleep", ["sleep", "1000"], os.environ)
    note("mask", ours(sleeping(pid)))
    os.kill(pid, signal.SIGTERM)
    note("spawned", os.waitpid(pid, 0)[1])
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp("sleep", ["sleep", "1000"])
    note("mask", ours(sleeping(pid)))
    os.kill(pid, signal.SIGTERM)
    note("terminal", os.waitpid(pid, 0)[1])
    for way in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(way)
        process = context.Process(target=nap)
        process.start()
        process.terminate()
        process.join()
        note("process", process.exitcode)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        note("pool", pool.map(abs, [-1, -2]))
    note("end")
"""
    )
    lab.send("start")
    with lab.worker():
        until(lambda: lab.notes("end"))
    assert lab.noted("popen") == [[-15, []], [-2, []], [-1, []]]
    assert lab.noted("mask") == [[[]], [[]]]
    assert lab.noted("spawned") == lab.noted("terminal") == [[signal.SIGTERM]]
    assert lab.noted("process") == [[-15]] * 3
    assert lab.noted("pool") == [[[1, 2]]]


#: How a handler leaves a process behind.
WAYS = ("fork", "exec")
FORKS = """
@app.task(time_limit=1000)
def leave(way):
    sockets = len([each for each in fds(os.getpid())])
    if way == "exec":
        process = subprocess.Popen(["sleep", "1000"], start_new_session=True, close_fds=False)
        pid = sleeping(process.pid)
    else:
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.setsid()
            os.write(writer, b"x")
            time.sleep(1000)
            os._exit(0)
        os.read(reader, 1)
        pid = [each.pid for each in psutil.Process().children()][0]
    note("left", pid, sockets, len(fds(pid)))

def fds(pid):
    found = []
    for each in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{each}")
        except OSError:
            continue
        if target.startswith("socket:"):
            found.append(target)
    return found

@app.task(max_receives=1)
def handle(n):
    note("handled", n)
"""


@pytest.mark.parametrize(
    "queues",
    [
        1,
        pytest.param(
            2,
            marks=pytest.mark.nightly("test_no_message_goes_to_a_child_that_a_copy_of_it_outlives"),
        ),
    ],
)
def test_no_message_goes_to_a_child_that_a_copy_of_it_outlives(lab: Lab, queues: int) -> None:
    """A process that stays behind keeps no wait of its dead child going: the next message is handled at once."""
    more = '@app.task(queue="other")\ndef other(): pass\n' if queues == 2 else ""
    lab.app("import psutil" + STARTED + FORKS + more)
    lab.queue().configure(QueueAttributes(max_receives=1))
    with lab.worker("--no-reaper") as worker:
        for n, way in enumerate(WAYS):
            lab.send("leave", way)
            until(lambda n=n: len(lab.notes("left")) == n + 1)
            ((child, left),) = [(note.pid, note.rest[0]) for note in lab.notes("left")[n:]]
            # Its child waits for the next message.
            until(lambda n=n: lab.queue().inspect().stats.get("acked") == 2 * n + 1)
            time.sleep(0.1)  # it begins to wait
            os.kill(child, signal.SIGKILL)
            lab.send("handle", n)
            until(lambda n=n: len(lab.notes("handled")) == n + 1)
            assert alive(left)
            os.kill(left, signal.SIGKILL)
        until(lambda: lab.queue().inspect().stats.get("acked") == 4)
        until(lambda: worker.children())
    assert lab.noted("handled") == [[0], [1]]
    assert lab.queue().inspect().dead == 0
    # A pair that wakes the broker is all that a copy has.
    for way, (_, _, inherited) in zip(WAYS, lab.noted("left"), strict=True):
        assert inherited <= (0 if way == "exec" else 2)


@pytest.mark.parametrize("after_s", [0.3, 3.0], ids=["soon", "when its wait is over"])
def test_a_message_that_goes_to_a_dead_child_comes_back_without_blame(
    app: QWorker, monkeypatch: pytest.MonkeyPatch, after_s: float
) -> None:
    """What a call of a dead child receives after its death is given back soon, or when a wait is over."""
    board, keys = Board.create(1), QueueKeys(app.namespace, "default")
    lease_id = app.client.ids.lease_id()
    board.leases.enter(0, lease_id, 0, 30.0)
    keeper = LeaseKeeper(app.client)
    times = [boot_time()]
    name = "qworker.consumer.supervisor.leases.lease_keeper.boot_time"
    monkeypatch.setattr(name, lambda: times[-1])
    keeper.settle_dead(board, [keys], Death(-9))
    times.append(times[0] + after_s - 0.05)
    keeper.release_late()
    app.queue("default").send(b"{}")
    assert len(app.client.execute(settle_receive(keys, lease_id, 1)).items) == 1
    keeper.release_late()
    assert app.queue("default").inspect().unacked == 1
    times.append(times[0] + after_s)
    keeper.release_late()
    assert history_of(app.queue("default")) == {
        "received": 1,
        "released": 1,
        "sent": 1,
        "stored": 1,
    }
    board.close()


@pytest.mark.parametrize(
    "kind",
    [
        "inline",
        *(
            pytest.param(
                kind,
                marks=[
                    pytest.mark.cold,
                    pytest.mark.nightly("test_a_copy_that_comes_out_of_its_handler_ends"),
                ],
            )
            for kind in ("inline", "threads", "async")
        ),
    ],
)
def test_a_copy_that_comes_out_of_its_handler_ends(lab: Lab, kind: str) -> None:
    """A forked copy that returns, raises or exits in its handler ends there: one process handles the messages."""
    word = "async def" if kind == "async" else "def"
    lab.app(f"""
@app.task
{word} fork(n):
    pid = os.fork()
    note("in", n, pid == 0)
    if pid == 0:
        if n == 1:
            raise ValueError("in the copy")
        if n == 2:
            sys.exit(7)
        {"if n == 3: await asyncio.sleep(1000)" if kind == "async" else ""}
        return
    note("code", n, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""")
    lab.send_many("fork", 4)
    flags = ("--concurrency", "3") if kind == "threads" else ()
    with lab.worker("--burst", *flags) as worker:
        assert worker.wait() == 0
    codes = [0, 1, 7, 1 if kind == "async" else 0]
    assert sorted(lab.noted("code")) == [[n, code] for n, code in enumerate(codes)]
    assert sorted(lab.noted("in")) == [[n, copy] for n in range(4) for copy in (False, True)]
    stats = lab.queue().inspect().stats
    assert (stats["acked"], stats["received"], stats.get("nacked", 0)) == (4, 4, 0)
    assert worker.events("forked_handler_returned")
    assert not worker.events("message_failed")


@pytest.mark.parametrize("start", STARTS)
def test_what_a_handler_started_ends_with_its_child(lab: Lab, start: str) -> None:
    """Processes of a child that is killed at a time limit end with it, but for those that have left its session."""
    lab.app(
        STARTED
        + """
@app.task(time_limit=1.0, max_receives=1)
def hang():
    plain = subprocess.Popen(["sleep", "1000"])
    group = subprocess.Popen(["sleep", "1000"], process_group=0)
    shell = subprocess.Popen("sleep 1000 & echo $!; wait", shell=True, stdout=subprocess.PIPE, text=True)
    below = int(shell.stdout.readline())
    copy = os.fork()
    if copy == 0:
        time.sleep(1000)
    away = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    note("started", [plain.pid, group.pid, shell.pid, below, copy], away.pid)
    time.sleep(1000)
"""
    )
    lab.send("hang")
    with lab.worker() as worker:
        until(lambda: worker.events("child_ended"))
        (started, away), *_ = lab.noted("started")
        until(lambda: not any(alive(pid) for pid in started))
        assert alive(away)
        os.kill(away, signal.SIGKILL)
        (ended,) = worker.events("child_ended")
        assert (ended["reason"], ended["processes_ended"]) == ("time_limit", 5)


@pytest.mark.cold
def test_orphans_do_not_stay_in_the_process_table(lab: Lab) -> None:
    """A supervisor that gets the orphans of its children, as the first process of a container does, collects them."""
    lab.app("""
@app.task
def orphan(n):
    if os.fork() == 0:
        os.setsid()
        pid = os.fork()
        if pid == 0:
            time.sleep(0.05)
        else:
            note("orphan", pid)
        os._exit(0)
    os.wait()
""")
    lab.send_many("orphan", 3)
    # It asks for orphans as process 1 gets them, and becomes the worker.
    wrapper = (
        "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1); "
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    with lab.worker(python=("-c", wrapper)) as worker:
        until(lambda: len(lab.notes("orphan")) == 3)
        pids = [rest[0] for rest in lab.noted("orphan")]
        until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
        assert len(worker.children()) == 1


def test_a_process_that_starts_while_others_are_ended_ends_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not on the first list of processes; a later look finds it."""
    with subprocess.Popen(
        ["/bin/sh", "-c", "for n in 1 2; do sleep 600 >&- & echo $!; done"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as leader:
        words, _ = leader.communicate()
    pids = {int(word) for word in words.split()}
    lists = iter([[leader.pid, min(pids)]])
    monkeypatch.setattr(psutil, "pids", lambda: next(lists, [leader.pid, *pids]))
    assert end_session(leader.pid) == 2
    until(lambda: not any(alive(pid) for pid in pids))


def test_the_first_process_of_a_container_leaves_its_own_children_their_exit_codes() -> None:
    """Collected as an orphan, a child that crashed would seem to have ended well."""
    program = """
import os, subprocess, sys
from qworker.consumer.supervisor.processes.descendants import reap_adopted
child = subprocess.Popen(["/bin/sh", "-c", "exit 7"])
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
reaped = reap_adopted([child.pid])
sys.exit(f"{reaped} {child.wait()}")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert ended.stderr.split() == [b"0", b"7"]
