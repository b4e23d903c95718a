"""Columns of the four tables, and the grain of their rows.

journal    one row per event of a message. Primary key: queue, shard, epoch, number
    queue, shard              the queue, and the number of its shard: 0 if it is not divided
    epoch, entry              the journal's epoch (never the same twice), and the entry of the stream
    number                    of the event in its epoch: 0, 1, 2 …
    event                     sent delivered promoted acked nacked released timed_out expired cancelled discarded dead
                              redriven purged unsure; `mode` if the journal was turned off, or to another mode
                              (reason), with no message_id; `gap` if events are missing (number: the first
                              of them; reason: how many; ts: of the next event), `unreadable` for a line in
                              another format
                              step group_begun group_decided (reason: see docs/protocol.md): a run recorded a step; a
                              group of calls began, or was decided, with no message_id
    message_id, attempt       attempt counts deliveries from 1; 0 for events outside of one
    ts                        when it happened; all times are of the server's clock, in UTC
    sent_ts, ready_ts         when the message was sent, and when it became ready (after its delay or backoff)
    delivered_ts, started_ts  when it was received, and when its handler began
    wait_ms, run_ms           from ready to started (or delivered), and how long the handler ran, in ms
    age_ms                    from sent to this event, in ms
    task, reason, error_class, worker, trace_id
queues     one row per queue, as it was at snapshot_ts; ages in ms, counters since the queue began
messages   one row per message in ready, suspect, delayed or unacked. A message that moves during the read may come
           twice, and one that goes back to ready may be missed
dead       one row per dead letter; redrive takes its entry_id. Same columns
    state                     ready, suspect, delayed, unacked or dead
    task                      from a JSON body; null if it names none
    body                      only with includeBody; null unless it is UTF-8 text

Every column may be null.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

__all__ = ["COLUMNS", "LAST_MS", "TABLES", "arrow_of", "struct_of"]

#: The last ms of the year 9999: Spark and Python show no later time.
LAST_MS: Final = 253_402_300_799_999

Columns = tuple[tuple[str, str], ...]


def _columns(text: str) -> Columns:
    return tuple((name, kind) for name, kind in (line.split() for line in text.split(", ")))


_STORED: Final = _columns(
    "queue string, shard int, message_id string, state string, attempt int, sent_ts timestamp, "
    "ready_ts timestamp, task string, reason string, error_class string, error string, "
    "died_ts timestamp, entry_id string, body string, snapshot_ts timestamp"
)

#: Table → its columns and their types, in order.
COLUMNS: Final[Mapping[str, Columns]] = MappingProxyType(
    {
        "journal": _columns(
            "queue string, shard int, epoch bigint, entry bigint, number bigint, event string, "
            "message_id string, attempt int, ts timestamp, sent_ts timestamp, ready_ts timestamp, "
            "delivered_ts timestamp, started_ts timestamp, wait_ms double, run_ms double, "
            "age_ms bigint, task string, reason string, error_class string, worker string, "
            "trace_id string"
        ),
        "queues": _columns(
            "queue string, shard int, ready bigint, suspect bigint, delayed bigint, "
            "unacked bigint, dead bigint, oldest_ready_age_ms bigint, paused string, "
            "journal string, journal_entries bigint, counters map<string,bigint>, "
            "snapshot_ts timestamp"
        ),
        "messages": _STORED,
        "dead": _STORED,
    }
)
TABLES: Final = tuple(COLUMNS)


def struct_of(table: str, *, include_body: bool = False) -> StructType:
    """Return Spark's schema of a table."""
    from pyspark.sql import types

    kinds: dict[str, DataType] = {
        "string": types.StringType(),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "double": types.DoubleType(),
        "timestamp": types.TimestampType(),
        "map<string,bigint>": types.MapType(types.StringType(), types.LongType()),
    }
    return types.StructType(
        [
            types.StructField(name, kinds[kind])
            for name, kind in COLUMNS[table]
            if name != "body" or include_body
        ]
    )


def arrow_of(table: str, *, include_body: bool = False) -> Any:
    """Return the Arrow schema that Spark expects of the table's batches (a `pyarrow.Schema`)."""
    import pyarrow as pa

    kinds: dict[str, pa.DataType] = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "double": pa.float64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "map<string,bigint>": pa.map_(pa.string(), pa.int64()),
    }
    return pa.schema(
        [(name, kinds[kind]) for name, kind in COLUMNS[table] if name != "body" or include_body]
    )
