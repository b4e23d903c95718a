"""A worker and its children as processes: what starts, what ends, and what a misbehaving handler does to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import datetime

import psutil
import pytest

from tests.consumer.driving import DEADLINE_S, until
from tests.consumer.rows import EXECUTORS
from tests.consumer.workers import Lab
from tests.timing import Watch, keep_within

pytestmark = pytest.mark.slow  # starts processes
UNUSABLE = pytest.mark.nightly(
    "bad_input/test_commands.py::test_an_app_that_cannot_be_used_is_bad_input"
)

# -- starting ----------------------------------------------------------------------------------


def test_a_worker_handles_messages_in_children(lab: Lab) -> None:
    """Messages are handled in other processes than the supervisor's, as many as there are children."""
    lab.app("""
@app.task
def handle(n: int) -> None:
    note("handled", n)
    time.sleep(0.05)
""")
    lab.send_many("handle", 30)
    with lab.worker("--procs", "2") as worker:
        until(lambda: len(lab.notes("handled")) == 30)
        pids = {note.pid for note in lab.notes()}
        assert pids == set(worker.children())
    assert worker.process.returncode == 0
    assert sorted(n for (n,) in lab.noted("handled")) == list(range(30))


@pytest.mark.bad_input("configuration: module that cannot be used")
@pytest.mark.parametrize(
    ("source", "spec", "words"),
    [
        pytest.param(
            "raise LookupError('no such thing')",
            "jobs",
            "LookupError: no such thing",
            marks=UNUSABLE,
        ),
        ("import sys; sys.exit(3)", "jobs", "SystemExit: 3"),
        pytest.param("def (", "jobs", "SyntaxError", marks=UNUSABLE),
        pytest.param("", "missing", "there is no module 'missing'", marks=UNUSABLE),
        ("", "jobs", "has no task; decorate a function with @app.task"),
        ("other = QWorker('other')", "jobs", "several apps (app, other); name one: jobs:NAME"),
    ],
)
def test_an_app_that_cannot_be_used_ends_the_worker_with_the_reason(
    lab: Lab, source: str, spec: str, words: str
) -> None:
    """A worker whose app cannot be imported, or holds nothing to do, exits with one clear error.

    What is bad input besides is in `tests/bad_input/test_commands.py`.
    """
    lab.app(source)
    worker = lab.start(spec=spec)
    assert worker.wait() in (1, 2)
    assert words in worker.log.read_text()


def test_an_app_may_be_named_by_its_file_and_attribute(lab: Lab) -> None:
    """`dir/jobs.py:other` is found as well as `jobs`."""
    (lab.directory / "inside").mkdir()
    lab.app(
        """
other = app
app = QWorker("unused")

@other.task
def handle() -> None:
    note("handled")
""",
        name="inside/jobs",
    )
    lab.send("handle")
    with lab.worker("--burst", spec="inside/jobs.py:other") as worker:
        assert worker.wait() == 0
    assert lab.noted("handled") == [[]]


def test_a_queue_that_no_task_is_on_is_refused(lab: Lab) -> None:
    """A name that is not among the app's queues is reported with those that are."""
    lab.app("@app.task(queue='mail')\ndef handle() -> None: ...")
    worker = lab.start("--queues", "mial")
    assert worker.wait() in (1, 2)
    assert "no task of 'jobs' is on queue 'mial'; its queues are mail" in worker.log.read_text()


@pytest.mark.bad_input("surroundings: 5,000 tasks")
@pytest.mark.nightly(
    "consumer/board/test_board.py::test_tasks_beyond_the_last_block_are_counted_together"
)
def test_five_thousand_tasks_are_served(lab: Lab) -> None:
    """An app of 5,000 tasks on two queues starts, and tasks beyond the counters run like all others."""
    lab.app("""
def make(n: int):
    def handle() -> None:
        note("handled", n)
    app.task(name=f"task{n}", queue="even" if n % 2 == 0 else "odd")(handle)

for n in range(5000):
    make(n)
""")
    for n in (0, 4095, 4999):
        lab.send(f"task{n}", queue="even" if n % 2 == 0 else "odd")
    with lab.worker() as worker:
        until(lambda: sorted(n for (n,) in lab.noted("handled")) == [0, 4095, 4999])
    assert worker.process.returncode == 0


