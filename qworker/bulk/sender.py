"""Sends the rows of one partition to their queues, as one attempt of a task does."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from qworker.bulk.ledger import (
    MAX_BYTES,
    MOVED,
    SHARDS,
    WORDS,
    LedgerPosition,
    Stream,
    moved_name,
    shares,
)
from qworker.bulk.options import BulkOptions
from qworker.bulk.rows import RowGroup
from qworker.bulk.transport import RoomWait, Transport
from qworker.engine.attempt import GIVE_UP_S
from qworker.engine.command import Command, Word
from qworker.engine.index import announce
from qworker.engine.options import QueueAttributes
from qworker.engine.raw import raw
from qworker.engine.scripts import load_script
from qworker.engine.send_chunk import BulkRun, Chunk, send_chunk
from qworker.engine.shards import read_mark, read_shards
from qworker.errors import BodyTooLargeError, InvalidOptionError
from qworker.store.connections import ConnectionFactory
from qworker.wire.ids import new_id_prefix
from qworker.wire.keys import QueueKeys
from qworker.wire.names import MAX_SHARDS, shard_name
from qworker.wire.numbers import whole
from qworker.wire.shards import ReshardMark, Shards

__all__ = ["BulkSender", "BulkSent", "Identity"]

#: Field of a ledger: how many partitions the input has.
_PARTITIONS: Final = "partitions"
#: Bytes of bodies that may wait to fill a chunk, over all streams of a partition; beyond that all are sent.
_MAX_PENDING: Final = 64 * MAX_BYTES


@dataclass(frozen=True, slots=True)
class Identity:
    """Names a partition's part of a write: write id, run id, partition.

    `kept_ms`: how long ledger and row ids are remembered. `ordered`: a repetition brings the rows in the same order, so
    the ledger counts them.
    """

    write_id: str
    run_id: str
    partition: int
    kept_ms: int
    ordered: bool


@dataclass(frozen=True, slots=True)
class BulkSent:
    """Rows that an attempt read, per queue. What it and others have stored is in the ledger."""

    partition: int
    rows: dict[str, int]


@dataclass(slots=True)
class _Queue:
    """A queue that rows go to, spread over `shards`. `taken`: rows that took their turn, by priority."""

    keys: QueueKeys
    maxsize: int
    shards: int
    rows: int = 0
    taken: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True)
class _Target:
    """A stream of rows of a queue, and the shard that they go to; 0 also if they were moved to the first one."""

    queue: _Queue
    shard: int
    keys: QueueKeys
    stream: Stream
    run: BulkRun


class BulkSender:
    """Cuts rows into chunks by queue and priority, and sends them; connects at the first row."""

    def __init__(
        self,
        connections: ConnectionFactory,
        options: BulkOptions,
        identity: Identity,
        *,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        """`give_up_s`: seconds after which a server that cannot be reached is given up."""
        self._options = options
        self._identity = identity
        self._transport = Transport(
            connections,
            load_script("send_chunk"),
            RoomWait(options.full_wait_s),
            give_up_s=give_up_s,
        )
        self._queues: dict[str, _Queue] = {}
        #: By queue, priority and shard.
        self._targets: dict[tuple[str, int, int], _Target] = {}
        self._pending_bytes = 0

    def __enter__(self) -> BulkSender:
        return self

    def __exit__(self, *exc: object) -> None:
        self._transport.close()

    def add(self, group: RowGroup) -> None:
        """Send rows, or keep them until they fill a chunk.

        Raises `BodyTooLargeError` naming the row, `BulkChangedError`, `BulkGapError`, `QueueFullError` or
        `QueuePausedError` once the time to wait is over, `BrokenQueueError`, or a `ServerError` that did not pass.
        """
        queue = self._queues.get(group.queue) or self._open(group.queue)
        if group.largest > queue.maxsize:
            self._check_sizes(group, queue.maxsize)
        queue.rows += len(group.bodies)
        has_ids = bool(group.words) and group.words[WORDS - 1] != ""
        if queue.shards == 1 or has_ids:
            # The first shard remembers all row ids: any division of the queue would spread them otherwise.
            self._add(queue, group.priority, 0, group.bodies, group.words)
        else:
            start, count = queue.taken[group.priority], len(group.bodies)
            queue.taken[group.priority] += count
            for shard, rows in shares(start, count, self._identity.partition, queue.shards):
                words = group.words[rows.start * WORDS : rows.stop * WORDS]
                bodies = group.bodies[rows.start : rows.stop]
                self._add(queue, group.priority, shard, bodies, words)
        if self._pending_bytes > _MAX_PENDING:
            self._flush()

    def _add(
        self,
        queue: _Queue,
        priority: int,
        shard: int,
        bodies: Sequence[bytes],
        words: Sequence[Word],
    ) -> None:
        key = queue.keys.name, priority, shard
        target = self._targets.get(key)
        if target is None:
            target = self._targets[key] = self._begin(queue, priority, shard)
        before = target.stream.pending_bytes
        self._send(target, target.stream.add(bodies, words))
        self._pending_bytes += target.stream.pending_bytes - before

    def finish(self) -> BulkSent:
        """Send the rest, wait for all replies, and return the rows read. Raises as `add` does."""
        self._flush()
        for target in self._targets.values():
            target.stream.check_end()
        self._transport.flush()
        return BulkSent(
            self._identity.partition, {name: queue.rows for name, queue in self._queues.items()}
        )

    def _flush(self) -> None:
        for target in self._targets.values():
            self._send(target, target.stream.flush())
        self._pending_bytes = 0

    def _send(self, target: _Target, chunks: Iterator[Chunk]) -> None:
        for chunk in chunks:
            command = send_chunk(target.keys, target.run, chunk)
            self._transport.send(command, _ignore, partial(self._elsewhere, target, chunk))

    def _elsewhere(self, target: _Target, chunk: Chunk) -> Command[int]:
        """Return the call that sends a chunk again, after its shard or an earlier one's has refused it.

        The rest of the stream of a shard that takes no more messages goes to the first one.
        """
        if target.shard and self._is_moved(target.queue, target.stream.name, target.shard):
            if target.stream.name:
                target.stream.name = moved_name(target.stream.name, target.shard)
            target.keys, target.shard = target.queue.keys, 0
        return send_chunk(target.keys, target.run, replace(chunk, stream=target.stream.name))

    def _open(self, name: str) -> _Queue:
        """Announce a queue, and check that its ledger belongs to an input with as many partitions."""
        namespace = self._options.namespace
        keys = QueueKeys(namespace, name)
        if self._options.partitions and self._identity.ordered:
            self._check_partitions(keys)
        stored = whole(self._execute("HGET", keys.meta, "maxsize"))
        maxsize = QueueAttributes().maxsize if stored is None else stored
        queue = self._queues[name] = _Queue(keys, maxsize, self._shards_of(keys))
        self._transport.try_briefly(announce(namespace, [name]))
        return queue

    def _shards_of(self, keys: QueueKeys) -> int:
        """Return over how many shards the write spreads its rows: all of its tasks, attempts and runs the same."""
        ledger = keys.bulk(self._identity.write_id)
        shards: Shards = self._transport.execute(read_shards(keys))
        # An earlier version has stored rows of this write, all of them in the first shard.
        is_older = self._execute("HGET", ledger, "stored") is not None
        self._execute("HSETNX", ledger, SHARDS, 1 if is_older else shards.active)
        self._execute("PEXPIRE", ledger, self._identity.kept_ms)
        return min(whole(self._execute("HGET", ledger, SHARDS)) or 1, MAX_SHARDS)

    def _check_partitions(self, keys: QueueKeys) -> None:
        write_id, partitions = self._identity.write_id, self._options.partitions
        ledger = keys.bulk(write_id)
        self._execute("HSETNX", ledger, _PARTITIONS, partitions)
        self._execute("PEXPIRE", ledger, self._identity.kept_ms)
        known = int(self._execute("HGET", ledger, _PARTITIONS) or partitions)
        if known != partitions:
            raise InvalidOptionError(
                f"write id {write_id}",
                f"belongs to an input of {known} partitions, not {partitions}",
                "partition it as before; another write id, or rows with ids, would send all of them again",
            )

    def _begin(self, queue: _Queue, priority: int, shard: int) -> _Target:
        identity, options = self._identity, self._options
        name, taken, keys = "", LedgerPosition(), self._keys_of(queue, shard)
        if identity.ordered:
            name = f"{identity.partition}.{priority}"
        if shard and self._is_moved(queue, name, shard):
            name = moved_name(name, shard) if name else ""
            keys, shard = queue.keys, 0
        if name:
            taken = LedgerPosition.of(self._execute("HGET", keys.bulk(identity.write_id), name))
        run = BulkRun(
            write_id=identity.write_id,
            run_id=identity.run_id,
            id_prefix=new_id_prefix(),
            kept_ms=identity.kept_ms,
            limit=math.ceil(options.max_queue_length / queue.shards),
            priority=priority,
            delay_ms=options.delay_ms,
            ttl_ms=options.ttl_ms,
        )
        return _Target(queue, shard, keys, Stream(identity.write_id, name, taken), run)

    def _is_moved(self, queue: _Queue, name: str, shard: int) -> bool:
        """Whether the rest of a shard's stream goes to the first shard, because its own takes no more messages.

        Once it does, it always does: other attempts may have stored rows of it there.
        """
        keys, write_id = self._keys_of(queue, shard), self._identity.write_id
        first, own, moved = queue.keys.bulk(write_id), keys.bulk(write_id), moved_name(name, shard)
        if name and self._execute("HGET", first, moved) is not None:
            return True
        mark: ReshardMark | None = self._transport.execute(read_mark(keys))
        if mark is not None and mark.open:
            return False
        if name:
            stored = self._execute("HGET", own, name)
            if stored != MOVED.encode():
                self._execute("HSETNX", first, moved, stored or b"0 0")
                # An attempt that still goes to the shard, should it take messages again, is refused.
                self._execute("HSET", own, name, MOVED)
                self._execute("PEXPIRE", own, self._identity.kept_ms)
        return True

    def _keys_of(self, queue: _Queue, shard: int) -> QueueKeys:
        return QueueKeys(self._options.namespace, shard_name(queue.keys.name, shard))

    def _execute(self, *words: str | int | bytes) -> Any:
        return self._transport.execute(raw(*words))

    def _check_sizes(self, group: RowGroup, maxsize: int) -> None:
        for number, body in zip(group.numbers, group.bodies, strict=True):
            if len(body) > maxsize:
                where = f"partition {self._identity.partition}, row {number}"
                raise BodyTooLargeError(f"{where}, body", len(body), maxsize)


def _ignore(_: int) -> None:
    """Ignore a result: the ledger counts the stored rows."""
