"""The tables queues, messages and dead: Redis as it is now, read in pages of a few MiB.

Messages are looked for in ready and suspect from the tail on (an ascending look misses what moves up under it), then
in delayed, then in the leases: the way they go, so one that is received meanwhile is met again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from qworker.client.commands.inspecting import Inspection, inspect
from qworker.client.message import DeadLetter, Receipt, Stored
from qworker.client.sync import Client
from qworker.pipeline.source.journal import find_queues
from qworker.pipeline.source.options import ReadOptions
from qworker.pipeline.source.reading import Reader
from qworker.pipeline.source.schemas import LAST_MS, arrow_of
from qworker.pipeline.writing.failures import marked_errors
from qworker.store.connection import ConnectionFactory
from qworker.wire.keys import QueueKeys
from qworker.wire.leases import held_items
from qworker.wire.names import split_place
from qworker.wire.numbers import score_ms, whole

__all__ = ["SnapshotReader", "letters", "messages"]

_FIRST_PAGE: Final = 50
_LARGEST_PAGE: Final = 1000
_PAGE_BYTES: Final = 2 * 1024 * 1024
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
            keys = [QueueKeys(self._options.namespace, queue) for queue in queues]
            rows = [_queue_row(client.execute(inspect(each))) for each in keys]
        finally:
            client.close()
        yield _batch(rows, arrow_of("queues"))

    def _read_stored(self, reader: Reader, queue: str) -> Iterator[pa.RecordBatch]:
        keys = QueueKeys(self._options.namespace, queue)
        seconds, microseconds = reader.ask("TIME")
        snapshot = int(seconds) * 1_000_000 + int(microseconds)
        with_body = self._options.include_body
        schema = arrow_of(self._options.table, include_body=with_body)
        pages: Iterable[list[dict[str, Any]]]
        if self._options.table == "dead":
            pages = ([_letter_row(each) for each in page] for page in letters(reader, keys))
        else:
            pages = ([_message_row(each) for each in page] for page in messages(reader, keys))
        for rows in pages:
            yield _batch([{**row, "snapshot_ts": snapshot} for row in rows], schema)


class _PageSize:
    """How many items the next page takes, so that it has about 2 MiB."""

    def __init__(self) -> None:
        self.items = _FIRST_PAGE

    def saw(self, items: int, size: int) -> None:
        """Learn from a page of so many items and bytes."""
        if items:
            fitting = _PAGE_BYTES * items // max(1, size)
            self.items = max(1, min(fitting, 4 * self.items, _LARGEST_PAGE))


def messages(reader: Reader, keys: QueueKeys) -> Iterator[list[Stored]]:
    """Yield the messages of a queue that are not dead, page by page."""
    for key in (*keys.ready, keys.suspect):
        state = "suspect" if key == keys.suspect else "ready"
        for items in _from_tail(reader, key):
            yield [Stored.of(keys.queue, state, item) for item in items]
    for members in _members(reader, keys.delayed):
        yield [Stored.of(keys.queue, "delayed", item, due) for item, due in members]
    seen: set[str] = set()
    for members in _members(reader, keys.unacked):
        named = ((lease.decode("utf-8", "replace"), deadline) for lease, deadline in members)
        # One that is extended meanwhile is met again.
        leases = [(lease, deadline) for lease, deadline in named if lease not in seen]
        seen.update(lease for lease, _ in leases)
        held = reader.replies(("HGETALL", keys.lease(lease)) for lease, _ in leases)
        for (lease, deadline), flat in zip(leases, held, strict=True):
            yield [
                Stored.of(
                    keys.queue,
                    "unacked",
                    item,
                    deadline,
                    Receipt(lease, index.decode("ascii", "replace"), keys.shard),
                )
                for index, item in held_items(flat)
            ]


def letters(reader: Reader, keys: QueueKeys) -> Iterator[list[DeadLetter]]:
    """Yield the dead letters of a queue, page by page, oldest first."""
    size, after = _PageSize(), "-"
    while entries := reader.ask("XRANGE", keys.dead, after, "+", "COUNT", size.items):
        yield [DeadLetter.of(keys, entry, fields) for entry, fields in entries]
        after = f"({entries[-1][0].decode()}"
        size.saw(len(entries), sum(len(value) for _, fields in entries for value in fields))


def _from_tail(reader: Reader, key: str) -> Iterator[list[bytes]]:
    size, last = _PageSize(), -1
    while True:
        asked = size.items
        items: list[bytes] = reader.ask("LRANGE", key, last - asked + 1, last)
        if items:
            yield items
        if len(items) < asked:
            return
        last -= asked
        size.saw(asked, sum(map(len, items)))


def _members(reader: Reader, key: str) -> Iterator[list[tuple[bytes, int]]]:
    """Yield members with their scores, by score; every one that is there all the time.

    Not by ZSCAN: its cursors mean nothing to another server, and the slot may move to one meanwhile. Each page begins
    with the last member of the one before.
    """
    size, low, skip = _PageSize(), "-inf", 0
    last = float("-inf"), b"", b""
    while True:
        asked = size.items + 1
        flat: list[bytes] = reader.ask(
            *("ZRANGE", key, low, "+inf", "BYSCORE", "LIMIT", skip, asked, "WITHSCORES")
        )
        members, scores = flat[::2], flat[1::2]
        page = [*zip(map(float, scores), members, scores, strict=True)]
        if skip and not (page and page[0] <= last):
            skip = max(
                0, skip - asked // 2
            )  # Members of this score have gone: a part of them again.
            continue
        if fresh := [each for each in page if each > last]:
            yield [(member, score_ms(score)) for _, member, score in fresh]
            last = fresh[-1]
        if len(page) < asked:
            return
        size.saw(len(page), sum(map(len, flat)))
        before = skip if page[0][2] == scores[-1] else 0
        low, skip = scores[-1].decode(), before + scores.count(scores[-1]) - 1


# -- rows --------------------------------------------------------------------------------------


class _Call(msgspec.Struct):
    """What a body of qworker's names."""

    task: str | None = None


_CALL: Final = msgspec.json.Decoder(_Call)


def _queue_row(seen: Inspection) -> dict[str, Any]:
    oldest = seen.oldest_ready_ms
    name, shard = split_place(seen.queue)
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
    name, shard = split_place(message.queue)
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


def _letter_row(letter: DeadLetter) -> dict[str, Any]:
    return {
        **_message_row(letter.message),
        "reason": letter.reason or None,
        "error_class": letter.error_class or None,
        "error": letter.error or None,
        "died_ts": _us(letter.died_ms),
        "entry_id": letter.entry_id,
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
