"""DBOS on PostgreSQL: workflows that run in the process that starts them, which is how DBOS is fastest.

    python -m benchmarks.peers.dbos STEPS WORKFLOWS        prints the seconds, and its CPU seconds

Where: QWORKER_BENCH_POSTGRES. It polls no queue: a workflow starts at once, in its own thread.
"""

from __future__ import annotations

import os
import sys
import time

from dbos import DBOS

_WARM_UP = 20


@DBOS.step()
def step(number: int) -> int:
    """Return what it gets."""
    return number


@DBOS.workflow()
def flow(number: int, steps: int) -> int:
    """Take steps, each with the value of the one before."""
    for _ in range(steps):
        number = step(number)
    return number


def main() -> None:
    """Start workflows, wait for all of them, and say how long that took."""
    steps, workflows = map(int, sys.argv[1:])
    DBOS(
        config={
            "name": "bench",
            "system_database_url": os.environ["QWORKER_BENCH_POSTGRES"],
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    _run(steps, _WARM_UP)
    begun, spent = time.perf_counter(), time.process_time()
    _run(steps, workflows)
    print(time.perf_counter() - begun, time.process_time() - spent)
    DBOS.destroy()


def _run(steps: int, workflows: int) -> None:
    handles = [DBOS.start_workflow(flow, number, steps) for number in range(workflows)]
    for handle in handles:
        handle.get_result()


if __name__ == "__main__":
    main()
