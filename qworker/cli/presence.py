"""Who is there: workers and reapers, as they write themselves into Redis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qworker.wire.presence import GONE_MS, Reaper, list_reapers

if TYPE_CHECKING:
    from qworker.cli.session import Session

__all__ = ["GONE_MS", "Reaper", "Running", "Worker", "read_reapers", "read_workers"]


@dataclass(frozen=True, slots=True)
class Running:
    """A handler that runs in a child of a worker, for `seconds` so far."""

    worker: str
    pid: int
    task: str
    message_id: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Worker:
    """A `qworker run`, as it described itself `age_ms` ago."""

    name: str
    age_ms: int
    queues: tuple[str, ...]
    entry: Mapping[str, Any]

    @property
    def is_gone(self) -> bool:
        """Whether it has been silent for too long."""
        return self.age_ms > GONE_MS

    @property
    def is_leaving(self) -> bool:
        """Whether it takes nothing new and ends when what runs has ended."""
        return self.entry.get("leaving") is True

    @property
    def tasks(self) -> tuple[str, ...] | None:
        """The tasks of its app; None where it does not tell them, for there are too many."""
        if not isinstance(self.entry.get("tasks"), list):
            return None
        return tuple(each for each in self.entry["tasks"] if isinstance(each, str))

    @property
    def children(self) -> list[Mapping[str, Any]]:
        """Its child processes."""
        return [each for each in _list(self.entry.get("children")) if isinstance(each, Mapping)]

    @property
    def running(self) -> list[Running]:
        """The handlers that run now, the oldest first."""
        found = [
            Running(
                self.name,
                _number(child.get("pid")),
                str(each.get("task", "")),
                str(each.get("id", "")),
                float(_number(each.get("seconds"))),
            )
            for child in self.children
            for each in _list(child.get("running"))
            if isinstance(each, Mapping)
        ]
        return sorted(found, key=lambda each: -each.seconds)

    @property
    def rss_bytes(self) -> int:
        """Memory of its children together."""
        return sum(int(_number(child.get("rss_bytes"))) for child in self.children)

    @property
    def handled_per_s(self) -> float:
        """Messages handled per second, by its own word."""
        return float(_number(self.entry.get("handled_per_s")))

    def text(self, name: str) -> str:
        """A field of the entry as text; '' where it is not there."""
        value = self.entry.get(name, "")
        return value if isinstance(value, str) else str(value)

    def total(self, name: str) -> int:
        """The sum of a field over its children."""
        return sum(int(_number(child.get(name))) for child in self.children)

    def listens_to(self, queue: str) -> bool:
        """Say whether it is there and takes from a queue."""
        return not self.is_gone and queue in self.queues

    def document(self) -> dict[str, Any]:
        """Write it for programs: its own entry, and how old that is."""
        age = {"seen_age_seconds": self.age_ms / 1000, "is_gone": self.is_gone}
        return {**self.entry, "name": self.name, **age}


def read_workers(session: Session, now_ms: int | None = None) -> list[Worker]:
    """Read the workers, sorted by name. What is no such entry is shown as a gone worker without fields."""
    from qworker.wire.keys import workers_key

    flat = session.ask("HGETALL", workers_key(session.namespace))
    if not flat:
        return []
    now_ms = session.now_ms() if now_ms is None else now_ms
    return sorted(
        (_worker(*pair, now_ms) for pair in zip(flat[::2], flat[1::2], strict=True)),
        key=lambda worker: worker.name,
    )


def read_reapers(session: Session, now_ms: int | None = None) -> list[Reaper]:
    """Read the reapers, the latest first."""
    from qworker.wire.keys import reapers_key

    flat = session.ask("ZREVRANGE", reapers_key(session.namespace), 0, 999, "WITHSCORES")
    return list_reapers(flat, session.now_ms() if now_ms is None else now_ms)


def _worker(field: bytes, value: bytes, now_ms: int) -> Worker:
    from qworker.errors import InvalidBodyError
    from qworker.wire.codec import decode

    try:
        entry = decode(value)
    except InvalidBodyError:
        entry = None
    if not isinstance(entry, dict):
        entry = {}
    queues = tuple(each for each in _list(entry.get("queues")) if isinstance(each, str))
    age_ms = max(0, now_ms - int(_number(entry.get("seen_ms"))))
    return Worker(field.decode("utf-8", "replace"), age_ms, queues, entry)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0
