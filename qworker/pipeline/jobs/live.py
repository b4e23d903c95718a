"""The tables of a server, read in the driver while they have few rows; and few events of it and of an archive.

Spark starts a process of Python to plan a read and others to carry it out, which takes longer than few rows do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from qworker.pipeline.failures import clear_errors
from qworker.pipeline.jobs.local import table_frame
from qworker.pipeline.session import session_of_few
from qworker.pipeline.source.schemas import arrow_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["few_frame", "read_live"]


def read_live(source: Mapping[str, str], name: str, most: int) -> pa.Table | None:
    """Read a table of the data source with its options `source`; None if it has more than `most` rows.

    Raises `QworkerError`, as a read by Spark does.
    """
    import pyarrow as pa
    from pyspark.sql.datasource import CaseInsensitiveDict

    from qworker.pipeline.datasource import QWorkerDataSource

    if most < 0:
        return None
    options = {**source, "table": name, "minPartitions": "1"}
    with clear_errors():
        asked = QWorkerDataSource(CaseInsensitiveDict(options))
        reader: Any = asked.reader(asked.schema())
        schema, batches, rows = arrow_of(name), list[pa.RecordBatch](), 0
        for partition in reader.partitions():
            with closing(reader.read(partition)) as found:
                for batch in found:
                    rows += len(batch)
                    if rows > most:
                        return None
                    batches.append(batch)
        return pa.Table.from_batches([batch.cast(schema) for batch in batches], schema)


def few_frame(
    spark: SparkSession, stored: pa.Table | None, live: Sequence[pa.RecordBatch]
) -> DataFrame:
    """Make the frame of few events, of the archive and of the live journal."""
    import pyarrow as pa

    schema = arrow_of("journal")

    def part(batch: pa.RecordBatch, is_live: bool) -> pa.RecordBatch:
        columns = [batch.column(each.name).cast(each.type) for each in schema]
        marks = pa.repeat(pa.scalar(is_live), len(batch))
        return pa.RecordBatch.from_arrays([*columns, marks], [*schema.names, "live"])

    parts = [
        part(batch, is_live=False) for batch in ([] if stored is None else stored.to_batches())
    ]
    parts += [part(batch, is_live=True) for batch in live]
    table = pa.Table.from_batches(parts, schema.append(pa.field("live", pa.bool_())))
    return table_frame(session_of_few(spark), table)
