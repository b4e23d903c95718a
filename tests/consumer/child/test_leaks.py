"""Threads and processes that handlers leave behind are reported."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from qworker.consumer.board.board import Board
from qworker.consumer.child.process.leaks import Leaks
from tests.consumer.driving import until
from tests.consumer.workers import Lab
from tests.timing import Clock


@pytest.fixture
def board() -> Iterator[Board]:
    """A board for two handlers."""
    board = Board.create(2)
    yield board
    board.close()


@pytest.fixture
def left() -> Iterator[threading.Event]:
    """What threads of a test wait for."""
    ended = threading.Event()
    yield ended
    ended.set()


def leave(ended: threading.Event, name: str) -> None:
    """Begin a thread that stays until the test is over."""
    threading.Thread(target=ended.wait, name=name).start()


def seen(logs: list[dict[str, object]]) -> list[tuple[object, object, object]]:
    """What was reported: threads, processes, and the names of threads."""
    return [
        (line["threads"], line["processes"], line["names"])
        for line in logs
        if line["event"] == "handler_left_behind"
    ]


def test_leaks_are_reported_when_they_grow(
    board: Board, left: threading.Event, logs: list[dict[str, object]]
) -> None:
    """At the second look that finds it; not again while it has not grown."""
    leave(left, "of the app")
    clock = Clock()
    leaks = Leaks(board, clock=clock)

    def look(times: int = 1) -> None:
        for _ in range(times):
            clock.now_s += 30
            leaks.check()

    look(2)
    leave(left, "first")
    leave(left, "qworker-handler-7")
    leave(left, "asyncio_0")
    leave(left, "uvloop_0")
    look()
    assert seen(logs) == []
    look(3)
    assert seen(logs) == [(1, 0, ["first"])]
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        look(3)
        assert seen(logs)[1:] == [(1, 1, ["first"])]
        assert logs[-1]["pids"] == [process.pid]
    finally:
        process.communicate()
    look(3)
    assert len(seen(logs)) == 2


def test_what_a_running_handler_began_is_its_own(
    board: Board, left: threading.Event, logs: list[dict[str, object]]
) -> None:
    """However long it runs; left behind it is when those that run now have begun since."""
    clock = Clock()
    leaks = Leaks(board, clock=clock)
    board.running.begin(0, 0, 0, 0, clock.now_s, 0.0)
    leave(left, "helper")
    for _ in range(5):
        clock.now_s += 30
        leaks.check()
    assert seen(logs) == []
    board.running.end(0)
    board.running.begin(1, 0, 0, 0, clock.now_s + 1, 0.0)
    clock.now_s += 30
    leaks.check()
    assert seen(logs) == [(1, 0, ["helper"])]


def test_a_zombie_process_is_not_counted(board: Board, logs: list[dict[str, object]]) -> None:
    """`subprocess` collects it when the next one is begun."""
    clock = Clock()
    leaks = Leaks(board, clock=clock)
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    for _ in range(3):
        clock.now_s += 30
        leaks.check()
    process.wait()
    assert seen(logs) == []


@pytest.mark.slow
def test_a_worker_reports_leaks_of_its_children(lab: Lab) -> None:
    """In the log, with the names of threads; the child continues, and stops on request."""
    lab.app("""
import qworker.consumer.child.process.leaks
qworker.consumer.child.process.leaks.EVERY_S = 0.1

@app.task
def leave() -> None:
    threading.Thread(target=time.sleep, args=(600,), name="left alone").start()

@app.task
def handle() -> None:
    note("handled")
""")
    lab.send("leave")
    with lab.worker() as worker:
        until(lambda: worker.events("handler_left_behind"))
        lab.send("handle")
        until(lambda: lab.notes("handled"))
        assert worker.stop() == 0
    (line,) = worker.events("handler_left_behind")
    assert (line["threads"], line["processes"], line["names"]) == (1, 0, ["left alone"])
