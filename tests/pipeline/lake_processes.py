"""Processes that write into an archive until they are killed, without Spark: what its driver and tasks do, in one.

python -m tests.pipeline.lake_processes archive LAKE URL NAMESPACE         batches of the journal, as they come
python -m tests.pipeline.lake_processes tidy LAKE                          compaction and vacuum, again and again

Each writes a line when it begins.
"""

from __future__ import annotations

import secrets
import sys
import time
from typing import Any

from qworker.pipeline.jobs import archive
from qworker.pipeline.jobs.compact import compact, plan, vacuum
from qworker.pipeline.jobs.files import EventFile, write_events
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.store import AnyPath


def _write(spark: Any, reader: Any, parts: list[Any], root: AnyPath) -> list[EventFile]:
    """Do the work of the tasks of a batch, one after the other."""
    files = []
    for part in parts:
        files += write_events(reader.read(part), root, name=f"part-{secrets.token_hex(16)}")
    return files


def main(job: str, root: str, *source: str) -> None:
    lake = Lake(root)
    if job == "tidy":
        print("begun", flush=True)
        while True:
            compact(lake, plan(lake))
            vacuum(lake)
            time.sleep(0.02)
    archive._write = _write  # type: ignore[assignment]
    options = {"url": source[0], "namespace": source[1], "maxEntriesPerTrigger": "50"}
    archiver = archive.Archiver(None, lake, options)  # type: ignore[arg-type]
    print("begun", flush=True)
    while True:
        if archiver.archive_batch() is None:
            time.sleep(0.005)


if __name__ == "__main__":
    main(*sys.argv[1:])
