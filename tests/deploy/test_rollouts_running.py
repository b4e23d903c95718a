"""What the manifests and units promise about stops, drains and restarts, applied to real processes under load.

Neither Kubernetes nor systemd is there. A pod is started with the arguments, the probes and the grace period of its
manifest, and a rollout goes as the manifest's strategy says: a new pod first, the old one when that is ready.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.store.connections import ConnectionFactory
from tests import servers
from tests.consumer.driving import until
from tests.consumer.forkserver import ROOT, Order, WarmProcess, start_module
from tests.deploy.test_kubernetes import container, pod, the

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

CONSUMERS, DAEMON = "qworker-consumers", "qworker-daemon"
APP = """
import json, os, time

from qworker import QWorker, current

app = QWorker("shop")
HISTORY = os.open(os.environ["HISTORY"], os.O_APPEND | os.O_CREAT | os.O_WRONLY)


def note(*words):
    os.write(HISTORY, (json.dumps(words) + "\\n").encode())


@app.task(queue="jobs")
def handle(key: str, seconds: float = 0.002) -> None:
    note("started", key)
    time.sleep(seconds)
    note("ended", key)


@app.task(queue="jobs", time_limit=None)
def endless_at_first(key: str) -> None:
    note("started", key)
    while current().receive_count == 1:
        time.sleep(0.1)
    note("ended", key)
"""


@dataclass
class Pod:
    """A process that runs as the container of a deployment, and what its probes answered: (seconds, path, status)."""

    deployment: str
    process: subprocess.Popen[bytes] | WarmProcess
    port: int
    log: Path
    answers: list[tuple[float, str, int]] = field(default_factory=list)

    def probe(self, name: str) -> int:
        """Ask as the kubelet does: the path, the timeout; 0 where nothing answers in time."""
        probe = container(self.deployment)[f"{name}Probe"]
        path, timeout_s = probe["httpGet"]["path"], probe.get("timeoutSeconds", 1)
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}{path}", timeout=timeout_s
            ) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0

    def watch(self, *names: str, every_s: float, stop: threading.Event) -> None:
        """Probe until the process has ended, or `stop` is set."""
        while self.process.poll() is None and not stop.is_set():
            for name in names:
                self.answers.append((time.monotonic(), name, self.probe(name)))
            stop.wait(every_s)

    def told(self, name: str, since: float) -> set[int]:
        """What a probe was answered since then."""
        return {status for at, answer, status in self.answers if answer == name and at > since}

    def end(self) -> int:
        """SIGTERM, the pod's grace period, SIGKILL: what the kubelet does; returns the exit code."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(pod(self.deployment)["terminationGracePeriodSeconds"])
        self.process.kill()
        return self.process.wait()


