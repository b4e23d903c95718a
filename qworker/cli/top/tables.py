"""The tables of `qworker top`: a snapshot as rows, as text and as a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from qworker.cli.framework.output import Block, Heading, Table
from qworker.cli.framework.terminal import Cell, Column, plain
from qworker.cli.limit.tables import LOAD_COLUMNS, load_document, load_row
from qworker.cli.queue.tables import queue_document, queue_row
from qworker.cli.worker.group import last_seen
from qworker.errors import BrokenQueueError
from qworker.formats import count, moment, rate, size, span

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qworker.cli.top.sampler import TopSnapshot
    from qworker.client.inspect.peek import Inspection

__all__ = [
    "HANDLER_COLUMNS",
    "LIMIT_COLUMNS",
    "QUEUE_COLUMNS",
    "TOP_WORKER_COLUMNS",
    "handler_rows",
    "headline",
    "limit_rows",
    "queue_rows",
    "snapshot_document",
    "snapshot_text",
    "worker_rows",
]

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
#: Queues of a worker that are named.
_NAMED: Final = 5
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


def headline(snapshot: TopSnapshot) -> dict[str, Cell | str]:
    """Name the facts above the tables."""
    workers = sum(not worker.is_gone for worker in snapshot.workers)
    reapers = sum(not reaper.is_gone for reaper in snapshot.reapers)
    facts: dict[str, Cell | str] = {
        "workers": count(workers) if workers else Cell("none: qworker run MODULE", "warn"),
        "reapers": count(reapers) if reapers else Cell("none: qworker daemon", "bad"),
        "memory": size(snapshot.memory_bytes),
        "at": moment(snapshot.now_ms),
        "server": snapshot.server,
    }
    return facts | {name: Cell("unknown: their node is away", "bad") for name in snapshot.unknown}


def queue_rows(snapshot: TopSnapshot) -> list[list[Cell | str]]:
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


def worker_rows(snapshot: TopSnapshot) -> list[list[Cell | str]]:
    """Write the workers as rows of `TOP_WORKER_COLUMNS`, those that are gone last."""
    return [
        [
            worker.name,
            _few(worker.described.queues),
            f"{len(worker.running)} in {count(len(worker.described.children), 'child', 'children')}",
            rate(worker.described.handled_per_s),
            count(worker.failed),
            size(worker.rss_bytes),
            last_seen(worker),
        ]
        for worker in sorted(snapshot.workers, key=lambda worker: worker.is_gone)
    ]


def _few(queues: Sequence[str]) -> str:
    """Name the first queues of a worker: the table above has a row for each, and some workers have hundreds."""
    more = len(queues) - _NAMED
    return ",".join(queues[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def handler_rows(snapshot: TopSnapshot) -> list[list[Cell | str]]:
    """Write the running handlers as rows of `HANDLER_COLUMNS`, the longest first."""
    return [
        [span(handler.seconds), handler.task, handler.message_id, str(handler.pid), handler.worker]
        for handler in snapshot.running
    ]


def limit_rows(snapshot: TopSnapshot) -> list[list[Cell | str]]:
    """Write the limits under which messages wait as rows of `LIMIT_COLUMNS`."""
    return [[name, *load_row(load, snapshot.now_ms)] for name, load in snapshot.limits]


def snapshot_document(snapshot: TopSnapshot) -> dict[str, Any]:
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


def snapshot_text(snapshot: TopSnapshot) -> Iterator[str | Block]:
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


def _rate(rates: Mapping[str, float], *names: str, tone: str = "") -> Cell | str:
    if not rates:
        return ""
    per_second = sum(rates.get(name, 0.0) for name in names)
    text = rate(per_second)
    return Cell(text, tone) if text != "0" else text
