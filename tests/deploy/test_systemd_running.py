"""What the units start tells systemd how it does, works under the hardening, and stops in time.

systemd itself is not there: `units.started` gives the processes its socket, its variables and its restrictions.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Self

import psutil
import pytest

from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.store.connections import ConnectionFactory
from qworker.wire.codec import encode_call
from tests import servers
from tests.deploy.units import UNITS, Manager, options, seconds, started
from tests.timing import DEADLINE_S

pytestmark = pytest.mark.slow

DAEMON, WORKER, WEB = UNITS
INSTANCE = "shop.tasks"
WATCHDOG_S = 2.0
#: The grace time of the worker unit, and the one of these tests.
GRACE_S, SHORT_GRACE = 25, "1s"

APP = """
import json, os, time

from qworker import QWorker

app = QWorker("shop")
HISTORY = os.open(os.environ["HISTORY"], os.O_APPEND | os.O_CREAT | os.O_WRONLY)


def note(*words):
    os.write(HISTORY, (json.dumps(words) + "\\n").encode())


@app.task(queue="jobs")
def handle(key):
    note("started", key)
    time.sleep(0.002)
    note("ended", key)


@app.task(queue="jobs")
def quick():
    pass


@app.task(queue="jobs", time_limit=None)
def endless():
    while True:
        time.sleep(0.1)
"""


@pytest.fixture
def server() -> Iterator[servers.Server]:
    """A Valkey of the test's own, which may be stopped."""
    with servers.start("valkey") as server:
        yield server


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """What handlers note outlives every process."""
    return tmp_path / "history"


