"""A day of operation in minutes: is memory flat?

What is accelerated is work, not clocks: messages and passes of the reaper come as fast as the machine allows, and the
report says how much of a day each comes to. What grows per message, per pass, per lane or per connection is seen so;
what grows by the hour alone is not, but for what the reaper prunes by age, which has its own tests.
"""

from __future__ import annotations

import math
import random
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from verification.faults.load import Load
from verification.faults.producer import Sending
from verification.faults.server import FaultServer
from verification.faults.stage import Stage

__all__ = ["Slope", "slope_of", "soak"]

#: What a busy day is taken to be: messages, and passes of a reaper that ticks every second.
DAY_MESSAGES = 1_000_000
DAY_TICKS = 86_400
#: What may be gained in such a day at most, of the mean size.
MAX_GAINED = 0.05
_EVERY_S = 1.0
#: The start is left out: pools fill, interpreters warm up, the AOF is rewritten once.
_WARM = 0.3


@dataclass(frozen=True)
class Slope:
    """A line through samples, bytes per second, with the half width of its 95 % interval; `mean` in bytes.

    `most_per_s`: from the smallest sample to the largest in the whole time. Memory that grows in a few steps and then
    no more makes the interval wide, but more than that was not gained.
    """

    per_s: float
    margin: float
    mean: float
    most_per_s: float

    def gains(self, seconds: float) -> float:
        """What is gained in a time at most, as a share of the mean: by the interval's upper end, or by the most."""
        upper = min(self.per_s + self.margin, self.most_per_s)
        return max(0.0, upper) * seconds / self.mean

    def verdict(self, seconds: float) -> str:
        """Say `flat` where it is known that hardly anything is gained in this time.

        `grows` where that is known, `unsure` where the samples are too few or too uneven to tell.
        """
        if self.gains(seconds) < MAX_GAINED:
            return "flat"
        return "grows" if self.per_s > self.margin else "unsure"


def slope_of(samples: Sequence[tuple[float, float]]) -> Slope:
    """Fit a line by least squares through (seconds, bytes). Neighbours are alike, so the margin is widened for that."""
    n = len(samples)
    mean_x = sum(x for x, _ in samples) / n
    mean_y = sum(y for _, y in samples) / n
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread
    rests = [y - mean_y - slope * (x - mean_x) for x, y in samples]
    square = sum(rest * rest for rest in rests)
    sizes = [y for _, y in samples]
    most_per_s = (max(sizes) - min(sizes)) / (samples[-1][0] - samples[0][0])
    if not square:
        return Slope(slope, 0.0, mean_y, most_per_s)
    # The effective number of samples, from how much each rest says of the next one.
    along = sum(a * b for a, b in pairwise(rests)) / square
    effective = max(3.0, n * (1 - max(0.0, along)) / (1 + max(0.0, along)))
    margin = 1.96 * math.sqrt(square / (effective - 2) / (spread * effective / n))
    return Slope(slope, margin, mean_y, most_per_s)


def soak(seconds: float, seed: int) -> dict[str, Any]:
    """Run the load for this long and return the report; `passed` says whether all memory is known to be flat."""
    load = Load(
        producers=2,
        workers=1,
        procs=2,
        daemons=1,
        tick_s=0.01,
        visibility="10s",
        journal="all",
        sending=Sending(rate=5000, chunk=100, naps=0.001, nap_ms=1),
    )
    samples: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="qworker-soak-") as name, FaultServer() as server:
        directory = Path(name)
        with Stage(server, directory, load, seconds=seconds, chance=random.Random(seed)) as stage:
            # A journal of its smallest size is full soon: what is measured is its cap.
            stage.queue().change(journal_cap=2**20)
            stage.begin()
            begun, ticks = time.monotonic(), 0
            for _ in stage.goes_on(_EVERY_S):
                _sample(stage, time.monotonic() - begun, samples)
                _trim_histories(directory / "history")
            took_s = time.monotonic() - begun
            acked = stage.acked
            ticks = sum(_ticks(stage, daemon.process.pid) for daemon in stage.daemons)
            stage.stop_producers()
            stage.drain()
    return _report(samples, took_s, acked, ticks, seed)


