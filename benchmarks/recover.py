"""recover: how long messages in flight are away when their worker is killed: its child, or the whole host."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable

import psutil

from benchmarks.apps import amarking
from benchmarks.figures import Figure, at_most, measured
from benchmarks.marks import Marks
from benchmarks.rounds import interleave
from benchmarks.stand import PAD, Background, Plan, Stand, wait_until

__all__ = ["recover"]

#: Visibility and tick by default.
_VISIBILITY_S, _TICK_S = 30, 1


def recover(plan: Plan) -> list[Figure]:
    """Measure from the kill until every message that was in flight can be received again; none may be lost."""
    contenders = {
        "child killed": lambda: _away(plan.messages, _kill_child),
        "host killed": lambda: _away(plan.messages, _kill_all),
    }
    samples = interleave(contenders, plan.rounds, plan.say)
    bounds = {"child killed": 1, "host killed": _VISIBILITY_S + _TICK_S + 1}
    return [
        *(
            measured("recover", f"{name}: back after", samples.of(name, "s"), "s", at_most(bound))
            for name, bound in bounds.items()
        ),
        *(
            measured("recover", f"{name}: lost", samples.of(name, "lost"), "messages", at_most(0))
            for name in bounds
        ),
    ]


def _kill_child(worker: Background) -> None:
    worker.family()[1].kill()


def _kill_all(worker: Background) -> None:
    # The supervisor first: it would settle for its children.
    family = worker.family()
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGSTOP)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _away(messages: int, kill: Callable[[Background], None]) -> dict[str, float]:
    with Stand() as stand, stand.qworker("daemon", "--durability", "off"):
        path = stand.directory / "marks"
        marks = Marks.create(path, messages)
        amarking.connect_with(stand.factory)
        queue, task = amarking.queue("mark"), amarking.tasks["mark"]
        task.send_many(task.call(number, PAD) for number in range(messages))
        environ = {"QWORKER_BENCH_MARKS": str(path), "QWORKER_BENCH_SLEEP_S": "600"}
        words = ("run", "benchmarks.apps:amarking", "--procs", "1", "--grace", "0")
        with stand.qworker(*words, "--concurrency", str(messages), **environ) as worker:
            wait_until(lambda: not marks.missing())
            leases = set(stand.redis.zrange(queue.keys.unacked, 0, -1))
            killed = time.monotonic()
            kill(worker)
            wait_until(
                lambda: not leases & set(stand.redis.zrange(queue.keys.unacked, 0, -1)), step_s=0.01
            )
            seconds = time.monotonic() - killed
            lost = messages - stand.stored(queue)
        amarking.close()
    return {"s": seconds, "lost": lost}