@pytest.mark.bad_input("surroundings: without asserts")
@pytest.mark.nightly("test_a_worker_handles_messages_in_children")
def test_a_worker_runs_without_asserts(lab: Lab) -> None:
    """Under `python -O` everything works, and children are optimised as their parent is."""
    lab.app("""
@app.task(max_receives=1)
def handle(n: int) -> None:
    assert n == 0, "asserts are off"
    note("handled", __debug__)

@app.task(batch=5, at_most_once=True)
async def batch(ns: list[int]) -> None:
    note("batch", len(ns))
""")
    lab.send_many("handle", 3)
    lab.send_many("batch", 5)
    with lab.worker("--burst", python=("-O",)) as worker:
        assert worker.wait() == 0
    assert lab.noted("handled") == [[False]] * 3
    assert sum(n for (n,) in lab.noted("batch")) == 5


@pytest.mark.bad_input("surroundings: closed stdout, full disk under the log")
@pytest.mark.nightly(
    "bad_input/test_surroundings.py::test_a_full_disk_under_the_log_stops_no_worker"
)
def test_a_closed_stdout_does_not_end_a_worker(lab: Lab) -> None:
    """A worker whose output is not read any more continues, and ends with code 0."""
    lab.app("""
@app.task
def handle(n: int) -> None:
    note("handled", n)
    print("x" * 100_000)
""")
    lab.send_many("handle", 3)
    process = subprocess.Popen(
        [sys.executable, "-m", "qworker", "run", "jobs", "--procs", "1", "--metrics-port", "0"],
        cwd=lab.directory,
        env=lab.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    process.stdout.close()
    try:
        until(lambda: {n for (n,) in lab.noted("handled")} == {0, 1, 2})
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()


@pytest.mark.needs("uvloop")
def test_the_event_loop_can_be_chosen(lab: Lab) -> None:
    """Async handlers run on the loop of asyncio where that is asked for, whatever is installed."""
    lab.app("""
@app.task
async def which():
    note("loop", type(asyncio.get_running_loop()).__module__.partition(".")[0])
""")
    for loop in ("asyncio", "uvloop"):
        lab.send("which")
        with lab.worker("--loop", loop, "--burst") as worker:
            assert worker.wait() == 0
    assert lab.noted("loop") == [["asyncio"], ["uvloop"]]


# -- handlers that misbehave -------------------------------------------------------------------

MISBEHAVIOURS = {
    "sys.exit": "sys.exit(0)",
    "quit": "raise KeyboardInterrupt",
    "directory": "os.chdir('/')",
    "umask": "os.umask(0o777)",
    "signals": "[signal.signal(s, signal.SIG_DFL) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]",
    "timeout": "__import__('socket').setdefaulttimeout(0.0001)",
    "threads": "[threading.Thread(target=time.sleep, args=(60,)).start() for _ in range(5)]",
    "children": "__import__('subprocess').Popen(['sleep', '60'])",
    "fork": "__import__('multiprocessing').get_context('fork').Process(target=time.sleep, args=(60,)).start()",
    "stdout": "sys.stdout.close(); sys.stderr.close()",
    "environ": "os.environ.clear()",
    "excepthook": "sys.excepthook = threading.excepthook = None",
    "recursion": "sys.setrecursionlimit(100)",
    "warnings": "__import__('warnings').simplefilter('error')",
    "gc": "__import__('gc').disable(); __import__('gc').freeze()",
    "modules": "[sys.modules.pop(m) for m in list(sys.modules) if m.startswith('redis')]",
}


@pytest.mark.bad_input(
    "handler: threads and processes left behind",
    "handler: directory, umask, signals, socket timeout",
)
@pytest.mark.parametrize("flags", EXECUTORS)
def test_a_worker_survives_changes_of_handlers_to_their_process(
    lab: Lab, flags: tuple[str, ...]
) -> None:
    """Whatever a handler does to directory, signals, threads, streams or modules: the messages after it are handled."""
    bodies = "\n".join(
        f"    if how == {how!r}:\n        {code}" for how, code in MISBEHAVIOURS.items()
    )
    lab.app(f"""
@app.task(retry=Retry.none())
def misbehave(how: str) -> None:
    note("misbehaved", how)
{bodies}

@app.task
def handle(n: int) -> None:
    note("handled", n)
""")
    with lab.worker(*flags, "--grace", "30s") as worker:
        for n, how in enumerate(MISBEHAVIOURS):
            lab.send("misbehave", how)
            lab.send("handle", n)
            until(lambda n=n: [n] in lab.noted("handled"))
        until(lambda: lab.queue().inspect().stored == 0)
        (pid,) = worker.children()
        assert {note.pid for note in lab.notes()} == {pid}
        leftover = psutil.Process(pid).children()
        assert worker.stop() == 0
    # Threads that a handler has left behind do not hold the end up.
    assert worker.events("child_cut_off") == []
    for process in leftover:
        with suppress(psutil.NoSuchProcess):  # the worker may be ending it just now
            process.kill()
    # Two of them raise, and handlers of signals cannot be set in a thread.
    raised = 3 if flags else 2
    assert lab.queue().inspect().stats["acked"] == 2 * len(MISBEHAVIOURS) - raised


@pytest.mark.bad_input("handler: descriptors closed")
@pytest.mark.parametrize("flags", EXECUTORS)
def test_a_handler_that_takes_its_process_along_costs_the_worker_a_child(
    lab: Lab, flags: tuple[str, ...]
) -> None:
    """A handler that ends its process, or closes its descriptors, is a crash: a new child handles the others."""
    ways = ("os._exit(0)", "os._exit(1)", "os.closerange(3, 50)")[2 * bool(flags) :]
    bodies = "\n".join(f"    if way == {n}:\n        {way}" for n, way in enumerate(ways))
    lab.app(f"""
@app.task(max_receives=1)
def misbehave(way: int) -> None:
{bodies}

@app.task
def handle(n: int) -> None:
    note("handled", n)
""")
    with lab.worker(*flags) as worker:
        for n in range(len(ways)):
            lab.send("misbehave", n)
            lab.send_many("handle", 20)
            until(lambda n=n: len(worker.events("child_ended")) == n + 1)
            until(lambda: lab.queue().inspect().unacked == 0)
            until(lambda n=n: len(lab.notes("handled")) >= 20 * (n + 1))
        until(lambda: lab.queue().inspect().stored == 0)
    assert worker.process.returncode == 0
    assert {event["reason"] for event in worker.events("child_ended")[: len(ways)]} == {"crashed"}
    assert {n for (n,) in lab.noted("handled")} == set(range(20))


# -- children that end -------------------------------------------------------------------------


def test_a_child_is_replaced_after_max_messages(lab: Lab) -> None:
    """With --max-messages each child handles this many and is followed by a new one; nothing is lost between."""
    lab.app("""
@app.task
def handle(n: int) -> None:
    note("handled", n)

@app.task
def recycle(n: int) -> None: ...
""")
    lab.send_many("handle", 25)
    with lab.worker("--max-messages", "10") as worker:
        until(lambda: len(lab.notes("handled")) == 25)
        until(lambda: len(worker.events("child_started")) == 3)
        supervisor = psutil.Process(worker.process.pid)
        descriptors = supervisor.num_fds()
        lab.send_many("recycle", 10)
        until(lambda: len(worker.events("child_started")) >= 4)
        # Nothing is left of a child that has ended.
        until(lambda: supervisor.num_fds() == descriptors)
    pids = [note.pid for note in lab.notes()]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [10, 10, 5]
    assert sorted(n for (n,) in lab.noted("handled")) == list(range(25))
    assert [event["reason"] for event in worker.events("child_ended")][:2] == ["recycled"] * 2


def test_a_child_that_grows_too_large_is_replaced(lab: Lab) -> None:
    """Above --max-rss a child ends between messages and another one continues; nothing is lost."""
    lab.app("""
kept = []

@app.task
def leak(n: int) -> None:
    kept.append(bytearray(12_000_000))
    note("leaked", n)
    time.sleep(0.08)
""")
    number = 40
    lab.send_many("leak", number)
    with lab.worker("--max-rss", "200MiB") as worker:
        # It is looked at now and then: by then a busy machine may have handled all.
        while "rss" not in [event["reason"] for event in worker.events("child_ended")]:
            until(lambda: lab.queue().inspect().ready < 10)
            lab.send("leak", number)
            number += 1
            assert number < 125, "1.5 GB"
        until(lambda: lab.queue().inspect().stored == 0)
    assert sorted(n for (n,) in lab.noted("leaked")) == list(range(number))


def test_a_memory_limit_below_the_need_of_a_child_is_reported(lab: Lab) -> None:
    """No child is replaced before it has handled something: one line says that the limit is too small."""
    lab.app("""
BALLAST = bytearray(os.urandom(1) * 40_000_000)

@app.task
def handle(n):
    note("handled", n)
""")
    with lab.worker("--max-rss", "32MiB") as worker:
        until(lambda: worker.events("max_rss_too_small"))
        lab.send("handle", 1)
        until(lambda: lab.notes("handled"))
        (line,) = worker.events("max_rss_too_small")
        assert line["rss_bytes"] > 32 * 2**20
        assert not [
            event for event in worker.events("child_too_large") if event["pid"] != line["pid"]
        ]


def test_a_handler_past_its_time_limit_costs_its_process(lab: Lab) -> None:
    """A sync handler past its limit is ended with its process, counted, and dead at max receives; others continue."""
    lab.app("""
@app.task(time_limit="100ms", max_receives=2)
def hang() -> None:
    note("hangs")
    while True:
        pass

@app.task
def handle(n: int) -> None:
    note("handled", n)
""")
    lab.send("hang")
    lab.send_many("handle", 10)
    with lab.worker() as worker:
        until(lambda: lab.queue().inspect().dead == 1)
        until(lambda: lab.queue().inspect().stored == 0)
    assert len(lab.notes("hangs")) == 2
    assert len(lab.notes("handled")) == 10
    (dead_letter,) = lab.queue().dead()
    assert dead_letter.error_class == "TimeLimitError"
    assert [event["reason"] for event in worker.events("child_ended")].count("time_limit") == 2
    for event in worker.events("time_limit_exceeded"):
        assert event["tasks"] == ["hang"]


def test_who_ran_beside_a_handler_past_its_limit_is_not_blamed(lab: Lab) -> None:
    """Of the handlers in a child that is ended for one of them, the others go back uncounted."""
    lab.app("""
@app.task(time_limit="300ms", max_receives=1)
def hang() -> None:
    time.sleep(60)

@app.task
def patient(n: int) -> None:
    again = os.path.exists(f"started-{n}")
    open(f"started-{n}", "w").close()
    note("started", n, current().receive_count)
    time.sleep(0 if again else 60)
    note("ended", n)
""")
    with lab.worker("--concurrency", "4"):
        lab.send_many("patient", 3)
        until(lambda: len(lab.notes("started")) == 3)
        lab.send("hang")
        until(lambda: len(lab.notes("ended")) == 3)
    # They have begun once more, as their context says; only the one that hung counts against max receives.
    assert sorted(lab.noted("started")) == sorted([n, k] for n in range(3) for k in (1, 2))
    assert lab.queue().inspect().stats["timeouts"] == 1


@pytest.mark.nightly("test_one_slow_message_holds_nothing_up_beside_an_idle_child")
def test_what_waits_behind_a_slow_handler_is_given_to_others(lab: Lab) -> None:
    """Messages in the batch of a handler that turned slow are back at the head while it still runs, uncounted."""
    lab.app("""
@app.task
def handle(n: int) -> None:
    note("started", n, current().receive_count)
    while n == 400 and not os.path.exists("go on"):
        time.sleep(0.05)
""")
    lab.queue().pause("out")
    lab.send_many("handle", 800)
    with lab.worker() as worker:
        until(lambda: worker.events("child_started"))
        lab.queue().resume()
        until(lambda: [400, 1] in lab.noted("started"))
        until(lambda: lab.queue().inspect().ready == 399)
        with lab.worker():
            until(lambda: len(lab.notes("started")) == 800)
        (lab.directory / "go on").touch()
        until(lambda: lab.queue().inspect().stored == 0)
    assert sorted(lab.noted("started")) == [[n, 1] for n in range(800)]
    # The child has nothing to report of the messages that were taken from it.
    assert worker.events("settle_refused") == []


def test_one_slow_message_holds_nothing_up_beside_an_idle_child(lab: Lab) -> None:
    """What was received along with it, or is on its way, goes to the other child at once, not after a second."""
    lab.app("""
@app.task
def handle(n: int) -> None:
    note("started", n)
    time.sleep(3 if n == 300 else 0.0005)
""")

    def rest_s() -> float:
        before = len(lab.notes("started"))
        lab.queue().pause("out")
        lab.send_many("handle", 400)
        with lab.worker("--procs", "2") as worker:
            until(lambda: len(worker.events("child_started")) == 2)
            lab.queue().resume()
            until(lambda: [300] in lab.noted("started")[before:])
            watch = Watch(os.getpid(), lab.server_pid, *worker.pids())
            until(lambda: len(lab.notes("started")) == before + 400)
            return watch.passed_s()

    keep_within(0.8, rest_s)


def test_a_child_that_cannot_start_again_is_tried_later_and_later(lab: Lab) -> None:
    """When the app breaks under a running worker, children are started with growing pauses, not in a hot loop."""
    lab.app("""
@app.task
def crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

@app.task
def handle() -> None:
    note("handled")
""")
    with lab.worker() as worker:
        lab.send("handle")
        until(lambda: lab.notes("handled"))
        source = (lab.directory / "jobs.py").read_text()
        (lab.directory / "jobs.py").write_text("raise RuntimeError('half deployed')")
        os.kill(worker.children()[0], signal.SIGKILL)
        until(lambda: len(worker.events("child_started")) == 4)
        starts = [datetime.fromisoformat(e["timestamp"]) for e in worker.events("child_started")]
        assert worker.events("child_start_failed")
        second, third = starts[2] - starts[1], starts[3] - starts[2]
        assert (second.total_seconds() > 0.5, third.total_seconds() > 1.0) == (True, True)
        (lab.directory / "jobs.py").write_text(source)
        lab.send("handle")
        until(lambda: len(lab.notes("handled")) == 2)


def test_a_worker_whose_children_die_while_they_import_continues_trying(lab: Lab) -> None:
    """With growing pauses; a burst gives up."""
    lab.app("os._exit(5)\n@app.task\ndef handle() -> None: ...")
    with lab.worker() as worker:
        until(lambda: len(worker.events("child_died_starting")) >= 2)
    tries = [
        (event["tries"], event["next_try_seconds"])
        for event in worker.events("child_died_starting")
    ]
    assert tries[:2] == [(1, 0.5), (2, 1.0)]
    assert worker.process.returncode == 0
