"""Clocks that jump under a running queue, and hosts and processes that look like others."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker
from qworker.client.message import Message
from qworker.client.queue import Queue
from qworker.consumer.supervisor.operators.presence import WorkerPresence
from qworker.daemon.presence import reaper_name
from qworker.daemon.reaper import Reaper
from qworker.fsck.check import check
from qworker.wire import codec
from qworker.wire.ids import IdSource
from tests.consumer.driving import until
from tests.servers import missing
from verification.faults import system
from verification.faults.server import FaultServer

HOUR_S = 3600
DAY_S = 24 * HOUR_S
#: So long a tick that no step of a test is a gap, other than a jump of the clock.
TICK_MS = 60_000


@dataclass(frozen=True)
class Timed:
    """A queue on a server whose clock the test sets, with a message in each state, and a reaper."""

    app: QWorker
    queue: Queue
    reaper: Reaper
    clock: system.ClockShim
    #: Received by a consumer that continues; for a minute.
    held: Message

    def set_clock(self, offset_s: float) -> None:
        """Let the server's clock be so far off, from now on; it keeps the time that it read last for a moment."""
        self.clock.shift(offset_s)
        until(lambda: abs(self.queue.inspect().now_ms / 1000 - time.time() - offset_s) < 1)

    def received(self) -> list[Message]:
        """Receive what is ready, and then the message that lost its worker, which comes alone."""
        return self.queue.receive(9) + self.queue.receive(9)

    @property
    def bodies(self) -> list[str]:
        """The messages that wait or are received, wherever they stand."""
        states = ("ready", "delayed", "unacked")
        return sorted(
            codec.decode(message.body)
            for state in states
            for message in self.queue.peek(9, state=state)
        )

    @property
    def sound(self) -> bool:
        """Whether fsck finds nothing."""
        return list(check(self.app.client, self.app.namespace)) == []


@pytest.fixture
def timed(namespace: str, tmp_path: Path) -> Iterator[Timed]:
    """One held message, one whose consumer is lost, one due in 10 s, one in 2 days."""
    if reason := system.clock_reason():
        missing(reason)
    clock = system.ClockShim(tmp_path / "clock")
    with FaultServer(environ=clock.environ) as server:
        app = QWorker(namespace, url=server.url)
        queue = app.queue("default")
        queue.send_many([b'"held"', b'"lost"'])
        (held,) = queue.receive(1, visibility="1m")
        queue.receive(1, visibility="10s")
        queue.send("due", delay="10s")
        queue.send("later", delay="2d")
        reaper = Reaper(app.client, namespace, tick_ms=TICK_MS)
        reaper.tick()
        yield Timed(app, queue, reaper, clock, held)
        reaper.close()
        app.close()


ALL = ["due", "held", "later", "lost"]


@pytest.mark.bad_input("time or host: clock back an hour within a pass")
@pytest.mark.slow
def test_a_clock_that_goes_back_an_hour_within_a_pass_only_delays(
    timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the moves: nothing moves by a time that is over, nothing is lost, all comes in the end."""
    timed.set_clock(30)
    _before(monkeypatch, timed, "promote", lambda: timed.set_clock(-HOUR_S))
    tick = timed.reaper.tick()
    assert (tick.leases, tick.promoted, tick.errors) == (0, 0, 0)
    assert timed.bodies == ALL
    assert timed.sound

    timed.set_clock(40)
    assert timed.reaper.tick().leases == 0  # grace: consumers that live extend first
    timed.queue.extend(timed.held, "1m")
    timed.set_clock(50)
    assert timed.reaper.tick().leases == 1
    assert [message.json() for message in timed.received()] == ["due", "lost"]
    assert timed.bodies == ALL


@pytest.mark.bad_input("time or host: clock forward a day")
@pytest.mark.slow
def test_a_clock_that_goes_forward_a_day_takes_nothing_from_a_consumer_that_lives(
    timed: Timed,
) -> None:
    """It has its grace to extend its lease, and keeps it; what was lost comes back; nothing is lost on the way back."""
    timed.set_clock(DAY_S)
    tick = timed.reaper.tick()
    assert (tick.leases, tick.promoted) == (0, 1)
    held = timed.queue.extend(timed.held, "1m")
    timed.set_clock(DAY_S + 10)
    assert timed.reaper.tick().leases == 1
    timed.queue.ack(held)
    assert timed.bodies == ["due", "later", "lost"]

    timed.set_clock(0)
    tick = timed.reaper.tick()
    assert (tick.leases, tick.errors) == (0, 0)
    assert timed.sound
    received = timed.received()
    assert [message.json() for message in received] == ["due", "lost"]
    for message in received:
        timed.queue.ack(message)
    assert timed.bodies == ["later"]


@pytest.mark.bad_input("time or host: unique key with a ttl, clock forward and back")
@pytest.mark.slow
def test_a_clock_that_goes_forward_and_back_lets_no_two_of_a_unique_key_run(timed: Timed) -> None:
    """What has expired meanwhile stays so if another has its key; a key that a running message has stays its own."""
    queue = timed.queue
    running_id = queue.send("running", unique="running", ttl="1m", priority=9)
    (running,) = queue.receive(1, visibility="1h")
    queue.send("expired", unique="waiting", ttl="1m")
    forgotten_id = queue.send("forgotten", unique="forgotten", ttl="1m")

    timed.set_clock(HOUR_S / 2)
    assert queue.send("beside", unique="running") == running_id
    later_id = queue.send("later one", unique="waiting")
    queue.send("last", unique="waiting", ttl="1m")

    timed.set_clock(0)
    assert [message.json() for message in queue.receive(9)] == ["forgotten", "later one"]
    assert queue.send("beside", unique="running") == running_id
    assert queue.send("beside", unique="waiting") == later_id
    assert queue.send("beside", unique="forgotten") == forgotten_id
    queue.ack(running)
    assert queue.send("after it", unique="running") != running_id
    assert timed.sound


def _before(
    monkeypatch: pytest.MonkeyPatch, timed: Timed, script: str, do: Callable[[], None]
) -> None:
    """Do something before a script is called for the first time."""
    execute, done = timed.app.client.execute, []

    def first(command: Any, **options: Any) -> Any:
        if not done and command.script is not None and command.script.name == script:
            done.append(do())
        return execute(command, **options)

    monkeypatch.setattr(timed.app.client, "execute", first)


@pytest.mark.bad_input(
    "time or host: pid used again", "time or host: cloned container, forked process"
)
def test_workers_and_reapers_of_one_host_and_pid_are_kept_apart(
    app: QWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers of one image share host name and pid: names, message ids and leases are drawn for each process."""
    monkeypatch.setattr(socket, "gethostname", lambda: "web")
    monkeypatch.setattr(os, "getpid", lambda: 1)
    one, other = (WorkerPresence(app.client, app.namespace, "app").name for _ in range(2))
    assert one != other
    assert one.startswith("web-1-")
    assert len({reaper_name() for _ in range(20)}) > 1
    sources = IdSource(), IdSource()
    assert len({source.message_id()[:10] for source in sources}) == 2
    assert len({source.lease_id().partition("-")[0] for source in sources}) == 2
