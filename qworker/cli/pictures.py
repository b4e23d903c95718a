"""What `qworker top` shows: one look at everything, and rates against the looks before it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from qworker.cli.formats import count, moment, rate, size, span
from qworker.cli.inspections import overdue_s, queue_document, queue_row
from qworker.cli.presence import Reaper, Running, Worker, read_reapers, read_workers
from qworker.cli.rates import rates_between
from qworker.cli.screen import Cell, Column, print_heading, print_line, print_table
from qworker.cli.worker import seen
from qworker.client.commands.inspecting import Inspection
from qworker.errors import BrokenQueueError, QworkerError

if TYPE_CHECKING:
    from qworker.cli.session import Session

__all__ = [
    "HANDLER_COLUMNS",
    "QUEUE_COLUMNS",
    "TOP_WORKER_COLUMNS",
    "Album",
    "Picture",
    "handler_rows",
    "headline",
    "picture_document",
    "print_picture",
    "queue_rows",
    "worker_rows",
]

#: Looks that a rate is taken over: enough to stand still, few enough to follow.
_KEPT: Final = 6

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
HANDLER_COLUMNS: Final = (
    Column("RUNNING", number=True),
    Column("TASK"),
    Column("ID", wide=True),
    Column("PID", number=True, spare=1),
    Column("WORKER", wide=True, spare=2),
)


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything at one instant. `problem` is not empty where the last look failed; the rest is then older."""

    server: str
    now_ms: int = 0
    memory_bytes: int = 0
    queues: Mapping[str, Inspection | BrokenQueueError] = field(default_factory=dict)
    rates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    workers: tuple[Worker, ...] = ()
    reapers: tuple[Reaper, ...] = ()
    problem: str = ""

    @property
    def running(self) -> list[Running]:
        """Handlers that run now in workers that are there, the oldest first."""
        found = [each for worker in self.workers if not worker.is_gone for each in worker.running]
        return sorted(found, key=lambda each: -each.seconds)


class Album:
    """Takes pictures, and keeps the last few for the rates."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._kept: deque[Picture] = deque(maxlen=_KEPT)

    def take(self) -> Picture:
        """Take a picture. Raises `ServerError`."""
        session = self._session
        now_ms = session.now_ms()
        queues = session.inspect(session.queues())
        earlier = self._kept[0].queues if self._kept else {}
        picture = Picture(
            session.server.address,
            now_ms,
            _memory(session),
            queues,
            {name: _rates(earlier.get(name), found) for name, found in queues.items()},
            tuple(read_workers(session, now_ms)),
            tuple(read_reapers(session, now_ms)),
        )
        self._kept.append(picture)
        return picture

    def take_pair(self, apart_s: float) -> Picture:
        """Take two pictures and return the second one, with rates over the time between."""
        self.take()
        time.sleep(apart_s)
        return self.take()

    @property
    def server(self) -> str:
        """Where the server is."""
        return self._session.server.address


def headline(picture: Picture) -> dict[str, Cell | str]:
    """Name the facts above the tables."""
    alive = [each for each in picture.reapers if not each.is_gone]
    reapers: Cell | str = count(len(alive)) if alive else Cell("none: qworker daemon", "bad")
    workers = [each for each in picture.workers if not each.is_gone]
    return {
        "workers": count(len(workers)) if workers else Cell("none: qworker run MODULE", "warn"),
        "reapers": reapers,
        "memory": size(picture.memory_bytes),
        "at": moment(picture.now_ms),
        "server": picture.server,
    }


def queue_rows(picture: Picture) -> list[list[Cell | str]]:
    """Write the queues as rows of `QUEUE_COLUMNS`: what is broken or overdue first, then the longest wait."""
    rows = []
    for name, found in sorted(picture.queues.items(), key=_urgency):
        *sizes, state = queue_row(name, found)
        rates = picture.rates.get(name, {})
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


def worker_rows(picture: Picture) -> list[list[Cell | str]]:
    """Write the workers as rows of `TOP_WORKER_COLUMNS`, those that are gone last."""
    return [
        [
            each.name,
            ",".join(each.queues),
            f"{len(each.running)} in {count(len(each.children), 'child', 'children')}",
            rate(each.handled_per_s),
            count(each.total("failed")),
            size(each.rss_bytes),
            seen(each),
        ]
        for each in sorted(picture.workers, key=lambda worker: worker.is_gone)
    ]


def handler_rows(picture: Picture) -> list[list[Cell | str]]:
    """Write the running handlers as rows of `HANDLER_COLUMNS`, the longest first."""
    return [
        [span(each.seconds), each.task, each.message_id, str(each.pid), each.worker]
        for each in picture.running
    ]


def picture_document(picture: Picture) -> dict[str, Any]:
    """Write a picture for programs."""
    return {
        "server": picture.server,
        "now_ms": picture.now_ms,
        "memory_bytes": picture.memory_bytes,
        "queues": [
            queue_document(name, found, rates=picture.rates.get(name, {}))
            for name, found in picture.queues.items()
        ],
        "workers": [each.document() for each in picture.workers],
        "reapers": [
            {"name": each.name, "seen_age_seconds": each.age_ms / 1000, "is_gone": each.is_gone}
            for each in picture.reapers
        ],
    }


def print_picture(picture: Picture) -> None:
    """Print a picture: facts, queues, workers, running handlers."""
    facts = (
        f"{name} {cell if isinstance(cell, str) else cell.text}"
        for name, cell in headline(picture).items()
    )
    print_line(" · ".join(facts))
    print_heading(f"QUEUES ({len(picture.queues)})")
    if picture.queues:
        print_table(QUEUE_COLUMNS, queue_rows(picture))
    if picture.workers:
        print_heading(f"WORKERS ({len(picture.workers)})")
        print_table(TOP_WORKER_COLUMNS, worker_rows(picture))
    if picture.running:
        print_heading(f"RUNNING HANDLERS ({len(picture.running)})")
        print_table(HANDLER_COLUMNS, handler_rows(picture))


def _urgency(pair: tuple[str, Inspection | BrokenQueueError]) -> tuple[int, float, str]:
    name, found = pair
    if isinstance(found, BrokenQueueError):
        return (0, 0.0, name)
    return (1, -max(found.oldest_age_s, overdue_s(found)), name)


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


def _memory(session: Session) -> int:
    try:
        infos = [
            session.ask("INFO", "memory", node=node) for node in session.client.factory.masters()
        ]
    except QworkerError:
        return 0
    lines = (line for info in infos for line in info.split(b"\r\n"))
    return sum(int(line.partition(b":")[2]) for line in lines if line.startswith(b"used_memory:"))
