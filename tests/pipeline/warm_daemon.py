"""Spark's daemon of Python workers, with all that these need imported: `spark.python.daemon.module` of the tests.

Spark's own imports nothing before it forks, for pandas and pyarrow may start threads, which a fork would lose. So each
worker, of which a failed task costs one and each plan of a source another, takes most of a second to begin.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Final

#: What tasks and plans of the data source import, in turn.
_IMPORTED: Final = (
    "pandas",
    "pyarrow",
    "qworker.pipeline.datasource",
    "qworker.pipeline.sink.writer",
    "qworker.pipeline.source.stream",
    "qworker.pipeline.source.snapshots",
)


def main() -> None:
    """Import with one thread, and serve as Spark's daemon does."""
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    worker = sys.argv[1] if len(sys.argv) > 1 else "pyspark.worker"
    for name in (worker, *_IMPORTED):
        importlib.import_module(name)
    tasks = Path("/proc/self/task")
    assert not tasks.is_dir() or len([*tasks.iterdir()]) == 1, "a fork would lose threads"
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
