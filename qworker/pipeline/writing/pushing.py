"""Pushing the rows of one partition into their queues, as one attempt of a task does it. No Spark here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from qworker.client.commands.bulk import Chunk, Run, send_chunk
from qworker.client.commands.command import GIVE_UP_S, Command
from qworker.client.commands.index import announce
from qworker.client.options import QueueAttributes
from qworker.errors import BodyTooLargeError, InvalidOptionError
from qworker.pipeline.writing.ledger import MAX_BYTES, Place, Stream
from qworker.pipeline.writing.options import WriteOptions
from qworker.pipeline.writing.pipe import Patience, Pipe
from qworker.pipeline.writing.rows import Group
from qworker.store.connection import ConnectionFactory
from qworker.store.scripts import load_script
from qworker.store.url import ServerURL
from qworker.wire.ids import new_id_prefix
from qworker.wire.keys import QueueKeys
from qworker.wire.numbers import whole

__all__ = ["Identity", "Pushed", "Pusher"]

#: Field of a ledger: how many partitions the input has.
_PARTITIONS: Final = "partitions"
#: Bytes of bodies that wait to fill a chunk, over all streams of a partition; beyond that all of them are sent.
_KEPT_BACK: Final = 64 * MAX_BYTES


@dataclass(frozen=True, slots=True)
class Identity:
    """Which write this is, in which run, and of which partition.

    `ordered`: the order of the rows is one to rely on, so the ledger counts them.
    """

    write_id: str
    run_id: str
    partition: int
    kept_ms: int
    ordered: bool


@dataclass(frozen=True, slots=True)
class Pushed:
    """What an attempt read: rows per queue. What was stored, by it and others, is in the ledger."""

    partition: int
    rows: dict[str, int]


@dataclass(slots=True)
class _Queue:
    """What is known of a queue that rows go to."""

    keys: QueueKeys
    maxsize: int
    rows: int = 0


class Pusher:
    """Cuts rows into chunks by queue and priority, and sends them; connects at the first row."""

    def __init__(
        self,
        server: ServerURL,
        options: WriteOptions,
        identity: Identity,
        *,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        """Take the write; `give_up_s`: seconds after which a server that cannot be reached is given up."""
        self._options = options
        self._identity = identity
        self._pipe = Pipe(
            ConnectionFactory(server, name="qworker-spark"),
            load_script("send_chunk"),
            Patience(options.full_wait_ms / 1000 if options.on_full == "wait" else 0),
            give_up_s=give_up_s,
        )
        self._queues: dict[str, _Queue] = {}
        self._streams: dict[tuple[str, int], tuple[Stream, Run]] = {}
        self._kept_back = 0

    def __enter__(self) -> Pusher:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pipe.close()

    def add(self, group: Group) -> None:
        """Send rows, or keep them until they fill a chunk.

        Raises `BodyTooLargeError` naming the row, `BulkChangedError`, `BulkGapError`, `QueueFullError` and
        `QueuePausedError` where nothing is waited for any more, `BrokenQueueError`, or a `ServerError` that did not
        pass.
        """
        queue = self._queues.get(group.queue) or self._look_up(group.queue)
        if group.largest > queue.maxsize:
            self._check_sizes(group, queue.maxsize)
        place = group.queue, group.priority
        stream, run = self._streams.get(place) or self._begin(queue, group.priority)
        queue.rows += len(group.bodies)
        before = stream.kept_back
        self._send(queue, run, stream.add(group.bodies, group.words))
        self._kept_back += stream.kept_back - before
        if self._kept_back > _KEPT_BACK:
            self._flush()

    def finish(self) -> Pushed:
        """Send what is left, wait for all replies, and say what was read. Raises as `add` does."""
        self._flush()
        for stream, _ in self._streams.values():
            stream.check_end()
        self._pipe.flush()
        return Pushed(
            self._identity.partition, {name: queue.rows for name, queue in self._queues.items()}
        )

    def _flush(self) -> None:
        for (name, _), (stream, run) in self._streams.items():
            self._send(self._queues[name], run, stream.flush())
        self._kept_back = 0

    def _send(self, queue: _Queue, run: Run, chunks: Iterator[Chunk]) -> None:
        for chunk in chunks:
            self._pipe.put(send_chunk(queue.keys, run, chunk), _nothing)

    def _look_up(self, name: str) -> _Queue:
        """Announce a queue, and check that the ledger is that of an input with as many partitions."""
        namespace = self._options.namespace
        keys = QueueKeys(namespace, name)
        if self._options.partitions and self._identity.ordered:
            self._check_partitions(keys)
        stored = whole(self._pipe.ask(_plain("HGET", keys.meta, "maxsize")))
        maxsize = QueueAttributes().maxsize if stored is None else stored
        queue = self._queues[name] = _Queue(keys, maxsize)
        self._pipe.try_briefly(announce(namespace, [name]))
        return queue

    def _check_partitions(self, keys: QueueKeys) -> None:
        write_id, partitions = self._identity.write_id, self._options.partitions
        ledger = keys.bulk(write_id)
        self._pipe.ask(_plain("HSETNX", ledger, _PARTITIONS, partitions))
        self._pipe.ask(_plain("PEXPIRE", ledger, self._identity.kept_ms))
        known = int(self._pipe.ask(_plain("HGET", ledger, _PARTITIONS)) or partitions)
        if known != partitions:
            raise InvalidOptionError(
                f"write id {write_id}",
                f"belongs to an input of {known} partitions, not {partitions}",
                "read it with the same partitioning, or write under another id",
            )

    def _begin(self, queue: _Queue, priority: int) -> tuple[Stream, Run]:
        identity, options = self._identity, self._options
        name, taken = "", Place()
        if identity.ordered:
            name = f"{identity.partition}.{priority}"
            stored = self._pipe.ask(_plain("HGET", queue.keys.bulk(identity.write_id), name))
            taken = Place.of(stored)
        run = Run(
            write_id=identity.write_id,
            run_id=identity.run_id,
            id_prefix=new_id_prefix(),
            kept_ms=identity.kept_ms,
            limit=options.max_queue_length,
            priority=priority,
            delay_ms=options.delay_ms,
            ttl_ms=options.ttl_ms,
        )
        found = Stream(identity.write_id, name, taken), run
        self._streams[queue.keys.queue, priority] = found
        return found

    def _check_sizes(self, group: Group, maxsize: int) -> None:
        for number, body in zip(group.numbers, group.bodies, strict=True):
            if len(body) > maxsize:
                where = f"partition {self._identity.partition}, row {number}"
                raise BodyTooLargeError(f"{where}, body", len(body), maxsize)


def _plain(*words: str | int) -> Command[Any]:
    return Command(None, (), words, lambda reply: reply)


def _nothing(_: int) -> None:
    """Ask nothing of a reply: what was stored is counted in the ledger."""
