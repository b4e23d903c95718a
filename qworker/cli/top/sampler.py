"""The contents of `qworker top`: snapshots of queues, workers and reapers, and rates against earlier ones."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from qworker.cli.framework.output import Block, Heading, Table
from qworker.cli.framework.terminal import Cell, Column, plain
from qworker.cli.limit import LOAD_COLUMNS, load_document, load_row
from qworker.cli.queue.show import queue_document, queue_row
from qworker.cli.worker.group import last_seen
from qworker.client.inspect.peek import Inspection
from qworker.client.inspect.rates import rates_between
from qworker.client.manage.limit_load import LimitLoad, limit_loads
from qworker.client.namespace.workers import Reaper, Running, Worker, read_reapers, read_workers
from qworker.errors import (
    BrokenQueueError,
    InDoubtError,
    LoadingError,
    QworkerError,
    UnavailableError,
)
from qworker.formats import count, moment, rate, size, span

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session

__all__ = [
    "HANDLER_COLUMNS",
    "LIMIT_COLUMNS",
    "QUEUE_COLUMNS",
    "TOP_WORKER_COLUMNS",
    "Sampler",
    "Snapshot",
    "handler_rows",
    "headline",
    "limit_rows",
    "queue_rows",
    "snapshot_document",
    "snapshot_text",
    "worker_rows",
]

T = TypeVar("T")

#: Snapshots that a rate is taken over: enough to be steady, few enough to follow.
_KEPT: Final = 6
#: Queues whose limits are read, and limits that are shown.
_LIMITED_QUEUES: Final = 5
_LIMITS: Final = 20

QUEUE_COLUMNS: Final = (
    Column("QUEUE"),
    Column("READY", number=True),
    Column("DELAYED", number=True),
    Column("UNACKED", number=True),
    Column("DEAD", number=True),
    Column("OLDEST", number=True, spare=1),
    Column("SENT/S", number=True, spare=4),
    Column("DONE/S", number=True, spare=2),
    Column("FAILED/S", number=True, spare=3),
    Column("STATE", wide=True),
)
TOP_WORKER_COLUMNS: Final = (
    Column("WORKER"),
    Column("QUEUES", wide=True),
    Column("RUNNING", number=True),
    Column("PER S", number=True),
    Column("FAILED", number=True, spare=1),
    Column("MEMORY", number=True, spare=2),
    Column("SEEN"),
)
LIMIT_COLUMNS: Final = (Column("QUEUE", wide=True), *LOAD_COLUMNS)
HANDLER_COLUMNS: Final = (
    Column("RUNNING", number=True),
    Column("TASK"),
    Column("ID", wide=True),
    Column("PID", number=True, spare=1),
    Column("WORKER", wide=True, spare=2),
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one instant. `problem` says why a newer snapshot could not be taken.

    `limits`: by queue and load, those under which messages wait. `unknown`: which of workers and reapers could not be
    read, because their node of a Cluster is away. `full`: a server is at its maxmemory, and refuses their reports.
    """

    server: str
    now_ms: int = 0
    memory_bytes: int = 0
    queues: Mapping[str, Inspection | BrokenQueueError] = field(default_factory=dict)
    rates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    workers: tuple[Worker, ...] = ()
    reapers: tuple[Reaper, ...] = ()
    limits: tuple[tuple[str, LimitLoad], ...] = ()
    problem: str = ""
    unknown: tuple[str, ...] = ()
    full: bool = False

    @property
    def running(self) -> list[Running]:
        """The handlers that run in workers that are alive, the oldest first."""
        alive = (worker for worker in self.workers if not worker.is_gone)
        running = [handler for worker in alive for handler in worker.running]
        return sorted(running, key=lambda handler: -handler.seconds)


