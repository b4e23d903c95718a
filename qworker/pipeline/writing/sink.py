"""The sink of a stream: every row of every batch once, also when Spark replays a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import structlog
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from qworker.client.commands.command import Command
from qworker.client.sync import Client
from qworker.errors import InvalidOptionError, QworkerError
from qworker.pipeline.writing.options import STREAM_KEPT_MS
from qworker.pipeline.writing.pushing import Pushed
from qworker.pipeline.writing.writer import Written, prepare, write_rows
from qworker.store.connection import ConnectionFactory
from qworker.wire.keys import QueueKeys

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["BulkStreamWriter"]

#: What Spark tells the tasks of a stream. Not documented, so their absence is an error, never a guess.
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"

_log = structlog.get_logger(__name__)


class BulkStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream; the write id of a batch is `<query id>:<batch id>`.

    A batch that Spark replays (its commit was lost) finds its ledger and stores nothing twice. The ledger of a batch
    is kept for 30 days, or `writeIdTtl`, and goes when the batch after it is committed.
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
                    "is not for a stream",
                    "each batch has a write id of its own; leave it out",
                )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition of one batch. Raises `InvalidOptionError` where Spark does not tell which batch."""
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if not query or batch is None:
            raise InvalidOptionError(
                "stream",
                f"this Spark does not tell its tasks {_QUERY} and {_BATCH}, so a replay would double rows",
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
        """Forget the ledgers of the batch before: Spark replays no batch before the last one."""
        written = [each for each in messages if isinstance(each, Written)]
        queues = {
            queue for each in written if isinstance(each.done, Pushed) for queue in each.done.rows
        }
        query = next((each.query for each in written if each.query), "")
        if not queues or not query or batchId == 0:
            return
        namespace, write_id = self._prepared.options.namespace, _write_id(query, batchId - 1)
        ledgers = [QueueKeys(namespace, queue).bulk(write_id) for queue in sorted(queues)]
        try:
            with Client(ConnectionFactory(self._prepared.server, name="qworker-spark")) as client:
                for ledger in ledgers:
                    client.execute(Command(None, (), ("UNLINK", ledger), int))
        except QworkerError as error:
            # They expire; failing here would only replay a batch that is stored.
            _log.warning("bulk_ledger_kept", error=str(error))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: what was written stays, and the replay of the batch adds the rest."""
        _log.warning("bulk_batch_failed", batch=batchId)


def _write_id(query: str, batch: int) -> str:
    return f"{query}:{batch}"
