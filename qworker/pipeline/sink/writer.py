"""The batch writer of the data source `qworker`: rows into queues, or dead letters out of them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from qworker.bulk.rows import RowReader
from qworker.bulk.sender import BulkSender, BulkSent, Identity
from qworker.bulk.totals import read_totals
from qworker.config.files import file_for_apps
from qworker.errors import InvalidOptionError
from qworker.pipeline.failures import marked_errors
from qworker.pipeline.sink.columns import check_columns
from qworker.pipeline.sink.dead_letters import AttemptResult, DeadLetterChanger, add_up
from qworker.pipeline.sink.options import KEPT_MS, WriteOptions
from qworker.store.connections import ConnectionFactory
from qworker.wire.key_options import keys_of_environment

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from qworker.store.url import ServerURL

__all__ = ["BulkWriter", "Prepared", "Written", "prepare", "totals_of", "write_rows"]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A write that the driver has checked, in a form that is sent to the tasks."""

    options: WriteOptions
    server: ServerURL
    ordered: bool

    @property
    def connections(self) -> ConnectionFactory:
        """Connections to the server, named for `CLIENT LIST`."""
        return ConnectionFactory(self.server, name="qworker-spark")


class Written(WriterCommitMessage):
    """The result of one task; in a stream also its query."""

    def __init__(self, done: BulkSent | AttemptResult) -> None:
        self.done = done
        self.query = ""


def _check_unprotected() -> None:
    """Raise `InvalidOptionError` if messages have to be signed or encrypted: rows are not."""
    if keys_of_environment(file=file_for_apps()):
        raise InvalidOptionError(
            "QWORKER_KEYS_FILE",
            "or keys_file of the configuration is set, and Spark neither signs nor encrypts the rows it sends",
            "unset it to send them without either, or use `qworker send`",
        )


def prepare(options: Mapping[str, str], schema: StructType, overwrite: bool) -> Prepared:
    """Check options, columns and save mode, on the driver. Raises `InvalidOptionError`."""
    if overwrite:
        raise InvalidOptionError(
            "save mode",
            "overwrite would have to purge queues",
            'use mode("append"); qworker queue purge deletes messages',
        )
    checked = WriteOptions.of(options)
    if checked.action == "send":
        _check_unprotected()
    columns = {field.name: field.dataType.simpleString() for field in schema.fields}
    check_columns(columns, checked)
    ordered = checked.idempotence == "ledger" or (
        checked.idempotence == "auto" and "id" not in columns
    )
    return Prepared(checked, checked.server(), ordered)


def write_rows(
    prepared: Prepared,
    batches: Iterator[pa.RecordBatch],
    *,
    write_id: str,
    run_id: str,
    partition: int,
    kept_ms: int,
) -> Written:
    """Write the batches of one attempt of a task. Raises `SparkTaskError`."""
    options = prepared.options
    with marked_errors():
        if options.action != "send":
            return Written(DeadLetterChanger(prepared.server, options).change(partition, batches))
        identity = Identity(write_id, run_id, partition, kept_ms, prepared.ordered)
        reader = RowReader(options.bulk, partition)
        with BulkSender(prepared.connections, options.bulk, identity) as sender:
            for batch in batches:
                for group in reader.read(batch):
                    sender.add(group)
            return Written(sender.finish())


def totals_of(
    prepared: Prepared, write_id: str, run_id: str, messages: list[WriterCommitMessage | None]
) -> dict[str, Any]:
    """Add up the results of the tasks; for a send, the ledgers count the stored messages."""
    done = [message.done for message in messages if isinstance(message, Written)]
    options = prepared.options
    if options.action != "send":
        return add_up(options.action, [task for task in done if isinstance(task, AttemptResult)])
    sent = [task for task in done if isinstance(task, BulkSent)]
    return read_totals(prepared.connections, options.namespace, write_id, run_id, sent)


class BulkWriter(DataSourceArrowWriter):
    """Writes a DataFrame. The driver makes it, and checks all that can be checked before the write."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, overwrite: bool = False
    ) -> None:
        """Check the write, and draw a write id unless one is given. Raises `InvalidOptionError`."""
        self._prepared = prepare(options, schema, overwrite)
        self._write_id = self._prepared.options.write_id or str(uuid.uuid4())
        self._run_id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition; a repeated task writes the rest of the first attempt."""
        context = TaskContext.get()
        assert context is not None
        return write_rows(
            self._prepared,
            iterator,
            write_id=self._write_id,
            run_id=self._run_id,
            partition=context.partitionId(),
            kept_ms=self._prepared.options.write_id_ttl_ms or KEPT_MS,
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write the totals to the file of the option `report`."""
        if self._prepared.options.report is not None:
            totals = totals_of(self._prepared, self._write_id, self._run_id, messages)
            Path(self._prepared.options.report).write_text(json.dumps(totals) + "\n", "utf-8")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the write id: messages that are stored stay, and a run under the same id adds the rest."""
        _log.warning(
            "bulk_write_failed", action=self._prepared.options.action, write_id=self._write_id
        )
