"""Running a peer: its worker and its senders as processes in its environment, timed by the marks of its jobs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.marks import Marks
from benchmarks.peers.catalog import PEERS, Peer
from benchmarks.peers.environment import ROOT, python_of
from benchmarks.rounds import ContenderError, Samples
from benchmarks.stand import Background, Plan, Stand, wait_until

__all__ = ["WARM_UP", "Contest", "acking", "best_acking", "idle_times", "life", "rivals", "waiting"]

#: Jobs that a worker runs before anything is timed.
WARM_UP = 64
_START_S = 40.0
_WORK_S = 60.0
#: What peers need for these after the last job has started.
_LAST_ACKS_S = 0.3


def rivals(plan: Plan) -> list[Peer]:
    """List the peers that a plan names."""
    return [PEERS[name] for name in plan.peers]


def acking(plan: Plan, samples: Samples, measure: str) -> list[str]:
    """Name the peers with acks that have a measure: what we compare ourselves with."""
    names = {peer.name for peer in rivals(plan) if peer.acks}
    return [name for name in samples.having(measure) if name in names]


def best_acking(plan: Plan, samples: Samples, measure: str) -> str | None:
    """Name the peer with acks that has the highest value of a measure; None without any."""
    names = acking(plan, samples, measure)
    return max(names, key=lambda name: max(samples.of(name, measure)), default=None)


class Contest:
    """One peer on one stand: `jobs` are numbered from 0, the first 64 of them warm it up."""

    def __init__(self, peer: Peer, plan: Plan, stand: Stand, jobs: int, **environ: str) -> None:
        self.peer, self.stand, self.jobs = peer, stand, jobs
        self.marks = Marks.create(stand.directory / "marks", WARM_UP + jobs)
        self._python = str(python_of(peer, plan.say))
        self._environ = dict(
            os.environ,
            PYTHONPATH=str(ROOT),
            QWORKER_BENCH_URL=stand.url,
            QWORKER_BENCH_MARKS=str(stand.directory / "marks"),
            **environ,
        )

    @contextmanager
    def workers(self, count: int = 1) -> Iterator[list[Background]]:
        """Run workers, warmed up, until the context ends."""
        with contextlib.ExitStack() as stack:
            running = [stack.enter_context(self._worker(number)) for number in range(count)]
            self.send("send", 0, WARM_UP)
            self.wait(0, WARM_UP, _START_S, running)
            yield running

    def send(self, role: str, first: int, count: int, *words: str) -> list[float]:
        """Send jobs with the driver; returns the numbers that it prints."""
        done = subprocess.run(
            [*self._driver(), role, str(first), str(count), *words],
            cwd=ROOT,
            env=self._environ,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ContenderError(f"sending failed: {done.stderr.strip()[-600:]}")
        return [float(word) for word in done.stdout.split() if word != "none"]

    def measured(self, role: str = "send") -> float:
        """Send the jobs after the warm-up; returns the seconds, 0 where the peer has no such call."""
        seconds = self.send(role, WARM_UP, self.jobs)
        return seconds[0] if seconds else 0.0

    def wait(self, first: int, count: int, limit_s: float, workers: list[Background]) -> None:
        """Wait until jobs have started. Raises `ContenderError` if some do not."""

        def done() -> bool:
            for worker in workers:
                worker.check()
            return not self.marks.times(first)[:count].count(0.0)

        try:
            wait_until(done, limit_s=limit_s, step_s=0.02)
        except (TimeoutError, RuntimeError) as error:
            missing = self.marks.times(first)[:count].count(0.0)
            raise ContenderError(f"{missing} of {count} jobs did not start: {error}") from error

    def finish(self, workers: list[Background]) -> list[float]:
        """Wait for the jobs after the warm-up; returns when they started."""
        self.wait(WARM_UP, self.jobs, _WORK_S, workers)
        return self.marks.times(WARM_UP)

    def _driver(self) -> list[str]:
        return [self._python, "-m", "benchmarks.peers.driver", self.peer.name]

    @contextmanager
    def _worker(self, number: int) -> Iterator[Background]:
        log = self.stand.directory / f"{self.peer.name}-{number}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*self._driver(), "work"], cwd=ROOT, env=self._environ, stdout=out, stderr=out
            )
        running = Background(process, log)
        try:
            yield running
        finally:
            family = running.family() if process.poll() is None else []
            for each in family:
                with contextlib.suppress(Exception):
                    each.kill()
            process.wait()


def life(peer: Peer, plan: Plan, procs: int = 1, **environ: str) -> dict[str, float]:
    """Fill the queue while the worker is frozen, then let it work.

    Returns the rates of sending and of working, and what the server spent on each message, sending included.
    """
    jobs = min(peer.jobs, plan.messages)
    with Stand() as stand:
        contest = Contest(peer, plan, stand, jobs, **environ)
        with contest.workers(procs) as workers:
            for worker in workers:
                worker.signal(signal.SIGSTOP)
            before = stand.spent()
            sent_s = contest.measured()
            for worker in workers:
                worker.signal(signal.SIGCONT)
            times = contest.finish(workers)
            time.sleep(_LAST_ACKS_S)
            spent = stand.spent() - before
    rate = (jobs - 1) / (max(times) - min(times))
    return {"rate": rate, "send_rate": jobs / sent_s, **spent.per(jobs)}


def idle_times(peer: Peer, plan: Plan, jobs: int, pause_s: float) -> list[float]:
    """Send jobs one by one to an idle worker; returns the seconds from before each send to its start."""
    with Stand() as stand:
        contest = Contest(peer, plan, stand, jobs)
        with contest.workers() as workers:
            sent = contest.send("pace", WARM_UP, jobs, str(pause_s))
            started = contest.finish(workers)
    return [start - begun for start, begun in zip(started, sent, strict=True)]


def waiting(
    peer: Peer, plan: Plan, sleep_s: float, at_once: int, procs: int = 1
) -> dict[str, float]:
    """Let workers run this many jobs at once each that wait.

    Returns the rate at which they start, and what the server spent on each from then on: sending not included.
    """
    environ = {"QWORKER_BENCH_SLEEP_S": str(sleep_s), "QWORKER_BENCH_CONCURRENCY": str(at_once)}
    jobs = min(peer.jobs, plan.messages)
    with Stand() as stand:
        contest = Contest(peer, plan, stand, jobs, **environ)
        with contest.workers(procs) as workers:
            for worker in workers:
                worker.signal(signal.SIGSTOP)
            contest.measured()
            before = stand.spent()
            for worker in workers:
                worker.signal(signal.SIGCONT)
            contest.finish(workers)
            time.sleep(_LAST_ACKS_S)
            spent = stand.spent() - before
    return {"rate": contest.marks.steady_rate(procs * at_once, WARM_UP), **spent.per(jobs)}
