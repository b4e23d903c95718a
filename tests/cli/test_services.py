"""`qworker run` and `qworker daemon` as processes, and what the other verbs see of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from qworker.engine.scripts import SCRIPT_NAMES
from tests import servers
from tests.cli.conftest import clean_environment
from tests.consumer.forkserver import Order, WarmProcess, start_module
from tests.timing import DEADLINE_S, looks

pytestmark = pytest.mark.slow

APP = """
import time
from qworker import QWorker

app = QWorker({namespace!r})

@app.task(queue="emails")
def send_email(number: int) -> None:
    if number == 99:
        time.sleep(60)
"""


@dataclass
class Service:
    """A service, and the files that it writes to."""

    process: subprocess.Popen[bytes] | WarmProcess
    output: Path
    errors: Path

    def ends(self) -> str:
        """Wait until it has ended with exit code 0; returns what it wrote to stderr."""
        code, said = self.process.wait(DEADLINE_S), self.errors.read_text()
        assert code == 0, said
        return said


@pytest.fixture
def service(shop, tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Start services in a directory that holds `shop_app`; what still runs is killed with the test."""
    (tmp_path / "shop_app.py").write_text(APP.format(namespace=shop.namespace))
    environ = clean_environment(QWORKER_URL=shop.url, QWORKER_NAMESPACE=shop.namespace)
    output, errors = tmp_path / "out", tmp_path / "err"
    started: list[Service] = []

    def start(*words: str) -> Service:
        order = Order("qworker", [*words], str(tmp_path), environ, nursery=True)
        with output.open("wb") as out, errors.open("wb") as err:
            started.append(Service(start_module(order, out, err), output, errors))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


def eventually(check: Callable[[], object], within_s: float = DEADLINE_S) -> None:
    assert any(check() for _ in looks(within_s)), "it did not happen in time"


def test_the_daemon_is_seen_and_ends_with_a_signal(run, shop, service):
    """Alive for doctor and top, its log in JSON on stderr, exit code 0."""
    daemon = service("daemon", "--metrics-port", "0", "--tick", "200ms")

    eventually(lambda: shop.ask("ZCARD", f"{shop.namespace}:reapers"))
    reapers = next(
        finding
        for finding in run("doctor", "--json").json["findings"]
        if finding["check"] == "reapers"
    )
    daemon.process.terminate()
    said = daemon.ends()

    assert reapers["status"] == "ok"
    assert daemon.output.read_bytes() == b""
    events = [json.loads(line)["event"] for line in said.splitlines()]
    assert events[0] == "daemon_started"
    assert events[-1] == "daemon_stopped"


def test_a_worker_handles_is_listed_and_ends_with_a_signal(run, shop, service):
    """What it runs is seen by `worker ls` and `top`; SIGTERM gives what runs back after the grace."""
    shop.queue("emails").send(b'{"task": "send_email", "args": [1]}')
    shop.queue("emails").send(b'{"task": "send_email", "args": [99]}')
    worker = service("run", "shop_app", "--procs", "1", "--metrics-port", "0", "--grace", "100ms")

    eventually(lambda: shop.queue("emails").inspect().stats.get("acked"))
    eventually(lambda: "send_email" in run("top", "--json", "--every", "200ms").out)
    (listed,) = run("worker", "ls", "--json").json["workers"]
    worker.process.terminate()
    worker.ends()

    assert listed["app"].startswith("shop_app")
    assert listed["queues"] == ["emails"]
    assert listed["is_gone"] is False
    assert run("worker", "ls", "--json").json["workers"] == []
    assert shop.queue("emails").inspect().ready == 1


def test_a_burst_ends(run, shop, service):
    """Exit code 0 when the queues are empty."""
    shop.send("emails", 20)

    service("run", "shop_app:app", "--burst", "--procs", "1", "--metrics-port", "0").ends()

    assert shop.queue("emails").inspect().stats["acked"] == 20


def test_scripts_are_loaded_in_a_deploy(bare):
    """`scripts ls` says what is missing (exit code 3), `scripts load` loads it and says how many."""
    with servers.start("valkey") as server:
        env = {"QWORKER_URL": server.url}
        missing = bare("scripts", "ls", env=env)
        assert missing.code == 3
        assert "qworker scripts load" in missing.err
        number = len(SCRIPT_NAMES)
        assert f"{number} loaded, 0 already there" in bare("scripts", "load", env=env).out
        assert f"0 loaded, {number} already there" in bare("scripts", "load", env=env).out
        listed = bare("scripts", "ls", "--json", env=env)
        assert listed.code == 0
        assert [script["missing_at"] for script in listed.json["scripts"]] == [[]] * number
