"""The command that stores a chunk of a bulk write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qworker.engine.arguments import given
from qworker.engine.command import Command, Word
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.errors import BodyTooLargeError, BulkChangedError, BulkGapError
from qworker.wire.keys import QueueKeys

__all__ = ["BulkRun", "Chunk", "send_chunk"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows `first + 1` … `first + len(bodies)` of a stream, up to 1,000.

    `stream` names rows that every repetition brings in the same order; '' if their order is unknown, and then the CRCs
    are ignored. They cover all rows of the stream: `crc_before` without this chunk, `crc_after` with it. `words` are
    three per row (delay ms, ttl ms, row id; '' for the run's value, or no id), or none at all.
    """

    stream: str
    first: int
    bodies: Sequence[bytes]
    crc_before: int = 0
    crc_after: int = 0
    words: Sequence[Word] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkRun:
    """The common part of all chunks of one run of a bulk write.

    `id_prefix` begins the message ids (10 characters, drawn by each process), `kept_ms` is how long the ledger and row
    ids are kept, `limit` how many messages the queue may store before chunks are refused (0: no limit). `delay_ms` and
    `ttl_ms` None take the queue's.
    """

    write_id: str
    run_id: str
    id_prefix: str
    kept_ms: int
    limit: int = 0
    priority: int = 0
    delay_ms: int | None = None
    ttl_ms: int | None = None
    now_ms: int | None = None


def send_chunk(keys: QueueKeys, run: BulkRun, chunk: Chunk) -> Command[int]:
    """Store a chunk, unless the ledger of the write has it. Returns how many messages this call stored.

    The reply raises `BulkGapError`, `BulkChangedError`, `QueueFullError`, `QueuePausedError`, `BodyTooLargeError` (its
    field names the row of the chunk, from 1) or `BrokenQueueError`; then nothing was stored.
    """
    args: list[Word] = [
        given(run.now_ms),
        chunk.stream,
        chunk.first,
        chunk.crc_before,
        chunk.crc_after,
        run.run_id,
        run.kept_ms,
        run.limit,
        run.priority,
        given(run.delay_ms),
        given(run.ttl_ms),
        run.id_prefix,
        len(chunk.bodies),
        *chunk.bodies,
        len(chunk.words) // 3,
        *chunk.words,
    ]

    def decode(reply: Any) -> int:
        if reply[0] == b"GAP":
            raise BulkGapError(run.write_id, chunk.stream, int(reply[1]), chunk.first)
        if reply[0] == b"CHANGED":
            raise BulkChangedError(run.write_id, chunk.stream, int(reply[1]))
        if reply[0] == b"TOOLARGE":
            raise BodyTooLargeError(f"row {int(reply[3])}", int(reply[1]), int(reply[2]))
        return int(accepted(reply, keys.queue)[2])

    return Command(
        load_script("send_chunk"),
        (
            keys.ready[run.priority],
            keys.delayed,
            keys.wake,
            keys.meta,
            keys.stats,
            keys.rows,
            keys.bulk(run.write_id),
            keys.journal,
        ),
        tuple(args),
        decode,
    )
