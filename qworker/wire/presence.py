"""What workers and reapers write about themselves in Redis, and when one that has fallen silent counts as gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from qworker.errors import InvalidBodyError
from qworker.wire import codec
from qworker.wire.numbers import score_ms

__all__ = [
    "AHEAD_MS",
    "ChildDocument",
    "ReaperInfo",
    "RunningDocument",
    "WorkerDocument",
    "age_of",
    "is_gone",
    "list_reapers",
    "read_fields",
]

#: Workers write their document every 2 s, and reapers their score at every tick.
_GONE_MS: Final = 15_000
#: A time this far ahead was written before the clock was set back: what lives has written another one since.
AHEAD_MS: Final = 600_000


def is_gone(age_ms: int) -> bool:
    """Whether a worker or reaper that was last seen this long ago counts as gone."""
    return age_ms > _GONE_MS


def age_of(seen_ms: int, now_ms: int) -> int:
    """How long ago a worker or reaper was last seen, in ms; one whose time is far ahead, for as long as it is ahead."""
    age_ms = now_ms - seen_ms
    return -age_ms if age_ms < -AHEAD_MS else max(0, age_ms)


class RunningDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A handler that has been running for `seconds`; `id` is the receipt of its message."""

    task: str = ""
    id: str = ""
    seconds: float = 0.0


class ChildDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A child process of a worker; `in_hand`: messages of the leases that it holds."""

    pid: int = 0
    state: str = ""
    handled: int = 0
    failed: int = 0
    rss_bytes: int = 0
    in_hand: int = 0
    running: tuple[RunningDocument, ...] = ()


class WorkerDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as it describes itself: a field of the HASH of workers, as JSON. Times in ms of the server's clock.

    `shards`: those that every child receives from. `tasks`: None if the app has too many to list.
    """

    name: str = ""
    host: str = ""
    pid: int = 0
    app: str = ""
    started_ms: int = 0
    seen_ms: int = 0
    queues: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()
    leaving: bool = False
    tasks: tuple[str, ...] | None = None
    concurrency: int = 0
    handled_per_s: float = 0.0
    children: tuple[ChildDocument, ...] = ()

    @classmethod
    def parse(cls, data: bytes) -> WorkerDocument:
        """Read a document. A field that is missing or of another type has its default: raises nothing.

        Workers of other versions write other fields; anyone with access to the server can write anything.
        """
        fields = read_fields(data)
        return cls(
            name=_text(fields, "name"),
            host=_text(fields, "host"),
            pid=_whole(fields, "pid"),
            app=_text(fields, "app"),
            started_ms=_whole(fields, "started_ms"),
            seen_ms=_whole(fields, "seen_ms"),
            queues=_texts(fields, "queues"),
            shards=_texts(fields, "shards"),
            leaving=fields.get("leaving") is True,
            tasks=_texts(fields, "tasks") if isinstance(fields.get("tasks"), list) else None,
            concurrency=_whole(fields, "concurrency"),
            handled_per_s=float(_number(fields, "handled_per_s")),
            children=tuple(_child(child) for child in _objects(fields, "children")),
        )

    def age_ms(self, now_ms: int) -> int:
        """How long ago it was written, by the server's clock."""
        return age_of(self.seen_ms, now_ms)

    def serves(self, queue: str, now_ms: int) -> bool:
        """Whether the worker is alive and receives from a queue."""
        return queue in self.queues and not is_gone(self.age_ms(now_ms))


def read_fields(data: bytes) -> dict[str, Any]:
    """Read a document as the JSON object that it is; empty for anything else."""
    try:
        fields = codec.decode(data)
    except InvalidBodyError:
        return {}
    return fields if isinstance(fields, dict) else {}


class ReaperInfo(msgspec.Struct, frozen=True):
    """A process that reaps, and how long ago it was last seen."""

    name: str
    age_ms: int

    @property
    def is_gone(self) -> bool:
        """Whether it counts as gone."""
        return is_gone(self.age_ms)


def list_reapers(flat: Sequence[bytes], now_ms: int) -> list[ReaperInfo]:
    """Read the reply of `ZREVRANGE … WITHSCORES`, the latest reaper first; `now_ms` by the server's clock."""
    reapers = [
        ReaperInfo(name.decode("utf-8", "replace"), age_of(score_ms(score), now_ms))
        for name, score in zip(flat[::2], flat[1::2], strict=True)
    ]
    return sorted(reapers, key=lambda reaper: reaper.age_ms)


def _child(fields: Mapping[str, Any]) -> ChildDocument:
    return ChildDocument(
        pid=_whole(fields, "pid"),
        state=_text(fields, "state"),
        handled=_whole(fields, "handled"),
        failed=_whole(fields, "failed"),
        rss_bytes=_whole(fields, "rss_bytes"),
        in_hand=_whole(fields, "in_hand"),
        running=tuple(
            RunningDocument(
                task=_text(handler, "task"),
                id=_text(handler, "id"),
                seconds=float(_number(handler, "seconds")),
            )
            for handler in _objects(fields, "running")
        ),
    )


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return "" if value is None else str(value)


def _number(fields: Mapping[str, Any], name: str) -> int | float:
    value = fields.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0


def _whole(fields: Mapping[str, Any], name: str) -> int:
    return int(_number(fields, name))


def _items(fields: Mapping[str, Any], name: str) -> list[Any]:
    value = fields.get(name)
    return value if isinstance(value, list) else []


def _texts(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(item for item in _items(fields, name) if isinstance(item, str))


def _objects(fields: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    return [item for item in _items(fields, name) if isinstance(item, dict)]
