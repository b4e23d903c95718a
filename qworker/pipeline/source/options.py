"""Options of a read: which table, and which part of the journal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, ClassVar, Final

from qworker.config.kinds import ChoiceKind, FlagKind, IntegerKind, Kind
from qworker.config.name_kinds import NameKind
from qworker.errors import InvalidNameError, InvalidOptionError
from qworker.pipeline.options import SparkOptions, camel
from qworker.pipeline.source.offsets import Position, parse
from qworker.pipeline.source.schemas import TABLES
from qworker.wire.names import check_queue

__all__ = ["ReadOptions"]

_PATTERN: Final = re.compile(r"[a-z0-9._*?\[\]!-]{1,80}")
_READER: Final = re.compile(r"[A-Za-z0-9._:-]{1,100}")
_OF_JOURNAL: Final = (
    "starting_offsets",
    "ending_offsets",
    "starting_timestamp",
    "ending_timestamp",
    "reader_name",
)


class QueuesKind(Kind):
    """Names of queues with `*`, `?` and `[…]`, separated by commas."""

    __slots__ = ()

    @property
    def limit(self) -> str:
        """The form."""
        return "it must be names of queues separated by commas; *, ? and [a-z] stand for any"

    def _checked(self, value: object, field: str) -> tuple[str, ...]:
        if not isinstance(value, tuple):
            raise self._refused(value, field)
        for name in value:
            if _PATTERN.fullmatch(name) is None:
                raise self._refused(name, field)
            if not any(sign in name for sign in "*?["):
                check_queue(name, field)
        return value

    def _parsed(self, text: str) -> object:
        return tuple(name.strip() for name in text.split(","))


class OffsetsKind(Kind):
    """'earliest', 'latest', or positions as JSON."""

    __slots__ = ()

    @property
    def limit(self) -> str:
        """The forms."""
        return 'it must be "earliest", "latest" or JSON as the progress of a query shows it'

    def _checked(self, value: object, field: str) -> object:
        return parse(value, field) if isinstance(value, str) else value


class TimestampKind(Kind):
    """A moment: ISO 8601 (UTC unless it names a zone), or ms since 1970; kept as ms."""

    __slots__ = ()

    @property
    def limit(self) -> str:
        """The forms."""
        return "it must be a time such as 2031-05-04T10:00:00Z, or ms since 1970"

    def _checked(self, value: object, field: str) -> int:
        if isinstance(value, int):
            return value
        text = str(value)
        if text.isdecimal() and len(text) <= 15:
            return int(text)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise self._refused(value, field) from None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1000)


def _check_reader(value: object, field: str) -> str:
    if not isinstance(value, str) or _READER.fullmatch(value) is None:
        raise InvalidNameError(
            field,
            f"{ascii(value)[:80]} is not a name",
            "1 to 100 of A-Z, a-z, 0-9, '.', '_', ':' and '-'",
        )
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(SparkOptions):
    """Options of a read, camelCase in Spark: `maxEntriesPerTrigger`. Offsets and limits count entries."""

    #: Spark passes the "dead" of load("dead") as `path`.
    aliases: ClassVar[Mapping[str, str]] = {"path": "table"}

    queues: Annotated[tuple[str, ...], QueuesKind("queues to read")] = ()
    table: Annotated[str, ChoiceKind("table to read", choices=TABLES)] = "journal"
    starting_offsets: Annotated[
        str | Mapping[str, Position] | None,
        OffsetsKind("start of the read", none="earliest"),
    ] = None
    ending_offsets: Annotated[
        str | Mapping[str, Position] | None,
        OffsetsKind("end of a batch read", none="latest"),
    ] = None
    starting_timestamp: Annotated[
        int | None, TimestampKind("read the journal from this time on", none="by offsets")
    ] = None
    ending_timestamp: Annotated[
        int | None, TimestampKind("read the journal up to this time", none="by offsets")
    ] = None
    max_entries_per_trigger: Annotated[
        int, IntegerKind("maximum entries (calls) per batch of a stream", zero="no limit")
    ] = 20_000
    max_events_per_trigger: Annotated[
        int,
        IntegerKind(
            "maximum events (rows) per batch of a stream, in place of entries", zero="by entries"
        ),
    ] = 0
    min_partitions: Annotated[
        int,
        IntegerKind("partitions to cut the journal into", maximum=100_000, zero="as many as cores"),
    ] = 0
    fetch_size: Annotated[
        int,
        IntegerKind("entries per call to Redis, of up to 16 KiB each", minimum=1, maximum=10_000),
    ] = 500
    fail_on_data_loss: Annotated[
        bool, FlagKind("fail if entries were trimmed before they were read; else add a row `gap`")
    ] = True
    reader_name: Annotated[
        str | None,
        NameKind("name under which a stream records its progress", rule=_check_reader, none="none"),
    ] = None
    include_body: Annotated[bool, FlagKind("messages and dead: add the column body")] = False

    def check_stream(self) -> None:
        """Raise `InvalidOptionError` for options that only a batch read supports."""
        if self.table != "journal":
            raise InvalidOptionError(
                "option table",
                f"{self.table} is not a stream",
                "read it with spark.read; the journal is a stream",
            )
        for name in ("ending_offsets", "ending_timestamp"):
            if getattr(self, name) is not None:
                raise InvalidOptionError(
                    f"option {camel(name)}",
                    "is for batch reads",
                    "a stream ends when it is stopped; use trigger(availableNow=True)",
                )

    def _check_together(self) -> None:
        if self.ending_offsets == "earliest":
            raise InvalidOptionError(
                "option endingOffsets", "is before every start", "leave it out for the latest"
            )
        for edge in ("starting", "ending"):
            if None not in (getattr(self, f"{edge}_offsets"), getattr(self, f"{edge}_timestamp")):
                raise InvalidOptionError(
                    f"option {edge}Timestamp", f"is given beside {edge}Offsets", "give one of them"
                )
        if self.table == "journal":
            return
        for name in _OF_JOURNAL:
            if getattr(self, name) is not None:
                raise InvalidOptionError(
                    f"option {camel(name)}",
                    f"does not apply to table {self.table}",
                    "omit it: the table is read as it is now",
                )
