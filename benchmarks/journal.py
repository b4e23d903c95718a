"""journal: what a journal that is on costs a drain, in batches of 100."""

from __future__ import annotations

import time
from functools import partial

from benchmarks.apps import app
from benchmarks.figures import Figure, at_most, measured
from benchmarks.rounds import interleave
from benchmarks.stand import PAD, Background, Plan, Stand, cpu_s, wait_until
from qworker.client.queue import Queue
from qworker.engine.options import QueueAttributes

__all__ = ["journal"]

_OFF = "journal off"
#: How many percent of the rate each may cost at most.
_GOALS = {"outcomes": at_most(6), "all": at_most(12)}
_BATCH = 100
_CPU = "µs/message"


def journal(plan: Plan) -> list[Figure]:
    """Measure the rates, what the scripts and the child spend on a message, and what of the rate is lost.

    One worker drains all rounds: so start-up costs and differences between workers do not count.
    """
    words = ("run", "benchmarks.apps:app", "--procs", "1", "--batch", str(_BATCH), "--no-reaper")
    with Stand() as stand:
        app.connect_with(stand.factory)
        queue = app.queue("drain")
        with stand.qworker(*words) as worker:
            contenders = {
                f"journal {mode}": partial(_drain, stand, queue, worker, plan.messages, mode)
                for mode in ("off", *_GOALS)
            }
            contenders[_OFF]()  # what is learned of the pace, and loaded for the first time
            samples = interleave(contenders, plan.rounds, plan.say)
        app.close()
    figures = []
    for name in contenders:
        figures += [
            measured("journal", name, samples.of(name, "rate"), "messages/s"),
            *(
                measured("journal", f"{name}: CPU of the {side}", samples.of(name, side), _CPU)
                for side in ("server", "child")
            ),
        ]
    off = samples.of(_OFF, "rate")
    for mode, goal in _GOALS.items():
        on = samples.of(f"journal {mode}", "rate")
        lost = [100 * (1 - with_it / without) for with_it, without in zip(on, off, strict=True)]
        figures.append(measured("journal", f"journal {mode}: cost", lost, "% of the rate", goal))
    return figures


def _drain(
    stand: Stand, queue: Queue, worker: Background, messages: int, mode: str
) -> dict[str, float]:
    queue.configure(QueueAttributes(journal=mode))
    queue.pause("out")
    task = app.tasks["noop"]
    task.send_many(task.call(number, PAD) for number in range(messages))
    acked = queue.inspect().stats.get("acked", 0)
    child_before, server_before = _children_s(worker), _script_us(stand)
    queue.resume()
    begun = time.perf_counter()

    def is_empty() -> bool:
        worker.check()
        # A plain command: a script of ours would count among those that are measured.
        return not stand.stored(queue)

    wait_until(is_empty)
    seconds = time.perf_counter() - begun
    child_s, server_us = _children_s(worker) - child_before, _script_us(stand) - server_before
    if queue.inspect().stats["acked"] - acked != messages:
        raise RuntimeError(f"{queue.inspect().stats} after {messages} messages")
    return {
        "rate": messages / seconds,
        "server": server_us / messages,
        "child": child_s / messages * 1e6,
    }


def _children_s(worker: Background) -> float:
    """CPU seconds of the children, without the supervisor."""
    return sum(cpu_s(child.pid) for child in worker.family()[1:])


def _script_us(stand: Stand) -> int:
    """Microseconds that the server has spent in scripts."""
    spent: int = stand.redis.info("commandstats").get("cmdstat_evalsha", {"usec": 0})["usec"]
    return spent
