"""A worker without its own reaper notices when there is no reaper."""

from __future__ import annotations

import os
import re
import urllib.request

import pytest

from qworker.client.execute.sync import Client
from qworker.consumer.supervisor.operators.reapers import ReaperWatch
from qworker.daemon.reaper import Reaper
from qworker.engine.raw import raw
from qworker.store.connections import ConnectionFactory
from qworker.wire.keys import reapers_key
from tests import servers
from tests.consumer.driving import until
from tests.consumer.workers import Lab
from tests.timing import Clock, Watch


def logged(logs: list[dict[str, object]]) -> list[object]:
    """The events of the log, in order."""
    return [line["event"] for line in logs]


def test_warns_once_without_a_reaper_and_again_when_one_is_back(
    client: Client, namespace: str, logs: list[dict[str, object]]
) -> None:
    """Not at once, for a daemon may be starting; then every ten minutes, with what to do, until one is back."""
    clock = Clock()
    watch = ReaperWatch(client, namespace, clock=clock)
    watch.check()
    assert (watch.seen, logged(logs)) == (0, [])
    for _ in range(10):
        clock.now_s += 4
        watch.check()
    (line,) = logs
    assert line["event"] == "reaper_missed"
    assert "qworker daemon" in str(line["advice"])
    clock.now_s += 600
    watch.check()
    assert logged(logs) == ["reaper_missed"] * 2

    reaper = Reaper(client, namespace, name="r:1")
    reaper.tick()
    clock.now_s += 4
    watch.check()
    assert (watch.seen, logs[2:]) == (
        1,
        [{"event": "reaper_returned", "reaper": "r:1", "log_level": "info"}],
    )


def test_one_that_has_not_come_by_lately_is_gone(
    client: Client, namespace: str, logs: list[dict[str, object]]
) -> None:
    """Killed reapers stay on the list; their age tells, by the server's clock. The one seen last is named."""
    clock = Clock()
    watch = ReaperWatch(client, namespace, clock=clock)
    (seconds, _) = client.execute(raw("TIME", decode=list))
    for name, age_s in (("old", 50), ("older", 55)):
        at_ms = (int(seconds) - age_s) * 1000
        client.execute(raw("ZADD", reapers_key(namespace), at_ms, name, decode=int))
    watch.check()
    clock.now_s += 6
    watch.check()
    assert watch.seen == 0
    assert logs[0]["last"] == "old"
    assert 50 <= float(str(logs[0]["last_seen_seconds"])) < 60


def test_reads_reapers_at_most_every_four_seconds(client: Client, namespace: str) -> None:
    """A check within four seconds of the last one reuses its result."""
    clock = Clock()
    watch = ReaperWatch(client, namespace, clock=clock)
    watch.check()
    Reaper(client, namespace, name="r:1").tick()
    clock.now_s += 3.9
    watch.check()
    assert watch.seen == 0
    clock.now_s += 0.1
    watch.check()
    assert watch.seen == 1


def test_what_cannot_be_read_is_not_known(
    client: Client, namespace: str, logs: list[dict[str, object]]
) -> None:
    """A key of another type, or a server that is away, is neither a missing reaper nor a failure of the worker."""
    clock = Clock()
    watch = ReaperWatch(client, namespace, clock=clock)
    client.execute(raw("SET", reapers_key(namespace), "x", decode=bool))
    watch.check()
    assert watch.seen is None

    with servers.start("valkey") as server:
        url = server.url
    with Client(ConnectionFactory(url)) as nobody:
        away = ReaperWatch(nobody, namespace, clock=clock)
        passed = Watch(os.getpid())
        for _ in range(3):
            away.check()
            clock.now_s += 60
        assert passed.passed_s() < 10  # a settle would try for 20 s
    assert away.seen is None
    assert logs == []


def test_stops_reading_without_the_right_to_read(
    namespace: str, logs: list[dict[str, object]]
) -> None:
    """Users that were made for an earlier version may not read the list: reported once."""
    clock = Clock()
    with servers.start("valkey") as server:
        with server.redis() as redis:
            redis.acl_setuser(
                "old", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all", "-zrevrange"]
            )
        url = f"unix://old:pw@{server.socket}"
        with Client(ConnectionFactory(url)) as client:
            watch = ReaperWatch(client, namespace, clock=clock)
            for _ in range(3):
                watch.check()
                clock.now_s += 60
    assert watch.seen is None
    assert logged(logs) == ["reapers_not_watched"]


@pytest.mark.slow
def test_a_worker_alone_says_so(lab: Lab) -> None:
    """In its log and its metrics, while it continues; and no more once a reaper has passed."""
    lab.app("@app.task\ndef noop() -> None:\n    note('ran')\n")
    with lab.worker("--no-reaper", "--procs", "1", "--metrics-port", "0") as worker:
        until(lambda: worker.events("metrics_served"))
        (served,) = worker.events("metrics_served")

        def seen() -> list[str]:
            url = f"http://127.0.0.1:{served['port']}/metrics"
            with urllib.request.urlopen(url) as page:
                return re.findall(
                    r"^qworker_reapers_seen (\S+)", page.read().decode(), re.MULTILINE
                )

        until(lambda: worker.events("reaper_missed"))
        until(lambda: seen() == ["0.0"], every_s=0.2)
        with Client(ConnectionFactory(lab.url)) as client:
            Reaper(client, lab.namespace).tick()
            until(lambda: worker.events("reaper_returned"))
        assert seen() == ["1.0"]
        lab.send("noop")
        until(lambda: lab.noted("ran"))


@pytest.mark.slow
def test_a_worker_with_a_reaper_does_not_check_for_others(lab: Lab) -> None:
    """Its own reaper's metrics tell more."""
    lab.app("@app.task\ndef noop() -> None:\n    note('ran')\n")
    with lab.worker("--procs", "1", "--metrics-port", "0") as worker:
        until(lambda: worker.events("metrics_served"))
        (served,) = worker.events("metrics_served")
        lab.send("noop")
        until(lambda: lab.noted("ran"))
        with urllib.request.urlopen(f"http://127.0.0.1:{served['port']}/metrics") as page:
            assert "\nqworker_reapers_seen " not in page.read().decode()


@pytest.mark.slow
def test_labels_of_queues_can_be_left_to_others(lab: Lab) -> None:
    """Each worker with a reaper exports all queues: with 0 it tells of them together."""
    lab.app("@app.task\ndef noop() -> None:\n    note('ran')\n")
    lab.send("noop")
    with lab.worker("--metrics-queues", "0") as worker:
        until(lambda: worker.events("metrics_served"))
        (served,) = worker.events("metrics_served")

        def labels() -> list[str]:
            with urllib.request.urlopen(f"http://127.0.0.1:{served['port']}/metrics") as page:
                return re.findall('qworker_sent_total{queue="(.*)"} 1.0', page.read().decode())

        until(labels, every_s=0.1)
        assert labels() == ["__other__"]
