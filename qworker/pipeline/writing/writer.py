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

from qworker.errors import InvalidOptionError
from qworker.pipeline.writing.failures import marked_errors
from qworker.pipeline.writing.letters import Changed, LetterChanger, add_up
from qworker.pipeline.writing.options import KEPT_MS, WriteOptions
from qworker.pipeline.writing.pushing import Identity, Pushed, Pusher
from qworker.pipeline.writing.rows import RowReader, check_columns
from qworker.pipeline.writing.totals import read_totals
from qworker.wire.key_options import keys_of_environment

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from qworker.store.url import ServerURL

__all__ = ["BulkWriter", "Prepared", "Written", "prepare", "totals_of", "write_rows"]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A write as the driver has checked it, in a form that goes to the tasks."""

    options: WriteOptions
    server: ServerURL
    ordered: bool


class Written(WriterCommitMessage):
    """What one task did; of a stream also for which query."""

    def __init__(self, done: Pushed | Changed) -> None:
        self.done = done
        self.query = ""


def _check_unprotected() -> None:
    """Raise `InvalidOptionError` where messages are to be signed or encrypted: rows are not."""
    if keys_of_environment():
        raise InvalidOptionError(
            "QWORKER_KEYS_FILE",
            "is set, and rows that Spark sends are neither signed nor encrypted",
            "leave it out to send them so, or send by `qworker send`",
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
    columns = {each.name: each.dataType.simpleString() for each in schema.fields}
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
    """Do what one attempt of a task does with its batches. Raises `TaskFailedError`."""
    options = prepared.options
    with marked_errors():
        if options.action != "send":
            return Written(LetterChanger(prepared.server, options).change(partition, batches))
        identity = Identity(write_id, run_id, partition, kept_ms, prepared.ordered)
        reader = RowReader(options, partition)
        with Pusher(prepared.server, options, identity) as pusher:
            for batch in batches:
                for group in reader.read(batch):
                    pusher.add(group)
            return Written(pusher.finish())


def totals_of(
    prepared: Prepared, write_id: str, run_id: str, messages: list[WriterCommitMessage | None]
) -> dict[str, Any]:
    """Add up what the tasks did; for a send, read from the ledgers what was stored."""
    done = [each.done for each in messages if isinstance(each, Written)]
    options = prepared.options
    if options.action != "send":
        return add_up(options.action, [each for each in done if isinstance(each, Changed)])
    pushed = [each for each in done if isinstance(each, Pushed)]
    return read_totals(prepared.server, options.namespace, write_id, run_id, pushed)


class BulkWriter(DataSourceArrowWriter):
    """Writes a DataFrame. Made on the driver, where everything that can be wrong beforehand is found."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, overwrite: bool = False
    ) -> None:
        """Check the write; a write id that is not given is drawn here. Raises `InvalidOptionError`."""
        self._prepared = prepare(options, schema, overwrite)
        self._write_id = self._prepared.options.write_id or str(uuid.uuid4())
        self._run_id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition; a repetition of the task writes what the first attempt did not."""
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
        """Write the totals to the file that the option `report` names."""
        if self._prepared.options.report is not None:
            totals = totals_of(self._prepared, self._write_id, self._run_id, messages)
            Path(self._prepared.options.report).write_text(json.dumps(totals) + "\n", "utf-8")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Say how to go on: what was written stays, and a run under the same write id adds the rest."""
        _log.warning(
            "bulk_write_failed", action=self._prepared.options.action, write_id=self._write_id
        )
