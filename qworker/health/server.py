"""All checks of `qworker doctor`, and those on the server, reapers and workers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING, Final

from qworker.client.inspect.foreign_keys import find_foreign
from qworker.client.namespace.workers import read_reapers, read_workers
from qworker.engine.raw import server_info
from qworker.errors import QworkerError
from qworker.formats import count, size, span
from qworker.health.finding import FIX_BROKEN, LONG_RUN_S, Finding, Status, listed
from qworker.health.passed_over import not_made, unless_broken
from qworker.health.queues import check_queues
from qworker.health.schedules import check_schedules
from qworker.wire.keys import namespace_types

if TYPE_CHECKING:
    from qworker.client.namespace.workers import Worker
    from qworker.daemon.memory import MemoryUse
    from qworker.health.access import NamespaceAccess

__all__ = ["examine"]

_SLOW_MS: Final = 50.0
_SKEW_S: Final = 2.0


def examine(access: NamespaceAccess) -> Iterator[Finding]:
    """Run all checks; end after the first one if the server does not answer, or serves no writes."""
    try:
        server = list(_server(access))
    except QworkerError as error:
        yield Finding(
            "server", Status.PROBLEM, str(error), f"the URL is {access.url} (qworker config show)"
        )
        return
    yield from server
    if any(finding.status is Status.PROBLEM for finding in server):
        return
    found = []
    for finding in _of_namespace(access):
        found.append(finding.text)
        yield finding
    yield from _foreign(access, found)


def _of_namespace(access: NamespaceAccess) -> Iterator[Finding]:
    now_ms, clustered = access.now_ms(), access.client.factory.clustered
    yield from _clock(now_ms)
    yield from unless_broken("durability", _durability(access), clustered=clustered)
    yield from _memory(access)
    yield from unless_broken("reapers", _reapers(access, now_ms), clustered=clustered)
    found = _known_workers(access, now_ms)
    workers = found if isinstance(found, list) else None
    if isinstance(found, Finding):
        yield found
    else:
        yield from _workers(found)
    yield from unless_broken("queues", check_queues(access, workers), clustered=clustered)
    if workers is not None:
        yield from unless_broken("schedules", check_schedules(access, workers), clustered=clustered)


def _foreign(access: NamespaceAccess, found: Sequence[str]) -> Iterator[Finding]:
    """Name keys of the namespace with another type; `found`: what was said already."""
    for error in find_foreign(access.client, namespace_types(access.namespace)):
        if not any(repr(error.key) in text for text in found):
            yield Finding("key", Status.PROBLEM, str(error), FIX_BROKEN)


def _known_workers(access: NamespaceAccess, now_ms: int) -> list[Worker] | Finding:
    """Read the workers, or say why they cannot be read."""
    try:
        return read_workers(access, now_ms)
    except QworkerError as error:
        finding = not_made("workers", error, clustered=access.client.factory.clustered)
        if finding is None:
            raise
        return finding


def _server(access: NamespaceAccess) -> Iterator[Finding]:
    from qworker.daemon.durability import inspect_server

    access.ask("PING")
    answers_ms = []
    for _ in range(5):
        started = time.perf_counter()
        access.ask("PING")
        answers_ms.append((time.perf_counter() - started) * 1000)
    server, answer_ms = inspect_server(access.client), median(answers_ms)
    text = (
        f"{server.engine} {server.version} at {access.server.address} answers in {answer_ms:.2f} ms"
    )
    replica = next((node for node in server.nodes if node.info.get("role") == "slave"), None)
    if replica is not None and replica.info.get("slave_read_only") != "0":
        master = f"{replica.info.get('master_host')}:{replica.info.get('master_port')}"
        yield Finding(
            "server",
            Status.PROBLEM,
            f"{server.engine} {server.version} at {access.server.address} is a replica of {master}: "
            "it refuses sends, receives and acks",
            "put the master into the URL, or the Sentinels: redis+sentinel:// (QWORKER_URL)",
        )
    elif answer_ms > _SLOW_MS:
        yield Finding(
            "server",
            Status.WARNING,
            f"{text}, which is slow",
            "check the network between here and the server, and the server's SLOWLOG",
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
            "queues use the server's clock; synchronise both hosts (NTP) so that logs agree",
        )
    else:
        yield Finding("clock", Status.OK, f"within {span(_SKEW_S)} of the server's")


def _durability(access: NamespaceAccess) -> Iterator[Finding]:
    from qworker.daemon.durability import Grade, inspect_server

    findings = inspect_server(access.client).findings
    for finding in findings:
        status = Status.PROBLEM if finding.grade is Grade.LOSS else Status.WARNING
        fix = f"set in the server's configuration: {finding.setting}" if finding.setting else ""
        yield Finding(f"durability.{finding.name}", status, finding.problem, fix)
    if not findings:
        yield Finding("durability", Status.OK, "accepted messages survive a crash of the server")


def _memory(access: NamespaceAccess) -> Iterator[Finding]:
    from qworker.daemon.memory import MemoryUse

    nodes = access.client.factory.masters()
    for node in nodes:
        try:
            info = access.client.execute(server_info("memory", "errorstats", node=node))
        except QworkerError:
            continue  # Forbidden by the ACL; durability reports that.
        yield _memory_of(MemoryUse.of(node, info), f" at {node}" if len(nodes) > 1 else "")


def _memory_of(use: MemoryUse, at_node: str) -> Finding:
    from qworker.daemon.memory import NEARLY_FULL

    if use.ratio is None:
        return Finding(
            "memory", Status.OK, f"{size(use.used_bytes)} used{at_node}, without a limit"
        )
    text = f"{size(use.used_bytes)} of {size(use.limit_bytes)} used{at_node} ({use.ratio:.0%})"
    if use.ratio < NEARLY_FULL:
        return Finding("memory", Status.OK, text)
    refused = f"; it has refused {count(use.refused, 'call')}" if use.refused else ""
    return Finding(
        "memory",
        Status.PROBLEM if use.full else Status.WARNING,
        f"{text}: a full server refuses sends{refused}",
        "add workers to drain the queues (qworker queue ls), drop dead letters (qworker dead ls), or raise maxmemory",
    )


def _reapers(access: NamespaceAccess, now_ms: int) -> Iterator[Finding]:
    reapers = read_reapers(access, now_ms)
    alive = [reaper for reaper in reapers if not reaper.is_gone]
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
    alive = [worker for worker in workers if not worker.is_gone]
    children = sum(len(worker.described.children) for worker in alive)
    if alive:
        text = f"{count(len(alive))} alive with {count(children, 'child', 'children')}"
        yield Finding("workers", Status.OK, text)
    else:
        yield Finding(
            "workers",
            Status.WARNING,
            "none is alive: no message is handled",
            "start one: qworker run MODULE",
        )
    yield from _long_runs(alive)
    gone = [worker for worker in workers if worker.is_gone]
    if gone:
        names = [f"{worker.name} ({span(worker.age_ms / 1000)} ago)" for worker in gone]
        yield Finding(
            "workers.gone",
            Status.WARNING,
            f"{count(len(gone))} went silent: {listed(names)}",
            "check their hosts; their messages come back after their visibility timeout",
        )


def _long_runs(workers: list[Worker]) -> Iterator[Finding]:
    """Name handlers that have run for minutes: they may be working, or hang."""
    running = sorted(
        (run for worker in workers for run in worker.running if run.seconds >= LONG_RUN_S),
        key=lambda run: -run.seconds,
    )
    if running:
        named = [f"{run.task} for {span(int(run.seconds))} in {run.worker}" for run in running]
        text = (
            f"handlers that have run for minutes: {listed(named)}; qworker worker stack shows where"
        )
        yield Finding("workers.handlers", Status.OK, text)
