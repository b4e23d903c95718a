"""Board and alerts find data in what real processes export to a real Prometheus, and deploy/ knows all of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from qworker.cli.main import cli
from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.store.connections import ConnectionFactory
from qworker.wire.codec import encode_call
from tests import servers
from tests.consumer.forkserver import Order, WarmProcess, start_module
from tests.deploy import queries
from tests.deploy.checkers import run
from tests.deploy.surface import METRICS
from tests.deploy.test_grafana import CHARTS, expressions
from tests.deploy.test_kubernetes import the
from tests.deploy.test_prometheus import RULES
from tests.programs import program
from tests.timing import DEADLINE_S

#: One site for all of them.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]

QWORKER = Path(sys.executable).with_name("qworker")
#: Seconds that an expression has to find data.
PATIENCE_S = 30.0
#: What Grafana puts in: four scrapes.
FILLED = {"$__rate_interval": "4s", "$queue": ".*", "$task": ".*"}

APP = """
from qworker import Bury, LetExpire, QWorker, Release, Retry, current, every

app = QWorker("shop")


@app.task(queue="emails")
def send():
    pass


@app.task(queue="emails", retry=Retry.fixed("100ms"), max_receives=2)
def fail():
    raise ValueError("no such address")


@app.task(queue="emails")
def bury():
    raise Bury("nobody wants it")


@app.task(queue="emails")
def release():
    if current().message.receive_count == 1:
        raise Release("100ms")


@app.task(queue="emails")
def let_expire():
    if current().message.receive_count == 1:
        raise LetExpire


@app.schedule(every("1s"))
def tick():
    pass
"""


@dataclass(frozen=True)
class Site:
    """A daemon, a worker and a Prometheus that scrapes both; addresses end without a slash."""

    prometheus: str
    daemon: str
    worker: str

    def finds(self, query: str) -> bool:
        """Say whether a query finds a number; NaN is none."""
        parameters = urllib.parse.urlencode({"query": f"({query}) > -Inf"})
        answer = json.loads(page(f"{self.prometheus}/api/v1/query?{parameters}"))
        return bool(answer["data"]["result"])

    def empty(self, expressions: Iterable[str]) -> list[str]:
        """Ask each expression until it has found something, or patience is over; returns those that have not."""
        deadline = time.monotonic() + PATIENCE_S
        left = [filled(expression) for expression in expressions]
        while left := [query for query in left if not self.finds(query)]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.5)
        return left


def filled(query: str) -> str:
    for variable, value in FILLED.items():
        query = query.replace(variable, value)
    return query


def page(url: str, accept: str = "*/*") -> str:
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        return str(answer.read().decode())


@contextmanager
def running(command: list[str], folder: Path, name: str, **environ: str) -> Iterator[Path]:
    """Run a program in `folder` until the end, its log in a file; ended by SIGTERM."""
    log = folder / f"{name}.log"
    variables = {**os.environ, **environ}
    process: subprocess.Popen[bytes] | WarmProcess
    with log.open("wb") as out:
        if command[0] == str(QWORKER):
            order = Order("qworker", command[1:], str(folder), variables, nursery=True)
            process = start_module(order, out)
        else:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
    try:
        (folder / f"{name}.pid").write_text(str(process.pid))
        yield log
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def waited(ask: Callable[[], Any], log: Path) -> Any:
    """Return what `ask` returns as soon as that is something."""
    deadline = time.monotonic() + DEADLINE_S
    while not (answer := ask()):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return answer


def served(log: Path) -> str:
    """Wait for the line that tells the metrics port."""
    match = waited(
        lambda: re.search(r'"event": "metrics_served".*"port": (\d+)', log.read_text()), log
    )
    return f"http://127.0.0.1:{match[1]}"


def listening(log: Path) -> str:
    """Wait for the port of a Prometheus: it took any free one and does not tell which."""
    process = psutil.Process(int(log.with_suffix(".pid").read_text()))

    def port() -> int | None:
        match = process.net_connections(kind="tcp")
        return next(
            (connection.laddr.port for connection in match if connection.status == "LISTEN"), None
        )

    return f"http://127.0.0.1:{waited(port, log)}"


def feed(queue: Queue, stop: threading.Event) -> None:
    """Send steadily, some of it for later, until stopped."""
    while not stop.wait(0.1):
        for task in ("send", "fail", "bury", "release", "let_expire"):
            queue.send(encode_call(task, [], {}))
        queue.send(encode_call("send", [], {}), delay="300ms")
        queue.send(encode_call("send", [], {}), delay="1h", ttl="100ms")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Everything that the board shows, at work."""
    prometheus = program("prometheus")
    folder = tmp_path_factory.mktemp("site")
    (folder / "shop.py").write_text(APP)
    with ExitStack() as stack:
        server = stack.enter_context(servers.start("valkey"))
        environ = {
            "QWORKER_URL": server.url,
            "QWORKER_NAMESPACE": "shop",
            "QWORKER_METRICS_PORT": "0",
            "QWORKER_LOG_FORMAT": "json",
        }

        def qworker(name: str, *words: str) -> Path:
            return stack.enter_context(running([str(QWORKER), *words], folder, name, **environ))

        def operate(*words: str) -> None:
            done = CliRunner().invoke(cli, words, env=environ)
            assert done.exit_code == 0, done.output

        daemon = served(qworker("daemon", "daemon", "--tick", "200ms"))
        # Without a reaper: it exports what it sees of the daemon's.
        words = ["run", "shop", "--no-reaper", "--procs", "1", "--visibility", "1s"]
        worker = served(qworker("worker", *words))
        client = stack.enter_context(Client(ConnectionFactory(server.url), give_up_s=5))
        queue, stop = Queue(client, "shop", "emails"), threading.Event()
        feeding = threading.Thread(target=feed, args=(queue, stop))
        feeding.start()
        stack.callback(feeding.join)
        stack.callback(stop.set)

        targets = [url.removeprefix("http://") for url in (daemon, worker)]
        job = {"job_name": "qworker", "static_configs": [{"targets": targets}]}
        configuration = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}
        (folder / "prometheus.yml").write_text(json.dumps(configuration))
        log = stack.enter_context(
            running(
                [
                    prometheus,
                    f"--config.file={folder}/prometheus.yml",
                    f"--storage.tsdb.path={folder}/data",
                    "--web.listen-address=127.0.0.1:0",
                ],
                folder,
                "prometheus",
            )
        )
        waited(lambda: queue.dead(1), log)
        operate("queue", "set", "emails", "journal=all")
        queue.register_reader("archive")
        for group in (None, "acme"):
            Queue(client, "shop", "reports").send(encode_call("send", [], {}), group=group)
        operate("queue", "pause", "reports", "--out")
        operate("dead", "redrive", "emails", "--limit", "1", "--all", "--yes")
        site = Site(listening(log), daemon, worker)
        waited(lambda: site.finds("up"), log)
        yield site


