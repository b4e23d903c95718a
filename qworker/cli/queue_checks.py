"""What `qworker doctor` looks at in the queues. Each check yields findings; none changes anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from qworker.cli.attributes import read_attributes
from qworker.cli.finding import Finding, Status, largest, listed
from qworker.cli.formats import count, size, span
from qworker.cli.inspections import OVERDUE_S, is_full, overdue_s
from qworker.cli.unknown_checks import check_unknown
from qworker.client.commands.inspecting import Inspection

if TYPE_CHECKING:
    from qworker.cli.presence import Worker
    from qworker.cli.session import Session

__all__ = ["check_queues"]

#: Part of a journal's cap that a reader may leave unread.
_NEARLY_UNREAD: Final = 0.5


def check_queues(session: Session, workers: list[Worker]) -> Iterator[Finding]:
    """Look at all queues of the namespace: broken, late, closed, unserved, with dead letters."""
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
    for name, each in found.items():
        for unread in each.unread:
            yield Finding(
                f"queue.{name}",
                Status.PROBLEM,
                f"a shard cannot be read, and what is in it waits: {unread}",
                f"the other shards of {name} go on; see to that key or node, then: qworker fsck {name}",
            )
    yield from _overdue(found)
    yield from _closed(found)
    yield from _gone(found)
    yield from _journals(session, found)
    yield from _alone(found, workers)
    yield from check_unknown(session, found, workers)
    dead = {name: each.dead for name, each in found.items() if each.dead}
    if dead:
        worst = max(dead, key=lambda name: dead[name])
        yield Finding(
            "dead",
            Status.WARNING,
            listed([f"{name} {number:,}" for name, number in largest(dead)]),
            f"qworker dead ls {worst} says why; then qworker dead redrive or drop",
        )
    if not any(each.dead or each.paused or overdue_s(each) > OVERDUE_S for each in found.values()):
        ready = sum(each.ready for each in found.values())
        yield Finding(
            "queues", Status.OK, f"{count(len(found))} with {count(ready, 'ready message')} in all"
        )


def _gone(found: Mapping[str, Inspection]) -> Iterator[Finding]:
    gone = {
        name: number
        for name, each in found.items()
        if (number := each.stats.get("stored", 0) - each.stored) > 0
    }
    if gone:
        worst = max(gone, key=lambda name: gone[name])
        yield Finding(
            "gone",
            Status.PROBLEM,
            "messages that were stored are nowhere now: "
            + listed([f"{name} {number:,}" for name, number in largest(gone)]),
            f"find out who deleted keys, or what a failover lost; qworker fsck {worst} --repair writes them off",
        )


def _overdue(found: Mapping[str, Inspection]) -> Iterator[Finding]:
    late = {name: overdue_s(each) for name, each in found.items() if overdue_s(each) > OVERDUE_S}
    if late:
        yield Finding(
            "overdue",
            Status.PROBLEM,
            "messages that are due or timed out are not moved: "
            + listed([f"{name} by {span(seconds)}" for name, seconds in largest(late)]),
            "see reapers above; if they are alive, read their log for tick_failed",
        )


def _closed(found: Mapping[str, Inspection]) -> Iterator[Finding]:
    paused = [f"{name} ({each.paused})" for name, each in found.items() if each.paused]
    if paused:
        first = paused[0].partition(" ")[0]
        yield Finding("paused", Status.WARNING, listed(paused), f"qworker queue resume {first}")
    full = [name for name, each in found.items() if is_full(each)]
    if full:
        yield Finding(
            "full",
            Status.PROBLEM,
            f"{listed(full)}: what is sent is refused (maxlen)",
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
            f"not written while the server is nearly full: {listed(shed)}; what happens now will be missing",
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
            + listed([f"{reader} {number:,}" for reader, number in largest(lost)]),
            "let the reader run more often, or qworker queue set QUEUE journal-cap=SIZE",
        )
    if behind:
        yield Finding(
            "journal.unread",
            Status.WARNING,
            "readers are about to miss entries; unread, as a part of the cap: "
            + listed([f"{reader} {part:.0%}" for reader, part in largest(behind)]),
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
        worst, _ = next(iter(largest(alone)))
        yield Finding(
            "unserved",
            Status.WARNING,
            "messages are ready and no worker takes them: "
            + listed([f"{name} {number:,}" for name, number in largest(alone)]),
            f"qworker run MODULE --queues {worst}; or was the queue's name mistyped where it is sent?",
        )
