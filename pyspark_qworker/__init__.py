"""Where Spark finds the data source `qworker` by itself: it imports every top-level module named `pyspark_…`."""

from qworker.pipeline.source.datasource import QWorkerDataSource as DefaultSource

__all__ = ["DefaultSource"]
