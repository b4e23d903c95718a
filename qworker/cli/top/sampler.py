"""Snapshots of queues, workers and reapers for `qworker top`, with rates against earlier ones."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from qworker.cli.top.limits import busiest_limits
from qworker.client.inspect.peek import Inspection
from qworker.client.inspect.rates import rates_between
from qworker.client.manage.limit_load import LimitLoad
from qworker.client.namespace.workers import ReaperInfo, Running, Worker, read_reapers, read_workers
from qworker.errors import (
    BrokenQueueError,
    InDoubtError,
    LoadingError,
    QworkerError,
    UnavailableError,
)

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session

__all__ = ["TopSampler", "TopSnapshot"]

T = TypeVar("T")

#: Snapshots that a rate is taken over: enough to be steady, few enough to follow.
_KEPT: Final = 6


@dataclass(frozen=True, slots=True)
class TopSnapshot:
    """Everything at one instant. `problem` says why a newer snapshot could not be taken.

    `limits`: by queue and load, those under which messages wait. `unknown`: which of workers and reapers could not be
    read, because their node of a Cluster is away.
    """

    server: str
    now_ms: int = 0
    memory_bytes: int = 0
    queues: Mapping[str, Inspection | BrokenQueueError] = field(default_factory=dict)
    rates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    workers: tuple[Worker, ...] = ()
    reapers: tuple[ReaperInfo, ...] = ()
    limits: tuple[tuple[str, LimitLoad], ...] = ()
    problem: str = ""
    unknown: tuple[str, ...] = ()

    @property
    def running(self) -> list[Running]:
        """The handlers that run in workers that are alive, the oldest first."""
        alive = (worker for worker in self.workers if not worker.is_gone)
        running = [handler for worker in alive for handler in worker.running]
        return sorted(running, key=lambda handler: -handler.seconds)


class TopSampler:
    """Takes snapshots, and keeps the last few for the rates."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._kept: deque[TopSnapshot] = deque(maxlen=_KEPT)

    def take(self) -> TopSnapshot:
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
        memory_bytes = _memory(session)
        snapshot = TopSnapshot(
            session.server.address,
            now_ms,
            memory_bytes,
            queues,
            {name: _rates(earlier.get(name), queue) for name, queue in queues.items()},
            tuple(workers or ()),
            tuple(reapers or ()),
            tuple(busiest_limits(session.client, session.queues.ref, queues)),
            unknown=tuple(name for name, found in lists.items() if found is None),
        )
        self._kept.append(snapshot)
        return snapshot

    def _unless_away(self, read: Callable[[Session, int], list[T]], now_ms: int) -> list[T] | None:
        """Read a list; None while its node of a Cluster is away."""
        try:
            return read(self._session, now_ms)
        except (UnavailableError, InDoubtError, LoadingError):
            if not self._session.client.factory.clustered:
                raise
            return None

    def take_pair(self, apart_s: float) -> TopSnapshot:
        """Take two snapshots and return the second one, with rates over the time between."""
        self.take()
        time.sleep(apart_s)
        return self.take()

    @property
    def server(self) -> str:
        """Where the server is."""
        return self._session.server.address


def _rates(
    earlier: Inspection | BrokenQueueError | None, later: Inspection | BrokenQueueError
) -> Mapping[str, float]:
    if not isinstance(earlier, Inspection) or not isinstance(later, Inspection):
        return {}
    return rates_between(earlier, later)


def _memory(session: Session) -> int:
    """The bytes that all servers use; 0 if one of them does not tell."""
    try:
        infos = [
            session.ask("INFO", "memory", node=node) for node in session.client.factory.masters()
        ]
    except QworkerError:
        return 0
    used_bytes = 0
    for info in infos:
        fields = dict(line.split(b":", 1) for line in info.split(b"\r\n") if b":" in line)
        used_bytes += int(fields.get(b"used_memory", 0))
    return used_bytes
