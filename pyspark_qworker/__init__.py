"""Registers the data source `qworker`: Spark imports every top-level module named `pyspark_…`."""

from qworker.pipeline.datasource import QWorkerDataSource as DefaultSource

__all__ = ["DefaultSource"]
