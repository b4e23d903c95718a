"""What `qworker doctor` looks at. Each check yields findings; none changes anything.

ok        nothing to do
warning   works, and somebody should look at it by day
problem   messages are lost, stuck or refused: now
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from qworker.cli.attributes import read_attributes
from qworker.cli.formats import count, safe, size, span
from qworker.cli.inspections import OVERDUE_S, is_full, overdue_s
from qworker.cli.presence import read_reapers, read_workers
from qworker.client.commands.upkeep import Inspection
from qworker.errors import QworkerError

if TYPE_CHECKING:
    from qworker.cli.presence import Worker
    from qworker.cli.session import Session

__all__ = ["Finding", "Status", "examine"]

_SLOW_MS: Final = 50.0
_SKEW_S: Final = 2.0
#: Part of maxmemory from which a server counts as nearly full.
_NEARLY_FULL: Final = 0.9
_NAMED: Final = 5
#: Part of a journal's cap that a reader may leave unread.
_NEARLY_UNREAD: Final = 0.5


class Status(Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: a sentence, and what to do next ('' for ok)."""

    check: str
    status: Status
    text: str
    fix: str = ""

    def document(self) -> dict[str, Any]:
        """Write it for programs."""
        return {**asdict(self), "status": self.status.value}


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
    yield from _queues(session, workers)


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
    try:
        info = _info(session.ask("INFO", "memory"))
    except QworkerError:
        return  # Forbidden by the ACL; durability has said so.
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if not most:
        yield Finding("memory", Status.OK, f"{size(used)} used, without a limit")
        return
    text = f"{size(used)} of {size(most)} used ({used / most:.0%})"
    if used < _NEARLY_FULL * most:
        yield Finding("memory", Status.OK, text)
        return
    yield Finding(
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
    gone = [each for each in workers if each.is_gone]
    if gone:
        names = [f"{each.name} ({span(each.age_ms / 1000)} ago)" for each in gone]
        yield Finding(
            "workers.gone",
            Status.WARNING,
            f"{count(len(gone))} went silent: {_listed(names)}",
            "see their hosts; what they had in hand comes back after its visibility timeout",
        )


def _queues(session: Session, workers: list[Worker]) -> Iterator[Finding]:
    inspected = session.inspect(session.queues())
    if not inspected:
        yield Finding("queues", Status.OK, session.empty_hint())
        return
    found = {name: each for name, each in inspected.items() if isinstance(each, Inspection)}
    for name, each in inspected.items():
        if not isinstance(each, Inspection):
            yield Finding(
                f"queue.{name}",
                Status.PROBLEM,
                f"broken: key {each.key} holds a {each.found}, so nothing is sent, received or reaped",
                f"look at that key, then RENAME or DEL it in redis-cli; the rest of {name} is untouched",
            )
    yield from _overdue(found)
    yield from _closed(found)
    yield from _journals(session, found)
    yield from _alone(found, workers)
    dead = {name: each.dead for name, each in found.items() if each.dead}
    if dead:
        worst = max(dead, key=lambda name: dead[name])
        yield Finding(
            "dead",
            Status.WARNING,
            _listed([f"{name} {number:,}" for name, number in _largest(dead)]),
            f"qworker dead ls {worst} says why; then qworker dead redrive or drop",
        )
    if not any(each.dead or each.paused or overdue_s(each) > OVERDUE_S for each in found.values()):
        ready = sum(each.ready for each in found.values())
        yield Finding(
            "queues", Status.OK, f"{count(len(found))} with {count(ready, 'ready message')} in all"
        )


def _overdue(found: Mapping[str, Inspection]) -> Iterator[Finding]:
    late = {name: overdue_s(each) for name, each in found.items() if overdue_s(each) > OVERDUE_S}
    if late:
        yield Finding(
            "overdue",
            Status.PROBLEM,
            "messages that are due or timed out are not moved: "
            + _listed([f"{name} by {span(seconds)}" for name, seconds in _largest(late)]),
            "see reapers above; if they are alive, read their log for tick_failed",
        )


def _closed(found: Mapping[str, Inspection]) -> Iterator[Finding]:
    paused = [f"{name} ({each.paused})" for name, each in found.items() if each.paused]
    if paused:
        first = paused[0].partition(" ")[0]
        yield Finding("paused", Status.WARNING, _listed(paused), f"qworker queue resume {first}")
    full = [name for name, each in found.items() if is_full(each)]
    if full:
        yield Finding(
            "full",
            Status.PROBLEM,
            f"{_listed(full)}: what is sent is refused (maxlen)",
            f"add workers, or qworker queue set {full[0]} maxlen=N",
        )


def _journals(session: Session, found: Mapping[str, Inspection]) -> Iterator[Finding]:
    on = {name: each for name, each in found.items() if each.journal != "off"}
    if not on:
        return
    shed = [name for name, each in on.items() if each.journal_shed]
    if shed:
        yield Finding(
            "journal.shed",
            Status.WARNING,
            f"not written while the server is nearly full: {_listed(shed)}; what happens now will be missing",
            "add workers to drain the queues (qworker queue ls), or raise maxmemory",
        )
    behind: dict[str, float] = {}
    lost: dict[str, float] = {}
    for name, each in on.items():
        cap = next(at.value for at in read_attributes(each.meta) if at.name == "journal-cap")
        for lag in session.queue(name).reader_lags():
            reader = f"{lag.reader.name} of {name}"
            if lag.missed:
                lost[reader] = lag.missed
            if lag.unread_bytes >= _NEARLY_UNREAD * cap:
                behind[reader] = lag.unread_bytes / cap
    if lost:
        yield Finding(
            "journal.missed",
            Status.PROBLEM,
            "readers have missed entries that were trimmed before they came by: "
            + _listed([f"{reader} {number:,}" for reader, number in _largest(lost)]),
            "let the reader run more often, or qworker queue set QUEUE journal-cap=SIZE",
        )
    if behind:
        yield Finding(
            "journal.unread",
            Status.WARNING,
            "readers are about to miss entries; unread, as a part of the cap: "
            + _listed([f"{reader} {part:.0%}" for reader, part in _largest(behind)]),
            "start the reader (qworker spark archive), or qworker queue set QUEUE journal-cap=SIZE",
        )
    if not (shed or lost or behind):
        size_of_all = sum(each.journal_bytes for each in on.values())
        yield Finding(
            "journal", Status.OK, f"written of {count(len(on), 'queue')}, {size(size_of_all)}"
        )


def _alone(found: Mapping[str, Inspection], workers: list[Worker]) -> Iterator[Finding]:
    served = {queue for worker in workers if not worker.is_gone for queue in worker.queues}
    alone = {name: each.ready for name, each in found.items() if each.ready and name not in served}
    if alone:
        worst, _ = next(iter(_largest(alone)))
        yield Finding(
            "unserved",
            Status.WARNING,
            "messages are ready and no worker takes them: "
            + _listed([f"{name} {number:,}" for name, number in _largest(alone)]),
            f"qworker run MODULE --queues {worst}; or was the queue's name mistyped where it is sent?",
        )


def _largest(numbers: Mapping[str, float]) -> list[tuple[str, Any]]:
    return sorted(numbers.items(), key=lambda pair: -pair[1])


def _listed(parts: list[str]) -> str:
    more = f" and {len(parts) - _NAMED} more" if len(parts) > _NAMED else ""
    return safe(", ".join(parts[:_NAMED])) + more


def _info(reply: bytes) -> dict[str, str]:
    lines = reply.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)
