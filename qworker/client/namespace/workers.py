"""Workers and reapers, as they describe themselves in Redis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from qworker.wire.keys import reapers_key, workers_key
from qworker.wire.presence import ReaperInfo, WorkerDocument, is_gone, list_reapers, read_fields

if TYPE_CHECKING:
    from qworker.store.nodes import Address

__all__ = ["Asks", "ReaperInfo", "Running", "Worker", "read_reapers", "read_workers"]


class Asks(Protocol):
    """Sends plain commands for a namespace."""

    @property
    def namespace(self) -> str:
        """First part of every key."""

    def ask(self, *words: str | int | bytes, node: Address | None = None) -> Any:
        """Send one plain command, in a Cluster to one node; returns its reply. Raises `ServerError`."""

    def note(self, verb: str, key: str, *words: str | int | bytes) -> Any:
        """Send one plain command that a full server takes too, see `engine/note.py`; returns its reply."""

    def now_ms(self) -> int:
        """Read the server's clock."""


@dataclass(frozen=True, slots=True)
class Running:
    """A handler that has been running in a child of a worker for `seconds`."""

    worker: str
    pid: int
    task: str
    message_id: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Worker:
    """A `qworker run`, as it described itself `age_ms` ago; `stored` is its document in Redis."""

    name: str
    age_ms: int
    described: WorkerDocument
    stored: bytes = b"{}"

    @property
    def is_gone(self) -> bool:
        """Whether it has been silent for too long."""
        return is_gone(self.age_ms)

    @property
    def running(self) -> list[Running]:
        """The handlers that run now, the oldest first."""
        running = [
            Running(self.name, child.pid, handler.task, handler.id, handler.seconds)
            for child in self.described.children
            for handler in child.running
        ]
        return sorted(running, key=lambda handler: -handler.seconds)

    @property
    def rss_bytes(self) -> int:
        """Memory of its children together."""
        return sum(child.rss_bytes for child in self.described.children)

    @property
    def failed(self) -> int:
        """Messages whose handlers failed in its present children."""
        return sum(child.failed for child in self.described.children)

    def listens_to(self, queue: str) -> bool:
        """Whether it is alive and receives from a queue."""
        return not self.is_gone and queue in self.described.queues

    def document(self) -> dict[str, Any]:
        """Return it for `--json`: its own document, of any version, and its age."""
        age = {"seen_age_seconds": self.age_ms / 1000, "is_gone": self.is_gone}
        return {**read_fields(self.stored), "name": self.name, **age}


def read_workers(asks: Asks, now_ms: int | None = None) -> list[Worker]:
    """Read the workers, sorted by name. A document that cannot be read is shown as a gone worker without fields."""
    flat = asks.ask("HGETALL", workers_key(asks.namespace))
    if not flat:
        return []
    now_ms = asks.now_ms() if now_ms is None else now_ms
    return sorted(
        (_worker(*pair, now_ms) for pair in zip(flat[::2], flat[1::2], strict=True)),
        key=lambda worker: worker.name,
    )


def read_reapers(asks: Asks, now_ms: int | None = None) -> list[ReaperInfo]:
    """Read the reapers, the latest first."""
    flat = asks.ask("ZREVRANGE", reapers_key(asks.namespace), 0, 999, "WITHSCORES")
    return list_reapers(flat, asks.now_ms() if now_ms is None else now_ms)


def _worker(field: bytes, stored: bytes, now_ms: int) -> Worker:
    described = WorkerDocument.parse(stored)
    return Worker(field.decode("utf-8", "replace"), described.age_ms(now_ms), described, stored)
