"""The checks of `qworker doctor` on queues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from qworker.client.inspect.foreign_keys import foreign_of_queues
from qworker.client.inspect.peek import Inspection
from qworker.client.inspect.runs import LOST
from qworker.client.manage.attribute_text import read_attributes
from qworker.client.manage.journal import given_up_bytes
from qworker.errors import BrokenQueueError, QworkerError
from qworker.formats import count, size, span
from qworker.health.calls import check_calls
from qworker.health.finding import FIX_AWAY, Finding, Status, counted, largest, listed
from qworker.health.groups import check_groups
from qworker.health.passed_over import unless_broken
from qworker.health.shared_limits import check_shared_limits
from qworker.health.unknown_tasks import check_unknown
from qworker.wire.keys import QueueKeys

if TYPE_CHECKING:
    from qworker.client.namespace.workers import Worker
    from qworker.health.access import NamespaceAccess

__all__ = ["OVERDUE_S", "check_queues"]

#: What keys of groups end with.
_OF_GROUPS: Final = {key.rpartition(":")[2] for key in QueueKeys("qworker", "name").of_groups()}
#: A reaper passes every second, and waits up to 6 s after a gap: a queue that is later than this is not being reaped.
OVERDUE_S: Final = 10.0
#: Seconds for which a message of an ack may wait to be stored in another queue.
_WAITS_S: Final = 10.0
#: Messages of a queue, and runs of it, up to which runs are checked.
_SHORT: Final = 10_000
_RUNS: Final = 1000
#: Part of a journal's cap that a reader may leave unread.
_NEARLY_UNREAD: Final = 0.5


def check_queues(access: NamespaceAccess, workers: list[Worker] | None) -> Iterator[Finding]:
    """Check all queues of the namespace: broken, late, closed, unserved, with dead letters.

    `workers`: None if unknown.
    """
    inspected = access.queues.inspect(partial=True)
    if (problem := access.queues.unlisted) is not None:
        yield _index(problem)
    if missing := access.queues.unread:
        yield Finding(
            "unread",
            Status.PROBLEM,
            f"{count(len(missing), 'queue')} cannot be read: {listed([*missing])}; {next(iter(missing.values()))}",
            FIX_AWAY,
        )
    if not inspected:
        yield Finding("queues", Status.OK, access.queues.empty_hint())
        return
    queues = {
        name: inspection
        for name, inspection in inspected.items()
        if isinstance(inspection, Inspection)
    }
    foreign = foreign_of_queues(access.client, access.namespace, queues, access.queues.shards)
    yield from _broken({**inspected, **foreign})
    yield from _overdue(queues)
    yield from _closed(queues)
    yield from _gone(queues)
    yield from _journals(access, queues)
    yield from unless_broken("outbox", _outboxes(access, queues))
    yield from unless_broken("runs", _runs(access, queues))
    yield from unless_broken("calls", check_calls(access, queues))
    yield from unless_broken("groups", check_groups(access, queues, workers))
    partly = {name for name, queue in queues.items() if queue.unread}
    yield from unless_broken("limits", check_shared_limits(access, {*missing, *partly}))
    if workers is not None:
        yield from _alone(queues, workers)
        yield from unless_broken("tasks", check_unknown(access, queues, workers))
    yield from _dead(queues)
    if not any(
        queue.dead or queue.paused or queue.overdue_s > OVERDUE_S for queue in queues.values()
    ):
        ready = sum(queue.ready for queue in queues.values())
        yield Finding(
            "queues", Status.OK, f"{count(len(queues))} with {count(ready, 'ready message')} in all"
        )


def _index(problem: QworkerError) -> Finding:
    """Say why the queues were found by their keys."""
    broken = isinstance(problem, BrokenQueueError)
    fix = "qworker fsck --repair corrects it; a reaper does so within minutes, unless another program writes there"
    text = f"the index of queues cannot be used: {problem}; queues were found by their keys instead"
    return Finding(
        "index", Status.WARNING if broken else Status.PROBLEM, text, fix if broken else FIX_AWAY
    )


def _broken(inspected: Mapping[str, Inspection | BrokenQueueError]) -> Iterator[Finding]:
    for name, error in inspected.items():
        if not isinstance(error, Inspection):
            rings = error.key.endswith(":wake")
            stopped = "workers leave it alone" if rings else "sends, receives and reaps may fail"
            yield Finding(
                f"queue.{name}",
                Status.PROBLEM,
                f"broken: key {error.key} holds a {error.found}, so {stopped}",
                f"qworker fsck {name} --repair renames it, and gives waiting messages their turns"
                if error.key.rpartition(":")[2] in _OF_GROUPS
                else f"inspect that key; qworker fsck {name} --repair renames it. The rest of {name} is untouched",
            )
    for name, queue in inspected.items():
        for unread in queue.unread if isinstance(queue, Inspection) else ():
            yield Finding(
                f"queue.{name}",
                Status.PROBLEM,
                f"a shard cannot be read, and its messages wait: {unread}",
                f"repair that key or node, then: qworker fsck {name}; the other shards of {name} work",
            )


def _dead(queues: Mapping[str, Inspection]) -> Iterator[Finding]:
    dead = {name: queue.dead for name, queue in queues.items() if queue.dead}
    if dead:
        worst = max(dead, key=lambda name: dead[name])
        yield Finding(
            "dead",
            Status.WARNING,
            counted(dead),
            f"see why: qworker dead ls {worst}; then qworker dead redrive {worst} --all, "
            f"or qworker dead drop {worst} --all",
        )


def _gone(queues: Mapping[str, Inspection]) -> Iterator[Finding]:
    gone = {
        name: number
        for name, queue in queues.items()
        if (number := queue.stats.get("stored", 0) - queue.stored) > 0
    }
    if gone:
        worst = max(gone, key=lambda name: gone[name])
        yield Finding(
            "gone",
            Status.PROBLEM,
            "stored messages have disappeared: " + counted(gone),
            f"check for deleted keys or a failover; qworker fsck {worst} --repair writes them off",
        )


def _overdue(queues: Mapping[str, Inspection]) -> Iterator[Finding]:
    late = {name: queue.overdue_s for name, queue in queues.items() if queue.overdue_s > OVERDUE_S}
    if late:
        yield Finding(
            "overdue",
            Status.PROBLEM,
            "due or timed-out messages are not moved: "
            + listed([f"{name} by {span(seconds)}" for name, seconds in largest(late)]),
            "check the reapers above; if they are alive, look for tick_failed in their log",
        )


def _closed(queues: Mapping[str, Inspection]) -> Iterator[Finding]:
    paused = [f"{name} ({queue.paused})" for name, queue in queues.items() if queue.paused]
    if paused:
        first = paused[0].partition(" ")[0]
        yield Finding("paused", Status.WARNING, listed(paused), f"qworker queue resume {first}")
    full = [name for name, queue in queues.items() if queue.is_full]
    if full:
        yield Finding(
            "full",
            Status.PROBLEM,
            f"{listed(full)}: sends are refused (maxlen)",
            f"add workers, or qworker queue set {full[0]} maxlen=N",
        )


def _outboxes(access: NamespaceAccess, queues: Mapping[str, Inspection]) -> Iterator[Finding]:
    waits: dict[str, float] = {}
    for name, queue in queues.items():
        if "followed" in queue.stats:
            for outbox in access.queues.get(name).outboxes():
                if outbox.age_s > _WAITS_S:
                    waits[f"{name} → {outbox.destination} {outbox.entries:,}"] = outbox.age_s
    if waits:
        yield Finding(
            "outbox",
            Status.PROBLEM,
            "messages that acks have sent wait to be stored: "
            + listed([f"{which} for {span(seconds)}" for which, seconds in largest(waits)]),
            "resume or empty the second queue, or raise its maxlen; if no reaper is alive, run qworker daemon: it "
            "stores them, and recreates a queue that is gone",
        )


def _runs(access: NamespaceAccess, queues: Mapping[str, Inspection]) -> Iterator[Finding]:
    """Find runs without a future, in queues that are short enough for a quick look; fsck looks into all."""
    lost = {}
    for name, queue in queues.items():
        if (
            "parked" in queue.stats or "results" in queue.stats
        ) and queue.stored + queue.dead <= _SHORT:
            gone = [run.id for run in access.queues.get(name).runs(_RUNS) if run.state == LOST]
            if gone:
                lost[name] = len(gone)
    if lost:
        worst = max(lost, key=lambda name: lost[name])
        yield Finding(
            "runs",
            Status.PROBLEM,
            "runs have steps, but no message that could continue them: " + counted(lost),
            f"see which by qworker workflow ls {worst} --state lost; end them, and the waits for their results, with "
            f"qworker fsck {worst} --repair",
        )


def _journals(access: NamespaceAccess, queues: Mapping[str, Inspection]) -> Iterator[Finding]:
    on = {name: queue for name, queue in queues.items() if queue.journal != "off"}
    if not on:
        return
    shed = [name for name, queue in on.items() if queue.journal_shed]
    if shed:
        yield Finding(
            "journal.shed",
            Status.WARNING,
            f"suspended while the server is nearly full: {listed(shed)}; history will have a gap",
            "add workers to drain the queues (qworker queue ls), or raise maxmemory",
        )
    behind: dict[str, float] = {}
    lost: dict[str, int] = {}
    size_of_all = 0
    for name, queue in on.items():
        cap = next(at.value for at in read_attributes(queue.meta) if at.name == "journal-cap")
        opened = access.queues.get(name)
        for lag in opened.reader_lags():
            reader = f"{lag.reader.name} of {name}"
            if lag.missed:
                lost[reader] = lag.missed
            if lag.unread_bytes >= _NEARLY_UNREAD * cap:
                behind[reader] = lag.unread_bytes / cap
        size_of_all += queue.journal_bytes + access.client.run(given_up_bytes(opened.ref))
    if lost:
        yield Finding(
            "journal.missed",
            Status.PROBLEM,
            "entries were trimmed before these readers read them: " + counted(lost),
            "run the reader more often, or qworker queue set QUEUE journal-cap=SIZE",
        )
    if behind:
        yield Finding(
            "journal.unread",
            Status.WARNING,
            "readers are about to miss entries; unread share of the cap: "
            + listed([f"{reader} {part:.0%}" for reader, part in largest(behind)]),
            "start the reader (qworker spark archive), or qworker queue set QUEUE journal-cap=SIZE",
        )
    if not (shed or lost or behind):
        yield Finding(
            "journal", Status.OK, f"on for {count(len(on), 'queue')}, {size(size_of_all)}"
        )


def _alone(queues: Mapping[str, Inspection], workers: list[Worker]) -> Iterator[Finding]:
    served = {
        queue for worker in workers if not worker.is_gone for queue in worker.described.queues
    }
    alone = {
        name: queue.ready for name, queue in queues.items() if queue.ready and name not in served
    }
    if alone:
        worst, _ = next(iter(largest(alone)))
        yield Finding(
            "unserved",
            Status.WARNING,
            "messages are ready, but no worker receives from: " + counted(alone),
            f"qworker run MODULE --queues {worst}; or correct the queue's name in the sender",
        )