class Cluster:
    """Pods of both deployments on one server, and messages that are sent meanwhile."""

    def __init__(self, server: servers.Server, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.history = folder / "history"
        self.history.touch()
        (folder / "shop").mkdir()
        (folder / "shop" / "tasks.py").write_text(APP)
        self.client = Client(ConnectionFactory(server.url), give_up_s=30)
        self.queue = Queue(self.client, "shop", "jobs")
        self.sent: list[str] = []
        self._pods: list[Pod] = []

    def start(self, deployment: str, **changed: str) -> Pod:
        """Start a pod: the manifest's arguments, but any free port, and one child process for the sake of the test."""
        arguments = dict(arg.partition("=")[::2] for arg in container(deployment)["args"])
        arguments |= {"--metrics-host": "127.0.0.1", "--metrics-port": "0", **changed}
        if deployment == CONSUMERS:
            arguments["--procs"] = "1"
        words = [f"{name}={value}" if value else name for name, value in arguments.items()]
        environ = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": f"{ROOT}:{self.folder}",
            "QWORKER_URL": self.server.url,
            "QWORKER_NAMESPACE": "shop",
            "QWORKER_LOG_FORMAT": "json",
            "HISTORY": str(self.history),
        }
        log = self.folder / f"{deployment}-{len(self._pods)}.log"
        order = Order("qworker", words, str(self.folder), environ, nursery=True)
        with log.open("wb") as out:
            process = start_module(order, out)
        started = Pod(deployment, process, 0, log)
        self._pods.append(started)
        until(lambda: self._port(started) or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        started.port = self._port(started)
        until(lambda: started.probe("startup") == 200)
        until(lambda: started.probe("readiness") == 200)
        return started

    @staticmethod
    def _port(started: Pod) -> int:
        for line in started.log.read_text().splitlines():
            if line.startswith("{") and (event := json.loads(line))["event"] == "metrics_served":
                return int(event["port"])
        return 0

    def send(self, number: int = 1, task: str = "handle", **named: Any) -> None:
        """Send messages with their own keys."""
        keys = [f"{len(self.sent) + at}" for at in range(number)]
        self.queue.send_many([{"task": task, "args": [key], "kwargs": named} for key in keys])
        self.sent += keys

    def noted(self, word: str) -> list[str]:
        """The keys of handlers that have started, or ended."""
        lines = self.history.read_text().rpartition("\n")[0].splitlines()
        return [key for noted, key in map(json.loads, lines) if noted == word]

    def load(self, stop: threading.Event) -> None:
        """Send until told otherwise."""
        while not stop.is_set():
            self.send(5)
            stop.wait(0.02)

    def settled(self) -> bool:
        """Whether nothing of what was sent is left."""
        return self.queue.inspect().stored == 0

    def close(self) -> None:
        """End every pod that still runs."""
        for each in self._pods:
            each.process.kill()
            each.process.wait()
        self.client.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """No pods yet, on a server of the test's own."""
    with servers.start("valkey") as server:
        cluster = Cluster(server, tmp_path)
        yield cluster
        cluster.close()


def test_a_rollout_under_load_loses_nothing_and_repeats_nothing(cluster: Cluster) -> None:
    """Two consumers and two daemons are replaced one by one, as the strategy says; each message is handled once."""
    for deployment in (CONSUMERS, DAEMON):
        strategy = the("Deployment", deployment)["spec"]["strategy"]["rollingUpdate"]
        assert strategy == {"maxSurge": 1, "maxUnavailable": 0}
        assert the("Deployment", deployment)["spec"]["replicas"] == 2
    old = [cluster.start(deployment) for deployment in (CONSUMERS, CONSUMERS, DAEMON, DAEMON)]
    stop = threading.Event()
    load = threading.Thread(target=cluster.load, args=(stop,))
    load.start()
    try:
        for each in old:
            cluster.start(each.deployment)
            assert each.end() == 0
            before = len(cluster.noted("ended"))
            until(lambda before=before: len(cluster.noted("ended")) > before + 20)
    finally:
        stop.set()
        load.join()
    until(cluster.settled)

    assert sorted(cluster.noted("ended")) == sorted(cluster.sent)
    assert sorted(cluster.noted("started")) == sorted(cluster.sent)
    assert cluster.queue.inspect().dead == 0


def test_a_terminating_pod_is_not_ready_and_gives_back_unstarted_messages(
    cluster: Cluster,
) -> None:
    """While the last handler runs /readyz says no and /healthz yes; all else is ready for others by then."""
    consumer = cluster.start(CONSUMERS)
    cluster.send(seconds=2.0)
    until(lambda: cluster.noted("started") == ["0"])
    cluster.send(50)
    stop = threading.Event()
    watcher = threading.Thread(
        target=consumer.watch,
        args=("readiness", "liveness"),
        kwargs={"every_s": 0.05, "stop": stop},
    )
    consumer.process.send_signal(signal.SIGTERM)
    stopped = time.monotonic()  # not before: the second after it is the process's
    watcher.start()
    until(lambda: cluster.queue.inspect().unacked <= 1)
    released = cluster.queue.inspect()
    code = consumer.process.wait(pod(CONSUMERS)["terminationGracePeriodSeconds"])
    stop.set()
    watcher.join()

    assert code == 0
    assert cluster.noted("ended") == ["0"]
    left = cluster.queue.inspect()
    assert (left.ready, left.unacked) == (50, 0)
    assert released.ready == 50
    # 0: the listener closes with the process.
    assert consumer.told("readiness", stopped + 1) <= {503, 0}
    assert consumer.told("liveness", stopped + 1) <= {200, 0}
    message = cluster.queue.receive(1)[0]
    assert message.receive_count == 1


def test_a_pod_that_does_not_end_is_killed_and_its_messages_come_back(cluster: Cluster) -> None:
    """SIGKILL at the end of the grace period costs a redelivery after the visibility timeout, and nothing else."""
    cluster.start(DAEMON, **{"--tick": "200ms"})
    consumer = cluster.start(CONSUMERS, **{"--visibility": "1s"})
    cluster.send(task="endless_at_first")
    until(lambda: cluster.noted("started") == ["0"])
    cluster.send(20)
    consumer.process.kill()
    assert consumer.process.wait() == -signal.SIGKILL
    other = cluster.start(CONSUMERS)
    until(cluster.settled)

    assert sorted(cluster.noted("ended")) == sorted(cluster.sent)
    assert cluster.noted("started").count("0") == 2
    assert cluster.queue.inspect().dead == 0
    assert other.process.poll() is None


def test_a_frozen_server_restarts_no_pod(cluster: Cluster) -> None:
    """Liveness holds as often as it would have to fail, readiness goes and comes back, and the same pods work on."""
    pods = [cluster.start(CONSUMERS), cluster.start(DAEMON)]
    os.kill(cluster.server.pid, signal.SIGSTOP)
    try:
        for each in pods:
            until(lambda each=each: each.probe("readiness") == 503)
        for each in pods:
            failures = container(each.deployment)["livenessProbe"]["failureThreshold"]
            assert {each.probe("liveness") for _ in range(failures + 1)} == {200}
    finally:
        os.kill(cluster.server.pid, signal.SIGCONT)
    for each in pods:
        until(lambda each=each: each.probe("readiness") == 200)
        assert each.process.poll() is None
    cluster.send(10)
    until(cluster.settled)

    assert sorted(cluster.noted("ended")) == sorted(cluster.sent)