@pytest.fixture
def environ(server: servers.Server, history: Path) -> dict[str, str]:
    """The environment file of a unit."""
    return {
        "QWORKER_URL": server.url,
        "QWORKER_NAMESPACE": "shop",
        "QWORKER_METRICS_PORT": "0",
        "QWORKER_WEB_PORT": "0",
        "QWORKER_PROCS": "1",
        "HISTORY": str(history),
    }


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of apps, with one in it; a short path, as it holds a socket too."""
    folder = tmp_path_factory.mktemp("u")
    (folder / "shop").mkdir()
    (folder / "shop" / "tasks.py").write_text(APP)
    return folder


@pytest.fixture
def queue(server: servers.Server) -> Iterator[Queue]:
    """The queue of the app."""
    with Client(ConnectionFactory(server.url), give_up_s=5) as client:
        yield Queue(client, "shop", "jobs")


class Traffic:
    """Sends messages with their own keys, until the block ends, and reads what became of them."""

    def __init__(self, queue: Queue, history: Path) -> None:
        self.sent: list[str] = []
        self._queue, self._history = queue, history
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def end(self) -> None:
        """Send no more."""
        self._ended.set()
        self._thread.join()

    def _send(self) -> None:
        while not self._ended.wait(0.02):
            keys = [str(len(self.sent) + number) for number in range(5)]
            self._queue.send_many([encode_call("handle", [key], {}) for key in keys])
            self.sent += keys

    def noted(self, word: str) -> list[str]:
        """The keys of handlers that have started, or ended."""
        lines = self._history.read_text().rpartition("\n")[0].splitlines()
        return [key for noted, key in map(json.loads, lines) if noted == word]

    def flows(self, manager: Manager) -> None:
        """Wait until messages have been handled from now on."""
        before = len(self.noted("ended")) if self._history.exists() else 0
        manager.wait_for(
            lambda: self._history.exists() and len(self.noted("ended")) > before + 50, DEADLINE_S
        )


def start_timeout(unit: str) -> float:
    # Below pytest's own limit; the units allow for apps that are slow to import.
    return min(DEADLINE_S, seconds(dict(options(unit))["TimeoutStartSec"]))


def stop_timeout(unit: str) -> float:
    """TimeoutStopSec, less what these tests take from the grace time."""
    whole = seconds(dict(options(unit))["TimeoutStopSec"])
    return whole if unit == DAEMON else whole - GRACE_S + seconds(SHORT_GRACE)


def run_unit(unit: str, folder: Path, environ: dict[str, str]) -> Iterator[Manager]:
    grace = SHORT_GRACE if unit == WORKER else ""
    with started(
        unit, folder, environ, instance=INSTANCE, watchdog_s=WATCHDOG_S, grace=grace
    ) as manager:
        manager.wait_for(lambda: "READY=1" in manager.states, start_timeout(unit))
        yield manager


@pytest.fixture
def manager(unit: str, folder: Path, environ: dict[str, str]) -> Iterator[Manager]:
    """A unit that has said that it is ready."""
    yield from run_unit(unit, folder, environ)


@pytest.fixture
def worker(folder: Path, environ: dict[str, str]) -> Iterator[Manager]:
    """The worker unit, ready."""
    yield from run_unit(WORKER, folder, environ)


@pytest.mark.parametrize(
    "unit",
    [
        WORKER,
        *(
            pytest.param(
                unit,
                marks=pytest.mark.nightly(
                    "test_unit_is_ready_pings_and_stops_while_its_server_hangs"
                ),
            )
            for unit in (DAEMON, WEB)
        ),
    ],
)
def test_unit_is_ready_pings_and_stops_while_its_server_hangs(
    unit: str, manager: Manager, server: servers.Server
) -> None:
    """READY, WATCHDOG and STOPPING come in this order and from the main process alone; the exit code is 0.

    Without a server a unit stays alive, within the unit's WatchdogSec, and stops in time.
    """
    manager.wait_for(lambda: len(manager.at("WATCHDOG=1")) >= 4, DEADLINE_S)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        frozen = manager.at("WATCHDOG=1")[-1]
        watchdog_s = seconds(dict(options(unit))["WatchdogSec"])
        manager.wait_for(lambda: manager.at("WATCHDOG=1")[-1] > frozen + 6, watchdog_s)
        pinged = [at for at in manager.at("WATCHDOG=1") if at >= frozen]
        longest_s = max(after - at for at, after in pairwise(pinged))
        assert longest_s < watchdog_s / 2
        code, _ = manager.stop(stop_timeout(unit))
        assert code == 0
    finally:
        os.kill(server.pid, signal.SIGCONT)
    (ready,), (stopping,) = manager.at("READY=1"), manager.at("STOPPING=1")
    assert ready < pinged[-1] < stopping
    assert {pid for _, pid, _ in manager.told} == {manager.process.pid}
    assert set(manager.states) == {"READY=1", "WATCHDOG=1", "STOPPING=1"}


def test_worker_has_the_necessary_rights_and_is_cut_off_in_time(
    worker: Manager, queue: Queue
) -> None:
    """Children start and handle messages under the system calls, families and files of the unit.

    A handler that does not end has its message go back after the grace time, and the process ends before systemd would
    kill it.
    """
    queue.send(encode_call("quick", [], {}))
    worker.wait_for(lambda: queue.inspect().stats.get("acked"), DEADLINE_S)
    assert worker.events("metrics_served")
    for event in ("metrics_not_served", "child_start_failed", "child_ended"):
        assert worker.events(event) == []
    queue.send(encode_call("endless", [], {}))
    worker.wait_for(lambda: queue.inspect().unacked, DEADLINE_S)
    code, took_s = worker.stop(stop_timeout(WORKER))
    assert (code, seconds(SHORT_GRACE) <= took_s) == (0, True)
    left = queue.inspect()
    assert (left.ready, left.unacked, left.stats.get("released")) == (1, 0, 1)


def test_a_restart_under_load_loses_nothing_and_repeats_nothing(
    folder: Path, environ: dict[str, str], queue: Queue, history: Path
) -> None:
    """`systemctl restart`: the exit code is 0, and each message is handled once."""
    with Traffic(queue, history) as traffic:
        for manager in run_unit(WORKER, folder, environ):
            traffic.flows(manager)
            code, _ = manager.stop(stop_timeout(WORKER))
            assert code == 0
    for manager in run_unit(WORKER, folder, environ):
        manager.wait_for(lambda: queue.inspect().stored == 0, DEADLINE_S)

    assert sorted(traffic.noted("ended")) == sorted(traffic.sent)
    assert sorted(traffic.noted("started")) == sorted(traffic.sent)
    assert queue.inspect().dead == 0


@pytest.mark.nightly("test_a_restart_under_load_loses_nothing_and_repeats_nothing")
def test_the_signal_of_the_watchdog_costs_a_redelivery(
    folder: Path, environ: dict[str, str], queue: Queue, history: Path
) -> None:
    """SIGABRT, as WatchdogSec sends it, under load: children end too, unacked messages come back, nothing is lost."""
    environ = {**environ, "QWORKER_VISIBILITY": "2s"}
    with Traffic(queue, history) as traffic:
        for manager in run_unit(WORKER, folder, environ):
            traffic.flows(manager)
            children = psutil.Process(manager.process.pid).children()
            manager.process.send_signal(signal.SIGABRT)
            # Python dumps the stacks of threads that run meanwhile, which may crash it.
            ended_by = -manager.process.wait(DEADLINE_S)
            assert ended_by in (signal.SIGABRT, signal.SIGSEGV)
            _, alive = psutil.wait_procs(children, DEADLINE_S)
            assert children
            assert not alive
            in_hand = queue.inspect().unacked
            assert "Current thread" in manager.log.read_text() or ended_by == signal.SIGSEGV
        for manager in run_unit(WORKER, folder, environ):
            traffic.flows(manager)
            traffic.end()
            manager.wait_for(lambda: queue.inspect().stored == 0, DEADLINE_S)

    started_keys = traffic.noted("started")
    assert set(traffic.noted("ended")) == set(traffic.sent)
    assert len(started_keys) - len(set(started_keys)) <= in_hand
    assert queue.inspect().dead == 0


@pytest.mark.parametrize(
    "unit",
    [
        *(DAEMON, WEB),
        pytest.param(WORKER, marks=pytest.mark.nightly("test_unit_starts_before_its_server")),
    ],
)
def test_unit_starts_before_its_server(unit: str, folder: Path, environ: dict[str, str]) -> None:
    """Ready means that it tries: the order in which hosts come up does not matter."""
    nobody = {**environ, "QWORKER_URL": f"unix://{folder}/nobody"}
    for manager in run_unit(unit, folder, nobody):
        code, _ = manager.stop(stop_timeout(unit))
        assert code == 0


@pytest.mark.parametrize(
    ("unit", "wrong"),
    [
        (DAEMON, {"QWORKER_TICK": "soon"}),
        (DAEMON, {"QWORKER_URL": "http://redis"}),
        (WORKER, {"QWORKER_MAX_RSS": "1"}),
        (WEB, {"QWORKER_WEB_HOST": "0.0.0.0"}),
    ],
)
def test_bad_configuration_is_not_tried_again(
    unit: str, wrong: dict[str, str], folder: Path, environ: dict[str, str]
) -> None:
    """It ends with the code of RestartPreventExitStatus before it is ready."""
    with started(unit, folder, {**environ, **wrong}, instance=INSTANCE) as manager:
        code = manager.process.wait(DEADLINE_S)
        assert str(code) == dict(options(unit))["RestartPreventExitStatus"]
        assert "READY=1" not in manager.states


def test_server_that_may_lose_messages_is_refused(
    folder: Path, environ: dict[str, str], server: servers.Server
) -> None:
    """With QWORKER_DURABILITY=strict the daemon never gets ready, and its code is none of the others."""
    server.redis().config_set("appendonly", "no")
    strict = {**environ, "QWORKER_DURABILITY": "strict"}
    with started(DAEMON, folder, strict) as manager:
        assert manager.process.wait(DEADLINE_S) == 3
        assert "READY=1" not in manager.states


def test_app_that_cannot_be_imported_never_gets_ready(
    folder: Path, environ: dict[str, str]
) -> None:
    """The start fails with a code that systemd does not try again: only another app or instance helps."""
    with started(WORKER, folder, environ, instance="shop.nothing") as manager:
        assert manager.process.wait(DEADLINE_S) == 2
        assert "there is no module 'shop.nothing'" in manager.log.read_text()
        assert "READY=1" not in manager.states
