"""limits: a rate that two processes share, beside limiters of BullMQ and Dramatiq: is it kept, and what it costs."""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.figures import Figure, at_least, at_most, gave_up, measured
from benchmarks.marks import Marks
from benchmarks.peers.catalog import PEERS
from benchmarks.peers.environment import ROOT, cache_folder, python_of
from benchmarks.rounds import ContenderError, interleave
from benchmarks.stand import PAD, Background, Plan, Stand, wait_until
from qworker import QWorker

__all__ = ["limits"]

#: Starts a second that all contenders are limited to.
_RATE: Final = 100
_BULLMQ: Final = ("bullmq@6.7.0", "ioredis@6.0.0")
_OURS, _NODE, _DRAMATIQ = "qworker", "BullMQ", "dramatiq"
_PEERS: Final = Path(__file__).parent / "peers" / "limited"
_LIMIT_S: Final = 120.0


def limits(plan: Plan) -> list[Figure]:
    """Measure the rate, the most starts in a second and in ten, and what the server spends on a message that waits.

    All messages are stored before the two processes start, with eight handlers at a time each that do nothing.
    """
    contenders: dict[str, Callable[[], dict[str, float]]] = {_OURS: lambda: _ours(plan.messages)}
    if plan.peers:
        contenders[_NODE] = lambda: _theirs(plan, _node_words(plan.say))
    if _DRAMATIQ in plan.peers:
        contenders[_DRAMATIQ] = lambda: _theirs(plan, _dramatiq_words(plan.say))
    samples = interleave(contenders, plan.rounds, plan.say)
    goals = {
        ("rate", "starts/s"): at_least(0.98 * _RATE),
        ("most_1s", "starts"): None,
        ("most_10s", "starts"): at_most(1.05 * 10 * _RATE),
        ("cpu_us", "µs/message"): None,
        ("commands", "commands/message"): None,
    }
    figures = [
        measured("limits", f"{name}: {measure}", samples.of(name, measure), unit, goal)
        if name == _OURS
        else measured("limits", f"{name}: {measure}", samples.of(name, measure), unit)
        for (measure, unit), goal in goals.items()
        for name in samples.having(measure)
    ]
    return [*figures, *gave_up("limits", samples.gave_up)]


def _ours(jobs: int) -> dict[str, float]:
    app = QWorker("bench")

    @app.task(name="mark", queue="mark", limit_key="api")
    def mark(number: int, pad: str) -> None: ...

    with Stand() as stand:
        app.connect_with(stand.factory)
        app.queue("mark").set_limit("api/", rate=f"{_RATE}/s")
        marks = Marks.create(stand.directory / "marks", jobs)
        mark.send_many(mark.call(number, PAD) for number in range(jobs))
        before = stand.spent()
        environ = {"QWORKER_BENCH_MARKS": str(stand.directory / "marks")}
        words = ("run", "benchmarks.apps:marking", "--procs", "2", "--concurrency", "8")
        with stand.qworker(*words, **environ):
            wait_until(lambda: not marks.missing(), limit_s=_LIMIT_S, step_s=0.1)
            spent = stand.spent() - before
        app.close()
        return {**_kept(marks.times()), **spent.per(jobs)}


def _theirs(plan: Plan, words: tuple[list[str], dict[str, str]]) -> dict[str, float]:
    command, environ = words
    with Stand() as stand:
        marks = Marks.create(stand.directory / "marks", plan.messages)
        given = dict(
            os.environ,
            **environ,
            PYTHONPATH=str(ROOT),
            QWORKER_BENCH_URL=stand.url,
            QWORKER_BENCH_MARKS=str(stand.directory / "marks"),
            QWORKER_BENCH_RATE=str(_RATE),
        )
        sent = subprocess.run(
            [*command, "send", str(plan.messages)],
            env=given, cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if sent.returncode:
            raise ContenderError(f"sending failed: {sent.stderr.strip()[:400]}")
        before = stand.spent()
        with contextlib.ExitStack() as stack:
            workers = [stack.enter_context(_worker(stand, command, given, n)) for n in range(2)]

            def is_done() -> bool:
                for worker in workers:
                    worker.check()
                return not marks.missing()

            try:
                wait_until(is_done, limit_s=_LIMIT_S, step_s=0.1)
            except (TimeoutError, RuntimeError) as error:
                raise ContenderError(f"{marks.missing()} jobs did not start: {error}") from error
            spent = stand.spent() - before
        return {**_kept(marks.times()), **spent.per(plan.messages)}


@contextmanager
def _worker(
    stand: Stand, command: list[str], environ: dict[str, str], number: int
) -> Iterator[Background]:
    log = stand.directory / f"limited-{number}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "work"], env=environ, cwd=ROOT, stdout=out, stderr=out
        )
    running = Background(process, log)
    try:
        yield running
    finally:
        for each in running.family() if process.poll() is None else []:
            with contextlib.suppress(Exception):
                each.kill()
        process.wait()


def _kept(times: list[float]) -> dict[str, float]:
    times = sorted(times)
    return {
        "rate": (len(times) - 1) / (times[-1] - times[0]),
        "most_1s": _most_within(times, 1.0),
        "most_10s": _most_within(times, 10.0),
    }


def _most_within(times: list[float], seconds: float) -> float:
    return float(
        max(bisect.bisect_left(times, at + seconds) - first for first, at in enumerate(times))
    )


def _dramatiq_words(say: Callable[[str], None]) -> tuple[list[str], dict[str, str]]:
    python = python_of(PEERS["dramatiq"], say)
    return [str(python), "-m", "benchmarks.peers.limited.dramatiq_limited"], {}


def _node_words(say: Callable[[str], None]) -> tuple[list[str], dict[str, str]]:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise ContenderError("node or npm is not installed")
    place = cache_folder() / f"bullmq-{hashlib.sha256(' '.join(_BULLMQ).encode()).hexdigest()[:12]}"
    if not (place / "installed").exists():
        say(f"installing {', '.join(_BULLMQ)} into {place}")
        place.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [npm, "install", "--prefix", str(place), "--ignore-scripts", "--no-audit", *_BULLMQ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise ContenderError(f"npm install failed: {done.stderr.strip()[-400:]}")
        (place / "installed").touch()
    return [node, str(_PEERS / "bullmq.cjs")], {"NODE_PATH": str(place / "node_modules")}
