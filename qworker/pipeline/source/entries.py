"""Single entries of journals, read from Redis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qworker.errors import PipelineError
from qworker.pipeline.source.offsets import MAX_NUMBER, Position, Range
from qworker.pipeline.source.reading import Reader
from qworker.wire.keys import QueueKeys

__all__ = ["EntryReader", "JournalEntry", "read_entry", "within"]


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One entry: its position, how many events are in it, when it was written."""

    position: Position
    events: int
    ms: int

    @property
    def following(self) -> Position:
        """The position after it."""
        position = self.position
        return Position(position.epoch, position.entry + 1, (position.event or 0) + self.events)


class EntryReader:
    """Reads single entries of the journals of some queues; each method is a round trip to each server."""

    def __init__(self, reader: Reader, namespace: str, queues: Sequence[str]) -> None:
        self._reader = reader
        self._keys = {queue: QueueKeys(namespace, queue) for queue in queues}

    def _now_ms(self) -> int:
        seconds, microseconds = self._reader.execute("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000

    def _entries(
        self, bounds: Iterable[tuple[str, str, str]], *, verb: str = "XRANGE"
    ) -> list[JournalEntry | None]:
        """Read the first entry of each (queue, from, to)."""
        bounds = list(bounds)
        replies = self._reader.execute_all(
            [
                (verb, self._keys[queue].journal, _bound(low), _bound(high), "COUNT", 1)
                for queue, low, high in bounds
            ]
        )
        return [
            read_entry(queue, reply[0]) if reply else None
            for (queue, _, _), reply in zip(bounds, replies, strict=True)
        ]


def _bound(text: str) -> str:
    """Write one end of a range; `<epoch>-+` is the epoch's last possible entry."""
    return text[:-1] + str(MAX_NUMBER) if text.endswith("-+") else text


def within(span: Range, first: int) -> tuple[str, str, str]:
    """Return the bounds of the entries of a span from `first` on: queue, from, to."""
    return span.queue, f"{span.epoch}-{first}", f"{span.epoch}-{max(first, span.stop - 1)}"


def read_entry(queue: str, reply: Any) -> JournalEntry:
    """Read one entry of a reply. Raises `PipelineError` for one that qworker did not write."""
    entry_id, fields = reply
    epoch, _, number = entry_id.decode().partition("-")
    named: Mapping[bytes, bytes] = dict(zip(fields[::2], fields[1::2], strict=False))
    try:
        event, events, ms = (int(named[name]) for name in (b"n", b"k", b"t"))
    except (KeyError, ValueError):
        raise PipelineError(
            f"journal of queue {queue!r}: qworker did not write entry {entry_id.decode()}; inspect it with XRANGE, "
            "and XDEL it"
        ) from None
    return JournalEntry(Position(int(epoch), int(number), event), events, ms)
