"""Rows of a bulk send: Arrow batches, split by queue and priority.

| column | type | null |
| --- | --- | --- |
| `body` | string or binary, required | refused |
| `queue` | string | the option `queue` |
| `id` | string or whole number; a row is stored once per id | refused |
| `delay`, `ttl` | whole number of ms, or text such as '10m' | the option |
| `priority` | whole number, 0 to 9 | the option |

One row is one message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from qworker.bulk.options import BulkOptions
from qworker.config.kinds import MAX_DELAY_MS
from qworker.durations import duration_ms
from qworker.engine.command import Word
from qworker.errors import InvalidBodyError, InvalidNameError, InvalidOptionError
from qworker.wire.names import check_queue

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RowGroup", "RowReader"]

_ID_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one batch for one queue and priority, in their order.

    `numbers` count the rows of the partition, from 1; `largest` is an upper bound of the size of a body in bytes.
    """

    queue: str
    priority: int
    bodies: list[bytes]
    words: list[Word]
    numbers: Sequence[int]
    largest: int


class RowReader:
    """Splits the batches of one partition. Errors name the partition and the row."""

    def __init__(self, options: BulkOptions, partition: int) -> None:
        self.rows = 0
        self._options = options
        self._partition = partition

    def read(self, batch: pa.RecordBatch) -> Iterator[RowGroup]:
        """Yield the rows of a batch by queue and priority.

        Raises `InvalidBodyError` for a null body, and `InvalidOptionError` for a value that its column does not allow.
        """
        first, count = self.rows + 1, batch.num_rows
        self.rows += count
        if not count:
            return
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        bodies, largest = self._bodies(columns["body"], first)
        words = self._words(columns, first, count)
        targets = self._targets(columns, first, count)
        if len(set(targets)) == 1:
            queue, priority = targets[0]
            yield RowGroup(queue, priority, bodies, words, range(first, first + count), largest)
            return
        by_target: dict[tuple[str, int], list[int]] = {}
        for index, target in enumerate(targets):
            by_target.setdefault(target, []).append(index)
        for (queue, priority), rows in by_target.items():
            yield RowGroup(
                queue,
                priority,
                [bodies[index] for index in rows],
                [word for index in rows for word in words[3 * index : 3 * index + 3]],
                [first + index for index in rows],
                largest,
            )

    def where(self, number: int) -> str:
        """Name a row of this partition."""
        return f"partition {self._partition}, row {number}"

    def _bodies(self, column: pa.Array, first: int) -> tuple[list[bytes], int]:
        import pyarrow as pa
        import pyarrow.compute as pc

        if column.null_count:
            index = pc.index(pc.is_null(column), True).as_py()
            raise InvalidBodyError(
                self.where(first + index), "the body is null", "a message has a body"
            )
        is_large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
        column = column.cast(pa.large_binary() if is_large else pa.binary())
        return column.to_pylist(), pc.max(pc.binary_length(column)).as_py()

    def _targets(
        self, columns: Mapping[str, pa.Array], first: int, count: int
    ) -> list[tuple[str, int]]:
        """Return queue and priority of each row; a single pair if no column sets them."""
        if "queue" not in columns and "priority" not in columns:
            return [self._target(None, None, number=first)]
        queues: list[str | None] = [None] * count
        priorities: list[int | None] = [None] * count
        if "queue" in columns:
            queues = columns["queue"].to_pylist()
        if "priority" in columns:
            priorities = columns["priority"].to_pylist()
        known: dict[tuple[Any, Any], tuple[str, int]] = {}
        targets = []
        for number, key in enumerate(zip(queues, priorities, strict=True), first):
            target = known.get(key)
            if target is None:
                target = known[key] = self._target(*key, number=number)
            targets.append(target)
        return targets

    def _target(self, queue: str | None, priority: int | None, *, number: int) -> tuple[str, int]:
        chosen = self._options.queue if queue is None else queue
        if chosen is None:
            raise InvalidOptionError(
                self.where(number), "the queue is null", "name one, or give the option queue"
            )
        try:
            check_queue(chosen)
        except InvalidNameError as error:
            raise InvalidOptionError(
                self.where(number), f"queue: {error.problem}", error.limit
            ) from None
        level = self._options.priority if priority is None else priority
        if not 0 <= level <= 9:
            raise InvalidOptionError(
                self.where(number), f"priority {level} is out of range", "it must be from 0 to 9"
            )
        return chosen, level

    def _words(self, columns: Mapping[str, pa.Array], first: int, count: int) -> list[Word]:
        """Three words per row: delay ms, ttl ms, id; none at all without these columns."""
        if not {"delay", "ttl", "id"} & set(columns):
            return []
        words: list[Word] = [""] * (3 * count)
        for offset, name in enumerate(("delay", "ttl")):
            if name in columns:
                for index, value in enumerate(columns[name].to_pylist()):
                    if value is not None:
                        words[3 * index + offset] = self._span(value, name, first + index)
        if "id" in columns:
            for index, value in enumerate(columns["id"].to_pylist()):
                words[3 * index + 2] = self._id(value, first + index)
        return words

    def _span(self, value: str | int, name: str, number: int) -> int:
        try:
            return _span_ms(value)
        except InvalidOptionError as error:
            raise InvalidOptionError(
                self.where(number),
                f"{name} {error.problem}",
                "it must be a whole number of ms, or text such as '10m'",
            ) from None

    def _id(self, value: object, number: int) -> str:
        text = "" if value is None else str(value)
        if not 1 <= len(text.encode("utf-8", "surrogatepass")) <= _ID_BYTES:
            problem = "the id is null" if value is None else "the id is empty or too long"
            raise InvalidOptionError(
                self.where(number), problem, f"it must be 1 to {_ID_BYTES} bytes"
            )
        return text


@lru_cache(1024)
def _span_ms(value: str | int) -> int:
    if isinstance(value, int):
        return _checked_ms(value)
    return duration_ms(value, "", maximum_ms=MAX_DELAY_MS)


def _checked_ms(value: int) -> int:
    if not 0 <= value <= MAX_DELAY_MS:
        raise InvalidOptionError("", f"{value} is out of range", "")
    return value
