"""start: from the start of a worker to its first handled message, and what an idle child takes."""

from __future__ import annotations

import time

from benchmarks.apps import marking
from benchmarks.figures import Figure, at_most, measured
from benchmarks.marks import Marks
from benchmarks.rounds import interleave
from benchmarks.stand import NAMESPACE, PAD, Plan, Stand, wait_until

__all__ = ["start"]


def start(plan: Plan) -> list[Figure]:
    """Measure with the server up and the message there; `messages` of the plan count for nothing."""
    samples = interleave({"qworker": _ours}, plan.rounds, plan.say)
    first, memory = samples.of("qworker", "first_s"), samples.of("qworker", "rss_mb")
    return [
        measured("start", "to the first handled message", first, "s", at_most(0.4)),
        measured("start", "RSS of an idle child", memory, "MB", at_most(45)),
    ]


def _ours() -> dict[str, float]:
    with Stand() as stand:
        path = stand.directory / "marks"
        marks = Marks.create(path, 1)
        marking.connect_with(stand.factory)
        marking.tasks["mark"].send(0, PAD)
        marking.close()
        environ = {
            "QWORKER_URL": stand.url,
            "QWORKER_NAMESPACE": NAMESPACE,
            "QWORKER_BENCH_MARKS": str(path),
        }
        words = ("run", "benchmarks.apps:marking", "--procs", "1", "--metrics-port", "0")
        begun = time.monotonic()
        with stand.start("qworker", *words, **environ) as worker:
            wait_until(lambda: not marks.missing(), step_s=0.002)
            first_s = marks.times()[0] - begun
            time.sleep(0.5)
            child = worker.family()[1]
            return {"first_s": first_s, "rss_mb": child.memory_info().rss / 1e6}