class Sampler:
    """Takes snapshots, and keeps the last few for the rates."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._kept: deque[Snapshot] = deque(maxlen=_KEPT)

    def take(self) -> Snapshot:
        """Take a snapshot. Raises `ServerError`."""
        session = self._session
        now_ms = session.now_ms()
        queues = session.queues.inspect(partial=True)
        workers, reapers = (
            self._unless_away(read_workers, now_ms),
            self._unless_away(read_reapers, now_ms),
        )
        lists = {"workers": workers, "reapers": reapers}
        earlier = self._kept[0].queues if self._kept else {}
        memory_bytes, full = _memory(session)
        snapshot = Snapshot(
            session.server.address,
            now_ms,
            memory_bytes,
            queues,
            {name: _rates(earlier.get(name), queue) for name, queue in queues.items()},
            tuple(workers or ()),
            tuple(reapers or ()),
            tuple(self._limits(queues)),
            unknown=tuple(name for name, found in lists.items() if found is None),
            full=full,
        )
        self._kept.append(snapshot)
        return snapshot

    def _limits(
        self, queues: Mapping[str, Inspection | BrokenQueueError]
    ) -> list[tuple[str, LimitLoad]]:
        """Read the limits under which messages wait, of the queues with the most in groups."""
        grouped = {
            name: queue.grouped
            for name, queue in queues.items()
            if isinstance(queue, Inspection) and queue.grouped
        }
        names = heapq.nlargest(_LIMITED_QUEUES, grouped, key=grouped.__getitem__)
        found = []
        for name in names:
            try:
                loads = self._session.client.run(limit_loads(self._session.queues.ref(name)))
            except (BrokenQueueError, UnavailableError, InDoubtError, LoadingError):
                continue  # the row of the queue shows that, now or next time
            found += [(name, load) for load in loads if load.waiting]
        return sorted(found, key=lambda pair: (-pair[1].waiting, pair[0], pair[1].name))[:_LIMITS]

    def _unless_away(self, read: Callable[[Session, int], list[T]], now_ms: int) -> list[T] | None:
        """Read a list; None while its node of a Cluster is away."""
        try:
            return read(self._session, now_ms)
        except (UnavailableError, InDoubtError, LoadingError):
            if not self._session.client.factory.clustered:
                raise
            return None

    def take_pair(self, apart_s: float) -> Snapshot:
        """Take two snapshots and return the second one, with rates over the time between."""
        self.take()
        time.sleep(apart_s)
        return self.take()

    @property
    def server(self) -> str:
        """Where the server is."""
        return self._session.server.address


def headline(snapshot: Snapshot) -> dict[str, Cell | str]:
    """Name the facts above the tables."""
    workers = sum(not worker.is_gone for worker in snapshot.workers)
    reapers = sum(not reaper.is_gone for reaper in snapshot.reapers)
    hidden = "none reported: memory full" if snapshot.full else ""
    facts: dict[str, Cell | str] = {
        "workers": count(workers)
        if workers
        else Cell(hidden or "none: qworker run MODULE", "warn"),
        "reapers": count(reapers) if reapers else Cell(hidden or "none: qworker daemon", "bad"),
        "memory": size(snapshot.memory_bytes),
        "at": moment(snapshot.now_ms),
        "server": snapshot.server,
    }
    return facts | {name: Cell("unknown: their node is away", "bad") for name in snapshot.unknown}


def queue_rows(snapshot: Snapshot) -> list[list[Cell | str]]:
    """Write the queues as rows of `QUEUE_COLUMNS`: what is broken or overdue first, then the longest wait."""
    rows = []
    for name, queue in sorted(snapshot.queues.items(), key=_urgency):
        *sizes, state = queue_row(name, queue)
        rates = snapshot.rates.get(name, {})
        rows.append(
            [
                *sizes,
                _rate(rates, "sent"),
                _rate(rates, "acked", "discarded"),
                _rate(rates, "nacked", "timeouts", tone="warn"),
                state,
            ]
        )
    return rows


def worker_rows(snapshot: Snapshot) -> list[list[Cell | str]]:
    """Write the workers as rows of `TOP_WORKER_COLUMNS`, those that are gone last."""
    return [
        [
            worker.name,
            ",".join(worker.described.queues),
            f"{len(worker.running)} in {count(len(worker.described.children), 'child', 'children')}",
            rate(worker.described.handled_per_s),
            count(worker.failed),
            size(worker.rss_bytes),
            last_seen(worker),
        ]
        for worker in sorted(snapshot.workers, key=lambda worker: worker.is_gone)
    ]


def handler_rows(snapshot: Snapshot) -> list[list[Cell | str]]:
    """Write the running handlers as rows of `HANDLER_COLUMNS`, the longest first."""
    return [
        [span(handler.seconds), handler.task, handler.message_id, str(handler.pid), handler.worker]
        for handler in snapshot.running
    ]


def limit_rows(snapshot: Snapshot) -> list[list[Cell | str]]:
    """Write the limits under which messages wait as rows of `LIMIT_COLUMNS`."""
    return [[name, *load_row(load, snapshot.now_ms)] for name, load in snapshot.limits]


def snapshot_document(snapshot: Snapshot) -> dict[str, Any]:
    """Write a snapshot for `--json`."""
    return {
        "server": snapshot.server,
        "now_ms": snapshot.now_ms,
        "memory_bytes": snapshot.memory_bytes,
        "queues": [
            queue_document(name, queue, rates=snapshot.rates.get(name, {}))
            for name, queue in snapshot.queues.items()
        ],
        "limits": [
            {"queue": name, **load_document(load, snapshot.now_ms)}
            for name, load in snapshot.limits
        ],
        "workers": [worker.document() for worker in snapshot.workers],
        "reapers": [
            {
                "name": reaper.name,
                "seen_age_seconds": reaper.age_ms / 1000,
                "is_gone": reaper.is_gone,
            }
            for reaper in snapshot.reapers
        ],
    }


def snapshot_text(snapshot: Snapshot) -> Iterator[str | Block]:
    """Write a snapshot as text: facts, queues, limits, workers, running handlers."""
    facts = headline(snapshot).items()
    yield " · ".join(f"{name} {plain(cell)}" for name, cell in facts)
    yield Heading(f"QUEUES ({len(snapshot.queues)})")
    if snapshot.queues:
        yield Table(QUEUE_COLUMNS, queue_rows(snapshot))
    if snapshot.limits:
        yield Heading(f"LIMITS ({len(snapshot.limits)})")
        yield Table(LIMIT_COLUMNS, limit_rows(snapshot))
    if snapshot.workers:
        yield Heading(f"WORKERS ({len(snapshot.workers)})")
        yield Table(TOP_WORKER_COLUMNS, worker_rows(snapshot))
    if snapshot.running:
        yield Heading(f"RUNNING HANDLERS ({len(snapshot.running)})")
        yield Table(HANDLER_COLUMNS, handler_rows(snapshot))


def _urgency(pair: tuple[str, Inspection | BrokenQueueError]) -> tuple[int, float, str]:
    name, queue = pair
    if isinstance(queue, BrokenQueueError):
        return (0, 0.0, name)
    return (1, -max(queue.oldest_age_s, queue.overdue_s), name)


def _rates(
    earlier: Inspection | BrokenQueueError | None, later: Inspection | BrokenQueueError
) -> Mapping[str, float]:
    if not isinstance(earlier, Inspection) or not isinstance(later, Inspection):
        return {}
    return rates_between(earlier, later)


def _rate(rates: Mapping[str, float], *names: str, tone: str = "") -> Cell | str:
    if not rates:
        return ""
    per_second = sum(rates.get(name, 0.0) for name in names)
    text = rate(per_second)
    return Cell(text, tone) if text != "0" else text


def _memory(session: Session) -> tuple[int, bool]:
    """The bytes that all servers use, and whether one of them has reached its maxmemory."""
    try:
        infos = [
            session.ask("INFO", "memory", node=node) for node in session.client.factory.masters()
        ]
    except QworkerError:
        return 0, False
    used_bytes, full = 0, False
    for info in infos:
        fields = dict(line.split(b":", 1) for line in info.split(b"\r\n") if b":" in line)
        used, limit = int(fields.get(b"used_memory", 0)), int(fields.get(b"maxmemory", 0))
        used_bytes += used
        full = full or 0 < limit <= used
    return used_bytes, full
