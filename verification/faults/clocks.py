"""Faults of time: the server's clock jumps and drifts, clients' clocks are wrong by a day."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from verification.faults import system
from verification.faults.consumers import AFTER_GAP, KILLED, nothing
from verification.faults.load import Load
from verification.faults.producer import Sending
from verification.faults.row import Row, at_least, at_most, within
from verification.faults.server import FaultServer
from verification.faults.stage import Stage

__all__ = ["ROWS"]

_HOUR_S = 3600.0


def a_lying_server(stack: ExitStack, directory: Path) -> FaultServer:
    """Make a server whose clock can be set."""
    clock = system.ClockShim(directory / "clock")
    server = FaultServer(environ=clock.environ)
    server.clock = clock
    return server


def jump(*offsets_s: float) -> Callable[[Stage], None]:
    """Let the server's clock jump from one offset to the next, a few seconds each; then a worker is killed.

    The jumps themselves explain no second delivery: one without a lost process is unexplained.
    """

    def course(stage: Stage) -> None:
        clock = stage.server.clock
        assert clock is not None
        for offset_s in offsets_s:
            time.sleep(2.0)
            clock.shift(offset_s)
            stage.add("jumps", 1)
            stage.server_returned()
        stage.kill_worker()
        nothing(stage)

    return course


def drift(stage: Stage) -> None:
    """Let the server's clock run fast by 50 ms a second."""
    clock = stage.server.clock
    assert clock is not None
    offset_s = 0.0
    for _ in stage.goes_on(0.1):
        offset_s += 0.005
        clock.shift(offset_s)
        stage.add("drift_s", 0.005)


def wrong_clients(stage: Stage) -> None:
    """Let one worker's clock be a day ahead, and a producer's a day behind."""
    for sign, start in ((1, stage.worker), (-1, stage.produce)):
        clock = system.ClockShim(stage.directory / f"clock{sign}")
        clock.shift(sign * 24 * _HOUR_S)
        stage.environ = clock.environ
        start()
    stage.environ = {}
    nothing(stage)
    waits = stage.waits_s()
    stage.measured["soonest_s"] = round(waits[0], 2)
    stage.measured["latest_s"] = round(waits[-1], 2)


#: No lease is taken from a living worker, and messages of a worker killed after the jump are back after the grace.
JUMPED = (at_least("jumps", 2), at_least("gaps", 1), at_most("unexplained", 0), AFTER_GAP)

ROWS = [
    Row(
        name="F38",
        fault="the server's clock goes back by an hour, and forward again",
        course=jump(-_HOUR_S, 0.0),
        server=a_lying_server,
        needs=system.clock_reason,
        load=Load(sending=KILLED, fewest=2),
        bounds=JUMPED,
        seconds=10,
    ),
    Row(
        name="F38b",
        fault="the server's clock goes forward by two hours, and by a day",
        course=jump(2 * _HOUR_S, 24 * _HOUR_S),
        server=a_lying_server,
        needs=system.clock_reason,
        load=Load(sending=KILLED, fewest=2),
        bounds=JUMPED,
        seconds=10,
    ),
    Row(
        name="F38c",
        fault="the server's clock runs fast by 50 ms a second",
        course=drift,
        server=a_lying_server,
        needs=system.clock_reason,
        bounds=(at_least("drift_s", 0.1), at_most("duplicates", 0)),
        seconds=10,
    ),
    Row(
        name="F39",
        fault="a worker's clock is a day ahead, a producer's a day behind",
        course=wrong_clients,
        load=Load(sending=Sending(options={"delay": "1s"}, mixed=False, rate=200, naps=0)),
        needs=system.clock_reason,
        bounds=(at_most("duplicates", 0), at_least("soonest_s", 0.9), within("latest_s", 3.0)),
        seconds=10,
    ),
]
