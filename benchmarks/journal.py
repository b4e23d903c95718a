"""journal: what a journal that is on costs a drain, in batches of 100."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.apps import app
from benchmarks.rounds import Contender, environment, run_rounds, table
from benchmarks.stand import PAD, Background, Stand, cpu_s, wait_until
from qworker.client.options import QueueAttributes
from qworker.client.queue import Queue

__all__ = ["journal"]

_MODES = ("off", "outcomes", "all")
_BATCH = 100


@dataclass
class _Costs:
    """Microseconds of CPU per message, a value per round: the scripts in the server, and the child."""

    server: list[float] = field(default_factory=list)
    child: list[float] = field(default_factory=list)


def journal(messages: int, rounds: int, say: Callable[[str], None]) -> dict[str, object]:
    """Measure; returns one JSON object with a row per mode, and the ratios to the journal that is off.

    One worker drains all rounds: what it costs to start one, and which one it is, falls on nobody.
    """
    costs = {mode: _Costs() for mode in _MODES}
    words = ("run", "benchmarks.apps:app", "--procs", "1", "--batch", str(_BATCH), "--no-reaper")
    with Stand() as stand:
        app.connect_with(stand.factory)
        queue = app.queue("drain")
        with stand.qworker(*words) as worker:
            contenders = [
                Contender(
                    f"journal {mode}",
                    "at least once",
                    lambda mode=mode: _drain(  # type: ignore[misc]
                        stand, queue, worker, messages, mode, costs[mode]
                    ),
                )
                for mode in _MODES
            ]
            contenders[0].run()  # what is learned of the pace, and loaded for the first time
            costs[_MODES[0]] = _Costs()
            run_rounds(contenders, rounds, say)
        off = contenders[0].median
        return {
            "benchmark": "journal",
            "messages": messages,
            "rounds": rounds,
            "batch": _BATCH,
            "server": f"{stand.engine.name} {stand.engine.version}",
            "environment": environment(),
            "rows": table(contenders, contenders[0].name),
            "ratios": {
                mode: round(each.median / off, 3)
                for mode, each in zip(_MODES, contenders, strict=True)
            },
            "cpu_us_per_message": {
                mode: {
                    "server": round(statistics.median(each.server), 3),
                    "child": round(statistics.median(each.child), 3),
                }
                for mode, each in costs.items()
            },
        }


def _drain(
    stand: Stand, queue: Queue, worker: Background, messages: int, mode: str, costs: _Costs
) -> float:
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
    costs.child.append((_children_s(worker) - child_before) / messages * 1e6)
    costs.server.append((_script_us(stand) - server_before) / messages)
    if queue.inspect().stats["acked"] - acked != messages:
        raise RuntimeError(f"{queue.inspect().stats} after {messages} messages")
    return messages / seconds


def _children_s(worker: Background) -> float:
    """CPU seconds of the children, without the supervisor."""
    return sum(cpu_s(each.pid) for each in worker.family()[1:])


def _script_us(stand: Stand) -> int:
    """Microseconds that the server has spent in scripts."""
    spent: int = stand.redis.info("commandstats").get("cmdstat_evalsha", {"usec": 0})["usec"]
    return spent
