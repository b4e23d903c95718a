"""The metrics of a worker, as Prometheus scrapes them."""

from __future__ import annotations

import subprocess
import threading

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from qworker.consumer.board.counters import BUCKETS_S
from qworker.consumer.options import RunOptions
from qworker.consumer.supervisor.metrics import ChildrenCollector
from qworker.consumer.supervisor.supervisor import Supervisor
from qworker.store.connections import ConnectionFactory
from qworker.telemetry.options import LogOptions
from tests.consumer.driving import DEADLINE_S, until
from tests.consumer.workers import Lab
from tests.programs import program

APP = """
@app.task(queue="mail", retry=Retry.none())
def send(how: str) -> None:
    match how:
        case "fail":
            raise ValueError
        case "discard":
            raise Discard
        case "slow":
            time.sleep(1.1)

@app.task(queue="events", batch=10)
async def load(items: list[int]) -> None:
    await asyncio.sleep(0.01)

@app.task(queue="events")
def never() -> None: ...
"""


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Samples by name and sorted label values."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.slow
def test_a_worker_exports_what_its_children_did(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcomes, times, children, exits and leases are there after a real run, under their documented names."""
    lab.app(APP)
    for how in ("ok", "ok", "fail", "discard", "slow"):
        lab.send("send", how, queue="mail")
    lab.send_many("load", 20, queue="events")
    monkeypatch.chdir(lab.directory)
    options = RunOptions(procs=2, visibility="5s")
    supervisor = Supervisor("jobs", ConnectionFactory(lab.url), options, LogOptions())
    registry = CollectorRegistry()
    registry.register(ChildrenCollector(supervisor))
    # A scrape before anything has started is harmless.
    assert samples(generate_latest(registry).decode())["qworker_children", "running"] == 0
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    until(lambda: supervisor.totals.handled == 25)
    until(lambda: all(child.ready for child in supervisor.children))
    text = generate_latest(registry).decode()
    supervisor.stop()
    thread.join(DEADLINE_S)
    after = samples(generate_latest(registry).decode())

    seen = samples(text)
    handled = {key[1:]: value for key, value in seen.items() if key[0] == "qworker_handled_total"}
    assert {key: value for key, value in handled.items() if value} == {
        ("acked", "mail", "send"): 3,
        ("buried", "mail", "send"): 1,
        ("discarded", "mail", "send"): 1,
        ("acked", "events", "load"): 20,
    }
    assert {outcome for outcome, _, _ in handled} == {
        *("acked", "nacked", "buried", "released", "discarded", "expired", "crashed", "time_limit"),
        "cancelled",
    }
    assert seen["qworker_handler_seconds_count", "mail", "send"] == 5
    assert 1.1 <= seen["qworker_handler_seconds_sum", "mail", "send"] < 60
    assert seen["qworker_handler_seconds_bucket", "1.0", "mail", "send"] <= 4
    assert seen["qworker_handler_seconds_bucket", "60.0", "mail", "send"] == 5
    assert seen["qworker_handler_seconds_bucket", "+Inf", "mail", "send"] == 5
    buckets = [key for key in seen if key[0] == "qworker_handler_seconds_bucket" and "send" in key]
    assert len(buckets) == len(BUCKETS_S) + 1
    assert seen["qworker_wait_seconds_count", "events", "load"] == 20
    # A task that has not run is there anyway: its first failure is a step that `rate` can see.
    assert seen["qworker_handled_total", "nacked", "events", "never"] == 0
    assert seen["qworker_children", "running"] == 2
    assert seen[("qworker_running_handlers",)] == 0
    assert seen["qworker_child_exits_total", "crashed"] == 0
    assert seen[("qworker_leases_lost_total",)] == 0
    assert seen[("qworker_stale_outcomes_total",)] == 0
    assert ("qworker_lease_extensions_total",) in seen

    # What was counted does not go away with those who counted it.
    assert after["qworker_handled_total", "acked", "mail", "send"] == 3
    assert after["qworker_child_exits_total", "stopped"] == 2
    assert after["qworker_children", "running"] == 0
    check(text)


def check(text: str) -> None:
    """Have promtool look at an exposition."""
    checked = subprocess.run(
        [program("promtool"), "check", "metrics"],
        input=text,
        text=True,
        capture_output=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