def test_every_expression_of_the_board_finds_data(site: Site) -> None:
    """No panel stays empty while qworker is at work."""
    every = [expression for panel in CHARTS for expression in expressions(panel)]
    assert len(every) > 50
    assert site.empty(every) == []


def test_every_operand_of_an_alert_finds_data(site: Site) -> None:
    """No alert is quiet for want of data."""
    operands = [vector for rule in RULES for vector in queries.vectors(rule["expr"])]
    assert len(operands) > len(RULES)
    assert site.empty(operands) == []


def test_scaling_finds_data(site: Site) -> None:
    """The autoscaler gets a number from the one query that it asks."""
    (trigger,) = the("ScaledObject", "qworker-consumers")["spec"]["triggers"]
    assert site.empty([trigger["metadata"]["query"]]) == []


def test_a_query_without_data_is_noticed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks above are able to fail."""
    monkeypatch.setattr(f"{__name__}.PATIENCE_S", 0.0)
    strange = "sum(qworker_messages_waiting)"
    assert site.empty([strange, "up"]) == [strange]


@pytest.mark.parametrize("role", ["daemon", "worker"])
def test_exposition_is_well_formed(site: Site, role: str) -> None:
    """promtool finds nothing to say about names, types and help."""
    done = run("promtool", "check", "metrics", stdin=page(f"{getattr(site, role)}/metrics"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_is_exported_is_known(site: Site) -> None:
    """Names, kinds and labels of a real scrape are those that deploy/ may use, and no value of a label is missing."""
    deadline = time.monotonic() + PATIENCE_S
    while (seen := exported(site)) != METRICS.keys() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert seen == METRICS.keys()


def exported(site: Site) -> set[str]:
    """Scrape both roles and check each sample; returns the names."""
    seen: set[str] = set()
    for role in (site.daemon, site.worker):
        # The format that Prometheus itself asks for.
        text = page(f"{role}/metrics", accept="application/openmetrics-text")
        for family in text_string_to_metric_families(text):
            name = family.name + ("_total" if family.type == "counter" else "")
            if not name.startswith("qworker_") or not family.samples:
                continue
            seen.add(name)
            known = METRICS[name]
            assert family.type == known.kind, name
            for sample in family.samples:
                assert sample.labels.keys() - {"le"} == known.labels.keys(), sample
                for label in known.labels.keys() & {"state", "outcome", "reason"}:
                    assert sample.labels[label] in known.labels[label], sample
    return seen
