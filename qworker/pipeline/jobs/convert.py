"""Makes an archive of the first layout a Delta table, in place: its files get new names, and one commit adds them.

OUT/queue=emails/day=2031-05-04/batch=20310504T101512-3f9a1c07/part-….parquet
OUT/_offsets.json, OUT/_work/, OUT/_lock
"""

from __future__ import annotations

import json
import os
import shutil
from datetime import date
from pathlib import Path

from pyarrow import ArrowException

from qworker.errors import ArchiveDamagedError, InvalidOptionError
from qworker.pipeline.jobs.files import EventFile, event_file
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.table import create_table

__all__ = ["convert"]


def convert(lake: Lake, namespace: str) -> int:
    """Convert it; returns the number of its files. Files have both names until they are committed.

    Raises `InvalidOptionError` if it is not of the first layout, or a killed writer left a change unfinished;
    `ArchiveDamagedError` for a file that cannot be read.
    """
    root = lake.root
    if not isinstance(root, Path):
        raise InvalidOptionError(
            "--archive",
            f"{str(root)!r} is a URL, and earlier versions archived into directories",
            "convert the directory, then copy all of it to the store",
        )
    batches = sorted(root.glob("queue=*/day=*/batch=*"))
    if not batches:
        raise InvalidOptionError(
            "--archive", f"{str(root)!r} is not an archive of an earlier version", "name one"
        )
    if next(root.glob("_work/*/commit"), None) is not None:
        raise InvalidOptionError(
            "--archive",
            f"{str(root)!r} has a change that a killed writer did not finish",
            "run qworker spark compact of the version that wrote it",
        )
    if not (root / "_delta_log").is_dir() or not lake.last():
        create_table(root, namespace)
        lake.check_namespace(namespace)
        offsets = root / "_offsets.json"
        noted = json.loads(offsets.read_text(encoding="utf-8")) if offsets.exists() else None
        files = [file for batch in batches for file in sorted(batch.glob("*.parquet"))]
        lake.commit([_named_anew(file) for file in files], after=0, offsets=noted)
    for batch in batches:
        shutil.rmtree(batch)
    for name in ("_offsets.json", "_offsets.draft", "_lock"):
        (root / name).unlink(missing_ok=True)
    shutil.rmtree(root / "_work", ignore_errors=True)
    return len(lake.files())


def _named_anew(file: Path) -> EventFile:
    """Give a file its new name beside the old one."""
    batch, day = file.parent, file.parents[1]
    path = day / f"{batch.name[6:]}-{file.name}"
    path.unlink(missing_ok=True)  # A conversion that was killed.
    os.link(file, path)
    try:
        return event_file(path, day.parent.name[6:], date.fromisoformat(day.name[4:]))
    except (ArrowException, OSError) as error:
        path.unlink()
        raise ArchiveDamagedError(str(file), "not a whole Parquet file") from error
