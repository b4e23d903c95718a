"""Rows of a bulk send: which columns they may have, and Arrow batches taken apart by queue and priority.

| column | type | null |
| --- | --- | --- |
| `body` | string or binary, required | refused |
| `queue` | string | the option `queue` |
| `id` | string or whole number: the name of the row, stored once | refused |
| `delay`, `ttl` | whole number of ms, or text such as '10m' | the option |
| `priority` | whole number, 0 to 9 | the option |

One row is one message. Any other column is refused: it would be lost without a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from qworker.client.commands.command import Word
from qworker.config.kinds import MAX_DELAY_MS
from qworker.durations import duration_ms
from qworker.errors import InvalidBodyError, InvalidNameError, InvalidOptionError
from qworker.pipeline.writing.options import WriteOptions
from qworker.wire.names import check_queue

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LETTER_COLUMNS", "MESSAGE_COLUMNS", "Group", "RowReader", "check_columns"]

_TEXT: Final = ("string", "varchar", "char")
_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")
#: Column → the types that it may have, by the names that Spark gives them.
MESSAGE_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "body": (*_TEXT, "binary"),
    "queue": _TEXT,
    "id": (*_TEXT, *_WHOLE),
    "delay": (*_TEXT, *_WHOLE),
    "ttl": (*_TEXT, *_WHOLE),
    "priority": _WHOLE,
}
LETTER_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "queue": _TEXT,
    "entry_id": _TEXT,
    "message_id": _TEXT,
}
_ID_BYTES: Final = 256


def check_columns(columns: Mapping[str, str], options: WriteOptions) -> None:
    """Check the columns of the input, name → type as Spark writes it ("bigint").

    Raises `InvalidOptionError` naming the column that is missing, unknown or of a wrong type.
    """
    known = MESSAGE_COLUMNS if options.action == "send" else LETTER_COLUMNS
    for name, found in columns.items():
        if name not in known:
            near = get_close_matches(name, known, 1)
            raise InvalidOptionError(
                f"column {name}",
                f"is none that action {options.action} takes",
                (f"did you mean {near[0]!r}? " if near else "")
                + f"it takes {', '.join(known)}; send_rows makes a body of all columns"
                if options.action == "send"
                else f"it takes {', '.join(known)}; select these",
            )
        if found.partition("(")[0] not in known[name]:
            raise InvalidOptionError(
                f"column {name}", f"is of type {found}", f"it must be {' or '.join(known[name])}"
            )
    if options.action == "send" and "body" not in columns:
        raise _missing("body", "send_rows makes one of all columns")
    if options.action != "send" and not {"entry_id", "message_id"} & set(columns):
        raise _missing("entry_id", "select it from the table 'dead', or message_id")
    if "queue" not in columns and options.queue is None:
        raise _missing("queue", "add it, or give the option queue")
    if options.action == "send" and options.idempotence == "ids" and "id" not in columns:
        raise _missing("id", "add it, or leave the option idempotence out")


def _missing(name: str, remedy: str) -> InvalidOptionError:
    return InvalidOptionError(f"column {name}", "is missing", remedy)


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one batch for one queue and priority, in their order.

    `numbers` are the places of the rows in their partition, from 1; `largest` bounds the size of a body in bytes.
    """

    queue: str
    priority: int
    bodies: list[bytes]
    words: list[Word]
    numbers: Sequence[int]
    largest: int


class RowReader:
    """Takes the batches of one partition apart. Errors name the partition and the row."""

    def __init__(self, options: WriteOptions, partition: int) -> None:
        self.rows = 0
        self._options = options
        self._partition = partition

    def read(self, batch: pa.RecordBatch) -> Iterator[Group]:
        """Yield the rows of a batch by queue and priority.

        Raises `InvalidBodyError` for a null body, and `InvalidOptionError` for what another column may not say.
        """
        first, count = self.rows + 1, batch.num_rows
        self.rows += count
        if not count:
            return
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        bodies, largest = self._bodies(columns["body"], first)
        words = self._words(columns, first, count)
        places = self._places(columns, first, count)
        if len(set(places)) == 1:
            queue, priority = places[0]
            yield Group(queue, priority, bodies, words, range(first, first + count), largest)
            return
        chosen: dict[tuple[str, int], list[int]] = {}
        for at, place in enumerate(places):
            chosen.setdefault(place, []).append(at)
        for (queue, priority), rows in chosen.items():
            yield Group(
                queue,
                priority,
                [bodies[at] for at in rows],
                [word for at in rows for word in words[3 * at : 3 * at + 3]],
                [first + at for at in rows],
                largest,
            )

    def where(self, number: int) -> str:
        """Name a row of this partition."""
        return f"partition {self._partition}, row {number}"

    def _bodies(self, column: pa.Array, first: int) -> tuple[list[bytes], int]:
        import pyarrow as pa
        import pyarrow.compute as pc

        if column.null_count:
            at = pc.index(pc.is_null(column), True).as_py()
            raise InvalidBodyError(
                self.where(first + at), "the body is null", "a message has a body"
            )
        is_large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
        column = column.cast(pa.large_binary() if is_large else pa.binary())
        return column.to_pylist(), pc.max(pc.binary_length(column)).as_py()

    def _places(
        self, columns: Mapping[str, pa.Array], first: int, count: int
    ) -> list[tuple[str, int]]:
        """Say queue and priority of each row; of the first alone where no column says them."""
        if "queue" not in columns and "priority" not in columns:
            return [self._place(None, None, number=first)]
        queues: list[str | None] = [None] * count
        priorities: list[int | None] = [None] * count
        if "queue" in columns:
            queues = columns["queue"].to_pylist()
        if "priority" in columns:
            priorities = columns["priority"].to_pylist()
        places: dict[tuple[Any, Any], tuple[str, int]] = {}
        found = []
        for at, key in enumerate(zip(queues, priorities, strict=True)):
            place = places.get(key)
            if place is None:
                place = places[key] = self._place(*key, number=first + at)
            found.append(place)
        return found

    def _place(self, queue: str | None, priority: int | None, *, number: int) -> tuple[str, int]:
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
        """Three words per row: delay ms, ttl ms, id; none at all where no row has any."""
        if not {"delay", "ttl", "id"} & set(columns):
            return []
        words: list[Word] = [""] * (3 * count)
        for offset, name in enumerate(("delay", "ttl")):
            if name in columns:
                for at, value in enumerate(columns[name].to_pylist()):
                    if value is not None:
                        words[3 * at + offset] = self._span(value, name, first + at)
        if "id" in columns:
            for at, value in enumerate(columns["id"].to_pylist()):
                words[3 * at + 2] = self._id(value, first + at)
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
