"""What `qworker doctor` looks at. Each check yields findings; none changes anything."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING, Final

from qworker.cli.finding import Finding, Status, listed
from qworker.cli.formats import count, size, span
from qworker.cli.presence import read_reapers, read_workers
from qworker.cli.queue_checks import check_queues
from qworker.cli.schedule_checks import check_schedules
from qworker.errors import QworkerError

if TYPE_CHECKING:
    from qworker.cli.presence import Worker
    from qworker.cli.session import Session

__all__ = ["examine"]

_SLOW_MS: Final = 50.0
_SKEW_S: Final = 2.0
#: Handlers that have run for so long are named.
_LONG_RUN_S: Final = 180.0
#: Part of maxmemory from which a server counts as nearly full.
_NEARLY_FULL: Final = 0.9


def examine(session: Session) -> Iterator[Finding]:
    """Run all checks; where the server does not answer, that is the last one."""
    try:
        yield from _server(session)
    except QworkerError as error:
        yield Finding(
            "server", Status.PROBLEM, str(error), f"the URL is {session.url} (qworker config show)"
        )
        return
    now_ms = session.now_ms()
    yield from _clock(now_ms)
    yield from _durability(session)
    yield from _memory(session)
    yield from _reapers(session, now_ms)
    workers = read_workers(session, now_ms)
    yield from _workers(workers)
    yield from check_queues(session, workers)
    yield from check_schedules(session, workers)


def _server(session: Session) -> Iterator[Finding]:
    from qworker.daemon.durability import inspect_server

    session.ask("PING")
    answers_ms = []
    for _ in range(5):
        started = time.perf_counter()
        session.ask("PING")
        answers_ms.append((time.perf_counter() - started) * 1000)
    found, answer_ms = inspect_server(session.client), median(answers_ms)
    text = (
        f"{found.engine} {found.version} at {session.server.address} answers in {answer_ms:.2f} ms"
    )
    if answer_ms > _SLOW_MS:
        yield Finding(
            "server",
            Status.WARNING,
            f"{text}, which is slow",
            "look at the network between here and there, and at the server's SLOWLOG",
        )
    else:
        yield Finding("server", Status.OK, text)


def _clock(now_ms: int) -> Iterator[Finding]:
    skew_s = time.time() - now_ms / 1000
    if abs(skew_s) > _SKEW_S:
        direction = "ahead of" if skew_s > 0 else "behind"
        yield Finding(
            "clock",
            Status.WARNING,
            f"the clock of this host is {span(abs(skew_s))} {direction} the server's",
            "queues go by the server's clock; set both hosts right (NTP) so that logs agree",
        )
    else:
        yield Finding("clock", Status.OK, f"agrees with the server's within {span(_SKEW_S)}")


def _durability(session: Session) -> Iterator[Finding]:
    from qworker.daemon.durability import Grade, inspect_server

    findings = inspect_server(session.client).findings
    for each in findings:
        status = Status.PROBLEM if each.grade is Grade.LOSS else Status.WARNING
        fix = f"set in the server's configuration: {each.setting}" if each.setting else ""
        yield Finding(f"durability.{each.name}", status, each.problem, fix)
    if not findings:
        yield Finding("durability", Status.OK, "what the server accepts survives its crash")


def _memory(session: Session) -> Iterator[Finding]:
    nodes = session.client.factory.masters()
    for node in nodes:
        try:
            info = _info(session.ask("INFO", "memory", node=node))
        except QworkerError:
            continue  # Forbidden by the ACL; durability has said so.
        yield _memory_of(info, f" at {node}" if len(nodes) > 1 else "")


def _memory_of(info: dict[str, str], where: str) -> Finding:
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if not most:
        return Finding("memory", Status.OK, f"{size(used)} used{where}, without a limit")
    text = f"{size(used)} of {size(most)} used{where} ({used / most:.0%})"
    if used < _NEARLY_FULL * most:
        return Finding("memory", Status.OK, text)
    return Finding(
        "memory",
        Status.PROBLEM if used >= most else Status.WARNING,
        f"{text}: a full server refuses what is sent",
        "add workers to drain the queues (qworker queue ls), or raise maxmemory",
    )


def _reapers(session: Session, now_ms: int) -> Iterator[Finding]:
    reapers = read_reapers(session, now_ms)
    alive = [each for each in reapers if not each.is_gone]
    if alive:
        latest = f"the latest seen {span(alive[0].age_ms / 1000)} ago"
        yield Finding("reapers", Status.OK, f"{count(len(alive))} alive, {latest}")
        return
    last = (
        f"; the last one, {reapers[0].name}, was seen {span(reapers[0].age_ms / 1000)} ago"
        if reapers
        else ""
    )
    yield Finding(
        "reapers",
        Status.PROBLEM,
        f"none is alive: delayed and timed-out messages stay where they are, schedules do not fire{last}",
        "start one: qworker daemon (qworker run carries one, unless --no-reaper)",
    )


def _workers(workers: list[Worker]) -> Iterator[Finding]:
    alive = [each for each in workers if not each.is_gone]
    children = sum(len(each.children) for each in alive)
    if alive:
        text = f"{count(len(alive))} alive with {count(children, 'child', 'children')}"
        yield Finding("workers", Status.OK, text)
    else:
        yield Finding(
            "workers",
            Status.WARNING,
            "none is alive: nothing is handled",
            "start one: qworker run MODULE",
        )
    yield from _long_runs(alive)
    gone = [each for each in workers if each.is_gone]
    if gone:
        names = [f"{each.name} ({span(each.age_ms / 1000)} ago)" for each in gone]
        yield Finding(
            "workers.gone",
            Status.WARNING,
            f"{count(len(gone))} went silent: {listed(names)}",
            "see their hosts; what they had in hand comes back after its visibility timeout",
        )


def _info(reply: bytes) -> dict[str, str]:
    lines = reply.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _long_runs(workers: list[Worker]) -> Iterator[Finding]:
    """Name handlers that have run for minutes: it may be their work, or a hang."""
    running = sorted(
        (each for worker in workers for each in worker.running if each.seconds >= _LONG_RUN_S),
        key=lambda each: -each.seconds,
    )
    if running:
        words = [f"{each.task} for {span(int(each.seconds))} in {each.worker}" for each in running]
        text = f"handlers that run for minutes: {listed(words)}; qworker worker stack shows where"
        yield Finding("workers.handlers", Status.OK, text)
