"""The tables queues, messages and dead: Redis as it is now, read in pages of about 1 MiB.

Messages are read from ready and suspect, from the tail on (ascending indexes would miss items that move up), then from
delayed, then from the leases. Messages move in that order too, so one that is received during the read is read again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from qworker.client.execute.sync import Client
from qworker.client.inspect.walk import ListWalk, SortedSetWalk, StreamWalk
from qworker.client.message import DeadLetter, Receipt, Stored
from qworker.engine.inspect import Inspection, inspect
from qworker.pipeline.failures import marked_errors
from qworker.pipeline.source.journal import find_queues
from qworker.pipeline.source.options import ReadOptions
from qworker.pipeline.source.reading import Reader
from qworker.pipeline.source.schemas import LAST_MS, arrow_of
from qworker.store.connections import ConnectionFactory
from qworker.wire.keys import QueueKeys
from qworker.wire.leases import held_items
from qworker.wire.names import split_shard_name
from qworker.wire.numbers import score_ms, whole

__all__ = ["SnapshotReader", "dead_letters", "messages"]

#: Partitions per core of the planning host: queues differ in length.
_PER_CORE: Final = 4


class SnapshotReader(DataSourceReader):
    """Reads one of the tables; the queues are divided over the tasks."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._server = options.server()

    def partitions(self) -> list[InputPartition]:
        """Give each task some of the queues."""
        options = self._options
        with marked_errors(), Reader(self._server) as reader:
            queues = find_queues(reader, options.namespace, options.queues)
        most = options.min_partitions or _PER_CORE * (os.cpu_count() or 1)
        count = max(1, min(len(queues), most))
        return [InputPartition(tuple(queues[index::count])) for index in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the partition's queues."""
        with marked_errors():
            if self._options.table == "queues":
                yield from self._read_queues(partition.value)
                return
            with Reader(self._server) as reader:
                for queue in partition.value:
                    yield from self._read_stored(reader, queue)

    def _read_queues(self, queues: Sequence[str]) -> Iterator[pa.RecordBatch]:
        client = Client(ConnectionFactory(self._server, name="qworker-spark"))
        try:
            rows = [
                _queue_row(client.execute(inspect(QueueKeys(self._options.namespace, queue))))
                for queue in queues
            ]
        finally:
            client.close()
        yield _batch(rows, arrow_of("queues"))

    def _read_stored(self, reader: Reader, queue: str) -> Iterator[pa.RecordBatch]:
        keys = QueueKeys(self._options.namespace, queue)
        seconds, microseconds = reader.execute("TIME")
        snapshot = int(seconds) * 1_000_000 + int(microseconds)
        with_body = self._options.include_body
        schema = arrow_of(self._options.table, include_body=with_body)
        pages: Iterable[Iterable[dict[str, Any]]]
        if self._options.table == "dead":
            pages = (map(_dead_letter_row, page) for page in dead_letters(reader, keys))
        else:
            pages = (map(_message_row, page) for page in messages(reader, keys))
        for rows in pages:
            yield _batch([{**row, "snapshot_ts": snapshot} for row in rows], schema)


def messages(reader: Reader, keys: QueueKeys) -> Iterator[list[Stored]]:
    """Yield the messages of a queue that are not dead, page by page."""
    for key in (*keys.ready, keys.suspect):
        state = "suspect" if key == keys.suspect else "ready"
        for items in ListWalk(key).pages(reader.run):
            yield [Stored.of(keys.queue, state, item) for item in items]
    for members in SortedSetWalk(keys.delayed).pages(reader.run):
        yield [Stored.of(keys.queue, "delayed", item, score_ms(due)) for item, due in members]
    seen: set[str] = set()
    for members in SortedSetWalk(keys.unacked).pages(reader.run):
        named = ((lease.decode("utf-8", "replace"), deadline) for lease, deadline in members)
        # A lease that is extended during the read comes twice.
        leases = [(lease, score_ms(deadline)) for lease, deadline in named if lease not in seen]
        seen.update(lease for lease, _ in leases)
        held = reader.replies(("HGETALL", keys.lease(lease)) for lease, _ in leases)
        for (lease, deadline_ms), flat in zip(leases, held, strict=True):
            yield [
                Stored.of(
                    keys.queue,
                    "unacked",
                    item,
                    deadline_ms,
                    Receipt(lease, index.decode("ascii", "replace"), keys.shard),
                )
                for index, item in held_items(flat)
            ]


def dead_letters(reader: Reader, keys: QueueKeys) -> Iterator[list[DeadLetter]]:
    """Yield the dead letters of a queue, page by page, oldest first."""
    for entries in StreamWalk(keys.dead).pages(reader.run):
        yield [DeadLetter.of(keys, entry_id, fields) for entry_id, fields in entries]


# -- rows --------------------------------------------------------------------------------------


class _Call(msgspec.Struct):
    """What a body written by qworker names."""

    task: str | None = None


_CALL: Final = msgspec.json.Decoder(_Call)


def _queue_row(seen: Inspection) -> dict[str, Any]:
    oldest = seen.oldest_ready_ms
    name, shard = split_shard_name(seen.queue)
    return {
        "queue": name,
        "shard": shard,
        "ready": sum(seen.ready_by_priority),
        "suspect": seen.suspect,
        "delayed": seen.delayed,
        "unacked": seen.unacked,
        "dead": seen.dead,
        "oldest_ready_age_ms": None if oldest is None else max(0, seen.now_ms - oldest),
        "paused": seen.paused or None,
        "journal": seen.journal,
        "journal_entries": seen.journal_entries,
        "counters": sorted(seen.stats.items()),
        "snapshot_ts": _us(seen.now_ms),
    }


def _message_row(message: Stored) -> dict[str, Any]:
    ready_ms = message.at_ms if message.state == "delayed" else None
    if ready_ms is None:
        ready_ms = message.sent_ms
        if (flag_ms := whole(message.flags.get("t"))) is not None:
            ready_ms = flag_ms
    name, shard = split_shard_name(message.queue)
    return {
        "queue": name,
        "shard": shard,
        "message_id": message.id or None,
        "state": message.state,
        "attempt": message.receives + (message.state == "unacked"),
        "sent_ts": _us(message.sent_ms),
        "ready_ts": _us(ready_ms),
        "task": _task(message.body),
        "body": _text(message.body),
    }


def _dead_letter_row(dead: DeadLetter) -> dict[str, Any]:
    return {
        **_message_row(dead.message),
        "reason": dead.reason or None,
        "error_class": dead.error_class or None,
        "error": dead.error or None,
        "died_ts": _us(dead.died_ms),
        "entry_id": dead.entry_id,
    }


def _us(ms: int | None) -> int | None:
    """ms as the µs of a timestamp; None beyond the year 9999."""
    return ms * 1000 if ms is not None and ms <= LAST_MS else None


def _task(body: bytes) -> str | None:
    with suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _CALL.decode(body).task
    return None


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _batch(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([row.get(field.name) for row in rows], field.type) for field in schema],
        schema=schema,
    )
