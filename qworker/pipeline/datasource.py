"""The data source `qworker`, as Spark sees it.

    spark.read.format("qworker").option("table", "dead").load()
    spark.readStream.format("qworker").option("readerName", "archive").load()
    df.write.format("qworker").option("queue", "emails").mode("append").save()

Parameter names of the methods are Spark's: it calls them by keyword.
"""

from __future__ import annotations

from functools import cached_property

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from qworker.pipeline.source.options import ReadOptions

__all__ = ["QWorkerDataSource"]


class QWorkerDataSource(DataSource):
    """The tables journal, queues, messages and dead of a namespace, and bulk writes to its queues."""

    @classmethod
    def name(cls) -> str:
        """Name the format."""
        return "qworker"

    @cached_property
    def _read(self) -> ReadOptions:
        return ReadOptions.of(self.options)

    def schema(self) -> StructType:
        """Return the columns of the table in the options. Raises `InvalidOptionError`."""
        from qworker.pipeline.source.schemas import struct_of

        return struct_of(self._read.table, include_body=self._read.include_body)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader of a batch."""
        if self._read.table == "journal":
            from qworker.pipeline.source.stream import JournalReader

            return JournalReader(self._read)
        from qworker.pipeline.source.snapshots import SnapshotReader

        return SnapshotReader(self._read)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Make the reader of a stream. Raises `InvalidOptionError` for a table other than the journal."""
        from qworker.pipeline.source.stream import JournalStreamReader

        return JournalStreamReader(self._read)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Make the writer of a batch."""
        from qworker.pipeline.sink.writer import BulkWriter

        return BulkWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Make the writer of a stream's batches."""
        from qworker.pipeline.sink.stream import BulkStreamWriter

        return BulkStreamWriter(self.options, schema, overwrite)
