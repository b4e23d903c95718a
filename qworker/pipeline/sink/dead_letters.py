"""Redrives or discards the dead letters that rows name, as one attempt of a task does it. No Spark here.

Only messages that are still dead change: rows show the past, and a repeated attempt finds its dead letters gone. So
neither needs a ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qworker.client.dead.pages import change_these, drop, redrive
from qworker.client.dead.throttle import Throttle
from qworker.client.execute.sync import Client
from qworker.client.inspect.walk import StreamWalk
from qworker.client.message import DeadLetter
from qworker.engine.shards import read_shards
from qworker.errors import InvalidOptionError
from qworker.pipeline.sink.options import WriteOptions
from qworker.store.connections import ConnectionFactory
from qworker.store.url import ServerURL
from qworker.wire.ids import EntryId
from qworker.wire.keys import QueueKeys
from qworker.wire.names import check_queue, shard_name

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AttemptResult", "DeadLetterChanger", "add_up"]


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """The result of an attempt: dead letters per queue that are `done`, `gone` (no longer dead) or `foreign`."""

    partition: int
    queues: dict[str, dict[str, int]]


def add_up(action: str, changed: Iterable[AttemptResult]) -> dict[str, Any]:
    """Add up the results of the tasks: `rows`, `done`, `gone`, `foreign`, and the same per queue."""
    queues: dict[str, Counter[str]] = {}
    for attempt in changed:
        for queue, counts in attempt.queues.items():
            queues.setdefault(queue, Counter()).update(counts)
    total: Counter[str] = sum(queues.values(), Counter())
    return {
        "action": action,
        **_counts(total),
        "queues": {queue: _counts(counts) for queue, counts in sorted(queues.items())},
    }


def _counts(counts: Counter[str]) -> dict[str, int]:
    named = {name: counts[name] for name in ("done", "gone", "foreign")}
    return {"rows": sum(named.values()), **named}


class DeadLetterChanger:
    """Changes dead letters in calls of up to 100, at the `rate` of the options."""

    def __init__(self, server: ServerURL, options: WriteOptions) -> None:
        self._client = Client(ConnectionFactory(server, name="qworker-spark"))
        self._options = options
        self._throttle = Throttle(options.rate or None)
        self._entries: dict[str, dict[str, EntryId]] = {}
        self._counts: dict[str, Counter[str]] = {}

    def change(self, partition: int, batches: Iterable[pa.RecordBatch]) -> AttemptResult:
        """Change the dead letters that rows name. Raises `InvalidOptionError` for a row that names none."""
        number = 0
        with self._client:
            for batch in batches:
                by_shard: dict[str, list[EntryId | None]] = {}
                for row in batch.to_pylist():
                    number += 1
                    shard, entry = self._named(row, f"partition {partition}, row {number}")
                    by_shard.setdefault(shard, []).append(entry)
                for shard, entries in by_shard.items():
                    self._change(shard, entries)
        return AttemptResult(
            partition, {queue: dict(counts) for queue, counts in self._counts.items()}
        )

    def _named(self, row: dict[str, str | None], where: str) -> tuple[str, EntryId | None]:
        """Return the shard and entry that a row names; no entry for a message that is not dead."""
        queue = row.get("queue") or self._options.queue
        entry_id, message_id = row.get("entry_id"), row.get("message_id")
        if queue is None:
            raise InvalidOptionError(
                where, "the queue is null", "name one, or give the option queue"
            )
        check_queue(queue, where)
        if entry_id is not None:
            entry = EntryId.parse(entry_id, f"{where}: entry_id")
            return shard_name(queue, entry.shard), entry
        if message_id is None:
            raise InvalidOptionError(where, "entry_id and message_id are null", "give one of them")
        if queue not in self._entries:
            self._entries[queue] = self._scan(queue)
        known = self._entries[queue].get(message_id) if message_id else None
        return shard_name(queue, known.shard) if known else queue, known

    def _scan(self, queue: str) -> dict[str, EntryId]:
        """Map the message ids of all dead letters of a queue to their entries: O(n), once per task and queue."""
        shards = self._client.execute(read_shards(QueueKeys(self._options.namespace, queue)))
        entries: dict[str, EntryId] = {}
        for name in shards.names(queue):
            keys = QueueKeys(self._options.namespace, name)
            for page in StreamWalk(keys.dead).pages(self._client.run):
                for entry_id, fields in page:
                    dead = DeadLetter.of(keys, entry_id, fields)
                    entries[dead.message.id] = dead.entry
        return entries

    def _change(self, shard: str, entries: Sequence[EntryId | None]) -> None:
        keys = QueueKeys(self._options.namespace, shard)
        counts = self._counts.setdefault(keys.name, Counter())
        dead = [entry for entry in entries if entry]
        act = drop if self._options.action == "discard" else redrive
        changed = self._client.run(change_these(keys, act, dead, self._throttle))
        counts["done"] += changed.done
        counts["foreign"] += changed.foreign
        # Dead letters that another message with their unique key keeps out are still dead; they are reported as gone.
        counts["gone"] += changed.gone + changed.kept_out + len(entries) - len(dead)
