"""The supervisor's decisions: with the supervisor in a thread of the test, or as a worker."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qworker import QueueAttributes
from qworker.consumer.options import RunOptions
from qworker.consumer.supervisor.processes.totals import REASONS
from qworker.consumer.supervisor.supervisor import EXIT_WATCHDOG, Supervisor
from qworker.errors import InvalidOptionError
from qworker.store.connections import ConnectionFactory
from qworker.telemetry.options import LogOptions
from tests import servers
from tests.consumer.driving import DEADLINE_S, until
from tests.consumer.workers import Lab, Worker
from tests.topologies.servers import client_of

pytestmark = pytest.mark.slow  # starts processes

NO_EXITS = dict.fromkeys(REASONS, 0)
HANDLE = """
@app.task
def handle(n: int) -> None:
    note("handled", n)
    time.sleep(float(os.environ.get("NAP_S", "0")))
"""


class Running:
    """A supervisor at work; `code` is its exit code once it has ended."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.code: int | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        self.code = self.supervisor.run()


@contextmanager
def supervising(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, options: RunOptions
) -> Iterator[Running]:
    """Supervise the lab's app until the block ends."""
    monkeypatch.chdir(lab.directory)
    factory = ConnectionFactory(lab.url)
    running = Running(Supervisor("jobs", factory, options, LogOptions(log_level="error")))
    try:
        yield running
    finally:
        running.supervisor.stop()
        running.thread.join(DEADLINE_S)
        assert not running.thread.is_alive()


def with_watchdog(watchdog_ms: int, **given: int | str) -> RunOptions:
    """Options with a watchdog that is quicker than users may have it."""
    options = RunOptions(**given)  # type: ignore[arg-type]
    object.__setattr__(options, "watchdog_ms", watchdog_ms)
    return options


def reasons_of(worker: Worker) -> list[str]:
    """Why the children of a worker have ended."""
    return [event["reason"] for event in worker.events("child_ended")]


def freeze(supervisor: Supervisor) -> None:
    """Stop the only child from outside, once it receives."""
    until(lambda: supervisor.children and supervisor.children[0].ready)
    os.kill(supervisor.children[0].pid, signal.SIGSTOP)


