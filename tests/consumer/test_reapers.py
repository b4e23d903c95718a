"""A worker without a reaper of its own notices when nobody reaps."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Iterator

import pytest

from qworker.client.commands.command import Command
from qworker.client.sync import Client
from qworker.consumer.reapers import ReaperWatch
from qworker.daemon.reaper import Reaper
from qworker.store.connection import ConnectionFactory
from qworker.wire.keys import reapers_key
from tests import servers
from tests.consumer.driving import until
from tests.consumer.workers import Lab


class Clock:
    """A clock that only the test moves, in seconds."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def client(store_url: str) -> Iterator[Client]:
    """A client of the shared server."""
    with Client(ConnectionFactory(store_url), give_up_s=5.0) as made:
        yield made


def told(logs: list[dict[str, object]]) -> list[object]:
    """The events of the log, in order."""
    return [line["event"] for line in logs]


def test_tells_once_that_nobody_reaps_and_when_somebody_does(
    client: Client, namespace: str, logs: list[dict[str, object]]
) -> None:
    """Not at once, for a daemon may be starting; then every ten minutes, with what to do, until one is back."""
    clock = Clock()
    watch = ReaperWatch(client, namespace, clock=clock)
    watch.look()
    assert (watch.seen, told(logs)) == (0, [])
    for _ in range(10):
        clock.now_s += 4
        watch.look()
    (line,) = logs
    assert line["event"] == "reaper_missed"
    assert "qworker daemon" in str(line["advice"])
    clock.now_s += 600
    watch.look()
    assert told(logs) == ["reaper_missed"] * 2

    reaper = Reaper(client, namespace, name="r:1")
    reaper.tick()
    clock.now_s += 4
    watch.look()
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
    (seconds, _) = client.execute(Command(None, (), ("TIME",), list))
    for name, age_s in (("old", 50), ("older", 55)):
        at_ms = (int(seconds) - age_s) * 1000
        client.execute(Command(None, (), ("ZADD", reapers_key(namespace), at_ms, name), int))
    watch.look()
    clock.now_s += 6
    watch.look()
    assert watch.seen == 0
    assert logs[0]["last"] == "old"
    assert 50 <= float(str(logs[0]["last_seen_seconds"])) < 60


def test_looks_seldom(client: Client, namespace: str) -> None:
    """Who asks for it more often gets what was seen before."""
    clock = Clock()
    watch = ReaperWatch(client, namespace, clock=clock)
    watch.look()
    Reaper(client, namespace, name="r:1").tick()
    clock.now_s += 3.9
    watch.look()
    assert watch.seen == 0
    clock.now_s += 0.1
    watch.look()
    assert watch.seen == 1


def test_what_cannot_be_read_is_not_known(
    client: Client, namespace: str, logs: list[dict[str, object]]
) -> None:
    """A key of another type, or a server that is away, is neither a missing reaper nor a failure of the worker."""
    clock = Clock()
    watch = ReaperWatch(client, namespace, clock=clock)
    client.execute(Command(None, (), ("SET", reapers_key(namespace), "x"), bool))
    watch.look()
    assert watch.seen is None

    with servers.start("valkey") as server:
        url = server.url
    with Client(ConnectionFactory(url)) as nobody:
        away = ReaperWatch(nobody, namespace, clock=clock)
        begun = time.monotonic()
        for _ in range(3):
            away.look()
            clock.now_s += 60
        assert time.monotonic() - begun < 2
    assert away.seen is None
    assert logs == []


def test_without_the_right_to_look_it_looks_no_more(
    namespace: str, logs: list[dict[str, object]]
) -> None:
    """Users that were made for an earlier version may not read the list: told once."""
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
                watch.look()
                clock.now_s += 60
    assert watch.seen is None
    assert told(logs) == ["reapers_not_watched"]


def test_a_worker_alone_says_so(lab: Lab) -> None:
    """In its log and its metrics, while it goes on; and no more once a reaper has come by."""
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

        until(lambda: seen() == ["0.0"])
        until(lambda: worker.events("reaper_missed"))
        with Client(ConnectionFactory(lab.url)) as client:
            Reaper(client, lab.namespace).tick()
            until(lambda: worker.events("reaper_returned"))
        assert seen() == ["1.0"]
        lab.send("noop")
        until(lambda: lab.noted("ran"))


def test_a_worker_with_a_reaper_asks_nobody(lab: Lab) -> None:
    """Its own reaper's metrics tell more."""
    lab.app("@app.task\ndef noop() -> None:\n    note('ran')\n")
    with lab.worker("--procs", "1", "--metrics-port", "0") as worker:
        until(lambda: worker.events("metrics_served"))
        (served,) = worker.events("metrics_served")
        lab.send("noop")
        until(lambda: lab.noted("ran"))
        with urllib.request.urlopen(f"http://127.0.0.1:{served['port']}/metrics") as page:
            assert "\nqworker_reapers_seen " not in page.read().decode()
