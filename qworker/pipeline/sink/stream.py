"""A stream as a sink: stores every row of every batch once, also if Spark replays a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import structlog
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from qworker.bulk.ledger import SHARDS, ledgers_of
from qworker.bulk.sender import BulkSent
from qworker.client.execute.sync import Client
from qworker.engine.raw import raw
from qworker.errors import InvalidOptionError, QworkerError
from qworker.pipeline.sink.options import STREAM_KEPT_MS
from qworker.pipeline.sink.writer import Written, prepare, write_rows
from qworker.wire.keys import QueueKeys

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["BulkStreamWriter"]

#: Properties that Spark sets in the tasks of a stream. Not documented, so their absence is an error, never a guess.
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"

_log = structlog.get_logger(__name__)


class BulkStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream; the write id of a batch is `<query id>:<batch id>`.

    A batch that Spark replays (its commit was lost) finds its ledger and stores nothing twice. The ledger of a batch
    is kept for 30 days, or `writeIdTtl`, and deleted when the batch after it is committed.
    """

    def __init__(
        self, options: Mapping[str, str], schema: StructType, overwrite: bool = False
    ) -> None:
        """Check the write, on the driver. Raises `InvalidOptionError`."""
        self._prepared = prepare(options, schema, overwrite)
        for name in ("write_id", "report", "partitions"):
            if getattr(self._prepared.options, name):
                raise InvalidOptionError(
                    f"option {name.replace('_id', 'Id')}",
                    "cannot be used with a stream",
                    "each batch has its own write id; leave it out",
                )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition of one batch. Raises `InvalidOptionError` if Spark does not say which batch it is."""
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if not query or batch is None:
            raise InvalidOptionError(
                "stream",
                f"this Spark does not set {_QUERY} and {_BATCH} in its tasks, so a replay would store rows twice",
                "write in foreachBatch, with a writeId made of the query's name and the batch id",
            )
        written = write_rows(
            self._prepared,
            iterator,
            write_id=_write_id(query, int(batch)),
            run_id="stream",
            partition=context.partitionId(),
            kept_ms=self._prepared.options.write_id_ttl_ms or STREAM_KEPT_MS,
        )
        written.query = query
        return written

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Delete the ledgers of the previous batch: Spark replays only the last one."""
        written = [message for message in messages if isinstance(message, Written)]
        sent = [message.done for message in written if isinstance(message.done, BulkSent)]
        queues = {queue for task in sent for queue in task.rows}
        query = next((message.query for message in written if message.query), "")
        if not queues or not query or batchId == 0:
            return
        namespace, write_id = self._prepared.options.namespace, _write_id(query, batchId - 1)
        try:
            with Client(self._prepared.connections) as client:
                for queue in sorted(queues):
                    keys = QueueKeys(namespace, queue)
                    shards = client.execute(raw("HGET", keys.bulk(write_id), SHARDS))
                    # The first one last: it names the others.
                    for ledger in reversed(ledgers_of(namespace, queue, write_id, shards)):
                        client.execute(raw("UNLINK", ledger, decode=int))
        except QworkerError as error:
            # They expire; an error here would only replay a batch that is stored.
            _log.warning("bulk_ledger_kept", error=str(error))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log it: messages that are stored stay, and the replay of the batch adds the rest."""
        _log.warning("bulk_batch_failed", batch=batchId)


def _write_id(query: str, batch: int) -> str:
    return f"{query}:{batch}"