def test_a_child_that_stalls_is_replaced_and_a_second_one_in_a_row_ends_the_worker(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child silent beside a server that answers is ended. Where its successor never works either: exit code 70."""
    lab.app(HANDLE)
    with supervising(lab, monkeypatch, with_watchdog(1500, procs=1)) as running:
        supervisor = running.supervisor
        lab.send("handle", 0)
        # Not only handled: a child that is frozen within a handler is left to its time limit.
        until(lambda: lab.queue().inspect().stats.get("acked") == 1)
        freeze(supervisor)
        until(lambda: supervisor.totals.exits["watchdog"] == 1)
        assert running.code is None
        freeze(supervisor)
        until(lambda: running.code is not None)
    assert running.code == EXIT_WATCHDOG
    assert supervisor.totals.exits == {**NO_EXITS, "watchdog": 2}


def test_a_stop_does_not_wait_for_a_child_that_has_stalled(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that is deaf when its worker stops is ended by the watchdog, and not waited for until the grace ends."""
    lab.app(HANDLE)
    options = with_watchdog(1500, procs=1, grace="10m")
    with supervising(lab, monkeypatch, options) as running:
        freeze(running.supervisor)
        running.supervisor.stop()
        until(lambda: running.code is not None)
    assert running.code == 0
    assert running.supervisor.totals.exits == {**NO_EXITS, "watchdog": 1}


def test_a_child_in_a_long_handler_has_not_stalled(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog leaves a child alone while a handler runs: that is for the time limit."""
    monkeypatch.setenv("NAP_S", "3")
    lab.app(HANDLE)
    lab.send("handle", 0)
    with supervising(lab, monkeypatch, with_watchdog(1000, procs=1)) as running:
        until(lambda: lab.queue().inspect().stats.get("acked") == 1)
        assert running.supervisor.totals.exits["watchdog"] == 0


def test_children_are_not_blamed_for_a_server_that_was_away(
    namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage longer than the watchdog's patience no child is ended for its silence."""
    with servers.start("valkey") as server:
        lab = Lab(server.url, namespace, tmp_path)
        lab.app(HANDLE)
        lab.send("handle", 0)
        with supervising(lab, monkeypatch, with_watchdog(3500, procs=1)) as running:
            until(lambda: lab.noted("handled") == [[0]])
            os.kill(server.pid, signal.SIGSTOP)
            threading.Event().wait(5)
            os.kill(server.pid, signal.SIGCONT)
            lab.send("handle", 1)
            until(lambda: lab.noted("handled") == [[0], [1]])
            threading.Event().wait(1)
            assert running.supervisor.totals.exits == NO_EXITS
        lab.close()


@pytest.mark.nightly(
    "consumer/child/test_burst_end.py::test_a_burst_of_several_processes_ends_when_none_has_work"
)
def test_a_burst_ends_with_everything_settled(lab: Lab) -> None:
    """A worker in a burst ends with code 0 when nothing is ready, and leaves no presence behind."""
    lab.app(HANDLE)
    lab.send_many("handle", 50)
    with lab.worker("--procs", "2", "--burst") as worker:
        assert worker.wait() == 0
    assert len(lab.notes("handled")) == 50
    redis = client_of(lab.url)
    assert redis.exists(f"{lab.namespace}:workers") == 0
    redis.close()


@pytest.mark.parametrize(
    ("source", "limit", "reason"),
    [
        pytest.param(HANDLE, 30, "recycled", id="recycled"),
        pytest.param(
            f"{HANDLE}    if n == 7: os._exit(0)",
            0,
            "crashed",
            id="ended by a handler",
        ),
    ],
)
@pytest.mark.nightly("consumer/test_worker.py::test_a_child_is_replaced_after_max_messages")
def test_a_burst_continues_if_a_child_ends_before_the_queue(
    lab: Lab, source: str, limit: int, reason: str
) -> None:
    """A child that ends with code 0 while messages are left is replaced also in a burst."""
    lab.app(source)
    lab.queue().configure(QueueAttributes(max_receives=1))
    lab.send_many("handle", 50)
    with lab.worker("--burst", "--max-messages", str(limit)) as worker:
        assert worker.wait() == 0
    assert {n for (n,) in lab.noted("handled")} == set(range(50))
    assert reason in reasons_of(worker)


def test_counts_outlive_the_children_that_counted(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What dead children have counted is added to what living ones count, and never goes down."""
    lab.app(HANDLE)
    lab.send_many("handle", 20)
    seen = []
    with supervising(lab, monkeypatch, RunOptions(procs=1, max_messages=10)) as running:
        totals = running.supervisor.totals

        def handled() -> bool:
            done = totals.handled == 20
            counts = totals.counts().get(("default", "handle"))
            seen.append(counts.outcomes[0] if counts else 0)
            return done

        until(handled)
        until(lambda: running.supervisor.totals.exits["recycled"] == 2)
        # A child's counts have names once its manifest was read, which may be after its first messages.
        handled()
        assert (totals.failed, totals.stale) == (0, 0)
    assert seen == sorted(seen)
    assert seen[-1] == 20


def test_a_manifest_says_which_number_a_queue_has(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases of every queue are kept, in whatever order tasks and queues are named."""
    lab.app("""
@app.task(queue="zebra")
def first(n: int) -> None:
    note("started", n)
    time.sleep(6)

@app.task(queue="antelope")
def second(n: int) -> None: ...
""")
    lab.send("first", 1, queue="zebra")
    with supervising(lab, monkeypatch, RunOptions(procs=1, visibility="5s")) as running:
        until(lambda: lab.queue("zebra").inspect().stats.get("acked") == 1)
        assert running.supervisor.queues == ["zebra", "antelope"]
        assert running.supervisor.keeper.extended >= 2
        assert running.supervisor.keeper.lost == 0


# -- reloading ---------------------------------------------------------------------------------


def test_a_changed_source_file_brings_new_children(lab: Lab) -> None:
    """With reload, children are replaced when a Python file changes, and also after a change that does not import."""
    lab.app(HANDLE)
    lab.send("handle", 0)
    with lab.worker("--reload") as worker:
        until(lambda: lab.noted("handled") == [[0]])
        (before,) = worker.children()
        (lab.directory / "notes.txt").write_text("no source")
        lab.app("this is no Python")
        until(lambda: "crashed" in reasons_of(worker))
        lab.app(HANDLE.replace('"handled"', '"handled anew"'))
        lab.send("handle", 1)
        until(lambda: lab.noted("handled anew") == [[1]])
        assert before not in worker.children()
        assert "stopped" in reasons_of(worker)


def test_reload_without_watchfiles_says_what_to_install(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The missing extra is named before anything starts."""
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    with pytest.raises(InvalidOptionError, match=r"pip install 'qworker-redis\[reload\]'"):
        Supervisor("jobs", ConnectionFactory(lab.url), RunOptions(reload=True), LogOptions())
