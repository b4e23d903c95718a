"""The loop: how long it waits, and what it does about a pass that fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from qworker.daemon.loop import ReaperLoop, pause_after
from qworker.daemon.reaper import Reaper
from qworker.daemon.tick import Tick
from qworker.errors import UnavailableError
from tests.daemon.conftest import events
from tests.lua.drive import NOW, Drive
from tests.tables import each
from tests.timing import Clock

NOTHING = Tick(queues=1, now_ms=NOW)


def due_in(ms: int, **changes: Any) -> Tick:
    """A tick after which something is due in this many ms."""
    return replace(NOTHING, next_wake_ms=NOW + ms, **changes)


@each(
    "tick, jitter, pause_s",
    [
        (NOTHING, 0.0, 1.0),
        (NOTHING, 1.0, 0.85),
        (due_in(400), 0.0, 0.4),
        (due_in(400), 1.0, 0.4),
        (due_in(5000), 0.0, 1.0),
        # What the pass itself took has gone by already.
        (due_in(400, elapsed_s=0.1), 0.0, 0.3),
        # Never sooner than 20 ms, and never more than a fifth of the time spent looking.
        (due_in(1), 0.0, 0.02),
        (due_in(1, sweep_s=0.05), 0.0, 0.2),
        (due_in(1, sweep_s=0.9, elapsed_s=0.9), 0.0, 1.0),
        # Several reapers spread.
        (due_in(400, reapers=3), 0.0, 0.4),
        (due_in(400, reapers=3), 1.0, 0.41),
        (due_in(400, reapers=1000), 1.0, 0.5),
        (due_in(1, more=True), 0.5, 0.0),
    ],
)
def test_waits_for_the_tick_or_the_next_due_time(tick: Tick, jitter: float, pause_s: float) -> None:
    """The pause is a tick, shortened by jitter, or until the next thing is due; none while there is work."""
    assert pause_after(tick, 1.0, jitter) == pytest.approx(pause_s)


class Passes:
    """A reaper with given passes: ticks, or errors to raise."""

    tick_ms = 1000

    def __init__(self, *passes: Tick | Exception) -> None:
        self.passes = list(passes)
        self.stopped = False

    def tick(self) -> Tick:
        made = self.passes.pop(0)
        if isinstance(made, Exception):
            raise made
        return made

    def stop(self) -> None:
        self.stopped = True


def run(passes: Passes, clock: Clock, **options: Any) -> list[float]:
    """Run a loop until its passes are used up; returns its pauses."""
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock.now_s += seconds
        if not passes.passes:
            loop.stop()

    loop = ReaperLoop(passes, sleep=sleep, clock=clock, **options)  # type: ignore[arg-type]
    loop.run()
    return pauses


def test_failed_pass_is_logged_counted_and_retried(
    clock: Clock, logs: list[dict[str, Any]]
) -> None:
    """Failed passes back off with doubling pauses up to two seconds; the first one that succeeds ends that."""
    reported: list[Tick | None] = []
    down = [UnavailableError("down") for _ in range(8)]
    pauses = run(Passes(*down, NOTHING), clock, after=reported.append)
    assert reported == [None] * 8 + [NOTHING]
    for pause_s, longest_s in zip(pauses, [0.1, 0.2, 0.4, 0.8, 1.6, 2, 2, 2], strict=False):
        assert longest_s / 2 <= pause_s <= longest_s
    first, *_ = events(logs, "tick_failed")
    assert first["log_level"] == "error"
    assert (first["error"], first["problem"]) == ("UnavailableError", "down")
    assert "exc_info" not in first
    assert first["next_step"].startswith("it tries again every 2 s")
    # The same error is reported every ten seconds only.
    assert len(events(logs, "tick_failed")) == 1
    (recovered,) = events(logs, "tick_recovered")
    assert recovered["failed"] == 8
    assert recovered["after_s"] == pytest.approx(sum(pauses[:8]), abs=0.01)


def test_defect_in_a_pass_does_not_end_the_loop(clock: Clock, logs: list[dict[str, Any]]) -> None:
    """An exception that is not an error of ours is logged with its traceback, and the loop continues."""
    run(Passes(KeyError("defect"), NOTHING), clock)
    (line,) = events(logs, "tick_failed")
    assert line["exc_info"]
    assert "next_step" not in line


def test_no_pause_while_there_is_work(clock: Clock) -> None:
    """A pass that leaves work behind is followed by the next one at once."""
    more = replace(NOTHING, more=True)
    assert len(run(Passes(more, more, more, NOTHING), clock)) == 1


def test_what_comes_before_the_first_pass_is_tried_until_it_succeeds(clock: Clock) -> None:
    """A preparation that raises counts as a failed pass and is repeated; then it is done for good."""
    calls: list[int] = []

    def before() -> None:
        calls.append(1)
        if len(calls) < 3:
            raise UnavailableError("down")

    reported: list[Tick | None] = []
    run(Passes(NOTHING, NOTHING), clock, before=before, after=reported.append)
    assert len(calls) == 3
    assert reported == [None, None, NOTHING, NOTHING]


def test_stop_during_the_preparation_makes_no_pass(clock: Clock) -> None:
    """A loop that is stopped before its first pass makes none."""
    passes = Passes(NOTHING)
    loop = ReaperLoop(passes, before=lambda: loop.stop(), clock=clock)  # type: ignore[arg-type]
    loop.run()
    assert passes.passes == [NOTHING]
    assert passes.stopped


def test_stop_ends_a_wait_at_once() -> None:
    """A loop that waits for its tick ends at once when it is stopped."""
    passed = threading.Event()
    reaper = SimpleNamespace(tick_ms=60_000, tick=lambda: replace(NOTHING), stop=lambda: None)
    loop = ReaperLoop(reaper, after=lambda _: passed.set())  # type: ignore[arg-type]
    thread = threading.Thread(target=loop.run)
    thread.start()
    assert passed.wait(60)
    loop.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_tells_how_long_ago_the_last_pass_was(clock: Clock) -> None:
    """The age counts from the end of a pass, failed ones included; before the first there is none."""
    loop = ReaperLoop(Passes(NOTHING), sleep=lambda _: loop.stop(), clock=clock)  # type: ignore[arg-type]
    assert loop.age_s() is None
    loop.run()
    clock.now_s += 7
    assert loop.age_s() == 7


def test_sleeps_until_the_next_message_is_due(
    client: Any, namespace: str, open_queue: Callable[..., Drive]
) -> None:
    """A loop over a real queue asks to sleep until the message that is due next, not for a whole tick."""
    queue = open_queue("a")
    queue.redis.hdel(queue.keys.meta, "test")
    now_ms = Reaper(client, namespace).tick().now_ms
    queue.redis.hset(queue.keys.meta, "test", 1)
    queue.send("m", at=now_ms, delay_ms=20_000)
    pauses: list[float] = []
    loop = ReaperLoop(
        Reaper(client, namespace, tick_ms=60_000),
        sleep=lambda seconds: (pauses.append(seconds), loop.stop()),
    )
    loop.run()
    assert 15 < pauses[0] < 20.1


@pytest.mark.parametrize(
    "change",
    [
        {"promoted": 1}, {"ended": 1}, {"leases": 1}, {"messages": 1}, {"set_aside": 1}, {"trimmed": 1},
        {"pruned": 1}, {"fired": {("q", "t"): 1}}, {"skipped": 1}, {"broken": {"q"}}, {"errors": 1},
        {"more": True},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_a_pass_is_logged_if_it_did_something(
    change: dict[str, Any], clock: Clock, logs: list[dict[str, object]]
) -> None:
    """A reaper at rest, which passes every second, writes no line."""
    idle = due_in(5000, reapers=3, queues=7, sweep_s=0.1, elapsed_s=0.2)
    run(Passes(idle, replace(idle, **change), idle), clock)

    (line,) = events(logs, "tick_done")
    assert next(iter(change)) in line