def _sample(stage: Stage, at: float, samples: dict[str, list[tuple[float, float]]]) -> None:
    client: Any = stage.server.redis()
    info = client.info("memory")
    client.close()
    sizes = {"redis used": info["used_memory"], "redis rss": info["used_memory_rss"]}
    pids = {f"daemon {n}": daemon.process.pid for n, daemon in enumerate(stage.daemons)}
    for n, worker in enumerate(stage.workers):
        pids[f"supervisor {n}"] = worker.process.pid
        pids |= {f"child {n}.{at}": pid for at, pid in enumerate(sorted(worker.children()))}
    for role, pid in pids.items():
        sizes[role] = psutil.Process(pid).memory_info().rss
    for role, size in sizes.items():
        samples.setdefault(role, []).append((at, size))


def _trim_histories(directory: Path) -> None:
    """Forget the notes: they are not read here, and the disk is not measured."""
    for path in directory.glob("*.history"):
        if path.stat().st_size > 64 << 20:
            with path.open("r+b") as file:
                file.truncate(0)


def _ticks(stage: Stage, pid: int) -> int:
    """Passes of a daemon, by its own counter."""
    (daemon,) = (each for each in stage.daemons if each.process.pid == pid)
    port = daemon.events("metrics_served")[0]["port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        for line in response.read().decode().splitlines():
            if line.startswith("qworker_reaper_ticks_total"):
                return int(float(line.rpartition(" ")[2]))
    return 0


def _report(
    samples: dict[str, list[tuple[float, float]]],
    took_s: float,
    acked: int,
    ticks: int,
    seed: int,
) -> dict[str, Any]:
    # The time in which a day's messages come, and in which a daemon makes a day's passes.
    messages_s, ticks_s = took_s * DAY_MESSAGES / max(1, acked), took_s * DAY_TICKS / max(1, ticks)
    rows = []
    for role, points in samples.items():
        late = [point for point in points if point[0] >= _WARM * took_s]
        slope = slope_of(late)
        day_s = max(messages_s, ticks_s) if role.startswith("daemon") else messages_s
        rows.append(
            {
                "process": role,
                "mean_mb": round(slope.mean / 2**20, 2),
                "slope_kb_per_min": round(slope.per_s * 60 / 1024, 2),
                "margin_kb_per_min": round(slope.margin * 60 / 1024, 2),
                "samples": len(late),
                "series_mb": [round(y / 2**20, 2) for _, y in points[:: max(1, len(points) // 12)]],
                "day_percent": round(100 * slope.gains(day_s), 2),
                "verdict": slope.verdict(day_s),
            }
        )
    return {
        "passed": all(row["verdict"] == "flat" for row in rows),
        "seconds": round(took_s, 1),
        "messages": acked,
        "days_of_messages": round(acked / DAY_MESSAGES, 3),
        "ticks": ticks,
        "days_of_ticks": round(ticks / DAY_TICKS, 3),
        "seed": seed,
        "rows": rows,
    }


def print_soak(report: dict[str, Any]) -> None:
    """Say how it went."""
    print(
        f"{report['messages']:,} messages ({report['days_of_messages']:g} days of {DAY_MESSAGES:,}), "
        f"{report['ticks']:,} passes of the reaper ({report['days_of_ticks']:g} days of one a second), "
        f"in {report['seconds']:.0f} s"
    )
    for row in report["rows"]:
        print(
            f"  {row['process']:14} {row['mean_mb']:>8.2f} MB, {row['slope_kb_per_min']:>+9.2f} "
            f"± {row['margin_kb_per_min']:.2f} KB/min (95 %), a day {row['day_percent']:g} % at most: "
            f"{row['verdict']}"
        )
        print(f"    {' '.join(f'{size:g}' for size in row['series_mb'])}")
    print("passed" if report["passed"] else "FAILED", flush=True)
